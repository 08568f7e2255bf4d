"""The rungs that Python adds, each alone, other pools of the device, and fallbacks.

Each situation is resolved by one rung and by nothing else: with it the request is
served, without it the same request fails. What the C ladder does alone is in
tests/c/test_ladder_rungs.c.
"""

import gc

import pytest

import gpumem
from gpumem import GpumemError, OutOfMemoryError, Pool, testing

MIB = 1 << 20
CAPACITY = 64 * MIB


@pytest.fixture
def device():
    return testing.device("host", capacity=CAPACITY)


def make(device, **options):
    return Pool(device, oom_wait=0, **options)


def used(pool):
    return pool.stats()["allocated_bytes.all.current"]


def reserved(pool):
    return pool.stats()["reserved_bytes.all.current"]


# ---- rungs of Python -----------------------------------------------------------------


@pytest.mark.parametrize("urgency", [1, 2, None])
def test_a_pressure_callback_alone(device, urgency):
    pool = make(device, gc_on_pressure=False)
    held = [pool.empty(40 * MIB)]
    heard = []

    def callback(event):
        heard.append((event["urgency"], event["requested"]))
        if event["urgency"] == urgency:
            held.clear()

    with gpumem.add_callback("pressure", callback):
        if urgency is None:
            with pytest.raises(OutOfMemoryError):
                pool.empty(32 * MIB)
        else:
            pool.empty(32 * MIB)
    assert heard == [(u, 32 * MIB) for u in (1, 2)][: urgency or 2]
    stats = pool.stats()
    assert stats["collections"] == stats["fallbacks"] == 0
    assert stats["num_ooms"] == (urgency is None)


@pytest.mark.parametrize("wanted", [True, False])
def test_one_collection_alone(device, wanted):
    class Cycle:
        def __init__(self, buffer):
            self.me = self
            self.buffer = buffer

    pool = make(device, gc_on_pressure=wanted)
    gc.disable()
    try:
        Cycle(pool.empty(40 * MIB))
        if wanted:
            pool.empty(32 * MIB)
        else:
            with pytest.raises(OutOfMemoryError):
                pool.empty(32 * MIB)
    finally:
        gc.enable()
        gc.collect()
    stats = pool.stats()
    assert stats["collections"] == wanted
    assert stats["num_ooms"] == (not wanted)
    assert stats["fallbacks"] == 0


# ---- other pools ---------------------------------------------------------------------


@pytest.mark.parametrize("paging", [True, False])
@pytest.mark.parametrize("yields", [True, False])
def test_idle_memory_of_another_pool(device, yields, paging):
    giving = make(device, yields=yields, paging=paging)
    pool = make(device)
    kept = giving.empty(8 * MIB)
    giving.empty(40 * MIB)
    before = reserved(giving)
    if yields:
        pool.empty(32 * MIB)
        assert giving.stats()["yielded_bytes"] == before - reserved(giving) > 0
    else:
        with pytest.raises(OutOfMemoryError) as caught:
            pool.empty(32 * MIB)
        assert caught.value.reason == "others"
        assert giving.stats()["yielded_bytes"] == 0
    assert used(giving) == kept.nbytes
    assert pool.stats()["collections"] == (not yields)


def test_yielding_can_be_switched(device):
    giving, pool = make(device, yields=False), make(device)
    giving.empty(40 * MIB)
    with pytest.raises(OutOfMemoryError):
        pool.empty(32 * MIB)
    giving.configure(yields=True)
    assert giving.options()["yields"] is True
    assert pool.empty(32 * MIB).pool is pool


def test_live_memory_of_another_pool_stays(device):
    giving, pool = make(device), make(device)
    live = giving.empty(40 * MIB)
    live.fill(7)
    with pytest.raises(OutOfMemoryError):
        pool.empty(32 * MIB)
    assert bytes(live.numpy()[:3]) == b"\7\7\7"
    assert giving.stats()["yielded_bytes"] == 0


# ---- fallback ------------------------------------------------------------------------


@pytest.fixture
def elsewhere():
    return testing.device("host", capacity=CAPACITY)


@pytest.fixture
def behind(elsewhere):
    return make(elsewhere, name="behind")


def test_a_fallback_serves_what_the_pool_cannot(device, behind):
    pool = make(device, limit=16 * MIB, fallback=behind, name="first")
    assert pool.fallback is behind
    assert behind.fallback is None
    first, second = pool.empty(12 * MIB), pool.empty(12 * MIB)
    assert first.pool is pool
    assert second.pool is behind
    assert second.device is behind.device
    assert second in behind.live_buffers()
    assert second not in pool.live_buffers()
    second.fill(3)
    assert second.numpy().max() == 3
    stats = pool.stats()
    assert (stats["fallbacks"], stats["num_ooms"]) == (1, 0)
    assert behind.stats()["fallbacks"] == 0
    assert used(behind) == 12 * MIB
    second.free()
    assert used(behind) == 0
    pool.check()
    behind.check()


