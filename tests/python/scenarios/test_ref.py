"""Scenarios of live references: tracebacks, notebooks, cycles, hooks."""

import code
import gc
import importlib.util
import os
import subprocess
import sys
import types
import weakref

import pytest

import gpumem
from gpumem import Pool, testing

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def used(pool):
    return pool.stats()["allocated_bytes.all.current"]


def reserved(pool):
    return pool.stats()["reserved_bytes.all.current"]


class Node:
    """Something that refers to itself and holds buffers."""

    def __init__(self, *buffers):
        self.buffers = buffers
        self.me = self


@pytest.mark.parametrize("paging", [False, True], ids=["segments", "pages"])
def test_ref_01_the_caught_error_adds_nothing(paging, no_gc):
    def step():
        held = [pool.empty(100 * MIB) for _ in range(4)]
        held.append(pool.empty(100 * MIB))

    device = testing.device("host", capacity="450 MiB", paging=paging)
    seen = []
    with Pool(device) as pool:
        try:
            step()
        except gpumem.OutOfMemoryError as e:
            for value in (*e.args, *vars(e).values()):
                seen += [value] if not isinstance(value, tuple) else sum(value, ())
            held_by_error = gc.get_referents(e)
            in_handler = used(pool)
            buffers = [x for x in held_by_error if isinstance(x, gpumem.Buffer)]
            del held_by_error
        assert in_handler == 400 * MIB
        assert buffers == []
        assert "shortage" in seen
        assert {type(value) for value in seen} <= {int, str, bool, type(None)}
        assert used(pool) == 0
        assert pool.empty(400 * MIB).nbytes == 400 * MIB
        assert not gc.isenabled()


SNIPPET = """
def broken():
    held = [gpumem.empty(10 << 20) for _ in range(3)]
    raise ValueError("it broke")
broken()
"""


@pytest.fixture
def last_error():
    """What the interpreter keeps of the last error is as it was afterwards."""
    names = ("last_exc", "last_type", "last_value", "last_traceback")
    former = {name: getattr(sys, name) for name in names if hasattr(sys, name)}
    yield
    for name in names:
        if hasattr(sys, name):
            delattr(sys, name)
    for name, value in former.items():
        setattr(sys, name, value)


def test_ref_03_the_last_traceback_is_cut_on_request(device, last_error, capsys):
    console = code.InteractiveInterpreter({"gpumem": gpumem})
    console.runcode(compile(SNIPPET, "<console>", "exec"))
    assert "it broke" in capsys.readouterr().err
    report = gpumem.empty_cache()
    assert gpumem.memory_allocated() == 30 * MIB
    assert report.referenced == 30 * MIB
    assert "30.00 MiB still referenced" in repr(report)
    gpumem.clean(tracebacks=True)
    assert gpumem.memory_allocated() == 0
    assert type(sys.last_value) is ValueError
    assert str(sys.last_value) == "it broke"


def test_ref_04_displayed_results_are_dropped_on_request(device):
    buffer = gpumem.empty(MIB)
    other = {"rows": [1, 2, 3]}
    results = {4: buffer, 7: other}
    names = {"Out": results, "_": buffer, "__": buffer, "_4": buffer}
    names |= {"_7": other, "x": 12, "_private": "text", "__name__": "__main__"}
    shell = types.SimpleNamespace(
        user_ns=names, user_ns_hidden={"_4": buffer, "_i4": "gpumem.empty(1 << 20)"}
    )
    del buffer
    before = [dict(results), dict(names), dict(shell.user_ns_hidden)]
    gpumem.clean(shell=shell)
    assert [results, names, shell.user_ns_hidden] == before
    assert gpumem.memory_allocated() == MIB
    before.clear()

    gpumem.clean(notebook=True, shell=shell)
    assert gpumem.memory_allocated() == 0
    assert results == {7: other}
    assert names == {
        "Out": results,
        "_7": other,
        "x": 12,
        "_private": "text",
        "__name__": "__main__",
    }
    assert shell.user_ns_hidden == {"_i4": "gpumem.empty(1 << 20)"}


