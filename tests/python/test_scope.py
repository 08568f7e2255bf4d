"""Scope: what is released at its end, and for whom it holds."""

import asyncio
import contextvars
import gc
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gpumem
from gpumem import Pool, _core

MIB = 1 << 20


def used(pool):
    return pool.stats()["allocated_bytes.all.current"]


def test_buffers_are_released_at_exit_whoever_holds_them(pool):
    with _core.Scope("step") as scope:
        held = pool.empty(1000)
        cycle = [pool.empty(1000)]
        cycle.append(cycle)
        assert (scope.used, scope.count) == (2048, 2)
    assert used(pool) == 0
    assert scope.released == 2048
    assert held.released
    assert cycle[0].released


def test_released_buffer_names_its_scope(pool):
    with _core.Scope("validation"):
        held = pool.empty(10)
    with pytest.raises(gpumem.ReleasedError, match="'validation'"):
        held.fill(0)
    with pytest.raises(gpumem.ReleasedError, match="'validation'"):
        memoryview(held)
    assert repr(held)


def test_buffers_of_before_and_after_stay(pool):
    before = pool.empty(10)
    with _core.Scope():
        pass
    after = pool.empty(10)
    assert not before.released
    assert not after.released


def test_dropped_buffers_leave_the_scope(pool):
    with _core.Scope() as scope:
        for _ in range(10):
            pool.empty(1000)
        pool.empty(3000).free()
        assert (scope.used, scope.count, scope.peak) == (0, 0, 3072)
    assert scope.released == 0


def test_empty_buffers_belong_to_the_scope(pool):
    with _core.Scope() as scope:
        held = pool.empty(0)
        assert (scope.used, scope.count) == (0, 1)
    assert held.released


def test_views_go_with_their_buffer(pool):
    with _core.Scope() as scope:
        view = pool.empty(16)[4:8]
        assert scope.count == 1
    assert view.released
    assert used(pool) == 0


def test_scope_of_a_raising_body_releases_although_the_exception_is_kept(pool):
    def body():
        with pool.scope("failing") as scope:
            scopes.append(scope)
            local = pool.empty(1000)
            raise KeyError(local.nbytes)

    scopes = []
    with pytest.raises(KeyError) as kept:
        body()
    assert kept.value.args == (1000,)
    assert scopes[0].released == 1024
    assert used(pool) == 0


def test_exit_of_many_buffers_takes_less_time_than_making_them():
    pool = Pool(_core.open_host(0, 1 << 30))
    best = {"made": 1e9, "released": 1e9}
    for _ in range(5):
        start = time.perf_counter()
        with pool.scope() as scope:
            held = [pool.empty(100) for _ in range(20_000)]
            entered = time.perf_counter()
        left = time.perf_counter()
        best["made"] = min(best["made"], entered - start)
        best["released"] = min(best["released"], left - entered)
        assert scope.released == len(held) * 512
        held.clear()
    assert best["released"] < best["made"]


def test_exported_buffer_goes_with_its_last_export(pool):
    with pool.scope("eval") as scope:
        named = pool.empty(1000, name="logits")
        array = named.numpy()
        array[:] = 7
        view = memoryview(named)
        plain = pool.empty(512)
        other = memoryview(plain)
    assert ("logits", 1024, "exported") in scope.deferred
    assert (hex(plain.ptr), 512, "exported") in scope.deferred
    assert scope.released == 0
    assert array.sum() == 7000
    del array
    assert not named.released
    view.release()
    assert named.released
    other.release()
    assert used(pool) == 0
    with pytest.raises(gpumem.ReleasedError, match="'eval'"):
        named.numpy()


def test_exported_buffer_that_dies_first_is_freed_by_its_consumer(pool):
    with pool.scope():
        array = pool.empty(1000).numpy()
    assert used(pool) == 1024
    array[:] = 3
    del array
    assert used(pool) == 0


