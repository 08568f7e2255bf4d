"""Scenarios of other processes: fork, spawn, pickling."""

import copy
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import warnings

import pytest

import gpumem

np = pytest.importorskip("numpy")

MIB = 1 << 20
FORK = """
import os, sys, json, gpumem

gpumem.device("host:0", capacity="64 MiB")
kept = gpumem.empty(5 << 20)
kept.fill(7)
before = gpumem.memory_stats()

def child():
    first = gpumem.memory_stats()
    gpumem.memory_summary(), gpumem.memory_snapshot(), gpumem.mem_get_info()
    fresh = gpumem.empty(2 << 20)
    fresh.fill(3)
    try:
        kept.fill(1)
        dead = "alive"
    except gpumem.ReleasedError:
        dead = "released"
    after = gpumem.memory_allocated()
    print(first["allocated_bytes.all.current"], any(first[k] for k in first
          if k.endswith((".current", ".peak", ".allocated", ".freed"))),
          list(first) == list(before), after, fresh.tobytes()[:1], dead, flush=True)

pid = os.fork()
if pid == 0:
    child()
    os._exit(0)
_, status = os.waitpid(pid, 0)
again = gpumem.memory_stats()
print(status, again == before, kept.tobytes()[:1], gpumem.memory_allocated())
"""


def test_proc_02_a_forked_child_starts_from_zero():
    """Documented: the child makes its own pools, with counters from zero."""
    result = subprocess.run(
        [sys.executable, "-c", FORK],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert result.stderr == ""
    child, parent = result.stdout.splitlines()
    assert child == f"0 False True {2 * MIB} b'\\x03' released"
    assert parent == f"0 True b'\\x07' {5 * MIB}"


WORKERS = """
import multiprocessing as mp
import sys
import gpumem

def work(number):
    before = gpumem.memory_stats()["allocated_bytes.all.current"]
    buffer = gpumem.empty(number << 20)
    buffer.fill(number)
    return before, gpumem.memory_allocated(), buffer.tobytes()[0]

if __name__ == "__main__":
    gpumem.device("host:0", capacity="64 MiB")
    kept = gpumem.empty(5 << 20)
    with mp.get_context(sys.argv[1]).Pool(2) as pool:
        results = pool.map_async(work, [1, 2, 3, 4]).get(timeout=60)
    print(results)
    print(gpumem.memory_allocated())
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_proc_02_workers_have_pools_of_their_own(method, tmp_path):
    script = tmp_path / "workers.py"
    script.write_text(textwrap.dedent(WORKERS))
    result = subprocess.run(
        [sys.executable, str(script), method],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.stderr == ""
    results, own = result.stdout.splitlines()
    assert results == str([(0, n * MIB, n) for n in (1, 2, 3, 4)])
    assert own == str(5 * MIB)


def test_proc_02_a_child_does_not_hang_on_the_parent_s_pool(pool):
    kept = pool.empty(MIB)
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        signal.alarm(10)  # ends it if it hangs
        text = "nothing was raised"
        try:
            pool.stats(), kept.nbytes
            pool.empty(MIB)
        except gpumem.GpumemError as error:
            text = str(error)
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    assert os.waitpid(child, 0)[1] == 0
    assert "fork" in text
    assert "spawn" in text
    assert pool.stats()["allocated_bytes.all.current"] == MIB


def test_proc_04_buffers_say_how_to_copy(pool):
    for thing in (
        pool.empty(10),
        pool.empty((4, 4), "float32")[1:],
        gpumem.pinned_empty(10),
    ):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            with pytest.raises(TypeError, match=r"(?i)numpy"):
                pickle.dumps(thing, protocol=protocol)
        with pytest.raises(TypeError, match=r"(?i)numpy"):
            copy.copy(thing)
        del thing


def test_proc_04_accumulators_and_reports_travel(pool, tmp_path):
    buffer = gpumem.GradBuffer([(3,), (2, 2)], window=4, pool=pool)
    gradients = [np.arange(3, dtype="f4"), np.full((2, 2), 0.5, "f4")]
    buffer.add(gradients, weight=3)
    state = buffer.state()
    assert pickle.loads(pickle.dumps(state)) == state
    with gpumem.use_pool(pool):
        again = pickle.loads(pickle.dumps(buffer))
    assert (again.count, again.weight, again.window) == (1, 3.0, 4)
    for one, other in zip(buffer.views, again.views, strict=True):
        assert one.tobytes() == other.tobytes()
    again.add(gradients, weight=1)
    assert again.finish()[1].numpy().tolist() == [[0.5, 0.5], [0.5, 0.5]]
    again.close()

    snapshot = pool.snapshot()
    assert pickle.loads(pickle.dumps(snapshot)) == snapshot
    stats = gpumem.memory_stats(pool.device)
    assert pickle.loads(pickle.dumps(stats)) == stats
    buffer.close()
