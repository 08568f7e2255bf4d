"""Stream and Event: order, waits without the GIL, life."""

import signal
import threading
import weakref

import pytest

from gpumem import Pool, Stream, _core

MIB = 1 << 20


@pytest.fixture
def host():
    return _core.open_host(0, 64 * MIB)


@pytest.fixture
def stream(host):
    return Stream(host)


def test_stream_has_a_handle_of_its_own(host, stream):
    assert stream.device is host
    assert stream.handle not in (0, Stream(host).handle)
    assert str(stream.handle) in repr(stream)


def test_stream_over_a_handle_is_equal_to_the_one_it_names(host, stream):
    same = Stream(host, stream.handle)
    assert same == stream
    assert hash(same) == hash(stream)
    assert stream != Stream(host, 0)
    assert stream != stream.handle


def test_stream_refuses_what_is_no_handle(host):
    with pytest.raises(TypeError, match="stream"):
        Stream(host, "0")
    with pytest.raises(TypeError, match="stream"):
        Stream(host, True)
    with pytest.raises(ValueError, match="stream"):
        Stream(host, -1)
    with pytest.raises(TypeError):
        Stream("host:0")


def test_stalled_stream_holds_its_work_back(stream):
    stream.stall()
    event = stream.record()
    assert not event.query()
    assert stream.waiting == 1
    assert stream.release() == 1
    assert event.query()
    assert stream.waiting == 0


def test_release_lets_a_number_of_pieces_run(stream):
    stream.stall()
    events = [stream.record() for _ in range(3)]
    assert stream.release(2) == 2
    assert [event.query() for event in events] == [True, True, False]
    assert stream.release(None) == 1
    with pytest.raises(ValueError, match="count"):
        stream.release(-1)


def test_waiting_for_an_event_orders_two_streams(host, stream):
    other = Stream(host)
    stream.stall()
    event = stream.record()
    other.wait(event)
    done = other.record()
    assert not done.query()
    stream.release()
    assert done.query()


def test_synchronize_tells_that_the_time_was_over(stream):
    stream.stall()
    event = stream.record()
    assert stream.synchronize(timeout=0.01) is False
    assert event.synchronize(timeout=0.01) is False
    stream.release()
    assert stream.synchronize() is True
    assert event.synchronize() is True


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf")])
def test_synchronize_refuses_what_is_no_time(stream, timeout):
    with pytest.raises(ValueError, match="timeout"):
        stream.synchronize(timeout)


def test_synchronize_lets_other_threads_run(stream):
    stream.stall()
    event = stream.record()
    helper = threading.Timer(0.05, stream.release)
    helper.start()
    assert event.synchronize()
    helper.join()


def test_synchronize_can_be_interrupted(stream):
    stream.stall()
    stream.record()

    def interrupt(number, frame):
        raise InterruptedError

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(InterruptedError):
            stream.synchronize()
    finally:
        signal.signal(signal.SIGALRM, previous)
        stream.release()


def test_event_that_was_never_recorded_is_done(host):
    assert _core.Event(host).query()


def test_event_moves_when_it_is_recorded_again(host, stream):
    event = _core.Event(host)
    event.record(stream)
    assert event.query()
    stream.stall()
    event.record(stream.handle)
    assert not event.query()
    stream.release()


def test_record_takes_the_event_that_is_given(host, stream):
    event = _core.Event(host)
    assert stream.record(event) is event
    assert event.device is host
    with pytest.raises(TypeError, match="event"):
        stream.record(1)


def test_things_of_another_device_are_refused(host, stream):
    other = _core.open_host(1, MIB)
    with pytest.raises(ValueError, match="another device"):
        stream.wait(_core.Event(other))
    with pytest.raises(ValueError, match="another device"):
        stream.record(_core.Event(other))
    with pytest.raises(ValueError, match="belongs to host:1"):
        Pool(host).empty(1, stream=Stream(other))


def test_stream_of_the_plain_device_fits_the_one_with_faults(host, stream):
    pool = Pool(host.with_faults())
    assert pool.empty(1, stream=stream).stream == stream.handle


def test_closed_stream_refuses_work(host, stream):
    stream.close()
    stream.close()
    assert "closed" in repr(stream)
    with pytest.raises(ValueError, match="closed"):
        stream.record()
    with pytest.raises(ValueError, match="closed"):
        Pool(host).empty(1, stream=stream)


def test_stream_is_a_context_manager_that_closes(host):
    with Stream(host) as stream:
        handle = stream.handle
    with pytest.raises(ValueError, match="closed"):
        stream.synchronize()
    with Stream(host, 0) as default:
        assert default.handle == 0
    default.synchronize()
    assert handle != 0


def test_stream_of_somebody_else_is_not_closed(host):
    with pytest.raises(ValueError, match="not made here"):
        Stream(host, 0).close()


def test_memory_of_a_closed_stream_goes_to_others():
    host = _core.open_host(0, 24 * MIB)
    pool = Pool(host)
    with Stream(host) as stream:
        buffer = pool.empty(16 * MIB, stream=stream)
        buffer.free()
        stream.synchronize()
    assert pool.empty(16 * MIB).nbytes == 16 * MIB


def test_streams_that_come_and_go_leave_no_records(host):
    pool = Pool(host)
    for _ in range(100):
        with Stream(host) as stream:
            pool.empty(MIB, stream=stream).free()
    assert pool.sizes()["lanes"] <= 2
    pool.check()


def test_streams_and_events_can_be_referenced_weakly(host, stream):
    event = stream.record()
    reference = weakref.ref(event)
    del event
    assert reference() is None
    assert weakref.ref(stream)() is stream


def test_stalling_is_for_host_devices():
    stream = Stream(_core.open_sim(0, MIB))
    with pytest.raises(ValueError, match="host"):
        stream.stall()
