"""Scenarios of limits, fractions, head-room and their configuration."""

import math
import random
import threading

import pytest

import gpumem
from gpumem import Pool, testing

MIB, GIB = 1 << 20, 1 << 30

either = pytest.mark.parametrize("paging", [False, True], ids=["segments", "pages"])


def reserved(pool):
    return pool.stats()["reserved_bytes.all.current"]


@either
def test_limit_01_the_limit_governs_the_pool(paging):
    device = testing.device("host", capacity="1 GiB", paging=paging)
    device.occupy(300 * MIB)
    with Pool(device, limit="100 MiB") as pool:
        held = [pool.empty(9 * MIB) for _ in range(5)]
        stats = gpumem.memory_stats(device)
        assert stats["allocated_bytes.all.current"] == 45 * MIB
        assert stats["reserved_bytes.all.current"] <= 100 * MIB
        assert stats["outside"] == 300 * MIB
        assert "outside" in str(gpumem.memory_summary(device)).lower()
        held.append(pool.empty(MIB))
        while len(held) < 1000:
            try:
                held.append(pool.empty(2 * MIB))
            except gpumem.OutOfMemoryError as error:
                reason = error.reason
                break
        assert reason == "limit"
        assert sum(buffer.nbytes for buffer in held) == 100 * MIB
        assert reserved(pool) == 100 * MIB
        counters = device.counters()
        assert counters["memory_now"] == reserved(pool)
        assert counters["memory_peak"] <= 100 * MIB
        assert gpumem.memory_stats(device)["outside"] == 300 * MIB
        held.clear()


def trace(seed, most):
    """A program's allocations (bytes, at most `most` at a time) and frees (None)."""
    dice = random.Random(seed)
    for _ in range(400):
        if dice.random() < 0.45:
            yield None, dice.random()
        else:
            yield int(2 ** dice.uniform(9, math.log2(most))), 0.0


def follow(pool, steps):
    """Which steps succeed."""
    live, outcomes = [], []
    for size, where in steps:
        if size is None:
            if live:
                live.pop(int(where * len(live)))
            continue
        try:
            live.append(pool.empty(size))
            outcomes.append(True)
        except gpumem.OutOfMemoryError:
            outcomes.append(False)
    return outcomes


@either
@pytest.mark.parametrize("kind", ["host", "sim"])
def test_limit_02_a_limit_is_like_a_smaller_device(kind, paging):
    limit = 32 * MIB
    failures = 0
    for seed in range(15):
        large = testing.device(kind, capacity=4 * limit, paging=paging)
        with Pool(large, limit=limit) as limited:
            one = follow(limited, trace(seed, 6 * MIB))
        small = testing.device(kind, capacity=limit, paging=paging)
        with Pool(small) as free:
            other = follow(free, trace(seed, 6 * MIB))
        assert one == other
        assert large.counters()["memory_peak"] <= limit
        assert small.counters()["memory_peak"] <= limit
        failures += one.count(False)
    assert failures > 0