def test_dlpack_consumer_keeps_the_memory(pool):
    with pool.scope() as scope:
        array = np.from_dlpack(pool.empty(100, "float32"))
    assert len(scope.deferred) == 1
    array[:] = 1
    del array
    assert used(pool) == 0


def test_kept_buffers_survive(pool):
    with pool.scope() as scope:
        one = scope.keep(pool.empty(10))
        two, three = scope.keep(pool.empty(10), pool.empty(10))
        gone = pool.empty(10)
        assert scope.count == 1
    assert [b.released for b in (one, two, three, gone)] == [False] * 3 + [True]
    assert scope.keep() == ()


def test_kept_buffers_pass_to_the_enclosing_scope(pool):
    with pool.scope("outer") as outer:
        with pool.scope("inner") as inner:
            buffer = inner.keep(pool.empty(1000))
            assert (inner.count, outer.count) == (0, 1)
        assert not buffer.released
    assert buffer.released


def test_keeping_a_view_keeps_its_buffer(pool):
    with pool.scope() as scope:
        view = scope.keep(pool.empty(16)[2:4])
    assert not view.released
    assert view.base is not None


def test_keep_passes_over_scopes_of_other_pools(device, pool):
    with Pool(device) as other, pool.scope() as outer, other.scope() as middle:
        with pool.scope() as inner:
            buffer = inner.keep(pool.empty(10))
        assert middle.count == 0
        assert outer.count == 1
    assert buffer.released


def test_keep_leaves_buffers_of_other_scopes_where_they_are(pool):
    with pool.scope() as outer:
        buffer = pool.empty(10)
        with pool.scope() as inner:
            assert inner.keep(buffer) is buffer
        assert outer.count == 1


def test_keep_refuses_what_is_no_live_buffer(pool):
    with pool.scope() as scope:
        kept = pool.empty(10)
        freed = pool.empty(10)
        freed.free()
        with pytest.raises(TypeError, match="Buffers"):
            scope.keep(kept, "text")
        with pytest.raises(gpumem.ReleasedError):
            scope.keep(kept, freed)
        assert scope.count == 1


# ---- nesting -------------------------------------------------------------------------


def test_scopes_nest_and_have_their_own_peaks(pool):
    with pool.scope() as outer:
        first = pool.empty(1024)
        with pool.scope() as inner:
            second = pool.empty(2048)
            assert _core.current_scope() is inner
        assert _core.current_scope() is outer
        assert (second.released, first.released) == (True, False)
    assert (outer.peak, inner.peak) == (1024, 2048)
    assert _core.current_scope() is None


def test_scope_of_a_pool_counts_that_pool_only(device, pool):
    with Pool(device) as other, pool.scope() as scope:
        mine, theirs = pool.empty(10), other.empty(10)
        assert scope.count == 1
    assert mine.released
    assert not theirs.released
    assert scope.released == 512


def test_inner_scope_of_another_pool_does_not_hide_the_outer_one(device, pool):
    with Pool(device) as other, pool.scope() as outer, other.scope():
        buffer = pool.empty(10)
        assert outer.count == 1
    assert buffer.released


def test_scope_can_be_used_again(pool):
    scope = pool.scope()
    for _ in range(3):
        with scope:
            held = pool.empty(10)
            pool.empty(10).free()
            assert (scope.count, scope.released) == (1, 0)
        assert held.released
        assert scope.peak == 1024


def test_entering_twice_is_an_error_that_changes_nothing(pool):
    with pool.scope("once") as scope:
        held = pool.empty(10)
        with pytest.raises(RuntimeError, match="entered already"), scope:
            pass
        assert scope.active
        assert scope.count == 1
        assert _core.current_scope() is scope
    assert held.released


def test_entering_from_two_threads_is_an_error(pool):
    def enter():
        try:
            with scope:
                pass
        except RuntimeError as error:
            caught.append(str(error))

    caught = []
    with pool.scope("mine") as scope:
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
        assert scope.active
    assert "'mine'" in caught[0]


