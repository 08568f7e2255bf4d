"""Copies into and out of Buffers, and fills."""

import array
import random
import threading

import pytest

import gpumem
from gpumem import testing

np = pytest.importorskip("numpy")


@pytest.fixture
def slow():
    """A device, its pool and a stalled stream: work waits until it is released."""
    device = testing.device("host", capacity="64 MiB")
    pool = gpumem.Pool(device)
    stream = gpumem.Stream(device)
    stream.stall()
    yield device, pool, stream
    stream.release()
    stream.close()
    pool.close()


def test_copy_from_returns_the_buffer_and_copy_to_the_target(pool):
    buf = pool.empty(4)
    assert buf.copy_from(b"abcd") is buf
    target = bytearray(4)
    assert buf.copy_to(target) is target
    assert target == b"abcd"


@pytest.mark.parametrize(
    "source",
    [
        b"\x01\x02\x03\x04",
        bytearray([1, 2, 3, 4]),
        memoryview(b"\x00\x01\x00\x02\x00\x03\x00\x04")[1::2],
        array.array("B", [1, 2, 3, 4]),
        np.array([1, 2, 3, 4], "uint8"),
        np.array([4, 3, 2, 1], "uint8")[::-1],
        [1, 2, 3, 4],
        (1, 2, 3, 4),
    ],
    ids=lambda source: type(source).__name__,
)
def test_copy_from_takes_what_holds_numbers(pool, source):
    assert pool.empty(4).copy_from(source).tobytes() == b"\x01\x02\x03\x04"


def test_nested_sequences(pool):
    buf = pool.empty((2, 2), "float32").copy_from([[1, 2.5], [3, 4]])
    assert buf.numpy().tolist() == [[1, 2.5], [3, 4]]


@pytest.mark.parametrize("value", [5, 5.0, np.float64(5), np.array(5.0), True])
def test_a_single_value_goes_everywhere(pool, value):
    buf = pool.empty((2, 3), "float32").copy_from(value)
    assert buf.numpy().tolist() == [[float(value)] * 3] * 2


def test_a_buffer_of_zero_dimensions_goes_everywhere(pool):
    one = pool.empty((), "int16").fill(3)
    assert pool.empty(4, "int32").copy_from(one).numpy().tolist() == [3] * 4


@pytest.mark.parametrize("shape", [(6,), (3, 2), (2, 3, 1), (1, 3), (2,)])
def test_shapes_must_be_equal(pool, shape):
    buf = pool.empty((2, 3), "float32")
    with pytest.raises(ValueError, match=r"\(2, 3\)"):
        buf.copy_from(np.zeros(shape, "float32"))
    with pytest.raises(ValueError, match=r"\(2, 3\)"):
        buf.copy_to(np.zeros(shape, "float32"))


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("float64", "float32"),
        ("int64", "int8"),
        ("uint8", "int32"),
        ("bool", "uint8"),
        ("int32", "float16"),
        ("float32", "complex64"),
        (">f4", "float32"),
        (">i2", "int64"),
        ("float32", "bfloat16"),
        ("float64", "float8_e5m2"),
        ("int16", "bfloat16"),
    ],
)
def test_conversion_within_the_kind(pool, source, target):
    pytest.importorskip("ml_dtypes")
    values = np.array([0, 1, 0, 1, 1], source)
    buf = pool.empty(5, target).copy_from(values)
    assert buf.numpy().astype("complex64").tolist() == [0, 1, 0, 1, 1]
    back = np.zeros(5, "complex128")
    buf.copy_to(back)
    assert back.tolist() == [0, 1, 0, 1, 1]


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("float32", "int32"),
        ("complex64", "float64"),
        ("int8", "uint8"),
        ("int32", "bool"),
        ("float64", "bool"),
    ],
)
def test_conversion_to_another_kind_is_refused(pool, source, target):
    with pytest.raises(TypeError, match=f"{source} to {target}"):
        pool.empty(2, target).copy_from(np.zeros(2, source))
    with pytest.raises(TypeError, match=f"{source} to {target}"):
        pool.empty(2, source).copy_to(np.zeros(2, target))


@pytest.mark.parametrize(
    "source", [np.array(["a", "b"]), ["a", "b"], object(), np.zeros(2, "f4,i4"), {1, 2}]
)
def test_what_holds_no_numbers_is_a_type_error(pool, source):
    with pytest.raises(TypeError):
        pool.empty(2).copy_from(source)