def test_without_a_fallback_the_same_fails(device):
    pool = make(device, limit=16 * MIB)
    keep = pool.empty(12 * MIB)
    with pytest.raises(OutOfMemoryError) as caught:
        pool.empty(12 * MIB)
    assert caught.value.__cause__ is None
    assert used(pool) == keep.nbytes


def test_a_fallback_comes_after_every_other_rung(device, behind):
    pool = make(device, limit=16 * MIB, fallback=behind)
    held = [pool.empty(12 * MIB)]
    remove = gpumem.add_callback(
        "pressure", lambda event: held.clear() if event["urgency"] == 2 else None
    )
    try:
        assert pool.empty(12 * MIB).pool is pool
    finally:
        remove.remove()
    assert pool.stats()["fallbacks"] == 0


def test_fallbacks_form_chains(device, behind):
    middle = make(device, limit=16 * MIB, fallback=behind)
    pool = make(device, limit=8 * MIB, fallback=middle)
    held = [pool.empty(6 * MIB) for _ in range(4)]
    assert [buffer.pool for buffer in held] == [pool, middle, middle, behind]
    assert pool.stats()["fallbacks"] == 3
    assert middle.stats()["fallbacks"] == 1


def test_the_error_is_the_pools_own(device, behind):
    pool = make(device, limit=16 * MIB, fallback=behind, name="first")
    keep = pool.empty(4 * MIB)
    events = []
    with (
        gpumem.add_callback("oom", events.append),
        pytest.raises(OutOfMemoryError) as caught,
    ):
        pool.empty(CAPACITY + MIB)
    assert caught.value.limit == 16 * MIB
    assert caught.value.used == keep.nbytes
    assert isinstance(caught.value.__cause__, OutOfMemoryError)
    assert caught.value.__cause__.limit is None
    assert pool.stats()["num_ooms"] == behind.stats()["num_ooms"] == 1
    assert pool.stats()["fallbacks"] == 0
    assert [event["requested"] for event in events] == [CAPACITY + MIB] * 2


def test_a_closed_fallback_is_none(device, behind):
    pool = make(device, limit=16 * MIB, fallback=behind)
    behind.close()
    with pytest.raises(OutOfMemoryError) as caught:
        pool.empty(20 * MIB)
    assert isinstance(caught.value.__cause__, GpumemError)
    assert "closed" in str(caught.value.__cause__)


def test_a_fallback_is_kept_alive(device, elsewhere):
    pool = make(device, limit=16 * MIB, fallback=make(elsewhere, name="kept"))
    gc.collect()
    assert pool.empty(20 * MIB).pool.name == "kept"


def test_scopes_release_what_a_fallback_served(device, behind):
    pool = make(device, limit=16 * MIB, fallback=behind)
    with pool.scope("step") as scope:
        buffer = pool.empty(20 * MIB)
        assert scope.used == 20 * MIB
    assert buffer.released
    assert used(behind) == 0


def test_streams_of_another_device_become_the_default_one(device, behind):
    pool = make(device, limit=16 * MIB, fallback=behind)
    same = make(device, limit=16 * MIB, fallback=make(device))
    stream = gpumem.Stream(device)
    assert pool.empty(20 * MIB, stream=stream).stream == 0
    assert same.empty(20 * MIB, stream=stream).stream == stream.handle


def test_addresses_come_from_the_pool_that_was_asked(device, behind):
    pool = make(device, limit=16 * MIB, fallback=behind)
    with pytest.raises(OutOfMemoryError):
        pool.malloc(20 * MIB)
    assert pool.stats()["fallbacks"] == 0


@pytest.mark.parametrize("value", [3, "host", object()])
def test_a_fallback_is_a_pool(device, value):
    with pytest.raises(TypeError, match="fallback must be a Pool or None"):
        Pool(device, fallback=value)


def test_a_fallback_is_open_and_fixed(device, behind):
    pool = make(device, fallback=None)
    with pytest.raises(TypeError, match="unknown option 'fallback'"):
        pool.configure(fallback=behind)
    with pytest.raises(AttributeError):
        pool.fallback = behind
    behind.close()
    with pytest.raises(ValueError, match="'behind' is closed"):
        Pool(device, fallback=behind)