def test_leaving_without_entering_is_an_error(pool):
    scope = pool.scope("never")
    with pytest.raises(RuntimeError, match="not entered"):
        scope.__exit__(None, None, None)
    with scope:
        pass
    with pytest.raises(RuntimeError, match="not entered"):
        scope.__exit__(None, None, None)


def test_leaving_out_of_order_is_an_error_that_changes_nothing(pool):
    outer, inner = pool.scope("outer"), pool.scope("inner")
    outer.__enter__()
    inner.__enter__()
    held = pool.empty(10)
    with pytest.raises(RuntimeError, match=r"'outer'.*'inner'"):
        outer.__exit__(None, None, None)
    assert outer.active
    assert inner.active
    assert inner.count == 1
    inner.__exit__(None, None, None)
    outer.__exit__(None, None, None)
    assert held.released


def test_leaving_out_of_order_does_not_replace_the_body_s_exception(pool):
    outer, inner = pool.scope("outer"), pool.scope("inner")
    outer.__enter__()
    inner.__enter__()
    with pytest.warns(gpumem.GpumemWarning, match="'outer'"):
        assert outer.__exit__(KeyError, KeyError(), None) is False
    inner.__exit__(None, None, None)
    outer.__exit__(None, None, None)


# ---- threads, tasks, contexts --------------------------------------------------------


def test_other_threads_are_outside(pool):
    with pool.scope() as scope, ThreadPoolExecutor(1) as workers:
        theirs = workers.submit(pool.empty, 10 * MIB).result()
        assert workers.submit(_core.current_scope).result() is None
        assert scope.count == 0
    assert not theirs.released
    assert scope.released == 0


def test_buffers_may_be_dropped_by_another_thread(pool):
    with pool.scope() as scope:
        box = [pool.empty(10)]
        thread = threading.Thread(target=box.clear)
        thread.start()
        thread.join()
        assert scope.count == 0


def test_two_tasks_do_not_mix(pool):
    async def left():
        with pool.scope("left") as scope:
            mine = pool.empty(1000)
            entered.set()
            await allocated.wait()
            assert scope.count == 1
        return mine

    async def right():
        await entered.wait()
        theirs = pool.empty(10 * MIB)
        allocated.set()
        return theirs

    async def main():
        return await asyncio.gather(left(), right())

    entered, allocated = asyncio.Event(), asyncio.Event()
    mine, theirs = asyncio.run(main())
    assert mine.released
    assert not theirs.released


def test_tasks_started_inside_are_outside(pool):
    async def child():
        assert _core.current_scope() is None
        return pool.empty(1000)

    async def main():
        with pool.scope() as scope:
            theirs = await asyncio.create_task(child())
            mine = pool.empty(10)
            await asyncio.sleep(0)
            assert scope.count == 1
        return theirs, mine

    theirs, mine = asyncio.run(main())
    assert not theirs.released
    assert mine.released


def test_copied_context_is_outside_and_may_have_scopes_of_its_own(pool):
    def inside():
        with pool.scope("copy") as scope:
            held = pool.empty(10)
            assert scope.count == 1
        assert held.released
        return pool.empty(10)

    with pool.scope() as scope:
        theirs = contextvars.copy_context().run(inside)
        assert scope.count == 0
        assert _core.current_scope() is scope
    assert not theirs.released


def test_scope_must_be_left_where_it_was_entered(pool):
    scope = pool.scope("here")
    scope.__enter__()
    context = contextvars.copy_context()
    with pytest.raises(RuntimeError, match="another context"):
        context.run(scope.__exit__, None, None, None)
    assert scope.active
    scope.__exit__(None, None, None)


