"""History and callbacks."""

import gc
import weakref
from types import FrameType

import pytest

import gpumem

MIB = 1 << 20


def test_record_history_holds_for_pools_of_now_and_default_pools_later(pool):
    gpumem.record_history(max_entries=10)
    pool.empty(1000).free()
    gpumem.empty(1000).free()
    assert pool.history()[2] == 10
    assert gpumem.default_pool().history()[0]
    gpumem.record_history(None)
    assert pool.history() == ([], 0, 0)


def test_record_history_of_one_device_leaves_others(pool):
    other = gpumem.device("host:1", capacity="64 MiB")
    gpumem.record_history(max_entries=10, device=other)
    assert pool.history()[2] == 0
    assert gpumem.default_pool(other).history()[2] == 10


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "some"},
        {"max_entries": 0},
        {"max_entries": 1.5},
        {"max_entries": True},
        {"stacks": "python"},
    ],
)
def test_record_history_refuses(options):
    with pytest.raises((TypeError, ValueError)):
        gpumem.record_history(**options)


def test_history_keeps_no_frames_and_no_buffers(pool):
    gpumem.record_history(stacks=True)

    def allocate():
        return pool.empty(MIB)

    gc.disable()
    try:
        buffer = allocate()
        reference = weakref.ref(buffer)
        del buffer
        assert reference() is None
    finally:
        gc.enable()
    code = allocate.__code__
    frames = [o for o in gc.get_objects() if type(o) is FrameType]
    assert not [frame for frame in frames if frame.f_code is code]


@pytest.mark.parametrize("kind", ["alloc", "free"])
def test_add_callback_gets_numbers_and_strings(pool, kind):
    events = []
    handle = gpumem.add_callback(kind, events.append)
    pool.empty(1000).free()
    handle.remove()
    handle.remove()
    pool.empty(1000).free()
    assert len(events) == 1
    assert events[0]["size"] == 1000
    assert events[0]["device"] == "host:0"
    assert {type(value) for value in events[0].values()} <= {int, str}


def test_add_callback_is_a_context_manager(pool):
    events = []
    with gpumem.add_callback("alloc", events.append) as handle:
        assert handle.active
        assert "active" in repr(handle)
        pool.empty(1000).free()
    assert not handle.active
    pool.empty(1000).free()
    assert len(events) == 1


def test_add_callback_pressure_can_release_memory(pool):
    held = [pool.empty(40 * MIB)]
    with gpumem.add_callback("pressure", lambda event: held.clear()):
        buffer = pool.empty(40 * MIB)
    assert not held
    del buffer


def test_add_callback_oom_is_told_before_the_error(pool):
    events = []
    with (
        gpumem.add_callback("oom", events.append),
        pytest.raises(gpumem.OutOfMemoryError),
    ):
        pool.empty(1 << 40)
    assert [event["requested"] for event in events] == [1 << 40]
    assert events[0]["reason"] == "shortage"


def test_add_callback_refuses():
    with pytest.raises(ValueError, match="alloc, free, oom, pressure"):
        gpumem.add_callback("malloc", print)
    with pytest.raises(TypeError, match="callable"):
        gpumem.add_callback("alloc", 1)


def test_reset_drops_callbacks(device):
    events = []
    handle = gpumem.add_callback("alloc", events.append)
    gpumem.reset()
    gpumem.set_device(device)
    gpumem.empty(1000).free()
    assert events == []
    assert not handle.active
