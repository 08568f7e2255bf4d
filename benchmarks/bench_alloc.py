"""Nanoseconds per allocation and free of recorded traces, in a C loop.

    python benchmarks/bench_alloc.py [TRACE...]

The device is the sim; lock, statistics and validation are on. One column for each value
of `steal`, freed by handle, as Python's buffers are; the last one by address, as the
exported C functions do it. Times are the thread's; the loop alone is measured in the
same run and taken off; an uncontended lock pair stands beside each row. Medians of nine
warm passes, and in brackets the calls for memory in the last of them. Without arguments
the small traces in tests/data are replayed.
"""

import platform
import statistics
import sys
from pathlib import Path

import gpumem
from gpumem import _core
from gpumem.traces import Trace, read_trace

PASSES = 9
OWN = Path(__file__).resolve().parents[1] / "tests" / "data"


SETTINGS: dict[str, tuple[str | float, bool]] = {
    "never": ("never", False),
    "0.05": (0.05, False),
    "always": ("always", False),
    "never, by address": ("never", True),
}


def pairs_ns(trace: Trace, steal: str | float, by_address: bool) -> tuple[float, int]:
    """Nanoseconds per pair, and the last pass's memory calls."""
    device = _core.open_sim(0, None)
    with gpumem.Pool(device, steal=steal) as pool:
        rows = _core.replay(
            device,
            pool,
            trace.operations,
            trace.ids,
            passes=PASSES + 1,
            by_address=by_address,
        )[1:]
    loop = _core.replay(device, None, trace.operations, trace.ids, passes=PASSES)
    bare = statistics.median(row["cpu_ns"] / row["pairs"] for row in loop)
    found = statistics.median(row["cpu_ns"] / row["pairs"] for row in rows)
    return found - bare, rows[-1]["memory_calls"]


def print_row(path: str) -> None:
    """Print one line for one trace."""
    trace = read_trace(path)
    cells = ""
    for steal, by_address in SETTINGS.values():
        time, calls = pairs_ns(trace, steal, by_address)
        cells += f"{time:10.1f} [{calls}]".ljust(20)
    lock = statistics.median(_core.lock_pair_ns(200_000) for _ in range(PASSES))
    print(f"{trace.name:28}{cells}{lock:6.1f}", flush=True)


def main() -> None:
    """Print a line for each trace."""
    print(f"# {platform.machine()}, Python {platform.python_version()}, ns per pair")
    print("trace".ljust(28) + "".join(f"   {name:17}" for name in SETTINGS) + "  lock")
    for path in sys.argv[1:] or sorted(str(p) for p in OWN.glob("*.txt.gz")):
        print_row(path)


if __name__ == "__main__":
    main()
