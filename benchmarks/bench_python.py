"""The price of the Python layer, side by side with the least a C call can cost.

    python benchmarks/bench_python.py

Medians of nine runs; the two sides of a difference alternate, so that both see the same
noise. Calls are timed in loops of the thread's time; an uncontended lock pair stands
beside. The import is compared with that of an extension module that holds nothing,
compiled on the spot.
"""

import gc
import os
import platform
import shlex
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import gpumem
from gpumem import _core, testing

RUNS = 9
CALLS = 200_000
BUFFERS = 100_000

EMPTY_MODULE = """
#include <Python.h>
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "nothing", 0, 0, 0,
                                        0, 0, 0, 0};
PyMODINIT_FUNC PyInit_nothing(void) { return PyModuleDef_Init(&definition); }
"""


def noop_ns() -> float:
    """Nanoseconds of one call of a C function without arguments, loop included."""
    function = _core.noop
    start = time.thread_time_ns()
    for _ in range(CALLS):
        function()
    return (time.thread_time_ns() - start) / CALLS


def empty_ns(pool: gpumem.Pool) -> float:
    """Nanoseconds of pool.empty(n) and dropping what it gives, loop included."""
    empty = pool.empty
    start = time.thread_time_ns()
    for _ in range(CALLS):
        empty(4096)
    return (time.thread_time_ns() - start) / CALLS


def scope_exit_ms(pool: gpumem.Pool) -> float:
    """Milliseconds of wall time that leaving a scope with live buffers takes."""
    held = []
    with pool.scope("bench"):
        held += [pool.empty(512) for _ in range(BUFFERS)]
        start = time.perf_counter_ns()
    spent = (time.perf_counter_ns() - start) / 1e6
    assert all(buffer.released for buffer in held)
    return spent


def import_ms(code: str) -> float:
    """Milliseconds of wall time of a fresh interpreter that runs the code."""
    start = time.perf_counter_ns()
    subprocess.run([sys.executable, "-I", "-c", code], check=True)
    return (time.perf_counter_ns() - start) / 1e6


def compile_nothing(folder: str) -> None:
    """Build the empty extension module."""
    source = Path(folder) / "nothing.c"
    source.write_text(EMPTY_MODULE)
    target = str(Path(folder) / f"nothing{sysconfig.get_config_var('EXT_SUFFIX')}")
    compiler = shlex.split(os.environ.get("CC", "cc"))
    include = f"-I{sysconfig.get_path('include')}"
    command = [*compiler, "-O2", "-shared", "-fPIC", include, "-o", target, str(source)]
    subprocess.run(command, check=True)


def differences(
    ours: Callable[[], float], least: Callable[[], float]
) -> tuple[float, float, float]:
    """Medians of both, and of their difference run by run."""
    runs = [(ours(), least()) for _ in range(RUNS)]
    return (
        statistics.median(a for a, _ in runs),
        statistics.median(b for _, b in runs),
        statistics.median(a - b for a, b in runs),
    )


def main() -> None:
    """Print a line for each measurement."""
    print(f"# {platform.machine()}, Python {platform.python_version()}")
    lock = statistics.median(_core.lock_pair_ns(200_000) for _ in range(RUNS))
    print(f"lock pair                        {lock:9.1f} ns")
    device = testing.device("host", capacity="1 GiB")
    with gpumem.Pool(device) as pool:
        empty_ns(pool)
        gc.disable()
        ours, least, more = differences(lambda: empty_ns(pool), noop_ns)
        print(f"pool.empty(n) and drop           {ours:9.1f} ns")
        print(f"C function without arguments     {least:9.1f} ns")
        print(f"difference                       {more:9.1f} ns")
        spent = statistics.median(scope_exit_ms(pool) for _ in range(RUNS))
        print(f"exit of a scope, {BUFFERS:,} buffers {spent:9.1f} ms")
        gc.enable()
    with tempfile.TemporaryDirectory() as folder:
        compile_nothing(folder)
        path = f"import sys; sys.path.append({folder!r}); "
        ours, least, more = differences(
            lambda: import_ms(path + "import gpumem"),
            lambda: import_ms(path + "import nothing"),
        )
    print(f"python -c 'import gpumem'        {ours:9.1f} ms")
    print(f"the same, an empty extension     {least:9.1f} ms")
    print(f"difference                       {more:9.1f} ms")


if __name__ == "__main__":
    main()
