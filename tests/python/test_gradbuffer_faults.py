"""GradBuffer on devices that fail, or have no memory left."""

import threading
import time
from functools import partial

import numpy as np
import pytest

import gpumem
from gpumem import testing


def look(grads):
    """All that a call could have changed, the elements bit by bit."""
    counts = (grads.count, grads.weight, grads.pending, grads.finished, grads.rejected)
    return counts, grads.buffer.numpy().tobytes()


def given_as(kind, pool, arrays):
    """Gradients as arrays of the caller, or in memory of a device."""
    if kind == "arrays":
        return arrays
    if kind == "strided":
        return [np.repeat(array, 2)[::2] for array in arrays]
    if kind == "elsewhere":
        pool = gpumem.Pool(testing.device("host", capacity="16 MiB"))
    buffers = [pool.empty(array.shape, "float32") for array in arrays]
    for buffer, array in zip(buffers, arrays, strict=True):
        buffer.copy_from(array)
    return buffers


class Run:
    """One window on a device of its own, call by call."""

    NAMES = ("add", "add again", "norm", "finish", "clip", "zero", "add anew")

    def __init__(self, kind):
        self.device = testing.device("host", capacity="16 MiB").with_faults()
        self.pool = gpumem.Pool(self.device)
        self.grads = gpumem.GradBuffer([(300,), (5000,), (7,)], pool=self.pool)
        rng = np.random.default_rng(3)
        arrays = [rng.standard_normal(n).astype("f4") for n in (300, 5000, 7)]
        first, second, third = given_as(kind, self.pool, arrays)
        whole = [first, second, third]
        self.calls = dict(
            zip(
                self.NAMES,
                (
                    partial(self.grads.add, whole, weight=2),
                    partial(self.grads.add, [None, second, third], weight=1),
                    self.grads.norm,
                    lambda: [view.shape for view in self.grads.finish()],
                    partial(self.grads.clip, 1.0),
                    self.grads.zero,
                    partial(self.grads.add, whole),
                ),
                strict=True,
            )
        )

    def up_to(self, name):
        for earlier in self.NAMES[: self.NAMES.index(name)]:
            self.calls[earlier]()
        return self.calls[name]

    def close(self):
        self.calls.clear()
        del self.grads
        self.pool.check()
        self.pool.close()


def expect(kind, name):
    """What a call gives and leaves without failures, and its device calls."""
    run = Run(kind)
    call = run.up_to(name)
    run.device.record_calls(1000)
    result = call()
    made = run.device.recorded_calls()
    left = look(run.grads)
    run.close()
    return result, left, made


@pytest.mark.parametrize("kind", ["arrays", "strided", "buffers", "elsewhere"])
@pytest.mark.parametrize("name", Run.NAMES)
def test_a_failure_at_any_device_call_changes_nothing(name, kind):
    result, left, made = expect(kind, name)
    plans = [(None, nth) for nth in range(1, len(made) + 1)]
    plans += [(one, n) for one in set(made) for n in range(1, made.count(one) + 1)]
    raised = 0
    for call, nth in plans:
        for for_ever in (False, True):
            run = Run(kind)
            act = run.up_to(name)
            before = look(run.grads)
            run.device.arm_fault(call, nth, for_ever=for_ever, status="device error")
            try:
                assert act() == result
            except gpumem.GpumemError:
                assert run.device.faults_injected
                run.device.disarm_fault()
                raised += 1
                assert look(run.grads) == before
                assert act() == result
            run.device.disarm_fault()
            assert look(run.grads) == left
            run.close()
    assert raised >= 2
    changing = {"add": "launch", "finish": "launch", "clip": "launch", "zero": "fill"}
    assert changing.get(name.split()[0], "copy") in made


def test_one_launch_adds_all_parameters(pool):
    grads = gpumem.GradBuffer([(9,)] * 50, pool=pool)
    before = pool.device.counters()["launch"]
    grads.add([np.ones(9)] * 50)
    assert pool.device.counters()["launch"] - before == 2
    before = pool.device.counters()
    assert grads.add([None] * 50)
    assert pool.device.counters() == before


@pytest.mark.parametrize("failing", ["check", "addition"])
def test_a_wait_that_fails_does_not_let_go_of_the_callers_memory(failing):
    device = testing.device("host", capacity="16 MiB", delayed=True).with_faults()
    pool = gpumem.Pool(device)
    with gpumem.Stream(device) as stream:
        stream.release()
        grads = gpumem.GradBuffer([(5,)], pool=pool, mode="sum", stream=stream)
        device.arm_fault("stream_synchronize", 1 if failing == "check" else 2)
        stream.stall()
        outcome = []

        def add():
            try:
                outcome.append(grads.add([np.ones(5)]))
            except gpumem.GpumemError as error:
                outcome.append(type(error))

        thread = threading.Thread(target=add)
        thread.start()
        if failing == "addition":
            while stream.waiting < 4:
                time.sleep(0.001)
            stream.release(4)
        while not device.faults_injected:
            time.sleep(0.001)
        thread.join(0.05)
        assert thread.is_alive()
        stream.release()
        thread.join(30)
        device.disarm_fault()
        added = failing == "addition"
        assert outcome == [True if added else gpumem.OutOfMemoryError]
        assert grads.count == int(added)
        assert grads[0].numpy().tolist() == [float(added)] * 5
        assert grads.add([np.ones(5)])
        assert grads[0].numpy().tolist() == [added + 1.0] * 5
        grads.close()
    pool.close()


def test_memory_for_a_copy_that_is_not_there_changes_nothing():
    pool = gpumem.Pool(testing.device("host", capacity="4 MiB"), limit="4 MiB")
    grads = gpumem.GradBuffer([(700_000,)], pool=pool)
    strided = np.ones(1_400_000, "f4")[::2]
    with pytest.raises(gpumem.OutOfMemoryError):
        grads.add([strided])
    assert grads.count == 0
    assert grads.add([np.ones(700_000, "f4")])
    del grads
    pool.close()
