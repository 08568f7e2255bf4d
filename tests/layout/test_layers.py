"""The layer table of docs/architecture.md as a test: who may include whom."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpumem import _core

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"

# Floor -> floors it may include, itself apart.
ALLOWED = {
    "base": set(),
    "device": {"base"},
    "heap": {"base"},
    "pool": {"base", "heap", "device"},
    "kernels": {"base", "device"},
    "include": set(),
    "capi": {"base", "device", "pool", "include"},
    "python": {"base", "device", "pool", "kernels", "capi"},
}

# Floors that are open to others only through these headers.
PUBLIC = {
    "pool": {"pool/pool.h", "pool/options.h", "pool/stats.h"},
    "python": set(),
}

# Headers of backends that only the device floor and the Python layer, which opens
# devices, may name; the pool and the kernels know the contract alone.
CONTRACT = {"device/device.h"}
CONTRACT_ONLY = {"pool", "kernels", "capi"}

# Where headers of other projects may be spelled.
FOREIGN = {
    "Python.h": {"python/python.h"},
    "structmember.h": {"python/python.h"},
    "numpy/": {"python/numpy.c"},
    "cuda": {"device/cudart.h"},
    "nvml": set(),
}

# Files longer than 600 lines, each with its reason.
LONG_FILES: dict[str, str] = {}

# Modules of the package that may import more at their top than the standard library;
# nothing but the command line imports them.
HEAVY_MODULES = {
    "demo.py": "the demo's own code: NumPy arithmetic over buffers",
    "_digits_model.py": "the model that the demo trains",
}

OWN_HEADER = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
SYSTEM_HEADER = re.compile(r"^\s*#\s*include\s+<([^>]+)>", re.M)
FUNCTION_END = re.compile(r"^}\s*$")

SOURCES = sorted(CSRC.rglob("*.[ch]"))


def name_of(path):
    return path.relative_to(CSRC).as_posix()


def floor_of(path):
    return path.relative_to(CSRC).parts[0]


every_source = pytest.mark.parametrize("path", SOURCES, ids=name_of)


def test_every_folder_is_a_floor():
    assert {floor_of(path) for path in SOURCES} == set(ALLOWED)


@every_source
def test_includes_stay_on_allowed_floors(path):
    floor = floor_of(path)
    for header in OWN_HEADER.findall(path.read_text()):
        assert (CSRC / header).is_file(), f"{header}: not a path from csrc/"
        target = header.split("/")[0]
        assert target == floor or target in ALLOWED[floor], header
        if target != floor and target in PUBLIC:
            assert header in PUBLIC[target], f"{header} is private to {target}"
        if floor in CONTRACT_ONLY and target == "device":
            assert header in CONTRACT, f"{header} is a backend's own"


@every_source
def test_foreign_headers_are_spelled_in_one_place(path):
    for header in SYSTEM_HEADER.findall(path.read_text()):
        for prefix, places in FOREIGN.items():
            if header.startswith(prefix):
                assert name_of(path) in places, header


@every_source
def test_floors_below_python_name_no_python_object(path):
    if floor_of(path) != "python":
        found = re.findall(r"\b_?Py[A-Z]?[a-z]*_\w+", path.read_text())
        assert found == []


@pytest.mark.parametrize("path", sorted((CSRC / "python").glob("*.c")), ids=name_of)
def test_python_files_include_the_seam_first(path):
    """By python.h, or by the header of a neighbour that includes it."""
    first = re.search(r'^\s*#\s*include\s+[<"]([^>"]+)', path.read_text(), re.M)
    assert first is not None
    assert first.group(1).startswith("python/")


@pytest.mark.parametrize("path", sorted(CSRC.rglob("*.h")), ids=name_of)
def test_headers_have_guards(path):
    guard = "GM_" + name_of(path).replace("/", "_").replace(".", "_").upper()
    text = path.read_text()
    found = re.search(r"^#ifndef (\w+)\n#define \1$", text, re.M)
    assert found is not None
    assert found.group(1) in {guard, "GPUMEM_H"}


@every_source
def test_files_open_with_what_they_are(path):
    """A source whose header says it may begin with that header."""
    text = path.read_text()
    header = path.with_suffix(".h")
    if path.suffix == ".c" and header.exists() and text.startswith("#include"):
        assert text.startswith(f'#include "{name_of(header)}"')
    else:
        assert text.startswith(f"/* {path.name} - ")


@every_source
def test_sources_are_not_included(path):
    assert re.findall(r'#\s*include\s+"[^"]+\.c"', path.read_text()) == []


def test_files_are_short():
    counted = [*SOURCES, *ROOT.glob("*.py")]
    for folder in ("tests/c", "tests/fakecuda", "benchmarks"):
        counted += ROOT.glob(f"{folder}/*.[ch]")
    for folder in ("gpumem", "tests", "benchmarks", "examples"):
        counted += (ROOT / folder).rglob("*.py")
    long = {
        path.relative_to(ROOT).as_posix(): count
        for path in counted
        if (count := len(path.read_text().splitlines())) > 600
    }
    assert set(long) == set(LONG_FILES), long


@every_source
def test_functions_fit_a_screen(path):
    start, long = 0, []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line == "{":
            start = number
        elif start and FUNCTION_END.match(line):
            if number - start - 1 > 60:
                long.append(f"line {start}: {number - start - 1} lines")
            start = 0
    assert long == []


def imported_names(nodes):
    """Top-level names of what `nodes` import; relative imports give nothing."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").split(".")[0]


def loads_at_import(tree):
    """The nodes that run when a module is imported: all but functions' bodies."""
    waiting = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "gpumem").rglob("*.py")), ids=lambda path: path.name
)
def test_modules_import_the_standard_library_and_the_package_alone(path):
    """Everything else is imported inside functions, and ctypes nowhere."""
    tree = ast.parse(path.read_text())
    assert "ctypes" not in set(imported_names(ast.walk(tree)))
    if path.name not in HEAVY_MODULES:
        allowed = set(sys.stdlib_module_names) | {"gpumem"}
        assert set(imported_names(loads_at_import(tree))) <= allowed


def test_heavy_modules_are_imported_inside_functions():
    heavy = {name.removesuffix(".py") for name in HEAVY_MODULES}
    for path in (ROOT / "gpumem").glob("*.py"):
        if path.name in HEAVY_MODULES:
            continue
        for node in loads_at_import(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = {alias.name for alias in node.names} | {node.module}
                assert not heavy & names, path.name


def test_only_the_documented_symbols_are_exported():
    header = (CSRC / "include" / "gpumem.h").read_text()
    declared = set(re.findall(r"\b(gpumem_\w+)\(", header))
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", _core.__file__],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    exported = {line.split()[-1] for line in listing.splitlines()}
    exported -= {"_init", "_fini"}
    assert exported == declared | {"PyInit__core"}


def test_the_installed_package_is_what_is_tested():
    assert ROOT / "gpumem" not in Path(_core.__file__).resolve().parents