def test_integers_of_a_sequence_must_fit(pool):
    with pytest.raises(ValueError, match="uint8"):
        pool.empty(2).copy_from([1, 256])
    with pytest.raises(ValueError, match="uint8"):
        pool.empty(2).copy_from([1, -1])
    with pytest.raises(TypeError, match="float64 to uint8"):
        pool.empty(2).copy_from([1, 1.5])


def test_read_only_and_foreign_targets(pool):
    buf = pool.empty(4).fill(1)
    locked = np.zeros(4, "uint8")
    locked.flags.writeable = False
    for target in (b"abcd", locked):
        with pytest.raises(ValueError, match="read-only"):
            buf.copy_to(target)
    for target in ([0, 0, 0, 0], None, 3):
        with pytest.raises(TypeError, match="copy_to needs"):
            buf.copy_to(target)


def test_strided_copies_agree_with_numpy(pool):
    seed = 77
    print("seed", seed)
    draw = random.Random(seed)
    for _ in range(150):
        dtypes = ["int32", "int32", "int16", "float32"]
        from_type, to_type = draw.choice(dtypes[:3]), draw.choice(dtypes)
        source = np.arange(120, dtype=from_type).reshape(4, 5, 6)
        target = np.zeros((4, 5, 6), to_type)
        have = pool.empty(source.shape, from_type).copy_from(source)
        want = pool.empty(target.shape, to_type).fill(0)
        index = tuple(slice(None, None, draw.choice([1, 2, -1, -2])) for _ in range(3))
        other = tuple(slice(None, None, s.step * draw.choice([1, -1])) for s in index)
        want[index].copy_from(have[other])
        target[index] = source[other]
        assert want.tobytes() == target.tobytes()
        out = np.zeros(target[index].shape, to_type)
        want[index].copy_to(out)
        np.testing.assert_array_equal(out, target[index])


def test_copies_of_very_many_pieces(pool):
    values = np.arange(40000, dtype="uint16").reshape(20000, 2)
    buf = pool.empty((20000, 2), "uint16").copy_from(values)
    column = pool.empty((20000, 1), "uint16").copy_from(buf[:, 1:])
    assert column.tobytes() == values[:, 1].tobytes()
    buf[:, :1].fill(7)
    values[:, 0] = 7
    assert buf.tobytes() == values.tobytes()
    assert buf[:, 1].tobytes() == values[:, 1].tobytes()


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
@pytest.mark.parametrize("reverse", [False, True])
def test_overlapping_copies(pool, dtype, reverse):
    values = np.arange(100).astype(dtype)
    buf = pool.empty(100, dtype).copy_from(values)
    target, source = slice(10, 90), slice(0, 80)
    if reverse:
        target, source = source, target
    buf[target].copy_from(buf[source])
    values[target] = values[source].copy()
    assert buf.tobytes() == values.tobytes()


def test_copies_onto_themselves(pool):
    values = np.arange(50, dtype="int16")
    buf = pool.empty(50, "int16").copy_from(values)
    buf.copy_from(buf).copy_from(buf.numpy())
    assert buf.tobytes() == values.tobytes()
    buf.copy_from(buf[::-1])
    assert buf.tobytes() == values[::-1].tobytes()
    buf.copy_from(buf.numpy()[::-1])
    assert buf.tobytes() == values.tobytes()
    buf[:].view("uint16").copy_from(buf.view("uint16")[::-1])
    assert buf.tobytes() == values[::-1].tobytes()


def test_copies_between_devices(pool):
    with gpumem.Pool(testing.device("host:1", capacity="8 MiB")) as other:
        here = pool.empty((3, 4), "float32").copy_from(np.arange(12.0).reshape(3, 4))
        there = other.empty((3, 4), "float32").copy_from(here)
        assert there.tobytes() == here.tobytes()
        here.fill(0)
        there[:, ::2].copy_to(here[:, 1::2])
        assert here.numpy()[1].tolist() == [0, 4, 0, 6]
        assert other.empty((3, 4), "float64").copy_from(here).numpy().sum() == 30


def test_empty_copies(pool):
    buf = pool.empty((0, 3), "float32")
    buf.copy_from(np.zeros((0, 3), "float32"))
    buf.copy_to(np.zeros((0, 3), "float64"))
    assert pool.empty((0, 3)).copy_from(pool.empty((0, 3))).tobytes() == b""


