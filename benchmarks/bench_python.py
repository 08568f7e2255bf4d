"""The price of the Python layer, side by side with the least a C call can cost.

    python benchmarks/bench_python.py

Medians of nine runs; an uncontended lock pair stands beside.
"""

import gc
import platform
import statistics
import subprocess
import sys
import time

import gpumem
from gpumem import _core, testing

RUNS = 9


def per_call(function, count: int) -> float:
    """Nanoseconds per call, loop included."""
    start = time.perf_counter_ns()
    for _ in range(count):
        function()
    return (time.perf_counter_ns() - start) / count


def median(function) -> float:
    """Median of the runs."""
    return statistics.median(function() for _ in range(RUNS))


def scope_exit_ms(pool: gpumem.Pool, buffers: int) -> float:
    """Milliseconds that leaving a scope with live buffers takes."""
    with pool.scope("bench") as scope:
        held = [pool.empty(512) for _ in range(buffers)]
        start = time.perf_counter_ns()
        scope.__exit__(None, None, None)
        spent = (time.perf_counter_ns() - start) / 1e6
        scope.__enter__()
    assert held[0].released
    return spent


def import_ms(code: str) -> float:
    """Milliseconds of a fresh interpreter that runs the code."""
    start = time.perf_counter_ns()
    subprocess.run([sys.executable, "-I", "-c", code], check=True)
    return (time.perf_counter_ns() - start) / 1e6


def main() -> None:
    """Print a line for each measurement."""
    gc.disable()
    device = testing.device("host", capacity="1 GiB")
    print(f"# {platform.machine()}, Python {platform.python_version()}")
    print(f"lock pair              {_core.lock_pair_ns(1_000_000):8.1f} ns")
    with gpumem.Pool(device) as pool:
        pool.empty(4096)
        bare = median(lambda: per_call(_core.noop, 200_000))
        empty = median(lambda: per_call(lambda: pool.empty(4096), 200_000))
        call = median(lambda: per_call(lambda: _core.noop(), 200_000))
        print(f"no-argument C function {bare:8.1f} ns, in a lambda {call:.1f} ns")
        print(f"pool.empty and drop    {empty - call:8.1f} ns more than that")
        spent = median(lambda: scope_exit_ms(pool, 100_000))
        print(f"leaving a scope with 100,000 live buffers {spent:.1f} ms")
    nothing = median(lambda: import_ms("import math"))
    ours = median(lambda: import_ms("import gpumem"))
    print(f"import gpumem          {ours - nothing:8.1f} ms over import math")


if __name__ == "__main__":
    main()
