"""Runs every ``bench_*.py`` beside it: ``python benchmarks/run.py [TRACE...]``.

The traces go to ``bench_alloc.py``.
"""

import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Run them one after another; returns the worst exit status."""
    worst = 0
    for path in sorted(Path(__file__).parent.glob("bench_*.py")):
        print(f"== {path.name}", flush=True)
        arguments = sys.argv[1:] if path.name == "bench_alloc.py" else []
        command = [sys.executable, str(path), *arguments]
        worst = max(worst, abs(subprocess.run(command, check=False).returncode))
    return worst


if __name__ == "__main__":
    sys.exit(main())