def test_limit_03_one_limit_for_all_threads():
    devices = [gpumem.device(f"host:{i}", capacity="64 MiB") for i in range(3)]
    gpumem.set_per_process_memory_fraction(0.5, 0)
    pool = gpumem.default_pool(0)
    seen, highest, failed = [], [], []
    barrier = threading.Barrier(8)

    def work(number):
        gpumem.set_device(1 + number % 2)
        seen.append(
            (
                gpumem.get_per_process_memory_fraction(0),
                gpumem.default_pool("host:0").limit,
                gpumem.memory_stats(devices[0])["limit"],
                gpumem.default_pool().limit,
                gpumem.memory_stats()["limit"],
            )
        )
        barrier.wait()
        held = []
        for _ in range(16):  # 8 threads x 16 x 512 KiB: twice the limit
            try:
                held.append(gpumem.empty(MIB // 2, device=0))
            except gpumem.OutOfMemoryError as error:
                failed.append(error.reason)
            highest.append(gpumem.memory_reserved(0))
        barrier.wait()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [(0.5, 32 * MIB, 32 * MIB, None, -1)] * 8
    assert max(highest) <= 32 * MIB
    assert pool.stats()["reserved_bytes.all.peak"] <= 32 * MIB
    assert devices[0].counters()["memory_peak"] <= 32 * MIB
    assert len(failed) == 64
    assert set(failed) == {"limit"}
    assert gpumem.get_per_process_memory_fraction(1) == 1.0


NONSENSE = [0, -0.1, 1.5, 10, 100, math.nan, math.inf, -math.inf, "0.5", True, False]


@pytest.mark.parametrize("fraction", NONSENSE)
def test_limit_04_nonsense_fractions_are_refused(device, fraction):
    for call in (
        gpumem.set_per_process_memory_fraction,
        lambda value: gpumem.configure(memory_fraction=value),
    ):
        with pytest.raises((TypeError, ValueError), match="fraction") as info:
            call(fraction)
        assert f"not {fraction!r}" in str(info.value)
    assert gpumem.default_pool().limit is None


@pytest.mark.parametrize("fraction", [1.0, 1, 0.5, 1e-3])
def test_limit_04_a_ratio_is_accepted(device, fraction):
    gpumem.set_per_process_memory_fraction(fraction)
    assert gpumem.default_pool().limit == int(device.total * fraction)


@pytest.mark.parametrize(
    "text", ["0", "-0.1", "1.5", "10", "100", "nan", "inf", "True", "half", "50%"]
)
def test_limit_04_the_variable_is_checked_at_first_use(monkeypatch, text):
    monkeypatch.setenv("GPUMEM_CONF", f"memory_fraction={text}")
    gpumem.reset()
    for use in (gpumem.memory_stats, gpumem.default_pool, lambda: gpumem.empty(1)):
        with pytest.raises(ValueError, match="GPUMEM_CONF") as info:
            use()
        assert f"memory_fraction={text}" in str(info.value)


@pytest.mark.parametrize("text", ["0.5", "1.0"])
def test_limit_04_the_variable_takes_a_ratio(monkeypatch, text):
    monkeypatch.setenv("GPUMEM_CONF", f"memory_fraction={text},host_capacity=64MiB")
    gpumem.reset()
    assert gpumem.default_pool().limit == int(float(text) * 64 * MIB)


@either
@pytest.mark.parametrize("size", ["10 GiB", int(1.01 * GIB)])
def test_limit_06_a_reserve_larger_than_the_device(paging, size):
    device = testing.device("host", capacity=GIB, paging=paging)
    gpumem.set_device(device)
    with Pool(device) as pool:
        pool.empty(10 * MIB)
        before = pool.stats()
        now = device.counters()["memory_now"]
        calls = [
            lambda: pool.reserve(size),
            lambda: Pool(device, reserve=size),
            lambda: gpumem.configure(reserve=size),
        ]
        gpumem.default_pool()
        for call in calls:
            with pytest.raises((gpumem.OutOfMemoryError, ValueError)) as info:
                call()
            text = str(info.value)
            number = 10 * GIB if size == "10 GiB" else size
            assert str(number) in text or "10.00 GiB" in text
            assert str(GIB) in text or "1.00 GiB" in text
            assert device.counters()["memory_now"] == now
        after = pool.stats()
        for key, value in before.items():
            if key.endswith(".current"):
                assert after[key] == value
        assert gpumem.config.get("reserve") == 0
        assert pool.empty(10 * MIB).nbytes == 10 * MIB


def test_limit_06_units_are_told_apart():
    device = testing.device("host", capacity="12 GiB")
    page = device.page_size
    for text, exact in (
        ("10GB", 10_000_000_000),
        ("10 GiB", 10 * GIB),
        ("1e3MB", 1_000_000_000),
    ):
        with Pool(device) as pool:
            pool.reserve(text)
            assert reserved(pool) == -(-exact // page) * page
            assert Pool(device, limit=text).limit == exact
    for bad in ("lots", "10 gallons", "GiB", "", "1e3XB", "-1GB"):
        for call in (
            lambda bad=bad: Pool(device, reserve=bad),
            lambda bad=bad: Pool(device, limit=bad),
            lambda bad=bad: gpumem.configure(reserve=bad),
            lambda bad=bad: gpumem.configure(limit=bad),
        ):
            with pytest.raises(ValueError, match="GiB"):
                call()


def fill(pool, held):
    while len(held) < 2000:
        held.append(pool.empty(MIB))


@either
@pytest.mark.parametrize("others", ["before", "after"])
def test_limit_07_head_room_is_left_to_others(paging, others):
    device = testing.device("host", capacity="1 GiB", paging=paging)
    other = 80 * MIB
    if others == "before":
        device.occupy(other)
    with Pool(device, headroom=0.1) as pool:
        held = []
        with pytest.raises(gpumem.OutOfMemoryError) as info:
            fill(pool, held)
        assert info.value.reason == "headroom"
        assert "head-room" in str(info.value) or "headroom" in str(info.value)
        assert info.value.headroom == math.ceil(0.1 * GIB)
        assert device.memory_info()[0] >= 102 * MIB
        assert reserved(pool) >= 0.85 * GIB - (other if others == "before" else 0)
        if others == "after":
            device.occupy(other)
        assert device.memory_info()[0] >= 22 * MIB
        device.occupy(0)
        held.clear()
        del info
