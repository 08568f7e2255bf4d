"""Nanoseconds per allocation and free of recorded traces, in a C loop.

    python benchmarks/bench_alloc.py [TRACE...]

The device is the sim; lock, statistics and validation are on. Blocks are freed by
handle, as Python's buffers are, and by address, as the exported C functions do it.
Times are the thread's; the loop alone is measured in the same run and taken off; an
uncontended lock pair stands beside each row. Medians of nine warm passes. Without
arguments the small traces in tests/data are replayed.
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


def pairs_ns(trace: Trace, *, by_address: bool) -> tuple[list[float], int]:
    """Nanoseconds per pair of each warm pass, and the last one's memory calls."""
    device = _core.open_sim(0, None)
    with gpumem.Pool(device) as pool:
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
    found = [row["cpu_ns"] / row["pairs"] - bare for row in rows]
    return found, rows[-1]["memory_calls"]


def print_row(path: str) -> None:
    """Print one line for one trace."""
    trace = read_trace(path)
    handle, calls = pairs_ns(trace, by_address=False)
    address, _calls = pairs_ns(trace, by_address=True)
    lock = statistics.median(_core.lock_pair_ns(200_000) for _ in range(PASSES))
    cells = "".join(
        f"{statistics.median(found):8.1f} [{min(found):6.1f} ..{max(found):7.1f}]"
        for found in (handle, address)
    )
    print(f"{trace.name:28}{cells}{lock:8.1f}{calls:8d}", flush=True)


def main() -> None:
    """Print a line for each trace."""
    print(f"# {platform.machine()}, Python {platform.python_version()}, ns per pair")
    print(f"{'trace':28}{'by handle':>26}{'by address':>26}{'lock':>8}{'calls':>8}")
    for path in sys.argv[1:] or sorted(str(p) for p in OWN.glob("*.txt.gz")):
        print_row(path)


if __name__ == "__main__":
    main()
