"""What a pair costs while 1,000 to 1,000,000 other blocks are alive.

    python benchmarks/bench_live.py [RUNS]

Compiles ``live.c`` with the allocator's own sources (needs a C compiler; the source
tree, not the installed package). Times are the thread's, medians of nine runs (RUNS),
the sizes of one run after another, so that all see the same noise; glibc's malloc with
as many blocks stands beside. With valgrind, also instructions per pair.
"""

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from gpumem import _core

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ("base", "device", "heap", "pool")
LIVE = (1_000, 30_000, 1_000_000)
PAIRS = 400_000
COUNTED_PAIRS = 100_000
ALLOCATORS = ("gpumem", "malloc")
SHAPES = ("newest", "holes", "random")


def compile_helper(folder: Path) -> Path:
    """Return the program."""
    program = folder / "live"
    sources = [str(p) for name in FLOORS for p in (ROOT / "csrc" / name).glob("*.c")]
    command = [os.environ.get("CC", "cc"), "-std=c11", "-D_GNU_SOURCE", "-O2", "-g"]
    command += ["-DNDEBUG", f"-I{ROOT / 'csrc'}", "-o", str(program)]
    command += [str(ROOT / "benchmarks" / "live.c"), *sources]
    subprocess.run([*command, "-lpthread", "-lm", "-lrt"], check=True)
    return program


def nanoseconds(program: Path, allocator: str, shape: str, live: int) -> float:
    """Nanoseconds per pair of one run."""
    command = [str(program), allocator, shape, str(live), str(PAIRS)]
    output = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(output.stdout)


def instructions(program: Path, allocator: str, shape: str, live: int) -> float:
    """Instructions per pair, counted by callgrind."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    command += ["--toggle-collect=measured", str(program), allocator, shape]
    command += [str(live), str(COUNTED_PAIRS)]
    output = subprocess.run(command, check=True, capture_output=True, text=True)
    found = re.search(r"Collected : (\d+)", output.stderr)
    if found is None:
        raise SystemExit(f"no count in valgrind's output:\n{output.stderr}")
    return int(found[1]) / COUNTED_PAIRS


def print_row(name: str, values: list[float], unit: str) -> None:
    """Print one line: a value for each number of live blocks, and the growth."""
    cells = "".join(f"{value:>12.1f}" for value in values)
    print(f"{name:<32}{cells}{values[-1] / values[0]:>9.2f}x  {unit}", flush=True)


def main() -> None:
    """Print a table of times and one of instructions."""
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    print(f"lock pair {_core.lock_pair_ns(1_000_000):.1f} ns")
    print(f"{'live blocks':<32}" + "".join(f"{n:>12,}" for n in LIVE) + "    growth")
    with tempfile.TemporaryDirectory() as folder:
        program = compile_helper(Path(folder))
        for shape in SHAPES:
            times = {(a, n): [] for a in ALLOCATORS for n in LIVE}
            for _ in range(runs):
                for (allocator, live), found in times.items():
                    found.append(nanoseconds(program, allocator, shape, live))
            for allocator in ALLOCATORS:
                row = [statistics.median(times[allocator, n]) for n in LIVE]
                print_row(f"{shape}, {allocator}", row, "ns a pair")
        if shutil.which("valgrind") is None:
            print("no valgrind: instructions were not counted")
            return
        for shape in SHAPES:
            row = [instructions(program, "gpumem", shape, n) for n in LIVE]
            print_row(f"{shape}, gpumem", row, "instructions a pair")


if __name__ == "__main__":
    main()
