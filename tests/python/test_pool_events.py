"""What a pool writes down and whom it tells: history, callbacks, collections."""

import gc
import weakref

import pytest

import gpumem
from gpumem import Pool, _core

MIB = 1 << 20


def used(pool):
    return pool.stats()["allocated_bytes.all.current"]


def reserved(pool):
    return pool.stats()["reserved_bytes.all.current"]


# ---- history -------------------------------------------------------------------------


def test_history_keeps_the_newest_entries(pool):
    pool.record_history(6)
    for size in (1, 2, 3):
        pool.empty(size)
    entries, dropped, limit = pool.history()
    assert [entry[0] for entry in entries] == [
        "alloc",
        "free_requested",
        "free_completed",
    ] * 2
    assert [entry[3] for entry in entries][::3] == [2, 3]
    assert (dropped, limit) == (4, 6)  # the first page was written down, too
    pool.clear_history()
    assert pool.history()[0] == []
    pool.record_history(0)
    pool.empty(1)
    assert pool.history() == ([], 0, 0)


def test_history_with_stacks_says_where(pool):
    pool.record_history(10, stacks=True)

    def here():
        return pool.empty(1)

    first = here()
    second = here()
    assert first.context > 0
    frames = _core.stack_frames(first.context)
    assert frames[0][0] == __file__
    assert frames[0][2].endswith("here")
    assert frames[1][2] == "test_history_with_stacks_says_where"
    assert frames != _core.stack_frames(second.context)
    made = [entry for entry in pool.history()[0] if entry[0] == "alloc"]
    assert made[0][5] == first.context


def test_equal_stacks_have_one_number(pool):
    pool.record_history(10, stacks=True)
    numbers = set()
    for _ in range(100):
        numbers.add(pool.empty(1).context)
    numbers.add([pool.empty(1).context, pool.empty(1).context][0])
    assert len(numbers) == 2


def test_stacks_keep_no_frames(pool):
    def inner():
        local = Marker()
        references.append(weakref.ref(local))
        return pool.empty(1)

    class Marker:
        pass

    references = []
    pool.record_history(10, stacks=True)
    buffer = inner()
    assert references[0]() is None
    assert not [
        found
        for found in gc.get_objects()
        if type(found).__name__ == "frame" and found.f_code is inner.__code__
    ]
    del buffer


def test_unknown_stack_numbers_have_no_frames():
    assert _core.stack_frames(0) == []
    assert _core.stack_frames(2**40) == []
    with pytest.raises(TypeError, match="context"):
        _core.stack_frames("1")


# ---- callbacks -----------------------------------------------------------------------


@pytest.fixture
def events():
    heard = {"alloc": [], "free": [], "oom": [], "pressure": []}
    _core.set_callbacks(**{name: [calls.append] for name, calls in heard.items()})
    yield heard
    _core.set_callbacks()


def test_callbacks_hear_of_allocations_and_frees(pool, events):
    buffer = pool.empty(1000, stream=0)
    address = buffer.ptr
    del buffer
    for kind in ("alloc", "free"):
        (event,) = events[kind]
        assert event["device"] == "host:0"
        assert event["pool"] == "tested"
        assert event["ptr"] == address
        assert event["stream"] == 0
        assert all(type(value) in (int, str) for value in event.values())


def test_callbacks_hear_of_pressure_then_of_the_failure(pool, events):
    with pytest.raises(gpumem.OutOfMemoryError):
        pool.empty(1 << 30)
    assert [event["urgency"] for event in events["pressure"]] == [1, 2]
    assert [event["urgency"] for event in events["oom"]] == [3]
    assert events["oom"][0]["requested"] == 1 << 30
    assert events["oom"][0]["reason"] == "shortage"


def test_pressure_callback_that_frees_saves_the_allocation(pool):
    held = [pool.empty(60 * MIB)]

    def let_go(event):
        held.clear()

    _core.set_callbacks(pressure=[let_go])
    try:
        assert pool.empty(32 * MIB).nbytes == 32 * MIB
    finally:
        _core.set_callbacks()
    assert pool.stats()["num_ooms"] == 0


def test_pressure_callback_that_fails_itself_is_not_called_again(pool):
    calls = []

    def greedy(event):
        calls.append(event["urgency"])
        with pytest.raises(gpumem.OutOfMemoryError):
            pool.empty(1 << 30)

    _core.set_callbacks(pressure=[greedy])
    try:
        with pytest.raises(gpumem.OutOfMemoryError):
            pool.empty(1 << 30)
    finally:
        _core.set_callbacks()
    assert calls == [1, 2]


