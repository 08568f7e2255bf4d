"""Pinned host memory: PinnedArray, its pool, and Pin."""

import gc
import pickle
import threading
import time

import pytest

import gpumem
from gpumem import _core, testing

np = pytest.importorskip("numpy")

MIB = 1 << 20


def pinned_now(device):
    return device.counters()["pinned_now"]


# ---- PinnedArray ---------------------------------------------------------------------


def test_attributes(device):
    array = _core.pinned_empty(device, (3, 5), "float32")
    assert (array.shape, array.dtype, array.nbytes) == ((3, 5), "float32", 60)
    assert array.ptr % 512 == 0
    assert not array.released
    assert "shape=(3, 5) dtype=float32 device=host:0 nbytes=60 B" in repr(array)


def test_buffer_protocol_and_numpy_share_the_memory(device):
    array = gpumem.pinned_empty((2, 3), "int16", device=device)
    view = array.numpy()
    view[:] = [[1, 2, 3], [4, 5, 6]]
    assert memoryview(array).tolist() == [[1, 2, 3], [4, 5, 6]]
    assert view.ctypes.data == array.ptr
    assert view.flags.writeable


def test_zero_bytes_ask_nothing(device):
    array = _core.pinned_empty(device, (0, 4), "float32")
    assert (array.nbytes, array.ptr, array.numpy().shape) == (0, 0, (0, 4))
    array.free()
    assert device.counters()["pinned_create"] == 0
    assert _core.pinned_stats(device)["reserved"] == 0
    assert _core.pinned_trim(device) == 0


def test_free_and_access_afterwards(device):
    array = _core.pinned_empty(device, 100, "uint8")
    view = array.numpy()
    with pytest.raises(BufferError, match="1 live export "):
        array.free()
    del view
    array.free()
    array.free()
    assert array.released
    for access in (lambda: array.ptr, array.numpy, lambda: memoryview(array)):
        with pytest.raises(gpumem.ReleasedError):
            access()
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(array)


def test_dropped_memory_is_cached_and_trimmed(device):
    array = _core.pinned_empty(device, 5 * MIB, "uint8")
    address = array.ptr
    del array
    stats = _core.pinned_stats(device)
    assert stats["used"] == 0
    assert stats["reserved"] == stats["cached"] >= 5 * MIB
    assert _core.pinned_empty(device, 5 * MIB, "uint8").ptr == address
    assert _core.pinned_trim(device) == stats["reserved"]
    assert pinned_now(device) == 0


@pytest.mark.parametrize("mib", [33, 65, 129, 1025])
def test_pin_01_large_blocks_cost_little_more_than_asked(mib):
    device = testing.device("host", capacity="64 MiB")
    array = _core.pinned_empty(device, mib * MIB, "uint8")
    stats = _core.pinned_stats(device)
    assert stats["requested"] == mib * MIB
    assert stats["reserved"] <= 1.125 * mib * MIB
    assert stats["pinned"] <= 1.125 * mib * MIB
    assert stats["pinned"] == pinned_now(device) >= array.nbytes


def test_pin_05_dropped_arrays_reuse_one_block():
    device = testing.device("host", capacity="64 MiB")
    for _ in range(25):
        _core.pinned_empty(device, 20 * MIB, "uint8")
        stats = _core.pinned_stats(device)
        assert stats["device_allocs"] == 1
        assert stats["reserved"] <= 1.125 * 20 * MIB
    for number in range(25):
        view = _core.pinned_empty(device, 20 * MIB, "uint8").numpy()
        view[::4096] = number
        gc.collect()
        assert view[-4096] == number
        part = view[::4096]
        del view
        assert part.min() == number
        del part
    assert _core.pinned_stats(device)["device_allocs"] == 1


