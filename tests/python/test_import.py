"""Importing does next to nothing."""

import os
import re
import subprocess
import sys

HEAVY = (
    "numpy",
    "torch",
    "cupy",
    "dataclasses",
    "logging",
    "inspect",
    "typing",
    "ctypes",
)


def test_import_loads_nothing_heavy(python):
    code = f"""
import sys
before = set(sys.modules)
import gpumem
print(sorted(({set(HEAVY)} & set(sys.modules)) - before))
"""
    assert python(code).stdout.strip() == "[]"


def test_import_reads_no_environment(python):
    code = """
import os
read = []
class Watched(type(os.environ)):
    def __getitem__(self, key):
        read.append(key)
        return super().__getitem__(key)
os.environ.__class__ = Watched
import gpumem
print(read)
"""
    env = {"GPUMEM_CONF": "nonsense"}
    assert python(code, env=env).stdout.strip() == "[]"


def test_import_opens_no_device(python):
    code = "import gpumem._core as c; print(any(c.count_live().values()))"
    assert python(code).stdout.strip() == "False"


def test_import_takes_less_than_30_ms():
    costs = []
    for _ in range(7):
        result = subprocess.run(
            [sys.executable, "-X", "importtime", "-c", "import gpumem"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
        )
        (line,) = re.findall(r"\|\s+(\d+) \| gpumem$", result.stderr, re.MULTILINE)
        costs.append(int(line))
    assert min(costs) < 30_000


def test_names_are_loaded_on_first_use(python):
    code = """
import sys, gpumem
assert "gpumem.pools" not in sys.modules
assert "memory_stats" in dir(gpumem)
gpumem.memory_stats
assert "gpumem.stats" in sys.modules
from gpumem import *
assert callable(empty_cache) and scope is gpumem.Scope
try:
    gpumem.nonsense
except AttributeError as error:
    print(error)
"""
    assert "has no attribute 'nonsense'" in python(code).stdout


def test_functions_are_not_hidden_by_modules_of_the_package():
    import gpumem

    for name in gpumem.__all__:
        value = getattr(gpumem, name)
        assert not isinstance(value, type(sys)), name