def test_copies_between_buffers_are_queued(slow):
    _device, pool, stream = slow
    source = pool.empty(100).fill(1)
    target = pool.empty(100).fill(2)
    target.copy_from(source, stream=stream)
    assert stream.waiting == 1
    assert target.tobytes() == b"\x02" * 100
    source.fill(3)
    stream.release()
    assert target.tobytes() == b"\x03" * 100


def test_fill_is_queued(slow):
    _device, pool, stream = slow
    buf = pool.empty(100).fill(1)
    buf.fill(5, stream=stream)
    assert buf.tobytes() == b"\x01" * 100
    stream.release()
    assert buf.tobytes() == b"\x05" * 100


@pytest.mark.parametrize("end", ["source", "target"])
def test_queued_copies_keep_the_memory_of_both_ends(slow, end):
    _device, pool, stream = slow
    ends = {"source": pool.empty(1 << 20).fill(1), "target": pool.empty(1 << 20)}
    ends["target"].copy_from(ends["source"], stream=stream)
    address = ends[end].ptr
    ends.pop(end).free()
    fresh = [pool.empty(1 << 20) for _ in range(3)]
    assert address not in [buf.ptr for buf in fresh]
    stream.release()
    pool.poll()
    assert pool.stats()["pending_bytes"] == 0


def test_overlapping_queued_copies_keep_their_block_in_between(slow):
    _device, pool, stream = slow
    buf = pool.empty(1 << 20).fill(0)
    buf[: 1 << 19].fill(8)
    buf[1000:].copy_from(buf[:-1000], stream=stream)
    fresh = [pool.empty(1 << 20).fill(255) for _ in range(3)]
    stream.release()
    values = np.zeros(1 << 20, "uint8")
    values[: (1 << 19) + 1000] = 8
    assert buf.tobytes() == values.tobytes()
    del fresh


def test_copies_from_host_memory_wait_without_the_gil(slow):
    _device, pool, stream = slow
    buf = pool.empty(4)
    timer = threading.Timer(0.05, stream.release)
    timer.start()
    buf.copy_from(b"wxyz", stream=stream)
    timer.join()
    assert buf.tobytes() == b"wxyz"


def test_a_buffer_in_a_waiting_copy_cannot_be_freed(slow):
    _device, pool, stream = slow
    buf = pool.empty(4)
    refused = []

    def meddle():
        try:
            while not stream.waiting:
                pass
            buf.free()
        except BufferError:
            refused.append(True)
        finally:
            stream.release()

    thread = threading.Thread(target=meddle)
    thread.start()
    buf.copy_from(b"wxyz", stream=stream)
    thread.join()
    assert refused
    assert buf.exports == 0
    assert buf.tobytes() == b"wxyz"


def test_failed_copies_leave_no_export(pool):
    buf = pool.empty(4)
    source = np.zeros(5)
    for bad in (source, source[:4]):
        with pytest.raises((TypeError, ValueError)):
            buf.copy_from(bad)
    assert buf.exports == 0
    buf.free()


def test_a_failing_device_is_reported(device):
    failing = device.with_faults()
    with gpumem.Pool(failing) as pool:
        buf = pool.empty(16).fill(0)
        failing.arm_fault("copy", 1, status="device error")
        with pytest.raises(gpumem.GpumemError):
            buf.copy_from(bytes(16))
        failing.arm_fault("fill", 1, status="device error")
        with pytest.raises(gpumem.GpumemError):
            buf.fill(1)
        failing.disarm_fault()
        assert buf.fill(1).tobytes() == b"\x01" * 16
        assert buf.exports == 0


@pytest.mark.parametrize("method", ["copy_from", "copy_to", "fill"])
def test_arguments_are_checked(pool, method):
    call = getattr(pool.empty(4), method)
    with pytest.raises(TypeError, match="positional"):
        call()
    with pytest.raises(TypeError, match="positional"):
        call(b"abcd", 0)
    with pytest.raises(TypeError, match="'streams'"):
        call(b"abcd", streams=0)
    with pytest.raises(TypeError, match="stream"):
        call(b"abcd", stream="0")


def test_cuda_memory_needs_a_copy_first(pool):
    class Tensor:
        @property
        def __cuda_array_interface__(self):
            return {"shape": (2,), "typestr": "|u1", "data": (1, False)}

    with pytest.raises(TypeError, match="copy them to the host"):
        pool.empty(2).copy_from(Tensor())