def test_pin_06_memory_is_not_reused_while_a_copy_reads_it():
    device = testing.device("host", capacity="64 MiB")
    with gpumem.Pool(device) as pool, gpumem.Stream(device) as stream:
        target = pool.empty(64 << 10)
        stream.stall()
        for number in range(1000):
            old, new = number % 251, (number + 7) % 251
            source = gpumem.pinned_empty(64 << 10, device=device)
            source.numpy()[:] = old
            target.copy_from(source, stream=stream)
            del source
            fresh = gpumem.pinned_empty(64 << 10, device=device)
            fresh.numpy()[:] = new
            stream.release(stream.waiting)
            assert target.tobytes() == bytes([old]) * (64 << 10)
        stream.release()
        assert _core.pinned_stats(device)["reserved"] <= 16 * MIB


def test_copies_into_pinned_memory_are_queued(device):
    with gpumem.Pool(device) as pool, gpumem.Stream(device) as stream:
        source = pool.empty(1000).fill(5)
        target = gpumem.pinned_empty(1000, device=device)
        target.numpy()[:] = 0
        stream.stall()
        assert source.copy_to(target, stream=stream) is target
        assert target.numpy().max() == 0
        address = target.ptr
        del target
        assert gpumem.pinned_empty(1000, device=device).ptr != address
        stream.release()


def test_waiting_for_a_pinned_copy_does_not_hold_the_gil(device):
    with gpumem.Pool(device) as pool, gpumem.Stream(device) as stream:
        target = pool.empty(1000)
        source = gpumem.pinned_empty(1000, device=device)
        source.numpy()[:] = 3
        stream.stall()
        target.copy_from(source, stream=stream)
        ran = []

        def work():
            ran.append(time.monotonic())
            stream.release()

        timer = threading.Timer(0.02, work)
        timer.start()
        stream.synchronize()
        assert ran
        assert target.tobytes() == b"\x03" * 1000
        timer.join()


def test_record_stream_keeps_the_memory(device):
    with gpumem.Stream(device) as stream, gpumem.Pool(device) as pool:
        array = _core.pinned_empty(device, 1000, "uint8")
        address = array.ptr
        stream.stall()
        pool.empty(10, stream=stream).fill(0)
        array.record_stream(stream)
        del array
        other = _core.pinned_empty(device, 1000, "uint8")
        assert other.ptr != address
        assert _core.pinned_stats(device)["pending"] > 0
        stream.release()
        del other
    with pytest.raises(TypeError, match="not None"):
        _core.pinned_empty(device, 1, "uint8").record_stream(None)


def test_conversion_from_pinned_memory(device):
    with gpumem.Pool(device) as pool:
        source = _core.pinned_empty(device, 3, "float64")
        source.numpy()[:] = [1, 2, 3]
        assert pool.empty(3, "float32").copy_from(source).numpy().tolist() == [1, 2, 3]
        pool.empty(3, "int8").fill(9).copy_to(source)
        assert source.numpy().tolist() == [9, 9, 9]


def test_pinned_memory_of_another_device(device):
    with gpumem.Pool(testing.device("host:1", capacity="4 MiB")) as pool:
        source = _core.pinned_empty(device, 3, "uint8")
        source.numpy()[:] = 4
        assert pool.empty(3).copy_from(source).tobytes() == b"\x04" * 3


def test_pools_of_pinned_memory_are_not_listed(device):
    before = _core.pools()
    _core.pinned_empty(device, 10, "uint8")
    assert _core.pools() == before


def test_the_memory_goes_with_the_device():
    device = testing.device("host", capacity="4 MiB")
    array = _core.pinned_empty(device, 100, "uint8")
    view = array.numpy()
    del array, device
    gc.collect()
    view[:] = 1
    assert view.sum() == 100


def test_a_failing_device_is_reported(device):
    failing = device.with_faults()
    failing.arm_fault("pinned_create", 1, for_ever=True)
    with pytest.raises(MemoryError):
        _core.pinned_empty(failing, 100, "uint8")
    failing.disarm_fault()
    assert _core.pinned_empty(failing, 100, "uint8").nbytes == 100


