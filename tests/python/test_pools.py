"""Default pools, the pool in use, and the functions that allocate."""

import array
import asyncio
import os
import threading

import pytest

import gpumem
from gpumem import _core


def test_default_pool_is_one_for_a_device():
    first = gpumem.default_pool()
    assert gpumem.default_pool("host") is first
    assert gpumem.default_pool(gpumem.device("host")) is first
    assert first.device is gpumem.device("host")


def test_default_pool_is_one_when_threads_race():
    barrier = threading.Barrier(8)
    found = []

    def ask():
        barrier.wait()
        found.append(gpumem.default_pool())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1
    assert len(_core.pools()) == 1


def test_default_pool_takes_the_options_in_force():
    gpumem.configure(
        host_capacity="64 MiB", limit="32 MiB", max_split="1 MiB", oom_wait=0
    )
    options = gpumem.default_pool().options()
    assert options["limit"] == 32 << 20
    assert options["max_split"] == 1 << 20
    assert options["oom_wait"] == 0


def test_use_pool_holds_inside_the_block(pool):
    with gpumem.use_pool(pool) as entered:
        assert entered is pool
        assert gpumem.current_pool() is pool
        assert gpumem.empty(10).pool is pool
    assert gpumem.current_pool() is gpumem.default_pool()


def test_use_pool_nests(device):
    with gpumem.Pool(device) as one, gpumem.Pool(device) as two:
        again = gpumem.use_pool(one)
        with again, gpumem.use_pool(two), again:
            assert gpumem.current_pool() is one
        assert gpumem.current_pool() is gpumem.default_pool()


def test_use_pool_holds_for_one_thread_and_one_task(pool):
    async def other():
        return gpumem.current_pool()

    async def main():
        task = asyncio.create_task(other())
        with gpumem.use_pool(pool):
            return await task

    assert asyncio.run(main()) is gpumem.default_pool()
    seen = []
    with gpumem.use_pool(pool):
        thread = threading.Thread(target=lambda: seen.append(gpumem.current_pool()))
        thread.start()
        thread.join()
    assert seen[0] is not pool


def test_current_pool_of_another_device_is_its_default(pool):
    with gpumem.use_pool(pool):
        assert gpumem.current_pool("host").device.total != pool.device.total


def test_use_pool_refuses_what_is_no_pool():
    with pytest.raises(TypeError, match="pool must be a Pool"):
        gpumem.use_pool("host")


def test_pool_and_device_must_agree(pool):
    assert gpumem.empty(1, pool=pool, device=pool.device).pool is pool
    with pytest.raises(ValueError, match="the pool is on host:0"):
        gpumem.empty(1, pool=pool, device=gpumem.device("host:1", capacity="64 MiB"))


def test_empty_passes_everything_on(pool):
    buffer = gpumem.empty((3, 4), "float32", pool=pool, name="w", align=4096)
    assert (buffer.shape, buffer.dtype, buffer.name) == ((3, 4), "float32", "w")
    assert buffer.ptr % 4096 == 0


def test_zeros_ones_full(pool):
    assert gpumem.zeros(4, pool=pool).tobytes() == bytes(4)
    assert gpumem.ones(4, pool=pool).tobytes() == b"\1" * 4
    threes = gpumem.full((2, 2), 3, "int32", pool=pool)
    assert array.array("i", threes.tobytes()).tolist() == [3, 3, 3, 3]


def test_asarray_copies_a_buffer_protocol_source(pool):
    source = array.array("f", [1.0, 2.0, 3.0])
    buffer = gpumem.asarray(source, pool=pool)
    assert (buffer.dtype, buffer.shape) == ("float32", (3,))
    assert array.array("f", buffer.tobytes()) == source
    assert gpumem.asarray(b"abc", pool=pool).tobytes() == b"abc"


def test_asarray_returns_what_is_there(pool):
    buffer = gpumem.asarray(b"abc", pool=pool)
    assert gpumem.asarray(buffer, pool=pool) is buffer
    assert gpumem.asarray(buffer, "uint8", pool=pool) is buffer


def test_asarray_reads_numpy_and_lists_and_converts(pool):
    numpy = pytest.importorskip("numpy")
    grid = numpy.arange(12, dtype="float64").reshape(3, 4)
    assert numpy.array_equal(gpumem.asarray(grid.T, pool=pool).numpy(), grid.T)
    half = gpumem.asarray(grid, "float16", pool=pool)
    assert half.dtype == "float16"
    assert half.numpy()[2, 3] == 11
    assert gpumem.asarray([[1, 2], [3, 4]], "int8", pool=pool).numpy().sum() == 10
    assert gpumem.asarray(half, "float32", pool=pool).numpy()[1, 1] == 5


@pytest.mark.parametrize("source", [object(), "text", ["text"], {"a": 1}])
def test_asarray_refuses_what_holds_no_numbers(pool, source):
    with pytest.raises(TypeError):
        gpumem.asarray(source, pool=pool)


def test_pinned_empty_is_host_memory(device):
    pinned = gpumem.pinned_empty((2, 3), "float32")
    assert pinned.shape == (2, 3)
    assert pinned.nbytes == 24
    assert len(memoryview(pinned).cast("B")) == 24


def test_pin_holds_inside_the_block(device):
    data = bytearray(8192)
    with gpumem.pin(data) as inside:
        assert inside is data


