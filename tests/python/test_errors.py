"""The exceptions: classes, attributes, texts."""

import gc
import pickle
import weakref

import pytest

import gpumem
from gpumem import Pool, _core

MIB = 1 << 20
GIB = 1 << 30


def provoke(pool, size=GIB):
    with pytest.raises(gpumem.OutOfMemoryError) as caught:
        pool.empty(size)
    return caught.value


def test_classes_derive_from_what_people_catch():
    assert issubclass(gpumem.GpumemError, RuntimeError)
    assert issubclass(gpumem.OutOfMemoryError, gpumem.GpumemError)
    assert issubclass(gpumem.OutOfMemoryError, MemoryError)
    assert issubclass(gpumem.CudaError, gpumem.GpumemError)
    assert issubclass(gpumem.ReleasedError, gpumem.GpumemError)
    assert issubclass(gpumem.GpumemWarning, UserWarning)
    assert gpumem.OutOfMemoryError.__module__ == "gpumem"


def test_oom_error_carries_the_numbers(device, pool):
    held = pool.empty(10 * MIB, name="held")
    error = provoke(pool)
    assert error.requested == GIB
    assert error.used == 10 * MIB
    assert error.reserved >= 10 * MIB
    assert error.limit is None
    assert error.headroom == error.pending == error.stranded == 0
    assert error.device_total == 64 * MIB
    assert error.device_free == device.memory_info()[0]
    assert error.largest_free == 0
    assert error.device == "host:0"
    assert error.reason == "shortage"
    assert error.collected is True
    assert error.holders[0] == ("held", 10 * MIB)
    del held


def test_oom_text_is_one_short_paragraph(pool):
    error = provoke(pool)
    assert error.args == (str(error),)
    assert str(error).startswith("host:0 out of memory. ")
    assert "1.00 GiB" in str(error)
    assert str(GIB) in str(error)
    assert "\n" not in str(error)
    assert len(str(error)) < 700


def test_oom_text_says_the_exact_bytes_of_a_huge_shape(pool):
    with pytest.raises(gpumem.OutOfMemoryError, match="25769803776 bytes"):
        pool.empty((2**31, 3), "float32")


def test_oom_text_says_that_no_collection_was_tried(device):
    with Pool(device, gc_on_pressure=False) as pool:
        error = provoke(pool)
    assert error.collected is False
    assert "collection was not tried" in str(error)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"limit": 8 * MIB}, "limit"),
        ({"headroom": 0.9}, "headroom"),
        ({}, "shortage"),
    ],
)
def test_oom_reason_fits_what_stopped_it(device, options, reason):
    with Pool(device, **options) as pool:
        held = pool.empty(4 * MIB)
        error = provoke(pool, 40 * MIB if reason != "shortage" else 62 * MIB)
        assert error.reason == reason
        assert error.requested > 4 * MIB
        del held


def test_oom_reason_is_others_when_the_device_is_in_other_hands(device, pool):
    device.occupy(60 * MIB)
    error = provoke(pool, 16 * MIB)
    device.occupy(0)
    assert error.reason == "others"


def test_oom_error_can_be_pickled_and_hashed(pool):
    error = provoke(pool)
    copy = pickle.loads(pickle.dumps(error))
    assert vars(copy) == vars(error)
    assert copy.args == error.args
    assert isinstance(hash(error), int)


def test_oom_error_made_by_hand_has_every_attribute():
    error = gpumem.OutOfMemoryError("by hand")
    assert (error.requested, error.limit, error.holders) == (0, None, ())
    assert (error.device, error.reason, error.collected) == ("", "shortage", False)


def test_cuda_error_made_by_hand_has_every_attribute():
    error = gpumem.CudaError("by hand")
    assert (error.code, error.name, error.call) == (0, "", "")


def test_oom_error_holds_no_buffer(pool):
    def fail():
        held = [pool.empty(4 * MIB) for _ in range(4)]
        references.extend(weakref.ref(buffer) for buffer in held)
        pool.empty(GIB)

    references = []
    gc.disable()
    try:
        try:
            fail()
        except gpumem.OutOfMemoryError as error:
            kinds = {type(value) for value in vars(error).values()}
        assert kinds <= {str, int, bool, tuple, type(None)}
        assert not any(reference() for reference in references)
        assert pool.stats()["allocated_bytes.all.current"] == 0
    finally:
        gc.enable()


def test_failure_leaves_nothing_behind_but_counts(pool):
    held = pool.empty(50 * MIB)
    provoke(pool, 40 * MIB)
    first = pool.stats()
    for _ in range(50):
        provoke(pool, 40 * MIB)
    last = pool.stats()
    assert last["num_ooms"] - first["num_ooms"] == 50
    assert last["num_alloc_retries"] > first["num_alloc_retries"]
    for name in first:
        if name.endswith((".current", ".peak")) or name in ("cached_bytes", "lanes"):
            assert last[name] == first[name], name
    assert pool.empty(4 * MIB).nbytes == 4 * MIB
    pool.check()
    del held


def test_reservation_that_does_not_fit_says_both_numbers(device):
    with pytest.raises(gpumem.OutOfMemoryError) as caught:
        Pool(device, reserve=640 * MIB)
    assert caught.value.requested == 640 * MIB
    assert caught.value.device_total == 64 * MIB
    assert device.counters()["memory_now"] == 0
    with Pool(device) as pool:
        with pytest.raises(gpumem.OutOfMemoryError):
            pool.reserve("65 MiB")
        assert pool.stats()["reserved_bytes.all.current"] == 0
        pool.reserve("64 MiB")
        assert pool.stats()["reserved_bytes.all.current"] == 64 * MIB


def test_device_errors_come_through(device):
    faulty = device.with_faults()
    pool = Pool(faulty)
    faulty.arm_fault("page_create", 1, status="device error")
    with pytest.raises(gpumem.GpumemError, match="device reported an error"):
        pool.empty(MIB)
    faulty.disarm_fault()


def test_errors_of_the_hooks_do_not_hide_the_shortage(python):
    result = python(
        """
import gpumem
from gpumem import _core

def fail(*arguments):
    raise ZeroDivisionError("broken hook")

_core.set_hooks(parse_size=fail, default_device=fail, default_pool=fail, summary=fail,
                snapshot=fail, holders=fail, oom=fail)
pool = _core.Pool(_core.open_host(0, 1 << 20, page_size=4096))
try:
    pool.empty(1 << 30)
except gpumem.OutOfMemoryError as error:
    print(error.holders)
"""
    )
    assert result.stdout == "()\n"
    assert result.stderr.count("broken hook") == 2


def test_module_without_the_package_says_what_is_missing(python):
    result = python(
        """
import importlib.util, sys, gpumem._core
path = gpumem._core.__file__
spec = importlib.util.spec_from_file_location("gpumem._core", path)
core = importlib.util.module_from_spec(spec)
spec.loader.exec_module(core)
pool = core.Pool(core.open_host(0, 1 << 20, page_size=4096))
for call in (lambda: core.Pool(), lambda: pool.empty(1, pitch="1 KiB"),
             lambda: pool.summary(), lambda: pool.snapshot()):
    try:
        call()
    except RuntimeError as error:
        print("import gpumem" in str(error))
"""
    )
    assert result.stdout.split() == ["True"] * 4


def test_unexpected_statuses_are_named(device):
    faulty = device.with_faults()
    faulty.arm_fault("stream_create", 1, status="device lost")
    with pytest.raises(gpumem.GpumemError, match="does not answer"):
        _core.Stream(faulty)
    faulty.disarm_fault()
