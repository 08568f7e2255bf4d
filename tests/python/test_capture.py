"""Graph captures: where their memory is, and what waits for their end."""

import os

import pytest

import gpumem
from gpumem import GpumemError, OutOfMemoryError, Pool, Stream, testing

MIB = 1 << 20


@pytest.fixture
def stream(device):
    with Stream(device) as made:
        yield made


@pytest.fixture
def ready(device):
    """A pool with 16 MiB of free pages: the device makes none during a capture."""
    with Pool(device) as made:
        made.reserve(16 * MIB)
        yield made


def begin(pool, stream):
    pool.capture_begin(stream)
    pool.device.set_capturing(stream, True)


def end(pool, stream):
    pool.device.set_capturing(stream, False)
    pool.capture_end(stream)


def stable_bytes(pool):
    return sum(
        size for _address, size, _stream, stable, *_rest in pool.view()[0] if stable
    )


def test_memory_of_a_capture_does_not_move(ready, stream):
    ready.empty(4 * MIB, stream=stream)
    begin(ready, stream)
    buffer = ready.empty(4 * MIB, stream=stream)
    end(ready, stream)
    assert stable_bytes(ready) == 4 * MIB
    segments = {s["address"]: s["is_stable"] for s in ready.snapshot()["segments"]}
    assert segments[buffer.ptr] is True
    del buffer
    assert ready.trim()[2] == 4 * MIB
    assert stable_bytes(ready) == 4 * MIB


def test_the_next_capture_uses_the_same_memory(ready, stream):
    addresses = []
    for _ in range(3):
        begin(ready, stream)
        for _ in range(2):
            addresses.append(ready.empty(4 * MIB, stream=stream).ptr)
        end(ready, stream)
        assert ready.empty(4 * MIB, stream=stream).ptr not in addresses
    assert len(set(addresses)) == 1


def test_closing_the_stream_gives_its_memory_back(device, ready):
    stream = Stream(device)
    begin(ready, stream)
    ready.empty(4 * MIB, stream=stream)
    end(ready, stream)
    stream.close()
    assert ready.trim()[0] == 16 * MIB
    assert device.counters()["memory_now"] == 0


def test_closing_the_stream_ends_its_capture(device, pool):
    stream = Stream(device)
    pool.capture_begin(stream)
    stream.close()
    assert pool.trim()[4] is False


def test_a_recorded_use_waits_for_the_end(device, ready, stream):
    buffer = ready.empty(MIB)
    buffer.record_stream(stream)
    begin(ready, stream)
    events = device.counters()["event_record"]
    del buffer
    ready.poll()
    assert ready.stats()["pending_bytes"] == MIB
    assert device.counters()["event_record"] == events
    end(ready, stream)
    assert device.counters()["event_record"] == events + 1
    ready.poll()
    assert ready.stats()["pending_bytes"] == 0


def test_trim_does_nothing_during_a_capture(device, ready, stream):
    ready.capture_begin(stream)
    assert ready.trim() == (0, 0, 16 * MIB, 0, True)
    report = gpumem.trim(pool=ready)
    assert report.capturing
    assert "capturing" in str(report)
    ready.capture_end(stream)
    assert ready.trim()[0] == 16 * MIB


def test_a_capture_that_needs_more_fails_and_can_go_on(device, ready, stream):
    begin(ready, stream)
    with pytest.raises(GpumemError, match="while a stream captures a graph"):
        ready.empty(20 * MIB, stream=stream)
    assert ready.empty(MIB, stream=stream).ptr
    end(ready, stream)
    assert device.counters()["unmap"] == 0
    assert ready.empty(20 * MIB, stream=stream).ptr


def test_out_of_memory_during_a_capture_says_why(device, stream):
    with Pool(device, limit=8 * MIB) as pool:
        pool.empty(6 * MIB, stream=stream)
        begin(pool, stream)
        before = device.counters()
        with pytest.raises(OutOfMemoryError) as caught:
            pool.empty(6 * MIB, stream=stream)
        after = device.counters()
        end(pool, stream)
        assert caught.value.cached == 6 * MIB
        for call in ("unmap", "page_destroy", "event_record", "event_synchronize"):
            assert after[call] == before[call]
        assert pool.stats()["num_ooms"] == 1
        assert pool.empty(6 * MIB, stream=stream).ptr


def test_captures_begin_once_and_end_once(pool, device, stream):
    with pytest.raises(ValueError, match="no capture was begun on <gpumem"):
        pool.capture_end(stream)
    pool.capture_begin(stream)
    with pytest.raises(ValueError, match="already"):
        pool.capture_begin(stream.handle)
    with Stream(device) as other:
        pool.capture_begin(other)
        pool.capture_end(stream)
        assert pool.trim()[4] is True
        pool.capture_end(other)
    assert pool.trim()[4] is False


@pytest.mark.parametrize("method", ["capture_begin", "capture_end"])
def test_the_stream_must_be_named(pool, method):
    for wrong in (None, "0", 1.0, True):
        with pytest.raises(TypeError, match="stream must be"):
            getattr(pool, method)(wrong)
    other = testing.device("host", capacity="1 MiB")
    with Stream(other) as foreign, pytest.raises(ValueError, match="stream"):
        getattr(pool, method)(foreign)


def test_a_closed_pool_lets_a_capture_end(device, stream):
    pool = Pool(device)
    pool.reserve(4 * MIB)
    pool.capture_begin(stream)
    pool.close()
    assert device.counters()["memory_now"] == 4 * MIB
    with pytest.raises(GpumemError, match="closed"):
        pool.capture_begin(0)
    pool.capture_end(stream)
    assert device.counters()["memory_now"] == 0


def test_a_forked_child_cannot_capture(pool):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        for method in (pool.capture_begin, pool.capture_end):
            try:
                method(0)
            except GpumemError as error:
                os.write(write, b"spawn " if "spawn" in str(error) else b"other ")
        os._exit(0)
    os.close(write)
    assert os.waitpid(child, 0)[1] == 0
    with open(read, "rb") as pipe:
        assert pipe.read() == b"spawn spawn "
