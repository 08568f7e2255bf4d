"""GradBuffer on devices that fail, or have no memory left."""

from functools import partial

import numpy as np
import pytest

import gpumem
from gpumem import testing


def test_a_device_that_fails_between_parameters_breaks_the_window():
    device = testing.device("host", capacity="16 MiB").with_faults()
    pool = gpumem.Pool(device)
    grads = gpumem.GradBuffer([(1,), (1,)], pool=pool, mode="sum")
    before = grads.state()
    for nth in (1, 2, 3):
        device.arm_fault("launch", nth, status="device error")
        with pytest.raises(gpumem.GpumemError):
            grads.add([np.ones(1), np.ones(1)])
        device.disarm_fault()
        assert grads.state() == before
    device.arm_fault("launch", 4, status="device error")
    with pytest.raises(gpumem.GpumemError):
        grads.add([np.ones(1), np.ones(1)])
    device.disarm_fault()
    assert "broken" in repr(grads)
    for call in (grads.finish, grads.norm, grads.state, partial(grads.add, [None] * 2)):
        with pytest.raises(RuntimeError, match=r"zero\(\)"):
            call()
    grads.zero()
    assert grads.state() == before
    assert grads.add([np.ones(1), np.ones(1)])
    del grads, call
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


@pytest.mark.parametrize("for_ever", [False, True])
@pytest.mark.parametrize("call", ["fill", "copy", "launch", "stream_synchronize"])
def test_every_failing_call_is_an_error_and_zero_recovers(call, for_ever):
    strided = np.ones((5000, 2), "f4")[:, 0]
    injected = True
    nth = 0
    while injected:
        nth += 1
        device = testing.device("host", capacity="16 MiB").with_faults()
        pool = gpumem.Pool(device)
        grads = gpumem.GradBuffer([(300,), (5000,)], pool=pool)
        device.arm_fault(call, nth, for_ever=for_ever, status="device error")
        steps = [
            partial(grads.add, [np.ones(300), strided], weight=2),
            partial(grads.add, [None, strided], weight=1),
            grads.norm,
            grads.finish,
            partial(grads.clip, 1.0),
            grads.state,
            grads.zero,
        ]
        failed = 0
        for step in steps:
            before = (grads.count, grads.weight, grads.finished, grads.rejected)
            try:
                step()
            except (gpumem.GpumemError, RuntimeError):
                failed += 1
                after = (grads.count, grads.weight, grads.finished, grads.rejected)
                assert after == before
        injected = device.faults_injected > 0
        assert bool(failed) == injected
        device.disarm_fault()
        grads.zero()
        assert grads.add([np.ones(300), np.ones(5000)])
        assert grads.finish()[1].numpy()[4999] == 1.0
        assert grads.norm() == 5300**0.5
        pool.check()
        del grads, steps, step
        pool.close()
    assert nth > 3
