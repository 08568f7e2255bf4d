"""Interrupts: one that comes in the middle of anything reaches the program, once."""

import gc
import random
import signal
import sys
import time

import pytest

from gpumem import _core


def used(pool):
    return pool.stats()["allocated_bytes.all.current"]


def test_interrupts_at_any_moment_leave_nothing_behind(pool):
    def interrupt(number, frame):
        raise KeyboardInterrupt

    def work():
        with pool.scope("interrupted"):
            held = [pool.empty(512 * n) for n in range(1, 20)]
            with pool.scope():
                held.append(pool.empty(100))

    def work_until_interrupted(delay):
        try:
            deadline = time.monotonic() + 60
            signal.setitimer(signal.ITIMER_REAL, delay)
            while time.monotonic() < deadline:
                work()
        except KeyboardInterrupt:
            return 1
        return 0

    seed = random.randrange(2**32)
    print("seed", seed)
    source = random.Random(seed)
    previous = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    gc.disable()  # an interrupt inside a function of gc.callbacks reaches nobody
    try:
        for _ in range(200):
            interrupted += work_until_interrupted(source.uniform(0.0001, 0.004))
            assert _core.current_scope() is None
            assert used(pool) == 0
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, previous)
    assert interrupted == 200
    pool.check()


def test_interrupt_inside_a_callback_reaches_the_caller(pool):
    def interrupt(event):
        _core.set_callbacks()
        raise KeyboardInterrupt

    def body():
        with pool.scope():
            held.append(pool.empty(10))
            _core.set_callbacks(free=[interrupt])
        for _ in range(1000):
            held.clear()

    held = []
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # see above
    try:
        with pytest.raises(KeyboardInterrupt):
            body()
    finally:
        gc.enable()
        signal.signal(signal.SIGINT, previous)
    assert used(pool) == 0


def test_interrupt_inside_a_callback_is_shown_where_nobody_handles_it(pool):
    def interrupt(event):
        raise KeyboardInterrupt

    shown = []
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    hook = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: shown.append(unraisable.exc_type)
    try:
        held = pool.empty(10)
        _core.set_callbacks(free=[interrupt])
        del held
    finally:
        _core.set_callbacks()
        sys.unraisablehook = hook
        signal.signal(signal.SIGINT, previous)
    assert shown == [KeyboardInterrupt]
    assert used(pool) == 0
