"""Device: what it says of itself, and the switches that tests use."""

import pytest

from gpumem import Pool, _core

MIB = 1 << 20


@pytest.fixture
def host():
    return _core.open_host(0, 64 * MIB)


@pytest.fixture
def sim():
    return _core.open_sim(3, None)


def test_device_describes_itself(host):
    assert host.name == "host:0"
    assert (host.kind, host.index, host.total) == ("host", 0, 64 * MIB)
    assert host.page_size == 2 * MIB
    assert host.paging
    assert host.aliasing
    assert host.host_accessible
    assert "host:0" in repr(host)
    assert "\n" not in repr(host)


def test_device_without_paging_has_no_pages():
    device = _core.open_host(1, 64 * MIB, paging=False)
    assert (device.paging, device.page_size, device.aliasing) == (False, 0, False)


def test_device_takes_its_page_size():
    assert _core.open_host(0, MIB, page_size=4096).page_size == 4096


def test_sim_device_without_capacity_is_unlimited(sim):
    assert (sim.name, sim.kind) == ("sim:3", "sim")
    assert sim.total > 1 << 60
    assert not sim.host_accessible


@pytest.mark.parametrize("capacity", [0, -1])
def test_open_host_refuses_capacities_that_are_none(capacity):
    with pytest.raises(ValueError, match="capacity"):
        _core.open_host(0, capacity)


@pytest.mark.parametrize("capacity", [1.5, True, None, [1]])
def test_open_host_refuses_capacities_of_other_types(capacity):
    with pytest.raises(TypeError, match="capacity"):
        _core.open_host(0, capacity)


@pytest.mark.parametrize("page_size", [1, 4095, 6000, 3 * MIB])
def test_open_host_refuses_page_sizes_that_are_no_power_of_two(page_size):
    with pytest.raises(ValueError, match="page_size"):
        _core.open_host(0, 64 * MIB, page_size=page_size)


def test_open_refuses_a_negative_index():
    with pytest.raises(ValueError, match="index"):
        _core.open_host(-1, MIB)
    with pytest.raises(ValueError, match="index"):
        _core.open_sim(-1, MIB)


def test_device_cannot_be_made_by_its_type():
    with pytest.raises(TypeError, match="cannot create"):
        _core.Device()


def test_memory_info_follows_what_others_hold(host):
    host.occupy(10 * MIB)
    assert host.memory_info() == (54 * MIB, 64 * MIB)
    host.occupy(0)
    assert host.memory_info() == (64 * MIB, 64 * MIB)


def test_reported_free_can_differ_from_the_truth(host):
    host.set_reported_free(5)
    assert host.memory_info()[0] == 5
    host.set_reported_free(None)
    assert host.memory_info()[0] == 64 * MIB


def test_occupy_more_than_there_is_fails(host):
    with pytest.raises(_core.OutOfMemoryError):
        host.occupy(65 * MIB)


def test_counters_count_calls_and_bytes(host):
    before = host.counters()
    assert before["page_create"] == before["memory_now"] == 0
    with Pool(host) as pool:
        buffer = pool.empty(MIB)
        during = host.counters()
        assert during["page_create"] >= 1
        assert during["memory_now"] == during["mapped_now"] >= MIB
        del buffer
    after = host.counters()
    assert after["memory_now"] == 0
    assert after["memory_peak"] == during["memory_now"]


def test_devices_are_equal_with_and_without_a_fault_plan(host):
    other = _core.open_host(0, 64 * MIB)
    faulty = host.with_faults()
    assert faulty == host
    assert hash(faulty) == hash(host)
    assert host != other
    assert host != "host:0"


def test_armed_fault_fails_the_call_once(host):
    faulty = host.with_faults()
    pool = Pool(faulty)
    faulty.arm_fault("page_create", 1, status="device error")
    with pytest.raises(_core.GpumemError):
        pool.empty(MIB)
    assert faulty.faults_injected == 1
    assert pool.empty(MIB).nbytes == MIB
    faulty.disarm_fault()
    pool.check()


def test_arm_fault_names_what_it_accepts(host):
    faulty = host.with_faults()
    with pytest.raises(ValueError, match="page_create"):
        faulty.arm_fault("explode", 1)
    with pytest.raises(ValueError, match="out of memory"):
        faulty.arm_fault("map", 1, status="tired")
    with pytest.raises(ValueError, match="nth"):
        faulty.arm_fault("map", -1)


def test_recorded_calls_are_named_oldest_first(host):
    faulty = host.with_faults()
    faulty.record_calls(100)
    pool = Pool(faulty)
    pool.empty(MIB)
    calls = faulty.recorded_calls()
    assert calls.index("page_create") < calls.index("map")
    faulty.record_calls(0)
    assert faulty.recorded_calls() == []


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("set_lag", (1,)),
        ("tick", ()),
        ("arm_fault", ("map", 1)),
        ("disarm_fault", ()),
        ("record_calls", (1,)),
        ("recorded_calls", ()),
        ("advance", (1.0,)),
    ],
)
def test_switches_of_other_devices_are_errors(host, name, arguments):
    with pytest.raises(ValueError, match=name):
        getattr(host, name)(*arguments)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("occupy", (1,)),
        ("set_reported_free", (1,)),
        ("advance", (1.0,)),
        ("set_capturing", (0, True)),
    ],
)
def test_switches_of_the_host_are_errors_on_sim(sim, name, arguments):
    with pytest.raises(ValueError, match=name):
        getattr(sim, name)(*arguments)


def test_manual_clock_moves_by_advance_alone():
    device = _core.open_host(0, 64 * MIB, manual_clock=True)
    pool = Pool(device)
    pool.record_history(10)
    first = pool.empty(1)
    device.advance(1.5)
    second = pool.empty(1)
    times = [entry[1] for entry in pool.history()[0] if entry[0] == "alloc"]
    assert times[1] - times[0] == 1_500_000_000
    del first, second


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_advance_refuses_what_is_no_time(seconds):
    device = _core.open_host(0, 64 * MIB, manual_clock=True)
    with pytest.raises(ValueError, match="seconds"):
        device.advance(seconds)


def test_sim_device_counts_host_waits(sim):
    assert sim.host_waits == 0
    sim.set_lag(10)
    sim.tick()
    with pytest.raises(TypeError, match="operations"):
        sim.set_lag(1.5)


def test_synchronize_waits_for_every_stream(host):
    streams = [_core.Stream(host) for _ in range(2)]
    for stream in streams:
        stream.record()
    host.synchronize()
    assert [stream.waiting for stream in streams] == [0, 0]


def test_shared_capacity_belongs_to_all_who_name_it(request):
    name = f"gpumem-test-{id(request)}"
    one = _core.open_host(0, 64 * MIB, shared=name)
    two = _core.open_host(1, 64 * MIB, shared=name)
    one.occupy(60 * MIB)
    assert two.memory_info()[0] == 4 * MIB
    one.occupy(0)
    assert two.memory_info()[0] == 64 * MIB
