"""Windows that measure."""

import pytest

import gpumem

MIB = 1 << 20


def test_measure_is_signed_when_older_memory_is_dropped(device):
    old = gpumem.empty(10 * MIB)
    with gpumem.measure() as m:
        del old
    assert (m.delta, m.peak) == (-10 * MIB, 0)


@pytest.mark.parametrize(
    ("made", "dropped", "delta", "peak"), [(4, 4, 0, 8), (2, 1, 2, 4), (2, 2, 0, 4)]
)
def test_measure_gives_change_and_peak(device, made, dropped, delta, peak):
    with gpumem.measure() as m:
        buffers = [gpumem.empty(2 * MIB) for _ in range(made)]
        del buffers[:dropped]
    assert (m.delta, m.peak) == (delta * MIB, peak * MIB)
    buffers.clear()


def test_measure_nests_and_leaves_the_user_s_peaks(device):
    gpumem.empty(32 * MIB).free()
    with gpumem.measure() as outer:
        gpumem.empty(16 * MIB).free()
        with gpumem.measure() as inner:
            gpumem.empty(4 * MIB).free()
        gpumem.empty(2 * MIB).free()
        assert outer.peak == 16 * MIB
    assert (outer.peak, inner.peak) == (16 * MIB, 4 * MIB)
    assert gpumem.max_memory_allocated() == 32 * MIB


def test_measure_survives_a_reset_of_peaks_inside(device):
    with gpumem.measure() as m:
        gpumem.empty(16 * MIB).free()
        gpumem.reset_peak_memory_stats()
        assert gpumem.max_memory_allocated() == 0
        gpumem.empty(4 * MIB).free()
    assert m.peak == 16 * MIB
    assert gpumem.max_memory_allocated() == 4 * MIB


def test_measure_keeps_others_apart(device):
    device.set_reported_free(20 * MIB)
    with gpumem.measure() as m:
        buffer = gpumem.empty(2 * MIB)
        device.set_reported_free(25 * MIB)
    assert m.delta == 2 * MIB
    assert m.others == -7 * MIB
    device.set_reported_free(None)
    del buffer


def test_measure_counts_pools_made_inside(device):
    with gpumem.measure() as m, gpumem.Pool(device) as inside:
        buffer = inside.empty(2 * MIB)
        assert (m.delta, m.peak, m.reserved) == (2 * MIB, 2 * MIB, 2 * MIB)
        del buffer


def test_measure_of_one_pool(pool):
    with gpumem.measure(pool=pool) as m:
        kept = [pool.empty(2 * MIB), gpumem.empty(MIB)]
    assert m.delta == 2 * MIB
    kept.clear()


def test_measure_before_anything_is_open():
    gpumem.configure(host_capacity="64 MiB")
    with gpumem.measure() as m:
        assert m.delta == 0
        buffer = gpumem.empty(2 * MIB)
        assert (m.delta, m.peak) == (2 * MIB, 2 * MIB)
    del buffer


def test_measure_is_final_after_the_block(device):
    with gpumem.measure() as m:
        pass
    buffer = gpumem.empty(MIB)
    assert m.delta == 0
    del buffer


def test_measure_is_entered_once(device):
    m = gpumem.measure()
    with m, pytest.raises(RuntimeError, match="entered once"):
        m.__enter__()
    with pytest.raises(RuntimeError, match="entered once"):
        m.__enter__()


def test_measure_survives_an_exception(device):
    m = gpumem.measure()

    def fail():
        with m:
            gpumem.empty(MIB).free()
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()
    assert m.peak == MIB


def test_measure_prints_well(device):
    with gpumem.measure() as m:
        buffer = gpumem.empty(MIB)
    assert repr(m) == "<Measurement: +1.00 MiB, peak +1.00 MiB, others 0 B>"
    assert m.to_dict()["reserved"] == 2 * MIB
    assert "<table" in m._repr_html_()
    del buffer


def test_measure_refuses_pool_and_device(pool):
    with pytest.raises(ValueError, match="not both"):
        gpumem.measure(0, pool=pool)
    with pytest.raises(TypeError, match="must be a Pool"):
        gpumem.measure(pool=1)
