"""Scenarios of fragmentation and of the reuse of cached blocks.

Pools without paging take whole segments and have the split limit; pools with paging
must succeed within the same limits by moving pages.
"""

import itertools
import random
import sys
import time

import pytest

import gpumem
from gpumem import Pool, testing

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

either = pytest.mark.parametrize("paging", [False, True], ids=["segments", "pages"])


def used(pool):
    return pool.stats()["allocated_bytes.all.current"]


def reserved(pool):
    return pool.stats()["reserved_bytes.all.current"]


def make(capacity, paging, **options):
    device = testing.device("host", capacity=capacity, paging=paging)
    return Pool(device, **options)


@either
def test_frag_01_limit_takes_the_flush_path(paging):
    with make("8 GiB", paging, limit=1024 * MIB) as pool:
        pool.empty(512 * MIB)
        kept = pool.empty(768 * MIB)
        stats = pool.stats()
        assert kept.nbytes == 768 * MIB
        assert 768 * MIB <= reserved(pool) <= 770 * MIB
        assert stats["reserved_bytes.all.peak"] <= 1024 * MIB
        assert pool.device.counters()["memory_peak"] <= 1024 * MIB
        assert stats["num_ooms"] == 0
        assert stats["flushes"] >= (0 if paging else 1)  # pages need no flush
        del kept


@either
def test_frag_02_nothing_is_held_while_flushing(paging):
    rounds = []
    with make("100 MiB", paging) as pool:
        for number in range(100):
            a = pool.empty(30 * MIB)
            b = pool.empty(30 * MIB)
            del b
            c = pool.empty(60 * MIB)
            del c
            d = pool.empty(60 * MIB)
            assert reserved(pool) == 90 * MIB
            del a, d
            if number % 2:  # half the rounds begin with a full cache
                gpumem.empty_cache()
            numbers = pool.stats()
            rounds.append({k: n for k, n in numbers.items() if k.endswith("current")})
            assert pool.device.counters()["memory_now"] == reserved(pool)
    assert rounds[0::2] == [rounds[0]] * 50
    assert rounds[1::2] == [rounds[1]] * 50


def around(pool):
    """keep 1, temp 4, drop temp, keep 1, keep 1, temp 4 (GiB)."""
    kept = [pool.empty(GIB)]
    pool.empty(4 * GIB)
    kept += [pool.empty(GIB), pool.empty(GIB)]
    return kept, pool.empty(4 * GIB)


def test_frag_03_split_limit_keeps_large_blocks_whole():
    with make("8 GiB", False, max_split=512 * MIB) as pool:
        everything = around(pool)
        assert reserved(pool) == 7 * GIB
        assert pool.stats()["num_ooms"] == 0
        del everything


def test_frag_03_pages_need_no_split_limit():
    with make("8 GiB", True) as pool:
        everything = around(pool)
        assert used(pool) == 7 * GIB
        assert reserved(pool) <= 8 * GIB
        del everything


def test_frag_03_the_error_names_fragmentation():
    with make("8 GiB", False) as pool:
        with pytest.raises(gpumem.OutOfMemoryError) as info:
            around(pool)
        error = info.value
        assert error.requested == 4 * GIB
        assert error.used == 3 * GIB
        assert error.cached == 2 * GIB
        assert error.device_free == 3 * GIB
        assert error.largest_free == 2 * GIB
        assert error.reason == "fragmentation"
        assert "fragment" in str(error)
        assert "too little" not in str(error)
        del info, error


def test_frag_05_second_iteration_has_what_the_first_had():
    with make("16 GiB", False, max_split=GIB) as pool:
        big = pool.empty(11 * GIB)
        address = big.ptr
        del big
        small = [pool.empty(16 * MIB) for _ in range(30)]
        snapshot = pool.snapshot()
        (whole,) = [s for s in snapshot["segments"] if s["total_size"] == 11 * GIB]
        (block,) = whole["blocks"]
        assert (block["address"], block["size"]) == (address, 11 * GIB)
        assert block["state"] == "inactive"
        for segment in snapshot["segments"]:
            assert sum(b["size"] for b in segment["blocks"]) == segment["total_size"]
            assert all("state" in b for b in segment["blocks"])
        big = pool.empty(11 * GIB)
        assert reserved(pool) == 11 * GIB + 480 * MIB
        assert pool.stats()["num_ooms"] == 0
        del big, small


