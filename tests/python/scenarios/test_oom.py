"""Scenarios of running out of memory."""

import gc
import os

import pytest

import gpumem
from gpumem import Pool, testing

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def used(pool):
    return pool.stats()["allocated_bytes.all.current"]


def test_oom_02_a_failed_step_leaves_nothing_behind(no_gc):
    class Node:
        pass

    def step(fail):
        with gpumem.scope("step"):
            for _ in range(5):
                activation = gpumem.empty(10 * MIB)
                activations.append(activation)
                node = Node()
                node.me, node.held = node, activation
            if fail:
                gpumem.empty(20 * MIB)
            return True

    activations, errors = [], []
    with Pool(testing.device("host", capacity="80 MiB")) as pool, gpumem.use_pool(pool):
        weights = pool.empty(12 * MIB)
        baseline = used(pool)
        for number in range(20):
            assert used(pool) == baseline
            try:
                assert step(fail=number % 2 == 0)
            except gpumem.OutOfMemoryError as error:
                errors.append(error)  # and with it the frames of the step
        assert used(pool) == baseline
        assert len(errors) == 10
        assert pool.stats()["num_ooms"] == 10
        assert len(activations) == 100
        assert all(activation.released for activation in activations)
        activations.clear()
        errors.clear()
        del weights
        gc.collect()


NUMBERS = (
    "requested",
    "used",
    "cached",
    "pending",
    "reserved",
    "device_free",
    "device_total",
    "largest_free",
    "stranded",
)


def shortage(pool, kept):
    kept.append(pool.empty(6 * GIB))
    pool.empty(3 * GIB)


def fragmentation(pool, kept):
    kept.append(pool.empty(GIB))
    pool.empty(4 * GIB)
    kept += [pool.empty(GIB), pool.empty(GIB)]
    pool.empty(4 * GIB)


def limit(pool, kept):
    pool.limit = 2 * GIB
    kept.append(pool.empty(GIB))
    pool.empty(GIB + MIB)


def others(pool, kept):
    pool.device.occupy(7 * GIB)
    pool.empty(2 * GIB)


FACTS = {
    shortage: {"requested": 3 * GIB, "used": 6 * GIB, "device_free": 2 * GIB},
    fragmentation: {
        "requested": 4 * GIB,
        "used": 3 * GIB,
        "cached": 2 * GIB,
        "reserved": 5 * GIB,
        "device_free": 3 * GIB,
        "largest_free": 2 * GIB,
    },
    limit: {"requested": GIB + MIB, "limit": 2 * GIB, "device_free": 7 * GIB},
    others: {"requested": 2 * GIB, "used": 0, "reserved": 0, "device_free": GIB},
}


@pytest.mark.parametrize("provoke", FACTS)
def test_oom_05_the_error_tells_why(provoke):
    device = testing.device("host", capacity="8 GiB", paging=False)
    with Pool(device) as pool:
        kept = []
        with pytest.raises(gpumem.OutOfMemoryError) as info:
            provoke(pool, kept)
        error = info.value
        assert error.reason == provoke.__name__
        for name in NUMBERS:
            assert type(getattr(error, name)) is int
        assert error.device_total == 8 * GIB
        assert error.device == device.name
        assert (error.limit is None) == (provoke is not limit)
        for name, value in FACTS[provoke].items():
            assert getattr(error, name) == value
        text = str(error)
        assert error.args == (text,)
        assert "\n" not in text
        assert len(text) < 600
        assert ("fragment" in text) == (provoke is fragmentation)
        assert str(error.requested) in text
        device.occupy(0)
        kept.clear()
        del info, error


# What a failure counts: tries, errors, collections.
COUNTED = {"collections", "num_alloc_retries", "num_ooms"}


def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("paging", [False, True], ids=["segments", "pages"])
def test_oom_06_a_failure_changes_nothing(paging, old_objects_aside):
    device = testing.device("host", capacity="100 MiB", paging=paging)
    with Pool(device) as pool:
        for number in range(1000):
            if number == 200:
                before = resident()
            fill = [pool.empty(10 * MIB) for _ in range(9)]
            former = pool.stats()
            memory = device.counters()["memory_now"]
            with pytest.raises(gpumem.OutOfMemoryError):
                pool.empty(20 * MIB)
            after = pool.stats()
            different = [key for key in after if after[key] != former[key]]
            assert set(different) <= COUNTED
            assert after["num_ooms"] == number + 1
            assert device.counters()["memory_now"] == memory
            assert pool.empty(8 * MIB).nbytes == 8 * MIB
            fill.clear()
            assert used(pool) == 0
            gpumem.empty_cache()
        # AddressSanitizer keeps freed memory for a while.
        slack = 300 * MIB if "ASAN_OPTIONS" in os.environ else 4 * MIB
        assert resident() - before < slack
        pool.check()
