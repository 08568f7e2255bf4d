"""Every public name is exported, typed, documented and tested."""

import ast
import inspect
import pathlib
import re

import pytest

import gpumem

HERE = pathlib.Path(__file__).parent
STUB = pathlib.Path(gpumem.__file__).with_name("__init__.pyi")
CORE_STUB = STUB.with_name("_core.pyi")
DOCS = HERE.parents[1] / "docs" / "api.md"


def names_in(stub):
    names = set()
    for node in ast.parse(stub.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets}
        elif isinstance(node, ast.AnnAssign):
            names.add(node.target.id)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
    return names


def test_all_and_the_stub_agree():
    assert len(gpumem.__all__) == len(set(gpumem.__all__))
    assert set(gpumem.__all__) == names_in(STUB)


def test_every_option_is_documented():
    for name in gpumem.config.OPTIONS:
        assert f"| `{name}` |" in DOCS.read_text(), name


@pytest.mark.parametrize("name", sorted(gpumem.__all__))
def test_public_name_is_documented_and_tested(name):
    value = getattr(gpumem, name)
    if name != "__version__":
        assert inspect.getdoc(value), f"{name} has no docstring"
    assert f"`{name}`" in DOCS.read_text(), f"{name} is not in {DOCS.name}"
    tests = "\n".join(path.read_text() for path in HERE.glob("**/test_*.py"))
    assert re.search(rf"\bgpumem\.{name}\b|import .*\b{name}\b", tests), name


def test_core_and_its_stub_agree():
    from gpumem import _core

    have = {n for n in dir(_core) if not n.startswith("_") or n == "__version__"}
    typed = names_in(CORE_STUB) - {
        "Any", "Callable", "Final", "Iterator", "Literal", "NoReturn", "Self",
        "Sequence", "TracebackType", "final",
    }  # fmt: skip
    assert have == typed


@pytest.mark.parametrize(
    "node",
    [
        node
        for node in ast.parse(CORE_STUB.read_text()).body
        if isinstance(node, ast.ClassDef)
    ],
    ids=lambda node: node.name,
)
def test_members_of_core_types_and_their_stub_agree(node):
    from gpumem import _core

    kind = getattr(_core, node.name)
    if issubclass(kind, BaseException | Warning):
        return
    typed = {n.name for n in node.body if isinstance(n, ast.FunctionDef)}
    have = {n for n in vars(kind) if not n.startswith("_")}
    assert have == {n for n in typed if not n.startswith("_")}
    assert {n for n in typed if n.startswith("__")} <= set(dir(kind)) | {"__buffer__"}


def test_errors_are_one_family():
    assert issubclass(gpumem.GpumemError, RuntimeError)
    assert issubclass(gpumem.OutOfMemoryError, gpumem.GpumemError)
    assert issubclass(gpumem.OutOfMemoryError, MemoryError)
    assert issubclass(gpumem.CudaError, gpumem.GpumemError)
    assert issubclass(gpumem.ReleasedError, gpumem.GpumemError)
    assert issubclass(gpumem.GpumemWarning, UserWarning)
    error = gpumem.CudaError("text")
    assert (error.code, error.name, error.call) == (0, "", "")


def test_objects_are_of_the_public_types(pool):
    assert type(pool) is gpumem.Pool
    assert type(pool.device) is gpumem.Device
    assert type(pool.empty(1)) is gpumem.Buffer
    assert type(gpumem.pinned_empty(1)) is gpumem.PinnedArray
    with gpumem.Stream(pool.device) as stream:
        assert type(stream.record()) is gpumem.Event
    pin = gpumem.pin(bytearray(4096))
    assert type(pin) is gpumem.Pin
    pin.close()


def test_scope_is_the_type_and_current_scope_the_innermost():
    assert gpumem.scope is gpumem.Scope
    assert gpumem.current_scope() is None
    with gpumem.scope("outer"), gpumem.scope("inner") as inner:
        assert gpumem.current_scope() is inner


def test_version_is_that_of_the_distribution():
    from importlib import metadata

    try:
        version = metadata.version("gpumem-alloc")
    except metadata.PackageNotFoundError:
        pytest.skip("not installed")
    assert gpumem.__version__ == version
