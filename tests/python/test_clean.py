"""Letting go of what is held by accident."""

import code
import gc
import sys
import types

import pytest

import gpumem

MIB = 1 << 20

SNIPPET = """
def broken():
    held = [gpumem.empty(10 << 20, name="held") for _ in range(3)]
    raise ValueError("it broke")
broken()
"""


@pytest.fixture
def last_error():
    """What the interpreter keeps of the last error, and it again afterwards."""
    names = ("last_exc", "last_type", "last_value", "last_traceback")
    former = {name: getattr(sys, name) for name in names if hasattr(sys, name)}
    yield
    for name in names:
        if hasattr(sys, name):
            delattr(sys, name)
    for name, value in former.items():
        setattr(sys, name, value)


def test_clean_cuts_the_last_traceback(device, last_error, capsys):
    console = code.InteractiveInterpreter({"gpumem": gpumem})
    console.runcode(compile(SNIPPET, "<snippet>", "exec"))
    assert gpumem.empty_cache().referenced == 30 * MIB
    assert gpumem.clean().referenced == 30 * MIB
    report = gpumem.clean(tracebacks=True)
    assert report.referenced == gpumem.memory_allocated() == 0
    assert report.used_before == 30 * MIB
    assert report.released == 30 * MIB
    assert report.tracebacks >= 1
    assert isinstance(sys.last_value, ValueError)
    assert str(sys.last_value) == "it broke"
    assert "it broke" in capsys.readouterr().err


def test_clean_follows_causes_contexts_and_groups(device, last_error):
    def inner():
        held = gpumem.empty(MIB)
        raise KeyError(held.nbytes)

    def outer():
        held = gpumem.empty(MIB)
        try:
            inner()
        except KeyError as error:
            raise ValueError(held.nbytes) from error

    caught = []
    for function in (inner, outer):
        try:
            function()
        except Exception as error:
            caught.append(error)
    group = ExceptionGroup("both", caught)
    caught.clear()
    sys.last_value = group
    del group
    gc.collect()
    assert gpumem.memory_allocated() == 3 * MIB
    gpumem.clean(tracebacks=True)
    assert gpumem.memory_allocated() == 0
    assert len(sys.last_value.exceptions) == 2


def fake_shell(buffer):
    other = [1, 2, 3]
    results = {4: buffer, 5: other}
    user = {"Out": results, "_oh": results, "_": buffer, "__": [buffer], "_4": buffer}
    user |= {"_5": other, "kept": {"a": buffer}, "_private": other, "___": other}
    return types.SimpleNamespace(user_ns=user, user_ns_hidden={"_4": buffer, "x": 1})


def test_clean_drops_displayed_results_that_hold_buffers(device):
    buffer = gpumem.empty(MIB)
    shell = fake_shell(buffer)
    del buffer
    del shell.user_ns["kept"]
    assert gpumem.clean(shell=shell).referenced == MIB
    assert len(shell.user_ns) == 8
    report = gpumem.clean(notebook=True, shell=shell)
    assert report.referenced == 0
    assert shell.user_ns["Out"] == {5: [1, 2, 3]}
    assert set(shell.user_ns) == {"Out", "_oh", "_5", "_private", "___"}
    assert shell.user_ns_hidden == {"x": 1}
    assert set(report.names) == {"Out[4]", "_", "__", "_4"}


def test_clean_leaves_variables_of_the_user(device):
    buffer = gpumem.empty(MIB)
    shell = fake_shell(buffer)
    del buffer
    assert gpumem.clean(notebook=True, shell=shell).referenced == MIB
    assert shell.user_ns["kept"]["a"].nbytes == MIB
    shell.user_ns.clear()


def test_clean_finds_buffers_in_objects_and_behind_views(device):
    class Model:
        def __init__(self):
            self.layers = {"first": (gpumem.empty(MIB),)}

    view = memoryview(gpumem.empty(MIB))
    shell = types.SimpleNamespace(user_ns={"_1": Model(), "_2": view, "_3": "text"})
    del view
    gpumem.clean(notebook=True, shell=shell)
    assert shell.user_ns == {"_3": "text"}
    assert gpumem.memory_allocated() == 0


def test_clean_drops_the_console_s_last_result(device, monkeypatch):
    import builtins

    monkeypatch.setattr(builtins, "_", gpumem.empty(MIB), raising=False)
    report = gpumem.clean(notebook=True)
    assert report.names == ("builtins._",)
    assert gpumem.memory_allocated() == 0
    builtins._ = None


def test_clean_works_with_ipython(device):
    shells = pytest.importorskip("IPython.core.interactiveshell")
    shell = shells.InteractiveShell()
    shell.user_ns["gpumem"] = gpumem
    shell.run_cell("gpumem.empty(1 << 20)", store_history=True)
    assert gpumem.memory_allocated() == MIB
    gpumem.clean(notebook=True, shell=shell)
    assert gpumem.memory_allocated() == 0


def test_clean_collects_cycles(device):
    class Node:
        pass

    gc.disable()
    try:
        node = Node()
        node.me, node.buffer = node, gpumem.empty(2 * MIB)
        del node
        report = gpumem.clean()
    finally:
        gc.enable()
    assert report.released == 2 * MIB
    assert report.collected >= 1


def test_clean_reports_what_the_device_says(device):
    gpumem.empty(4 * MIB).free()
    device.occupy(10 * MIB)
    report = gpumem.clean()
    assert isinstance(report, gpumem.CleanReport)
    assert report.released == report.trimmed == 4 * MIB
    assert "4.00 MiB released" in repr(report)
    assert report.to_dict()["names"] == []
    assert "<table" in report._repr_html_()
    device.occupy(0)


@pytest.mark.parametrize("wait", [-1, "1", float("nan")])
def test_clean_refuses_a_bad_wait(wait):
    with pytest.raises((TypeError, ValueError), match="wait must be"):
        gpumem.clean(wait=wait)
