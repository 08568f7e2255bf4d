"""The layer table of docs/architecture.md as a test: who may include whom."""

import ast
import re
import subprocess
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

# Of a floor that is open to others only through these headers.
PUBLIC = {
    "pool": {"pool/pool.h", "pool/options.h", "pool/stats.h"},
    "python": set(),
}

# Files longer than 600 lines, each with its reason.
LONG_FILES: dict[str, str] = {}

GM_HEADERS = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
SYSTEM_HEADERS = re.compile(r"^\s*#\s*include\s+<([^>]+)>", re.M)

SOURCES = sorted(
    path for path in CSRC.rglob("*.[ch]") if path.relative_to(CSRC).parts[0] in ALLOWED
)


def floor_of(path):
    return path.relative_to(CSRC).parts[0]


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(CSRC)))
def test_includes_stay_on_allowed_floors(path):
    floor = floor_of(path)
    for header in GM_HEADERS.findall(path.read_text()):
        target = header.split("/")[0] if "/" in header else floor
        if header == "gpumem.h":
            target = "include"
        assert target == floor or target in ALLOWED[floor], header
        if target != floor and target in PUBLIC:
            assert header in PUBLIC[target], f"{header} is private to {target}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(CSRC)))
def test_foreign_headers_are_spelled_in_one_place(path):
    name = str(path.relative_to(CSRC))
    for header in SYSTEM_HEADERS.findall(path.read_text()):
        if header == "Python.h":
            assert name == "python/python.h"
        if header.startswith("numpy/"):
            assert name == "python/numpy.c"
        if header.startswith("cuda"):
            assert name in {"device/cuda.c", "device/cudart.h"}


def test_python_files_include_the_seam_first():
    """Directly, or by the header of a neighbour that does."""
    for path in sorted((CSRC / "python").glob("*.[ch]")):
        first = re.search(r"^\s*#\s*include\s+[<\"]([^>\"]+)", path.read_text(), re.M)
        assert first is not None or path.suffix == ".h", path.name
        if path.suffix == ".c":
            assert first.group(1).startswith("python/"), path.name


def test_headers_have_guards():
    for path in SOURCES:
        if path.suffix == ".h":
            text = path.read_text()
            assert re.search(r"^#ifndef \w+_H\n#define \w+_H", text, re.M), path.name


def test_files_are_short():
    tracked = [*SOURCES, *(ROOT / "gpumem").rglob("*.py"), *ROOT.glob("tests/**/*.py")]
    long = {
        str(path.relative_to(ROOT)): count
        for path in tracked
        if (count := len(path.read_text().splitlines())) > 600
    }
    assert set(long) == set(LONG_FILES), long


def test_c_functions_fit_a_screen():
    long = []
    for path in SOURCES:
        start = None
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line == "{":
                start = number
            elif line == "}" and start is not None:
                if number - start - 1 > 60:
                    long.append(f"{path.relative_to(CSRC)}:{start}")
                start = None
    assert long == []


def test_the_package_imports_only_the_standard_library_and_itself():
    """Everything else is imported inside functions."""
    for path in sorted((ROOT / "gpumem").rglob("*.py")):
        if path.name in {"demo.py", "_digits_model.py"}:
            continue  # the demo command alone loads them
        tree = ast.parse(path.read_text())
        for node in tree.body:
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            for name in names:
                top = name.split(".")[0]
                assert top not in {"numpy", "torch", "cupy", "numba", "sklearn"}, path
                assert top != "ctypes", path


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
