"""Scenarios of sizes, alignment and pointers."""

import random
import sys

import pytest

import gpumem
from gpumem import Pool, Stream, testing

np = pytest.importorskip("numpy")

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def used(pool):
    return pool.stats()["allocated_bytes.all.current"]


def test_size_01_zero_bytes_ask_nothing(device, pool, monkeypatch):
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    before = device.counters()
    buffers = [pool.empty(0) for _ in range(50)]
    buffers += [pool.empty((0, 3), "float32") for _ in range(25)]
    buffers += [pool.empty((4, 0), "int64", stream=0) for _ in range(25)]
    for buffer in buffers:
        assert buffer.nbytes == 0
        assert buffer.size == 0
        assert buffer.numpy().size == 0
        assert memoryview(buffer).nbytes == 0
        assert np.from_dlpack(buffer).size == 0
        assert buffer.tobytes() == b""
    assert len(buffers[0].numpy()) == 0
    assert used(pool) == 0
    random.Random(1).shuffle(buffers)
    del buffer
    while buffers:
        buffers.pop()
    assert gpumem.asarray(np.empty(0, "f4"), pool=pool).nbytes == 0
    assert used(pool) == 0
    assert device.counters() == before
    assert ignored == []


@pytest.mark.parametrize(
    ("size", "error"),
    [
        (-1, ValueError),
        ((2, -3), ValueError),
        (-(1 << 40), ValueError),
        (1.0, TypeError),
        (2.5, TypeError),
        (True, TypeError),
        (False, TypeError),
        ("10", TypeError),
        ("lots", TypeError),
        (None, TypeError),
        (b"10", TypeError),
        (1 << 64, ValueError),
        (1 << 400, ValueError),
        ((1 << 32, 1 << 32), ValueError),
        ((1 << 62, 4), ValueError),
    ],
)
def test_size_03_bad_sizes_are_refused(pool, size, error):
    for make in (pool.empty, lambda size: gpumem.empty(size, pool=pool)):
        with pytest.raises(error) as info:
            make(size)
        assert not isinstance(info.value, MemoryError)
    if not isinstance(size, (tuple, str)):  # text is a size in bytes there
        with pytest.raises(error):
            pool.malloc(size)
    with pytest.raises(ValueError, match="lots"):
        pool.malloc("lots")
    assert used(pool) == 0
    pool.check()


def test_size_03_sizes_are_counted_in_64_bits():
    with Pool(testing.device("host", capacity=GIB)) as pool:
        with pytest.raises(gpumem.OutOfMemoryError) as info:
            pool.empty((2**31, 3), "float32")
        assert info.value.requested == 25769803776
        assert "25769803776 bytes" in str(info.value)
        assert "-" not in str(info.value.requested)


@pytest.mark.parametrize("paging", [False, True], ids=["segments", "pages"])
def test_size_04_requested_alignment(paging):
    device = testing.device("host", capacity="256 MiB", paging=paging)
    dice = random.Random(4)
    with Pool(device) as pool:
        live = []
        for _ in range(1000):
            if len(live) > 40:
                live.pop(dice.randrange(len(live)))
            live.append(pool.empty(int(2 ** dice.uniform(0, 20))))
        for power in range(22):
            for size in (1, 32, 255, 256, MIB + 1):
                buffer = pool.empty(size, align=1 << power)
                assert buffer.ptr % max(1 << power, 512) == 0
                assert buffer.nbytes == size
                buffer.numpy()[:] = power
                assert buffer.tobytes() == bytes([power]) * size
                if dice.random() < 0.3:
                    live.append(buffer)
        for bad in (0, 3, -8, 768, (1 << 21) + 1):
            with pytest.raises(ValueError, match="power of two"):
                pool.empty(10, align=bad)
        pool.check()
        del live, buffer


@pytest.mark.parametrize("paging", [False, True], ids=["segments", "pages"])
def test_size_05_default_alignment_everywhere(paging):
    device = testing.device("host", capacity="256 MiB", paging=paging)
    dice = random.Random(5)
    with Pool(device) as pool:
        streams = [0] + [Stream(device) for _ in range(4)]
        live, classes = [], set()
        for step in range(10_000):
            while len(live) > 100 or (live and dice.random() < 0.45):
                live.pop(dice.randrange(len(live)))
            size = int(2 ** dice.uniform(0, 21))
            classes.add(size <= 256 * KIB)
            live.append(pool.empty(size, stream=dice.choice(streams)))
            assert live[-1].ptr % 512 == 0
            if step % 1000 == 0:
                pool.check()
        assert classes == {True, False}
        live.clear()
        pool.check()
