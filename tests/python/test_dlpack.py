"""Buffers as DLPack tensors, and tensors as sources of copies."""

import ctypes
import gc
import threading
import weakref

import pytest

import gpumem
from gpumem import testing

np = pytest.importorskip("numpy")

# ---- a consumer and a producer in ctypes ---------------------------------------------


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Legacy(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32 * 2),
        ("context", ctypes.c_void_p),
        ("deleter", DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


api = ctypes.pythonapi
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
api.PyCapsule_New.restype = ctypes.py_object
api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


def consume(capsule):
    """Take a tensor out of its capsule as a consumer does."""
    if api.PyCapsule_IsValid(capsule, b"dltensor_versioned"):
        kind, name, used = Versioned, b"dltensor_versioned", b"used_dltensor_versioned"
    else:
        kind, name, used = Legacy, b"dltensor", b"used_dltensor"
    address = api.PyCapsule_GetPointer(capsule, name)
    api.PyCapsule_SetName(capsule, used)
    consume.names.append(used)  # the capsule keeps the pointer
    return kind.from_address(address), address


consume.names = []


def live(pool):
    return pool.stats()["allocated_bytes.all.current"]


# ---- export --------------------------------------------------------------------------


def test_numpy_shares_the_memory(pool):
    buf = pool.empty((2, 3), "float32").fill(2)
    array = np.from_dlpack(buf)
    assert array.ctypes.data == buf.ptr
    assert array.tolist() == [[2.0] * 3] * 2
    array[0, 0] = 8
    assert buf.numpy()[0, 0] == 8
    assert buf.exports == 1
    with pytest.raises(BufferError):
        buf.free()
    del array
    assert buf.exports == 0


def test_numpy_shares_a_strided_view(pool):
    buf = pool.empty((4, 6), "int32").copy_from(
        np.arange(24, dtype="int32").reshape(4, 6)
    )
    assert np.from_dlpack(buf[::-2, 1::2]).tolist() == [[19, 21, 23], [7, 9, 11]]


@pytest.mark.parametrize(
    ("dtype", "code", "bits"),
    [
        ("bool", 6, 8),
        ("int8", 0, 8),
        ("uint64", 1, 64),
        ("float16", 2, 16),
        ("bfloat16", 4, 16),
        ("complex64", 5, 64),
        ("float8_e4m3fn", 10, 8),
        ("float8_e5m2", 12, 8),
        ("float8_e8m0fnu", 14, 8),
    ],
)
def test_type_codes(pool, dtype, code, bits):
    managed, address = consume(pool.empty(3, dtype).__dlpack__(max_version=(1, 0)))
    tensor = managed.tensor
    assert (tensor.code, tensor.bits, tensor.lanes) == (code, bits, 1)
    managed.deleter(address)


@pytest.mark.parametrize(
    ("version", "kind"),
    [(None, Legacy), ((0, 8), Legacy), ((1, 0), Versioned), ((2, 5), Versioned)],
)
def test_the_version_follows_the_consumer(pool, version, kind):
    buf = pool.empty((2, 3), "int16")
    managed, address = consume(buf.__dlpack__(max_version=version))
    assert isinstance(managed, kind)
    tensor = managed.tensor
    assert tensor.data == buf.ptr
    assert list(tensor.device) == [1, 0]
    assert tensor.ndim == 2
    assert tensor.shape[:2] == [2, 3]
    assert tensor.strides[:2] == [3, 1]
    assert tensor.byte_offset == 0
    if kind is Versioned:
        assert managed.version[0] == 1
        assert managed.flags == 0
    managed.deleter(address)
    assert buf.exports == 0


def test_a_capsule_nobody_consumed_ends_its_export(pool):
    buf = pool.empty(8)
    for version in (None, (1, 0)):
        capsule = buf.__dlpack__(max_version=version)
        assert buf.exports == 1
        del capsule
        assert buf.exports == 0


def test_a_capsule_is_consumed_once(pool):
    class Once:
        def __init__(self, capsule):
            self.capsule = capsule

        def __dlpack__(self, **_keywords):
            return self.capsule

        def __dlpack_device__(self):
            return (1, 0)

    once = Once(pool.empty(8).__dlpack__(max_version=(1, 0)))
    array = np.from_dlpack(once)
    with pytest.raises(ValueError, match="incorrect name"):
        np.from_dlpack(once)
    assert len(array) == 8


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_deleter_called_twice_frees_once(pool, version):
    buf = pool.empty(1000)
    managed, address = consume(buf.__dlpack__(max_version=version))
    other, other_address = consume(buf.__dlpack__(max_version=version))
    deleter = managed.deleter
    deleter(address)
    deleter(address)
    assert buf.exports == 1
    other.deleter(other_address)
    assert buf.exports == 0


def test_many_exports_recycle_their_records(pool):
    buf = pool.empty(8)
    held = [np.from_dlpack(buf) for _ in range(600)]
    assert buf.exports == 600
    for _ in range(3):
        held = [np.from_dlpack(buf) for _ in range(600)]
    del held
    assert buf.exports == 0


def test_a_deleter_on_a_foreign_thread_without_the_gil(pool):
    buf = pool.empty(1000)
    managed, address = consume(buf.__dlpack__(max_version=(1, 0)))
    del buf
    library = ctypes.CDLL(None)
    thread = ctypes.c_ulong()
    routine = ctypes.cast(managed.deleter, ctypes.c_void_p)
    library.pthread_create.argtypes = [ctypes.c_void_p] * 4
    library.pthread_join.argtypes = [ctypes.c_ulong, ctypes.c_void_p]
    assert library.pthread_create(ctypes.byref(thread), None, routine, address) == 0
    assert library.pthread_join(thread, None) == 0  # ctypes releases the GIL
    assert live(pool) == 0


def test_a_deleter_on_another_python_thread(pool):
    array = [np.from_dlpack(pool.empty(1000))]
    thread = threading.Thread(target=array.clear)
    thread.start()
    thread.join()
    assert live(pool) == 0


def test_an_export_keeps_the_memory_past_its_scope(pool):
    with pool.scope("s") as scope:
        array = np.from_dlpack(pool.empty(1000).fill(3))
    assert len(scope.deferred) == 1
    assert array.sum() == 3000
    del array
    assert live(pool) == 0


def test_a_copy_is_new_memory(pool):
    buf = pool.empty((2, 4), "float32").fill(1)
    managed, address = consume(buf[:, ::2].__dlpack__(max_version=(1, 0), copy=True))
    assert managed.flags == 2
    assert managed.tensor.data != buf.ptr
    assert managed.tensor.strides[:2] == [2, 1]
    assert buf.exports == 0
    managed.deleter(address)
    array = np.from_dlpack(buf, copy=True)
    array[:] = 9
    assert buf.numpy().max() == 1
    assert np.from_dlpack(buf, copy=False).ctypes.data == buf.ptr


def test_no_elements_have_no_address(pool):
    managed, address = consume(pool.empty((0, 3)).__dlpack__(max_version=(1, 0)))
    assert managed.tensor.data is None
    managed.deleter(address)
    assert np.from_dlpack(pool.empty((0, 3))).shape == (0, 3)


def test_device(pool):
    assert pool.empty(1).__dlpack_device__() == (1, 0)
    with gpumem.Pool(testing.device("host:3", capacity="4 MiB")) as other:
        assert other.empty(1).__dlpack_device__() == (1, 0)


def test_another_device_is_refused(pool):
    buf = pool.empty(8)
    assert buf.__dlpack__(dl_device=(1, 0)) is not None
    for device in ((2, 0), (1, 1)):
        with pytest.raises(BufferError, match="copy it first"):
            buf.__dlpack__(dl_device=device)


@pytest.mark.parametrize("stream", [0, 1, 7, "1", 2.0])
def test_host_memory_has_no_stream(pool, stream):
    with pytest.raises(ValueError, match="None or -1"):
        pool.empty(8).__dlpack__(stream=stream)


def test_stream_none_waits_and_minus_one_does_not():
    device = testing.device("host", capacity="16 MiB")
    with gpumem.Pool(device) as pool, gpumem.Stream(device) as stream:
        buf = pool.empty(8, stream=stream).fill(0)
        stream.stall()
        buf.fill(6)
        managed, address = consume(buf.__dlpack__(stream=-1))
        assert stream.waiting == 1
        managed.deleter(address)
        timer = threading.Timer(0.05, stream.release)
        timer.start()
        array = np.from_dlpack(buf)
        assert array.tolist() == [6] * 8
        timer.join()
        del array


@pytest.mark.parametrize(
    "keywords",
    [
        {"max_version": 1},
        {"max_version": (1,)},
        {"dl_device": "cpu"},
        {"streams": None},
    ],
)
def test_malformed_arguments_are_type_errors(pool, keywords):
    with pytest.raises(TypeError):
        pool.empty(8).__dlpack__(**keywords)
    with pytest.raises(TypeError):
        pool.empty(8).__dlpack__(None)


def test_exports_at_exit_and_after(python):
    result = python(
        """
import ctypes, atexit
import gpumem
pool = gpumem.Pool(gpumem.testing.device("host", capacity="8 MiB"))
capsule = pool.empty(8).__dlpack__(max_version=(1, 0))
import numpy
array = numpy.from_dlpack(pool.empty(8))
""",
        flags=("-X", "dev", "-W", "error"),
    )
    assert "Error" not in result.stderr


# ---- tensors as sources --------------------------------------------------------------


class Producer:
    """A NumPy array that speaks DLPack alone."""

    def __init__(self, array, *, device=(1, 0), modern=True):
        self.array = array
        self.device = device
        self.modern = modern
        self.asked = []

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **keywords):
        self.asked.append(keywords)
        if not self.modern and keywords:
            raise TypeError("unexpected keyword")
        return self.array.__dlpack__(**keywords)


