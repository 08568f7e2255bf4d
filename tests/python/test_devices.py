"""Devices by name, and the one current."""

import os
import threading
import warnings

import pytest

import gpumem
from gpumem import Pool, device_names, testing


def test_device_opens_once():
    assert gpumem.device("host") is gpumem.device("host:0")
    assert gpumem.device("host").name == "host:0"


def test_device_takes_a_capacity_as_text():
    assert gpumem.device("host:1", capacity="64 MiB").total == 64 << 20


def test_device_refuses_another_capacity():
    gpumem.device("host:1", capacity="64 MiB")
    assert gpumem.device("host:1", capacity=64 << 20).total == 64 << 20
    with pytest.raises(ValueError, match="host:1 is open with a capacity of 67108864"):
        gpumem.device("host:1", capacity="32 MiB")


def test_device_without_cuda_says_so():
    missing = "cuda:0: .*(no NVIDIA driver|no GPU|no CUDA).*devices work everywhere"
    with pytest.raises(gpumem.GpumemError, match=missing):
        gpumem.device("cuda:0")


def test_device_sim_has_the_capacity_of_its_name():
    sim = gpumem.device("sim:24GiB")
    assert sim.kind == "sim"
    assert sim.total == 24 << 30
    assert gpumem.device("sim:24GiB") is sim
    unlimited = gpumem.device("sim")
    assert unlimited is not sim
    assert gpumem.device("sim") is gpumem.device("sim:1") is unlimited
    with pytest.raises(ValueError, match="a capacity needs its unit"):
        gpumem.device("sim:5")


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (99, ValueError),
        (-2, ValueError),
        (2**40, ValueError),
        ("cuda:99", ValueError),
        ("gpu", ValueError),
        ("host:99", ValueError),
        ("host:-1", ValueError),
        ("", ValueError),
        (True, TypeError),
        (1.5, TypeError),
    ],
)
@pytest.mark.parametrize(
    "use",
    [
        gpumem.memory_stats,
        gpumem.memory_summary,
        gpumem.memory_snapshot,
        gpumem.mem_get_info,
        gpumem.default_pool,
        gpumem.set_device,
        gpumem.measure,
        gpumem.reset_peak_memory_stats,
        lambda device: gpumem.empty(1, device=device),
        lambda device: gpumem.pinned_empty(1, device=device),
        lambda device: gpumem.set_per_process_memory_fraction(0.5, device),
        lambda device: gpumem.empty_cache(device=device),
        lambda device: gpumem.record_history(device=device),
    ],
)
def test_bad_devices_are_refused_everywhere_with_the_valid_range(use, bad, error):
    with pytest.raises(error, match="valid are host:0 and the int 0"):
        use(bad)


def test_host_devices_beyond_the_largest_number_are_refused():
    with pytest.raises(ValueError, match="host:0 to host:63"):
        gpumem.device("host:64")


def test_none_is_the_current_device():
    small = gpumem.device("host:1", capacity="64 MiB")
    gpumem.set_device(1)
    assert gpumem.current_device() is small
    assert gpumem.device(None) is small
    assert gpumem.mem_get_info()[1] == 64 << 20


def test_set_device_holds_for_one_thread():
    gpumem.configure(host_devices=2)
    gpumem.set_device("host:1")
    names = []
    thread = threading.Thread(target=lambda: names.append(gpumem.current_device().name))
    thread.start()
    thread.join()
    assert names == ["host:0"]
    assert gpumem.current_device().name == "host:1"


def test_set_device_takes_a_device_that_has_no_name_here():
    made = testing.device("host", capacity="64 MiB")
    gpumem.set_device(made)
    assert gpumem.current_device() is made


def test_current_device_is_not_changed_by_use_of_another():
    other = gpumem.device("host:1", capacity="64 MiB")
    buffer = gpumem.empty(1 << 20, device=other)
    assert gpumem.current_device().name == "host:0"
    del buffer
    assert gpumem.current_device().name == "host:0"


def test_devices_lists_hosts_first():
    gpumem.configure(host_devices=2)
    gpumem.device("sim")
    assert [device.name for device in gpumem.devices()] == ["host:0", "host:1", "sim:0"]


def test_default_capacity_is_the_smaller_of_machine_and_control_group(tmp_path):
    group = tmp_path / "a" / "b"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    (tmp_path / "a" / "memory.max").write_text("1073741824\n")
    own = tmp_path / "cgroup"
    own.write_text("0::/a/b\n")
    assert device_names._group_limit(str(tmp_path), str(own)) == 1 << 30
    own.write_text("5:cpu,memory:/x\n")
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("2147483648")
    assert device_names._group_limit(str(tmp_path), str(own)) == 2 << 30
    assert device_names._group_limit(str(tmp_path), str(tmp_path / "none")) is None
    assert device_names.default_host_capacity() % (2 << 20) == 0


def test_shared_capacity_is_part_of_the_device():
    import os

    name = f"gpumem-test-{os.getpid()}"
    gpumem.device("host:1", capacity="64 MiB", shared=name)
    with pytest.raises(ValueError, match="open with shared="):
        gpumem.device("host:1", shared="other")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("cuda", {}),
        ("host:x", {}),
        ("sim", {"delayed": True}),
        ("host", {"lag": 3}),
        ("host", {"capacity": None}),
        ("host", {"clock": "fast"}),
    ],
)
def test_testing_device_refuses_what_does_not_fit(kind, options):
    with pytest.raises(ValueError, match=r"must be|belong to"):
        testing.device(kind, **options)


def test_testing_faults_strike_inside_the_block_only():
    faulty = testing.device("host", capacity="64 MiB").with_faults()
    with gpumem.Pool(faulty, oom_wait=0) as pool:
        with (
            testing.faults(faulty, "page_create", for_ever=True),
            pytest.raises(gpumem.OutOfMemoryError),
        ):
            pool.empty(1 << 20)
        assert faulty.faults_injected or pool.empty(1 << 20).nbytes == 1 << 20


@pytest.mark.parametrize("paging", [False, True], ids=["segments", "pages"])
def test_sim_devices_share_no_addresses(paging):
    def opened():
        return testing.device("sim", capacity="32 MiB", paging=paging)

    with Pool(opened()) as one, Pool(opened()) as other, Pool(opened()) as third:
        blocks = [pool.empty(3 << 20) for pool in (one, other, third)]
        for pool, block in zip((one, other, third), blocks, strict=True):
            assert [p for p in (one, other, third) if p.owns(block.ptr)] == [pool]
        lowest = blocks[0].ptr
        assert lowest == min(block.ptr for block in blocks)
        for pool in (third, one, other):
            pool.check()
        blocks.clear()
        del block
    with Pool(opened()) as alone:  # what the others had is used again
        assert alone.empty(3 << 20).ptr == lowest


def test_sim_devices_of_a_forked_child_start_anew():
    def address():
        with Pool(testing.device("sim", capacity="32 MiB")) as pool:
            return pool.empty(3 << 20).ptr

    alone = address()
    with Pool(testing.device("sim", capacity="32 MiB")) as pool:
        held = pool.empty(3 << 20)
        assert held.ptr == alone != address()
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            os.write(writer, str(address()).encode())
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as stream:
            assert int(stream.read()) == alone
        assert os.waitpid(child, 0)[1] == 0
        del held