IPYTHON = """
import gpumem
from IPython.core.interactiveshell import InteractiveShell

gpumem.device("host:0", capacity="64 MiB")
shell = InteractiveShell.instance(user_ns={"gpumem": gpumem})
for cell in (
    "gpumem.empty(1 << 20)",
    "'text'",
    "buffer = gpumem.empty(2 << 20)",
    "buffer",
    "del buffer",
    "40 + 2",
):
    shell.run_cell(cell, store_history=True).raise_error()
names = shell.user_ns
gpumem.clean()
assert gpumem.memory_allocated() == 3 << 20
assert sorted(names["Out"]) == [1, 2, 4, 6]
gpumem.clean(notebook=True)
assert gpumem.memory_allocated() == 0
assert names["Out"] == {2: "text", 6: 42}
assert (names["_2"], names["_6"], names["_"]) == ("text", 42, 42)
assert names["gpumem"] is gpumem
"""


def test_ref_04_displayed_results_of_a_real_shell(tmp_path):
    if importlib.util.find_spec("IPython") is None:
        pytest.skip("IPython is not installed")
    result = subprocess.run(
        [sys.executable, "-c", IPYTHON],
        env={**os.environ, "IPYTHONDIR": os.fspath(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_ref_06_garbage_in_cycles_is_collected_before_failing(no_gc):
    with Pool(testing.device("host", capacity=GIB)) as pool:
        for _ in range(100):
            Node(pool.empty(40 * MIB))
        stats = pool.stats()
        assert 3 <= stats["collections"] <= 5
        assert stats["num_ooms"] == 0
        assert not gc.isenabled()


def test_ref_06_without_collections_the_error_says_so(no_gc):
    with Pool(testing.device("host", capacity=GIB), gc_on_pressure=False) as pool:
        for _ in range(25):
            Node(pool.empty(40 * MIB))
        with pytest.raises(gpumem.OutOfMemoryError) as info:
            Node(pool.empty(40 * MIB))
        assert info.value.collected is False
        assert "A garbage collection was not tried." in str(info.value)
        assert pool.stats()["collections"] == 0
        assert pool.stats()["num_ooms"] == 1
        del info
        gc.collect()


def test_ref_07_hooks_and_history_remember_no_buffer(no_gc):
    def inner():
        buffer = pool.empty(MIB, name="watched")
        return weakref.ref(buffer)

    events = []
    with (
        Pool(testing.device("host", capacity="8 MiB"), name="tested") as pool,
        gpumem.add_callback("alloc", events.append),
        gpumem.add_callback("free", events.append),
        gpumem.add_callback("oom", events.append),
    ):
        pool.record_history(1000, stacks=True)
        reference = inner()
        assert reference() is None
        with pytest.raises(gpumem.OutOfMemoryError):
            pool.empty(16 * MIB)
        assert used(pool) == 0
        assert len(events) == 3
        for event in events:
            assert all(type(value) in (int, str) for value in event.values())
        frames = [f for f in gc.get_objects() if isinstance(f, types.FrameType)]
        assert not [f for f in frames if f.f_code is inner.__code__]
        assert any(entry[5] for entry in pool.history()[0])


def graph_of_one_gib(pool):
    inner = [pool.empty(256 * MIB) for _ in range(3)]
    Node(inner, Node(pool.empty(256 * MIB)))


def test_ref_08_empty_cache_says_what_is_still_referenced(no_gc):
    with Pool(testing.device("host", capacity=2 * GIB)) as pool:
        graph_of_one_gib(pool)
        report = gpumem.empty_cache()
        assert report.released == 0
        assert report.referenced == GIB
        assert "1.00 GiB still referenced" in repr(report)
        report = gpumem.empty_cache(collect=True)
        assert report.released == GIB
        assert (used(pool), reserved(pool)) == (0, 0)


def test_ref_08_collecting_first_is_enough_alone(no_gc):
    with Pool(testing.device("host", capacity=2 * GIB)) as pool:
        graph_of_one_gib(pool)
        gpumem.empty_cache(collect=True)
        assert (used(pool), reserved(pool)) == (0, 0)