@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize("kind", [1, 3, 13])
def test_copy_from_a_tensor(pool, modern, kind):
    source = Producer(
        np.arange(6, dtype="int32")[::-1], device=(kind, 0), modern=modern
    )
    buf = pool.empty(6, "int32").copy_from(source)
    assert buf.numpy().tolist() == [5, 4, 3, 2, 1, 0]
    assert pool.empty(6, "float64").copy_from(source).numpy().sum() == 15


def test_the_tensor_is_let_go(pool):
    array = np.arange(6, dtype="int32")
    producer = Producer(array)
    buf = pool.empty(6, "int32").copy_from(producer)
    with pytest.raises(ValueError, match="shape"):
        pool.empty(5, "int32").copy_from(producer)
    held = weakref.ref(array)
    del producer, array
    gc.collect()
    assert held() is None
    assert buf.numpy().tolist() == list(range(6))


def test_copy_to_a_tensor(pool):
    target = Producer(np.zeros(4, "float32"))
    pool.empty(4, "float32").fill(3).copy_to(target)
    assert target.array.tolist() == [3] * 4
    locked = np.zeros(4, "float32")
    locked.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        pool.empty(4, "float32").copy_to(Producer(locked))


def test_tensors_elsewhere_are_refused(pool):
    with pytest.raises(TypeError, match=r"\(2, 0\)"):
        pool.empty(4).copy_from(Producer(np.zeros(4, "uint8"), device=(2, 0)))


def test_a_bfloat16_tensor_keeps_its_type(pool):
    source = pool.empty(4, "bfloat16").fill(1.5)

    class Wrapped:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **keywords):
            return source.__dlpack__(**keywords)

    target = pool.empty(4, "bfloat16").fill(0).copy_from(Wrapped())
    assert target.tobytes() == source.tobytes()
    assert source.exports == 0


def test_torch_shares_the_memory(pool):
    torch = pytest.importorskip("torch")
    buf = pool.empty((2, 3), "bfloat16").fill(1.5)
    tensor = torch.from_dlpack(buf)
    assert tensor.dtype == torch.bfloat16
    tensor += 1
    assert torch.equal(tensor, torch.full((2, 3), 2.5, dtype=torch.bfloat16))
    assert buf.tobytes() == pool.empty((2, 3), "bfloat16").copy_from(tensor).tobytes()
    del tensor
    assert buf.exports == 0
