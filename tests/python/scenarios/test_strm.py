"""Scenarios of streams; those of a host device can be held back by hand."""

import pytest

import gpumem
from gpumem import Pool, Stream, testing

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def slow():
    """A device whose streams wait until they are released."""
    return testing.device("host", capacity="64 MiB", delayed=True)


def pending(pool):
    pool.poll()
    return pool.stats()["pending_blocks"]


@pytest.mark.parametrize("size", [4 * KIB, 2 * MIB])
def test_strm_01_no_reuse_while_another_stream_reads(slow, size):
    p, q = b"\x50" * size, b"\x51" * size
    with Pool(slow) as pool, Stream(slow) as one, Stream(slow) as two:
        target = pool.empty(size, stream=two)
        for _ in range(100):
            source = pool.empty(size, stream=one)
            source.fill(0x50, stream=one)
            one.release(one.waiting)
            target.copy_from(source, stream=two)
            source.record_stream(two)
            old = source.ptr
            del source
            fresh = pool.empty(size, stream=one)
            assert fresh.ptr != old
            fresh.fill(0x51, stream=one)
            one.release(one.waiting)
            two.release(two.waiting)
            assert bytes(memoryview(target)) == p
            assert bytes(memoryview(fresh)) == q
            del fresh
        one.release()
        two.release()
        assert pending(pool) == 0
        del target


def test_strm_01_without_a_mark_the_own_stream_reuses_at_once(slow):
    """Documented: another stream's use counts only when it was recorded."""
    with Pool(slow) as pool, Stream(slow) as one, Stream(slow) as two:
        buffer = pool.empty(MIB, stream=one)
        two.record()
        address = buffer.ptr
        del buffer
        assert pool.empty(MIB, stream=one).ptr == address
        assert "not handed out again" in gpumem.Buffer.record_stream.__doc__
        one.release()
        two.release()


def test_strm_02_a_mark_before_the_use_is_enough(slow):
    with Pool(slow) as pool, Stream(slow) as one, Stream(slow) as two:
        buffer = pool.empty(MIB, stream=one)
        address = buffer.ptr
        buffer.record_stream(two)
        two.release()
        two.stall()
        used = two.record()  # the work on two: queued after the mark
        del buffer
        assert pending(pool) == 1
        others = [pool.empty(MIB, stream=one) for _ in range(20)]
        assert address not in [other.ptr for other in others]
        assert not used.query()
        two.release(two.waiting)
        assert used.query()
        assert pending(pool) == 0
        others.clear()
        assert address in [pool.empty(MIB, stream=one).ptr] + [
            b.ptr for b in [pool.empty(MIB, stream=one) for _ in range(21)]
        ]
        one.release()
        two.release()


def test_strm_02_marks_that_say_nothing_new_add_no_event():
    device = testing.device("host", capacity="64 MiB")
    with Pool(device) as pool, Stream(device) as one, Stream(device) as two:

        def events_of(*streams):
            buffer = pool.empty(MIB, stream=one)
            for stream in streams:
                buffer.record_stream(stream)
            before = device.counters()["event_record"]
            del buffer
            pool.poll()
            return device.counters()["event_record"] - before

        plain = events_of()
        assert events_of(one) == plain
        assert events_of(one, one, one) == plain
        once = events_of(two)
        assert once > plain
        assert events_of(two, two, two) == once
        assert events_of(two, one, two) == once


@pytest.mark.parametrize("paging", [False, True], ids=["segments", "pages"])
def test_strm_05_memory_of_a_one_shot_stream_is_not_stranded(paging):
    device = testing.device("host", capacity="1.5 GiB", paging=paging)
    with Pool(device) as pool:
        stream = Stream(device)
        pool.empty(1 << 30, stream=stream)
        stream.synchronize()
        stream.close()
        kept = pool.empty(1 << 30)
        assert pool.stats()["num_ooms"] == 0
        assert pool.stats()["reserved_bytes.all.peak"] <= 1536 * MIB
        assert device.counters()["memory_peak"] <= 1536 * MIB
        del kept


@pytest.mark.parametrize("paging", [False, True], ids=["segments", "pages"])
def test_strm_05_destroyed_streams_leave_no_records(paging):
    device = testing.device("host", capacity="64 MiB", paging=paging)

    def use():
        with Stream(device) as stream:
            buffer = pool.empty(MIB, stream=stream)
            buffer.fill(1, stream=stream)
            del buffer
            stream.synchronize()

    with Pool(device) as pool:
        for _ in range(20):
            use()
        before = pool.sizes(), pool.stats()["lanes"]
        for _ in range(1000):
            use()
        after = pool.sizes(), pool.stats()["lanes"]
        assert after[1] == before[1] <= 1
        assert after[0]["lanes"] == before[0]["lanes"] <= 1
        assert after[0]["metadata_bytes"] <= before[0]["metadata_bytes"]
        assert pool.stats()["reserved_bytes.all.current"] <= 64 * MIB
        pool.check()


def test_strm_08_a_slow_stream_delays_nobody_else(slow):
    with Pool(slow) as pool, Stream(slow) as a, Stream(slow) as b:
        first = pool.empty(MIB)
        first.record_stream(a)
        a.record()
        slow_address = first.ptr
        del first
        blocks = [pool.empty(512 * KIB) for _ in range(50)]
        for block in blocks:
            block.record_stream(b)
        b.record()
        addresses = {block.ptr for block in blocks}
        blocks.clear()
        del block
        assert pending(pool) == 51
        b.release()
        assert pending(pool) == 1
        again = [pool.empty(512 * KIB) for _ in range(50)]
        assert {block.ptr for block in again} == addresses
        more = [pool.empty(MIB) for _ in range(20)]
        assert slow_address not in [block.ptr for block in more]
        assert pending(pool) == 1
        a.release()
        assert pending(pool) == 0
        del again, more
        Stream(slow, 0).release()
