"""Checked devices: correct programs are clean, and a wrong one is named.

tests/c/test_device_checker.c has each edge, tests/c/test_checker.c pools and threads.
"""

import ctypes
import random
import re
import threading
from pathlib import Path

import numpy as np
import pytest

import gpumem
from gpumem import Pool, Stream, _core, testing
from gpumem.traces import read_trace

DATA = Path(__file__).resolve().parents[1] / "data"
MIB = 1 << 20


def checked_device(kind, lag=0, **options):
    if kind == "sim":
        options["lag"] = lag
    return testing.device(kind, capacity="32 MiB", checked=True, **options)


def random_program(pool, seed, steps):
    """Allocates, uses, lends and frees on four streams; makes room when it must."""
    choose = random.Random(seed)
    device = pool.device
    streams = [Stream(device, 0), *(Stream(device) for _ in range(3))]
    live = []
    for _ in range(steps):
        if device.kind == "sim":
            device.tick()
        action = choose.random()
        stream = choose.choice(streams)
        if action < 0.45 or not live:
            size = int(2 ** choose.uniform(0, 22))
            try:
                live.append(pool.empty(size, stream=stream))
            except gpumem.OutOfMemoryError:
                live.clear()
        elif action < 0.60 and device.kind == "host":
            choose.choice(live).fill(1, stream=stream)
        elif action < 0.65 and device.kind == "host":
            target, source = choose.choice(live), choose.choice(live)
            size = min(target.nbytes, source.nbytes)
            target[:size].copy_from(source[:size], stream=stream)
        elif action < 0.70:
            choose.choice(live).record_stream(stream)
        elif action < 0.96:
            live.pop(choose.randrange(len(live))).free()
        elif action < 0.98:
            pool.trim(choose.choice([0, 8 * MIB]), wait=choose.choice([0.0, 1.0]))
        elif action < 0.99:
            pool.poll()
        else:
            at = choose.randrange(1, 4)
            streams[at].close()
            streams[at] = Stream(device)


@pytest.mark.parametrize("paging", [True, False])
@pytest.mark.parametrize(("kind", "lag"), [("host", 0), ("sim", 0), ("sim", 50)])
@pytest.mark.parametrize("cross_stream", ["done", "wait", "never"])
@pytest.mark.parametrize("steal", ["never", "always"])
def test_random_programs_are_clean(kind, lag, paging, cross_stream, steal):
    for seed in range(5):
        device = checked_device(kind, lag, paging=paging)
        options = {"cross_stream": cross_stream, "steal": steal, "oom_wait": 0.1}
        with Pool(device, **options) as pool:
            random_program(pool, seed, 600)
            assert device.violations() == (0, ""), seed
        assert device.violations() == (0, ""), seed


def test_a_stalled_stream_holds_back_what_it_uses():
    device = checked_device("host", delayed=True)
    own, other = Stream(device), Stream(device)
    with Pool(device) as pool:
        buffer = pool.empty(MIB, stream=own)
        buffer.fill(1, stream=other)
        address = buffer.ptr
        buffer.free()
        assert pool.empty(MIB, stream=own).ptr != address
        own.release()
        other.release()
        pool.poll()
        assert pool.empty(MIB, stream=own).ptr == address
    assert device.violations() == (0, "")


def test_memory_freed_while_a_copy_of_another_stream_reads_it_is_reported():
    device = checked_device("host")
    own, other = Stream(device), Stream(device)
    with Pool(device) as pool:
        target = pool.empty(MIB, stream=other)
        address = pool.malloc(MIB, own)
        raw = np.frombuffer((ctypes.c_char * MIB).from_address(address), "uint8")
        other.stall()
        waits = device.counters()["stream_synchronize"]
        thread = threading.Thread(target=lambda: target.copy_from(raw, stream=other))
        thread.start()
        while device.counters()["stream_synchronize"] == waits:
            pass  # the copy is queued once its thread waits for it
        pool.free(address)
        again = pool.malloc(MIB, own)
        count, text = device.violations()
        other.release()
        thread.join()
        pool.free(again)
        assert again == address
        assert count == 1
        pattern = (
            rf"block at {address:#x}: page \d+, bytes 0 to {MIB}: use \d+ of "
            rf"stream {other.handle}; stream {own.handle} knows 0, the host knows 0"
        )
        assert re.fullmatch(pattern, text)
    assert device.violations() == (count, text)


@pytest.mark.parametrize("name", ["training", "decoding", "streams"])
@pytest.mark.parametrize("lag", [0, 7, 500])
@pytest.mark.parametrize("steal", ["never", "always"])
def test_a_replay_is_clean_and_no_different(name, lag, steal):
    trace = read_trace(DATA / f"{name}.txt.gz")
    rows = []
    for checked in (False, True):
        device = _core.open_sim(0, None, lag=lag, checked=checked)
        with Pool(device, steal=steal) as pool:
            passes = _core.replay(device, pool, trace.operations, trace.ids, passes=2)
        rows.append([{k: v for k, v in p.items() if "ns" not in k} for p in passes])
    assert device.violations() == (0, "")
    assert rows[0] == rows[1]


def test_a_device_behind_faults_is_checked():
    device = checked_device("sim").with_faults()
    assert device.violations() == (0, "")
    with Pool(device) as pool:
        pool.empty(10)
    assert device.violations() == (0, "")


@pytest.mark.parametrize("kind", ["host", "sim"])
def test_violations_of_a_device_that_is_not_checked_is_a_value_error(kind):
    with pytest.raises(ValueError, match="checked=True"):
        testing.device(kind).violations()


# ---- streams of one handle -----------------------------------------------------------


def in_thread(function, *args, **kwargs):
    """Run the function in a thread of its own, to its end."""
    thread = threading.Thread(target=function, args=args, kwargs=kwargs)
    thread.start()
    thread.join()


def test_the_same_handle_of_another_thread_is_another_stream():
    device = testing.device("host", checked=True)
    with Pool(device) as pool:
        buffer = pool.empty(4 * MIB, stream=2)
        in_thread(buffer.fill, 1, stream=2)
        del buffer
        again = pool.empty(4 * MIB, stream=2)
        assert device.violations() == (0, "")
        again.fill(2, stream=2)
        del again
    assert device.violations() == (0, "")


def test_a_mark_of_another_thread_stands_behind_its_work():
    device = testing.device("host", checked=True)
    with Pool(device) as pool:
        source = pool.empty(4 * MIB)
        target = pool.empty(4 * MIB)
        source.fill(1)
        device.synchronize()
        in_thread(target.copy_from, source, stream=2)
        in_thread(source.fill, 3, stream=2)
        del source, target
        for _ in range(20):
            pool.empty(4 * MIB).fill(2)
            pool.trim()
    assert device.violations() == (0, "")
