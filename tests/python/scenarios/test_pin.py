"""Scenarios of page-locked host memory."""

import gc
import os
import threading
import time

import pytest

import gpumem
from gpumem import Pool, Stream, _core, testing

np = pytest.importorskip("numpy")

KIB, MIB = 1 << 10, 1 << 20


def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("mib", [33, 65, 129, 1025])
def test_pin_01_sizes_are_rounded_little(mib):
    device = testing.device("host", capacity="64 MiB")
    array = gpumem.pinned_empty(mib * MIB, device=device)
    stats = gpumem.memory_stats(device)
    assert stats["pinned_bytes"] >= array.nbytes == mib * MIB
    assert stats["pinned_reserved_bytes"] <= 1.125 * mib * MIB
    assert stats["pinned_reserved_peak"] <= 1.125 * mib * MIB
    assert device.counters()["pinned_now"] <= 1.125 * mib * MIB
    assert "pinned" in str(gpumem.memory_summary(device)).lower()


def test_pin_05_dropped_arrays_are_reused():
    device = testing.device("host", capacity="64 MiB")
    one = int(1.125 * 20 * MIB)
    for number in range(50):
        array = gpumem.pinned_empty(20 * MIB, device=device)
        array.numpy()[:: 4 * KIB] = number % 251
        assert gpumem.memory_stats(device)["pinned_reserved_bytes"] <= one
        if number == 5:
            before = resident()
        del array
    for number in range(50):
        view = gpumem.pinned_empty(20 * MIB, device=device).numpy()
        view[:: 4 * KIB] = number
        gc.collect()
        part = view[4 * KIB :: 4 * KIB]
        del view
        assert int(part.min()) == int(part.max()) == number
        assert gpumem.memory_stats(device)["pinned_bytes"] >= 20 * MIB
        del part
        assert gpumem.memory_stats(device)["pinned_bytes"] == 0
    assert gpumem.memory_stats(device)["pinned_reserved_peak"] <= one
    assert resident() - before < 8 * MIB
    assert _core.pinned_stats(device)["device_allocs"] == 1


def test_pin_06_no_reuse_while_the_device_reads():
    device = testing.device("host", capacity="64 MiB", delayed=True)
    size = 64 * KIB
    with Pool(device) as pool, Stream(device) as stream:
        target = pool.empty(size, stream=stream)
        for number in range(1000):
            old, new = number % 251, (number + 7) % 251
            source = gpumem.pinned_empty(size, device=device)
            source.numpy()[:] = old
            target.copy_from(source, stream=stream)
            del source
            fresh = gpumem.pinned_empty(size, device=device)
            fresh.numpy()[:] = new
            stream.release(stream.waiting)
            seen = target.numpy()
            assert int(seen[0]) == int(seen[-1]) == old
            assert not np.ptp(seen)
            del seen, fresh
        assert _core.pinned_stats(device)["reserved"] <= 16 * MIB
        stream.release()
        Stream(device, 0).release()
        del target


def test_pin_06_waiting_lets_other_threads_run():
    """A copy that somebody waits for, and its pinned source was dropped."""
    device = testing.device("host", capacity="64 MiB")
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1

    with Pool(device) as pool, Stream(device) as stream:
        target = pool.empty(MIB)
        stream.stall()
        source = gpumem.pinned_empty(MIB, device=device)
        source.numpy()[:] = 3
        target.copy_from(source, stream=stream)
        del source
        counter = threading.Thread(target=count)
        counter.start()
        releaser = threading.Timer(0.3, stream.release)
        releaser.start()
        before, start = counted[0], time.perf_counter()
        stream.synchronize()
        took, during = time.perf_counter() - start, counted[0] - before
        stop.set()
        counter.join()
        releaser.join()
        assert took > 0.1
        assert during > 1000
        assert target.tobytes() == b"\x03" * MIB
        del target
