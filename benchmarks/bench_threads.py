"""Nanoseconds per allocation and free of threads that share a pool.

    python benchmarks/bench_threads.py [TRACE...]

Each thread replays the trace on a stream of its own, in a C loop without the GIL, on
the sim device: one thread; two threads on one pool; two threads on a pool each; four
threads on one pool. Wall time of all passes over the pairs of one thread, less the bare
loop; the median of nine rounds that take turns, so that a slow moment meets all alike.
An uncontended lock pair stands beside.
"""

import platform
import statistics
import sys
import threading
import time
from array import array
from pathlib import Path

import gpumem
from gpumem import _core
from gpumem.traces import Trace, read_trace

ROUNDS = 9
PASSES = 3
OWN = Path(__file__).resolve().parents[1] / "tests" / "data" / "training.txt.gz"


def on_one_stream(trace: Trace) -> "array[int]":
    """The trace's operations, all on the first stream that the loop makes itself."""
    operations = array("q", trace.operations)
    for place in range(3, len(operations), 4):
        operations[place] = 1
    return operations


class Runner:
    """Threads that replay one trace at the same time."""

    def __init__(self, trace: Trace) -> None:
        """Read the operations once."""
        self.operations = on_one_stream(trace)
        self.ids = trace.ids

    def replay(self, device: _core.Device, pool: gpumem.Pool | None) -> float:
        """Pairs of one thread."""
        rows = _core.replay(device, pool, self.operations, self.ids, passes=PASSES)
        return sum(row["pairs"] for row in rows)

    def per_pair(self, threads: int, pools: int) -> float:
        """Nanoseconds of wall time for one pair of each thread, warm."""
        device = _core.open_sim(0, None)
        opened = [gpumem.Pool(device) for _ in range(pools)]
        counts: list[float] = []

        def work(number: int) -> None:
            pool = opened[number % pools] if pools else None
            self.replay(device, pool)
            barrier.wait()
            counts.append(self.replay(device, pool))

        barrier = threading.Barrier(threads + 1)
        workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
        for worker in workers:
            worker.start()
        barrier.wait()
        start = time.perf_counter_ns()
        for worker in workers:
            worker.join()
        took = time.perf_counter_ns() - start
        for pool in opened:
            pool.close()
        return took / counts[0]


SETTINGS = {
    "one thread": (1, 1),
    "two threads, one pool": (2, 1),
    "two threads, two pools": (2, 2),
    "four threads, one pool": (4, 1),
}


def main() -> None:
    """Print a block for each trace."""
    print(f"# {platform.machine()}, Python {platform.python_version()}, ns per pair")
    for path in sys.argv[1:] or [str(OWN)]:
        runner = Runner(read_trace(path))
        found: dict[str, list[float]] = {name: [] for name in SETTINGS}
        for _ in range(ROUNDS):
            for name, (threads, pools) in SETTINGS.items():
                bare = runner.per_pair(threads, 0)
                found[name].append(runner.per_pair(threads, pools) - bare)
        lock = statistics.median(_core.lock_pair_ns(200_000) for _ in range(ROUNDS))
        one = statistics.median(found["one thread"])
        print(f"{Path(path).name}, lock pair {lock:.1f}")
        for name, times in found.items():
            time_of = statistics.median(times)
            print(f"  {name:24}{time_of:8.1f}{time_of / one:8.2f}x one thread")
        shared = statistics.median(found["two threads, one pool"])
        own = statistics.median(found["two threads, two pools"])
        print(f"  one pool over two {shared / own:.2f}x", flush=True)


if __name__ == "__main__":
    main()
