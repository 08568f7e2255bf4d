"""Every call of a device fails once, and for ever: no crash, no lost invariant."""

import itertools
import warnings

import pytest

import gpumem
from gpumem import Pool, Stream, _core

MIB = 1 << 20

EXPECTED = (gpumem.GpumemError, MemoryError, ValueError)


def program(device):
    """All that a pool asks of a device: returns the pool, closed or not."""
    pool = Pool(device, oom_wait=0)
    with Stream(device) as stream, pool.scope("swept", trim=True):
        small = pool.empty(1000)
        large = pool.empty(4 * MIB, stream=stream)
        small.record_stream(stream)
        small.free()
        stream.record()
        del large
        stream.synchronize()
        pool.reserve(8 * MIB)
        address = pool.malloc(MIB, stream)
        pool.free(address)
        pool.trim()
        pool.empty(6 * MIB).fill(1)
        pool.snapshot()
    return pool


def run_program(device):
    """Run the program as far as it goes; returns its pool if it got that far."""
    found = []
    try:
        found.append(program(device))
    except EXPECTED:
        found.extend(pool for pool in _core.pools() if pool.device == device)
    return found


@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("status", ["out of memory", "device error"])
@pytest.mark.parametrize("paging", [True, False], ids=["pages", "segments"])
def test_any_failing_call_leaves_every_invariant(paging, status, for_ever):
    swept = 0
    for nth in itertools.count(1):
        device = _core.open_host(0, 64 * MIB, paging=paging).with_faults()
        device.arm_fault(None, nth, for_ever=for_ever, status=status)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", gpumem.GpumemWarning)
            pools = run_program(device)
            struck = device.faults_injected
            device.disarm_fault()
            for pool in pools:
                pool.check()
                if not pool.closed:
                    assert pool.empty(MIB).nbytes == MIB
                assert pool.stats()["allocation.all.current"] == 0
                pool.close()
                pool.check()
        assert _core.current_scope() is None
        if struck == 0:
            break
        swept = nth
    assert swept > 10


@pytest.mark.parametrize(
    "call", ["page_create", "address_reserve", "map", "grant", "event_create"]
)
def test_call_that_fails_for_ever_can_be_lived_with(call):
    device = _core.open_host(0, 64 * MIB).with_faults()
    pool = Pool(device, oom_wait=0)
    held = pool.empty(1000)
    device.arm_fault(call, 1, for_ever=True, status="device error")
    run_program(device)
    assert held.fill(5).tobytes() == bytes([5] * 1000)
    device.disarm_fault()
    assert pool.empty(8 * MIB).nbytes == 8 * MIB
    pool.check()