def test_scope_whose_context_ends_lets_its_buffers_be(pool):
    def enter():
        scope = pool.scope()
        scope.__enter__()
        references.append(weakref.ref(scope))
        return pool.empty(10)

    references = []
    buffer = contextvars.Context().run(enter)
    gc.collect()
    assert references[0]() is None
    assert not buffer.released
    assert _core.count_live()["Scope"] == 0
    with pool.scope() as scope:
        assert scope.active


# ---- trim ----------------------------------------------------------------------------


def reserved(pool):
    return pool.stats()["reserved_bytes.all.current"]


@pytest.mark.parametrize(
    ("trim", "left"),
    [(True, 0), (False, 16 * MIB), ("auto", 16 * MIB), ("4 MiB", 4 * MIB), (0, 0)],
)
def test_trim_decides_what_stays(pool, trim, left):
    with pool.scope(trim=trim):
        held = pool.empty(16 * MIB)
    assert held.released
    assert reserved(pool) == left


def test_auto_trims_when_memory_was_short_inside(pool):
    with pool.scope(), pytest.raises(gpumem.OutOfMemoryError):
        held = [pool.empty(16 * MIB) for _ in range(100)]
    assert reserved(pool) == 0
    with pool.scope():
        held = pool.empty(16 * MIB)
    assert reserved(pool) == 16 * MIB
    assert held.released


def test_scope_without_a_pool_trims_every_pool(device, pool):
    with Pool(device) as other:
        with _core.Scope(trim=True):
            held = [pool.empty(4 * MIB), other.empty(4 * MIB)]
        assert all(buffer.released for buffer in held)
        assert reserved(pool) == reserved(other) == 0


def test_trim_that_fails_is_a_warning():
    faulty = _core.open_host(0, 64 * MIB).with_faults()
    pool = Pool(faulty)
    scope = pool.scope(trim=True)
    scope.__enter__()
    held = pool.empty(MIB)
    faulty.arm_fault("unmap", 1, status="device error")
    with pytest.warns(gpumem.GpumemWarning, match="idle memory"):
        scope.__exit__(None, None, None)
    assert held.released
    assert scope.released == MIB
    faulty.disarm_fault()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"trim": "sometimes"}, ValueError, "trim"),
        ({"trim": 1.5}, TypeError, "trim"),
        ({"trim": None}, TypeError, "trim"),
        ({"trim": -1}, ValueError, "trim"),
        ({"name": 1}, TypeError, "name"),
        ({"pool": 1}, TypeError, "pool"),
    ],
)
def test_scope_refuses_nonsense(options, error, text):
    with pytest.raises(error, match=text):
        _core.Scope(**options)


# ---- the object ----------------------------------------------------------------------


def test_scope_shows_itself(pool):
    scope = pool.scope("shown")
    assert scope.name == "shown"
    assert _core.Scope().name == "scope"
    assert repr(scope).startswith("<gpumem.Scope 'shown' not active")
    with scope:
        assert "active, 0 buffers" in repr(scope)
    assert scope.deferred == ()


def test_scope_can_be_referenced_weakly():
    scope = _core.Scope()
    reference = weakref.ref(scope)
    with scope:
        pass
    del scope
    assert reference() is None


def test_callback_that_allocates_at_exit_is_outside(pool):
    def allocate(event):
        late.append(pool.empty(10))

    late = []
    with pool.scope() as scope:
        held = pool.empty(10)
        _core.set_callbacks(free=[allocate])
    _core.set_callbacks()
    assert held.released
    assert not late[0].released
    assert scope.count == 0


def test_collections_during_exit_do_no_harm(pool):
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(50):
            with pool.scope() as scope:
                cycle = [pool.empty(10) for _ in range(10)]
                cycle.append(cycle)
                views = [memoryview(buffer) for buffer in cycle[:3]]
                del cycle
            assert len(scope.deferred) == 3
            del views
    finally:
        gc.set_threshold(*threshold)
    gc.collect()
    assert used(pool) == 0
    assert sys.getrefcount(scope) < 10