@pytest.mark.parametrize("shape", [-1, 1.5, True, "8"])
def test_bad_shapes(device, shape):
    with pytest.raises((TypeError, ValueError)):
        _core.pinned_empty(device, shape, "uint8")


# ---- Pin -----------------------------------------------------------------------------


def test_pin_02_twice_in_sequence_and_nested(device):
    array = np.zeros(5000, "float32")
    for _ in range(2):
        with _core.Pin(device, array) as inside:
            assert inside is array
            assert pinned_now(device) == array.nbytes
        assert pinned_now(device) == 0
    with _core.Pin(device, array), _core.Pin(device, array):
        assert device.counters()["pin"] == 3
        assert pinned_now(device) == array.nbytes
    assert pinned_now(device) == 0


def test_pin_02_nothing_stays_registered_after_an_exception(device):
    array = np.zeros(5000, "float32")
    with pytest.raises(LookupError), _core.Pin(device, array):
        raise LookupError
    assert pinned_now(device) == 0


@pytest.mark.parametrize("part", [slice(0, 3000), slice(2000, None), slice(1, 10)])
def test_pin_02_overlap_is_refused_before_the_driver_is_asked(device, part):
    array = np.zeros(5000, "float32")
    with _core.Pin(device, array[1000:4000] if part.stop != 10 else array):
        calls = device.counters()["pin"]
        with pytest.raises(ValueError, match="overlap"):
            _core.Pin(device, array[part])
        assert device.counters()["pin"] == calls
    assert pinned_now(device) == 0


def test_neighbours_do_not_overlap(device):
    array = np.zeros(4096, "uint8")
    with _core.Pin(device, array[:2048]), _core.Pin(device, array[2048:]):
        assert pinned_now(device) == 4096


def test_pin_03_the_handle_keeps_the_array(device):
    array = np.ones(1000)
    pin = _core.Pin(device, array)
    address = array.ctypes.data
    del array
    gc.collect()
    assert pin.active
    with pin as again:
        assert again.ctypes.data == address
        assert again.sum() == 1000
        del again
    assert not pin.active
    del pin
    assert pinned_now(device) == 0


def test_pin_03_dropping_the_handle_unregisters(device):
    array = np.ones(1000)
    _core.Pin(device, array)
    assert pinned_now(device) == 0
    pin = _core.Pin(device, array)
    assert pin.active
    del pin
    assert pinned_now(device) == 0


def test_a_closed_pin_can_be_entered_again(device):
    pin = _core.Pin(device, np.ones(10))
    pin.close()
    pin.close()
    assert "closed" in repr(pin)
    with pin:
        assert pinned_now(device) == 80
        assert "active" in repr(pin)
    assert pinned_now(device) == 0


def test_a_pin_in_a_cycle_is_collected(device):
    class Array(np.ndarray):
        pass

    array = np.ones(10).view(Array)
    array.pin = _core.Pin(device, array)
    del array
    gc.collect()
    assert pinned_now(device) == 0


@pytest.mark.parametrize(
    "array", [bytearray(100), memoryview(bytes(100)), np.ones((5, 5))[:, ::2], b"abc"]
)
def test_what_can_be_pinned(device, array):
    with gpumem.pin(array, device=device):
        assert pinned_now(device) > 0
    assert pinned_now(device) == 0


def test_no_bytes_are_pinned_for_nothing(device):
    with _core.Pin(device, np.zeros(0)) as array:
        assert array.size == 0
        assert device.counters()["pin"] == 0


@pytest.mark.parametrize("array", [[1, 2], None, 3, "abc"])
def test_what_cannot_be_pinned(device, array):
    with pytest.raises(TypeError, match="pin needs"):
        _core.Pin(device, array)


def test_a_failing_pin_leaves_nothing(device):
    failing = device.with_faults()
    array = np.ones(10)
    failing.arm_fault("pin", 1, status="device error")
    with pytest.raises(gpumem.GpumemError):
        _core.Pin(failing, array)
    with _core.Pin(failing, array):
        assert pinned_now(device) == 80
    assert pinned_now(device) == 0
