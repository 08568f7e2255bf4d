"""Nanoseconds per allocation and free of recorded traces, in a C loop.

    python benchmarks/bench_alloc.py TRACE...

The device is the sim; lock, statistics and validation are on. The loop alone is
measured in the same run and taken off; a lock pair stands beside. Medians of nine
passes.
"""

import platform
import statistics
import sys

import gpumem
from gpumem import _core
from gpumem.traces import read_trace

PASSES = 9


def measure(path: str) -> str:
    """Return one line for one trace."""
    trace = read_trace(path)
    device = _core.open_sim(0, None)
    with gpumem.Pool(device) as pool:
        rows = _core.replay(
            device, pool, trace.operations, trace.ids, passes=PASSES + 1
        )[1:]
    loop = _core.replay(device, None, trace.operations, trace.ids, passes=PASSES)
    bare = statistics.median(row["ns"] / row["pairs"] for row in loop)
    pairs = [row["ns"] / row["pairs"] - bare for row in rows]
    calls = rows[-1]["memory_calls"]
    return (
        f"{trace.name:32} {statistics.median(pairs):7.1f} ns/pair "
        f"[{min(pairs):.1f} .. {max(pairs):.1f}], {calls} memory calls when warm"
    )


def main() -> None:
    """Print a line for each trace, and the lock pair before and after."""
    print(f"# {platform.machine()}, Python {platform.python_version()}")
    print(f"lock pair {_core.lock_pair_ns(1_000_000):.1f} ns")
    for path in sys.argv[1:]:
        print(measure(path))
    print(f"lock pair {_core.lock_pair_ns(1_000_000):.1f} ns")


if __name__ == "__main__":
    main()