def test_callback_may_allocate_and_is_not_told_of_it(pool):
    calls = []

    def allocate(event):
        calls.append(pool.empty(10).nbytes)

    _core.set_callbacks(alloc=[allocate])
    try:
        pool.empty(20)
    finally:
        _core.set_callbacks()
    assert calls == [10]


def test_callback_that_raises_changes_nothing(pool, monkeypatch):
    reports = []
    monkeypatch.setattr(
        "sys.unraisablehook", lambda report: reports.append(report.exc_type)
    )

    def fail(event):
        raise ZeroDivisionError

    _core.set_callbacks(alloc=[fail], free=[fail])
    try:
        pool.empty(10)
        message = ""
        try:
            raise_with_a_buffer(pool)
        except KeyError as error:
            message = str(error)
    finally:
        _core.set_callbacks()
    assert reports == [ZeroDivisionError] * 4
    assert message == "10"
    assert used(pool) == 0


def raise_with_a_buffer(pool):
    buffer = pool.empty(10)
    raise KeyError(buffer.nbytes)


def test_callbacks_keep_no_buffer_alive(pool, events):
    pool.record_history(10, stacks=True)
    buffer = pool.empty(10)
    reference = weakref.ref(buffer)
    gc.disable()
    try:
        del buffer
        assert reference() is None
    finally:
        gc.enable()


def test_set_callbacks_takes_functions_only():
    with pytest.raises(TypeError, match="alloc"):
        _core.set_callbacks(alloc=[1])
    with pytest.raises(TypeError):
        _core.set_callbacks([print])


def test_pool_made_later_is_heard_too(device, events):
    with Pool(device) as later:
        later.empty(10)
    assert len(events["alloc"]) == 1


# ---- collections ---------------------------------------------------------------------


class Cycle:
    def __init__(self, buffer):
        self.buffer = buffer
        self.me = self


def test_garbage_in_cycles_is_collected_before_failing():
    pool = Pool(_core.open_host(0, 1 << 30))
    gc.collect()
    gc.disable()
    try:
        for _ in range(100):
            Cycle(pool.empty(40 * MIB))
        stats = pool.stats()
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert 3 <= stats["collections"] <= 5
    assert stats["num_ooms"] == 0


def test_collection_can_be_switched_off():
    pool = Pool(_core.open_host(0, 1 << 30), gc_on_pressure=False)
    gc.disable()
    try:
        for _ in range(25):
            Cycle(pool.empty(40 * MIB))
        with pytest.raises(gpumem.OutOfMemoryError, match="was not tried"):
            pool.empty(40 * MIB)
    finally:
        gc.enable()
    assert pool.stats()["collections"] == 0


def test_allocation_inside_a_collection_starts_none(pool):
    class Last:
        def __del__(self):
            try:
                pool.empty(1 << 30)
            except gpumem.OutOfMemoryError as error:
                collected.append(error.collected)

    collected = []
    cycle = Cycle(Last())
    del cycle
    gc.collect()
    assert collected == [False]
    assert pool.stats()["collections"] == 0


def test_collection_may_start_anywhere_in_the_allocator(pool):
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for step in range(2000):
            Cycle(pool.empty(512 * (step % 50 + 1)))
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    pool.check()
    assert used(pool) == 0


# ---- periods -------------------------------------------------------------------------


def test_iteration_counts_allocations_and_memory_calls(pool):
    with pool.iteration() as first:
        assert first.allocations is None
        pool.empty(MIB)
        pool.empty(10)
    with pool.iteration() as second:
        pool.empty(MIB)
    assert (first.number, second.number) == (1, 2)
    assert (first.allocations, second.allocations) == (2, 1)
    assert first.memory_calls > 0
    assert second.memory_calls == 0
    assert "2 allocations" in repr(first)


def test_iterations_do_not_nest(pool):
    with (
        pool.iteration(),
        pytest.raises(RuntimeError, match="do not nest"),
        pool.iteration(),
    ):
        pass
    with pytest.raises(RuntimeError, match="not entered"):
        pool.iteration().__exit__(None, None, None)
    with pool.iteration():
        pass
