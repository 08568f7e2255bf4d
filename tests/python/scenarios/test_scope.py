"""Scenarios of the context manager."""

import asyncio
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import gpumem

MIB = 1 << 20


def used(pool):
    return pool.stats()["allocated_bytes.all.current"]


# ---- who is inside -------------------------------------------------------------------
# The rule is in docs/scopes.md: a scope holds for the thread or task that entered it;
# threads and tasks that are started inside are outside.


def test_scope_01_another_thread_stays_outside(pool):
    entered, allocated = threading.Event(), threading.Event()
    kept, counts = [], []

    def a():
        with pool.scope("a") as scope:
            pool.empty(MIB)
            entered.set()
            assert allocated.wait(10)
            counts.append((scope.used, scope.count, scope.peak))
        counts.append(scope.released)

    def b():
        assert entered.wait(10)
        buffer = pool.empty(10 * MIB)
        buffer.fill(5)
        kept.append(buffer)
        allocated.set()

    threads = [threading.Thread(target=f) for f in (a, b)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [(0, 0, MIB), 0]
    assert not kept[0].released
    assert kept[0].tobytes() == b"\x05" * (10 * MIB)
    assert used(pool) == 10 * MIB
    kept.clear()


def test_scope_01_another_task_stays_outside(pool):
    async def run():
        entered, allocated = asyncio.Event(), asyncio.Event()

        async def a():
            with pool.scope("a") as scope:
                mine = pool.empty(MIB)
                entered.set()
                await allocated.wait()
                assert gpumem.current_scope() is scope
                assert (scope.used, scope.count) == (MIB, 1)
            assert mine.released
            return scope.released

        async def b():
            await entered.wait()
            assert gpumem.current_scope() is None
            buffer = pool.empty(10 * MIB)
            buffer.fill(6)
            allocated.set()
            return buffer

        return await asyncio.gather(a(), b())

    released, buffer = asyncio.run(run())
    assert released == MIB
    assert not buffer.released
    assert buffer.tobytes() == b"\x06" * (10 * MIB)


def test_scope_01_a_task_started_inside_stays_outside(pool):
    async def run():
        async def child():
            assert gpumem.current_scope() is None
            return pool.empty(10 * MIB)

        with pool.scope("parent") as scope:
            buffer = await asyncio.create_task(child())
            assert (scope.used, scope.count) == (0, 0)
        return buffer

    buffer = asyncio.run(run())
    assert not buffer.released
    assert used(pool) == 10 * MIB


def test_scope_01_a_thread_pool_started_inside_stays_outside(pool):
    def work(number):
        assert gpumem.current_scope() is None
        return pool.empty(MIB).fill(number)

    with pool.scope("parent") as scope, ThreadPoolExecutor(4) as workers:
        buffers = list(workers.map(work, range(10)))
        mine = pool.empty(MIB)
        assert (scope.used, scope.count) == (MIB, 1)
    assert mine.released
    assert [buffer.tobytes()[:1] for buffer in buffers] == [
        bytes([n]) for n in range(10)
    ]
    assert used(pool) == 10 * MIB
    buffers.clear()


# ---- one object, twice ---------------------------------------------------------------


def test_scope_03_entering_twice_changes_nothing(pool):
    scope = pool.scope("twice")
    with pytest.raises(RuntimeError):
        scope.__exit__(None, None, None)
    with scope:
        inner = pool.empty(MIB)
        before = scope.used, scope.count, scope.peak, used(pool)
        with pytest.raises(RuntimeError, match="twice"):
            scope.__enter__()
        assert gpumem.current_scope() is scope
        assert (scope.used, scope.count, scope.peak, used(pool)) == before
        more = pool.empty(MIB)
        assert scope.count == 2
    assert inner.released
    assert more.released
    assert (used(pool), scope.used, scope.count) == (0, 0, 0)
    with pytest.raises(RuntimeError):
        scope.__exit__(None, None, None)
    with scope:
        again = pool.empty(3 * MIB)
        assert (scope.used, scope.count, scope.peak) == (3 * MIB, 1, 3 * MIB)
    assert again.released
    assert scope.released == 3 * MIB
    assert gpumem.current_scope() is None


def test_scope_03_entering_from_another_thread_changes_nothing(pool):
    scope = pool.scope("shared")
    errors = []

    def other():
        for call in (scope.__enter__, lambda: scope.__exit__(None, None, None)):
            try:
                call()
            except RuntimeError as error:
                errors.append(str(error))
        assert gpumem.current_scope() is None

    with scope:
        inner = pool.empty(MIB)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert len(errors) == 2
        assert gpumem.current_scope() is scope
        assert (scope.used, scope.count) == (MIB, 1)
        assert not inner.released
    assert inner.released
    with scope:
        assert pool.empty(10).nbytes == 10
        assert scope.count == 0
    assert used(pool) == 0


def test_scope_03_of_two_threads_one_enters(pool):
    scope = pool.scope("shared")
    barrier = threading.Barrier(2)
    outcomes = []

    def work():
        for _ in range(100):
            barrier.wait()
            try:
                with scope:
                    buffer = pool.empty(MIB)
                    counts = (scope.used, scope.count, scope.peak)
                    barrier.wait()
                outcomes.append((counts, buffer.released))
            except RuntimeError:
                outcomes.append("refused")
                assert gpumem.current_scope() is None
                barrier.wait()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("refused") == 100
    assert outcomes.count(((MIB, 1, MIB), True)) == 100
    with scope:
        assert pool.empty(10).nbytes == 10
    assert used(pool) == scope.used == scope.count == 0


# ---- interrupts ----------------------------------------------------------------------


def body(pool, times):
    with pool.scope("body"):
        for number in range(times):
            kept = [pool.empty(1 + number % 5000) for _ in range(4)]
            with pool.scope("inner"):
                kept.append(pool.empty(MIB))


def test_scope_04_an_interrupt_in_the_body(pool):
    def interrupt(number, frame):
        raise KeyboardInterrupt("by the timer")

    dice = random.Random(4)
    weights = pool.empty(MIB)
    baseline = used(pool)
    former = signal.signal(signal.SIGALRM, interrupt)
    arrived = 0
    try:
        while arrived < 200:
            try:
                signal.setitimer(signal.ITIMER_REAL, dice.uniform(2e-5, 2e-3))
                while True:
                    body(pool, dice.randrange(1, 20))
            except KeyboardInterrupt as error:
                text = str(error)
            assert text == "by the timer"
            assert gpumem.current_scope() is None
            assert used(pool) == baseline
            arrived += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    pool.check()
    del weights