def test_set_per_process_memory_fraction_limits_one_device():
    gpumem.configure(host_capacity="64 MiB", host_devices=2)
    gpumem.set_per_process_memory_fraction(0.5, 0)
    assert gpumem.default_pool(0).limit == 32 << 20
    assert gpumem.default_pool(1).limit is None
    assert gpumem.get_per_process_memory_fraction(0) == 0.5
    assert gpumem.get_per_process_memory_fraction(1) == 1.0


def test_set_per_process_memory_fraction_reads_the_same_in_all_threads():
    gpumem.configure(host_capacity="64 MiB", host_devices=2)
    gpumem.set_per_process_memory_fraction(0.25, 0)
    seen = []

    def look():
        gpumem.set_device(1)
        seen.append(gpumem.get_per_process_memory_fraction(0))

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [0.25] * 8


def test_get_per_process_memory_fraction_shows_the_option():
    gpumem.configure(memory_fraction=0.75)
    assert gpumem.get_per_process_memory_fraction() == 0.75


@pytest.mark.parametrize("bad", [0, -0.1, 1.5, 10, 100, float("nan"), "0.5", True])
def test_set_per_process_memory_fraction_refuses(bad):
    with pytest.raises((TypeError, ValueError), match="0 < fraction <= 1"):
        gpumem.set_per_process_memory_fraction(bad)


def test_empty_cache_reports_what_stays_and_what_went(pool):
    kept = pool.empty(4 << 20)
    dropped = pool.empty(4 << 20)
    del dropped
    report = gpumem.empty_cache()
    assert isinstance(report, gpumem.TrimReport)
    assert report.released == 4 << 20
    assert report.referenced == kept.nbytes
    assert repr(report) == "<TrimReport: 4.00 MiB released, 4.00 MiB still referenced>"
    assert report.to_dict()["released"] == 4 << 20
    assert "<table" in report._repr_html_()


def test_empty_cache_collects_cycles_when_asked(pool):
    import gc

    class Node:
        pass

    gc.disable()
    try:
        node = Node()
        node.itself = node
        node.buffer = pool.empty(4 << 20)
        del node
        report = gpumem.empty_cache()
        assert (report.released, report.referenced) == (0, 4 << 20)
        report = gpumem.empty_cache(collect=True)
        assert (report.released, report.referenced) == (4 << 20, 0)
    finally:
        gc.enable()


def test_empty_cache_of_one_device_leaves_others(pool):
    other = gpumem.device("host:1", capacity="64 MiB")
    gpumem.empty(1 << 20, device=other).free()
    pool.empty(1 << 20).free()
    assert gpumem.empty_cache(device=other).released == 2 << 20
    assert gpumem.memory_reserved() == 2 << 20


def test_trim_stops_at_its_target(pool):
    buffers = [pool.empty(2 << 20) for _ in range(8)]
    buffers.clear()
    report = gpumem.trim("8 MiB", pool=pool)
    assert pool.stats()["reserved_bytes.all.current"] == 8 << 20
    assert report.released == 8 << 20


def test_shutdown_then_everything_is_zero_and_allocating_is_an_error():
    buffer = gpumem.empty(1 << 20)
    gpumem.shutdown()
    gpumem.shutdown()
    assert gpumem.memory_allocated() == 0
    assert gpumem.memory_snapshot()["segments"] == []
    assert gpumem.empty_cache() == gpumem.TrimReport(0, 0, 0)
    for use in (gpumem.default_pool, gpumem.current_device, lambda: gpumem.empty(1)):
        with pytest.raises(gpumem.GpumemError, match=r"shut down.*gpumem\.reset\(\)"):
            use()
    del buffer


def test_reset_after_shutdown_starts_with_zeroed_counters():
    gpumem.empty(1 << 20).free()
    gpumem.shutdown()
    gpumem.reset()
    assert gpumem.max_memory_allocated() == 0
    buffer = gpumem.empty(1 << 20)
    assert gpumem.memory_allocated() == 1 << 20
    assert gpumem.memory_stats()["allocation.all.allocated"] == 1
    del buffer


def test_reset_is_refused_with_a_list_while_buffers_are_exported():
    buffer = gpumem.empty(1000, name="weights")
    pool = gpumem.default_pool()
    view = memoryview(buffer)
    with pytest.raises(BufferError, match=r"1 exported buffer: weights \(1000 B, 1"):
        gpumem.reset()
    assert gpumem.default_pool() is pool
    with pytest.raises(BufferError, match="weights"):
        gpumem.shutdown()
    view.release()
    gpumem.reset()
    assert gpumem.default_pool() is not pool


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_gets_pools_of_its_own(python):
    python(
        """
import gpumem, os
gpumem.configure(host_capacity="64 MiB", host_devices=2)
gpumem.set_device(1)
kept = gpumem.empty(1 << 20)
child = os.fork()
if child == 0:
    status = 1
    try:
        assert gpumem.memory_allocated() == 0, "counters start from zero"
        assert gpumem.current_device().name == "host:1"
        buffer = gpumem.zeros(1 << 20)
        assert gpumem.memory_allocated() == 1 << 20
        status = 0
    finally:
        os._exit(status)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert gpumem.memory_allocated() == 1 << 20
"""
    )
