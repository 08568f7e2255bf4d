"""Scenarios of the end: of the interpreter, and of the library before it."""

import importlib.util
import subprocess
import sys
import time

import pytest

import gpumem
from gpumem.stats import STATISTICS

MIB = 1 << 20

HOLDERS = {
    "module": "held = gpumem.empty(1 << 20)",
    "class": "class Holder:\n    held = gpumem.empty(1 << 20)",
    "cycle": "cycle = [gpumem.empty(1 << 20)]\ncycle.append(cycle)\ndel cycle",
    "scope": (
        "scope = gpumem.scope('open')\nscope.__enter__()\nheld = gpumem.empty(1 << 20)"
    ),
    "thread-local": (
        "import threading\nlocal = threading.local()\n"
        "local.held = gpumem.empty(1 << 20)"
    ),
}


def run(code, *flags, timeout=60):
    return subprocess.run(
        [sys.executable, *flags, "-c", code],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.mark.parametrize("other", [None, "numpy", "numba", "torch"])
@pytest.mark.parametrize("holder", HOLDERS)
def test_exit_01_buffers_may_outlive_the_library(holder, other):
    if other is not None and importlib.util.find_spec(other) is None:
        pytest.skip(f"{other} is not installed")
    imports = ["import gpumem"]
    if other is not None:
        imports.append(f"import {other}")
    for order in (imports, imports[::-1])[: len(imports)]:
        code = "\n".join([*order, "gpumem.device('host:0', capacity='64 MiB')"])
        result = run(f"{code}\n{HOLDERS[holder]}\n")
        assert (result.returncode, result.stderr, result.stdout) == (0, "", "")


DAEMONS = """
import threading, gpumem
gpumem.device("host:0", capacity="256 MiB")

def work(size):
    while True:
        buffer = gpumem.empty(size)
        del buffer
        held = [gpumem.empty(size * k) for k in range(1, 5)]

for size in (100, 10_000, 1 << 20, 3 << 20):
    threading.Thread(target=work, args=(size,), daemon=True).start()
gpumem.empty(10)
"""


def end_with_daemons(times):
    for _ in range(times):
        start = time.monotonic()
        result = run(DAEMONS, timeout=20)
        assert time.monotonic() - start < 5
        assert (result.returncode, result.stderr) == (0, "")


def test_exit_05_daemon_threads_do_not_hold_the_end_up():
    end_with_daemons(5)


@pytest.mark.slow
def test_exit_05_daemon_threads_a_hundred_times():
    end_with_daemons(100)


def test_exit_06_questions_after_shutdown(tmp_path):
    gpumem.device("host:0", capacity="64 MiB")
    old = gpumem.empty(MIB)
    scope = gpumem.scope("before")
    keys = set(gpumem.memory_stats())
    gpumem.shutdown()
    stats = gpumem.memory_stats()
    assert set(stats) == keys
    assert stats["allocated_bytes.all.current"] == 0
    assert gpumem.memory_allocated() == gpumem.memory_reserved("all") == 0
    assert gpumem.memory_snapshot()["segments"] == []
    assert str(gpumem.memory_summary())
    gpumem.dump_snapshot(tmp_path / "after.json")
    assert gpumem.empty_cache().released == 0
    assert gpumem.empty_cache(collect=True).referenced == 0
    assert gpumem.mem_get_info()[1] > 0
    gpumem.reset_peak_memory_stats()
    for call in (
        lambda: gpumem.empty(10),
        lambda: gpumem.zeros(10),
        lambda: gpumem.pinned_empty(10),
        gpumem.default_pool,
    ):
        with pytest.raises(gpumem.GpumemError, match="shut down"):
            call()
    with scope:
        pass
    del old
    gpumem.shutdown()

    gpumem.reset()
    gpumem.device("host:0", capacity="64 MiB")
    fresh = gpumem.memory_stats()
    for key, (kind, _about) in STATISTICS.items():
        assert fresh[key] == 0 or kind == "setting", key
    buffer = gpumem.empty(2 * MIB)
    buffer.fill(1)
    assert gpumem.memory_allocated() == 2 * MIB
    assert gpumem.memory_stats()["allocation.all.allocated"] == 1
    del buffer