@either
@pytest.mark.parametrize(
    ("limit", "reserve", "sizes"),
    [
        (1024 * MIB, 256 * MIB, [1024 * MIB]),
        (64 * MIB, 0, [32 * MIB] * 2),
        (64 * MIB, 0, [8 * MIB] * 8),
    ],
    ids=["a", "b", "c"],
)
def test_frag_06_the_whole_limit_can_be_used(paging, limit, reserve, sizes):
    with make("2 GiB", paging, limit=limit, reserve=reserve) as pool:
        assert reserved(pool) == reserve
        held = [pool.empty(size) for size in sizes]
        assert used(pool) == limit
        with pytest.raises(gpumem.OutOfMemoryError) as info:
            pool.empty(1)
        assert info.value.reason == "limit"
        assert used(pool) == limit
        del held, info


@either
def test_frag_08_growing_sizes_find_room(paging):
    with make("64 MiB", paging) as pool:
        highest = 0
        for size in range(512, 20 * MIB + 1, 6656):
            buffer = pool.empty(size)
            memoryview(buffer)[size - 1] = 1
            highest = max(highest, reserved(pool))
            del buffer
        assert highest <= 64 * MIB
        assert pool.device.counters()["memory_peak"] <= 64 * MIB
        assert pool.stats()["num_ooms"] == 0
        gpumem.empty_cache()
        assert reserved(pool) == 0


@either
@pytest.mark.parametrize("live", [0, 50])
def test_frag_09_long_runs_stay_fast(paging, live):
    """Time of the thread is compared, so that a busy machine does not count."""
    with make("2 GiB", paging) as pool:
        held = [None] * max(live, 1)
        times = []
        for step in range(200_000):
            if step % 10_000 == 0:
                times.append(time.thread_time())
            held[step % len(held)] = pool.empty(512 * (1 + step % 20_000))
            if not live:
                held[0] = None
            if step % 500 == 0:
                sizes = pool.sizes()
                assert sizes["index_entries"] <= sizes["free_blocks"]
        times.append(time.thread_time())
        took = [after - before for before, after in itertools.pairwise(times)]
        assert took[-1] <= 3 * took[2]  # the first 20,000 are the warm-up
        held.clear()


def check_segments(pool):
    """Blocks are contiguous, disjoint, sum to their segment; no two free neighbours."""
    segments, _unplaced = pool.view()
    for segment in segments:
        address, size, blocks = segment[0], segment[1], segment[9]
        expected, before = address, None
        for start, length, _requested, state, _context in blocks:
            assert start == expected
            assert (before, state) != ("free", "free")
            expected, before = start + length, state
        assert expected == address + size
    pool.check()


@either
def test_frag_10_every_free_succeeds(paging, monkeypatch):
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    with make("1 GiB", paging) as pool:
        for _ in range(2):
            many = [pool.empty(512 * k) for k in range(1, 1025)]
            check_segments(pool)
            many.clear()
        pool.empty(MIB)
        rest = pool.empty(512 * KIB)
        pool.empty(KIB)
        del rest
        check_segments(pool)
        assert used(pool) == 0

        dice = random.Random(10)
        live = []
        for step in range(100_000):
            if live and (len(live) >= 300 or dice.random() < 0.5):
                live.pop(dice.randrange(len(live)))
            else:
                live.append(pool.empty(int(2 ** dice.uniform(0, 21))))
            if step % 1000 == 0:
                check_segments(pool)
        live.clear()
        assert used(pool) == 0
        check_segments(pool)
        gpumem.empty_cache()
        assert reserved(pool) == 0
    assert ignored == []
