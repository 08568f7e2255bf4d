"""Buffer.numpy(): arrays over the memory, and how long it stays."""

import gc

import pytest

import gpumem
from gpumem import testing

np = pytest.importorskip("numpy")


def test_array_shares_the_memory_and_is_writable(pool):
    buf = pool.empty((2, 3), "float32").fill(1)
    array = buf.numpy()
    assert array.dtype == np.float32
    assert array.shape == (2, 3)
    assert array.flags.writeable
    assert array.flags.aligned
    assert array.flags.c_contiguous
    assert not array.flags.owndata
    assert array.ctypes.data == buf.ptr
    array[1, 2] = 5
    assert buf[1, 2].numpy()[()] == 5


def test_array_of_a_strided_view(pool):
    buf = pool.empty((4, 6), "int16").copy_from(
        np.arange(24, dtype="int16").reshape(4, 6)
    )
    array = buf[::-2, 1::2].numpy()
    assert array.tolist() == [[19, 21, 23], [7, 9, 11]]
    array += 100
    assert buf.numpy()[3, 1] == 119


@pytest.mark.parametrize("shape", [0, (3, 0), (0, 0, 5), ()])
def test_arrays_without_elements_and_without_dimensions(pool, shape):
    array = pool.empty(shape, "float64").numpy()
    assert array.shape == (shape if isinstance(shape, tuple) else (shape,))
    assert array.sum() == 0 or array.size == 1


def test_the_last_array_ends_the_export(pool):
    buf = pool.empty(100)
    array = buf.numpy()
    part = array[10:20].reshape(2, 5).T
    assert buf.exports == 1
    del array
    with pytest.raises(BufferError):
        buf.free()
    del part
    assert buf.exports == 0
    buf.free()


def test_an_array_keeps_the_memory_past_object_and_scope(pool):
    with pool.scope("s"):
        array = pool.empty(1000).fill(4).numpy()
    gc.collect()
    assert array.tolist() == [4] * 1000
    assert pool.stats()["allocated_bytes.all.current"] == 1024
    del array
    assert pool.stats()["allocated_bytes.all.current"] == 0


def test_pool_cannot_close_under_an_array(pool):
    array = pool.empty(10).numpy()
    with pytest.raises(BufferError):
        pool.close()
    del array


def test_arithmetic_into_buffers(pool):
    left = pool.empty(5, "float32").fill(2).numpy()
    right = pool.empty(5, "float32").fill(3).numpy()
    out = pool.empty(5, "float32")
    np.multiply(left, right, out=out.numpy())
    assert out.numpy().tolist() == [6] * 5


def test_asarray_takes_the_buffer_protocol(pool):
    buf = pool.empty(3, "complex64").fill(1 + 2j)
    array = np.asarray(buf)
    assert array.dtype == np.complex64
    assert array.ctypes.data == buf.ptr
    assert array.tolist() == [1 + 2j] * 3


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e8m0fnu"])
def test_types_of_ml_dtypes(pool, name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    buf = pool.empty(4, name).copy_from(np.array([1, 2, 0.5, 4], "float32"))
    array = buf.numpy()
    assert array.dtype == np.dtype(getattr(ml_dtypes, name))
    assert array.astype("float32").tolist() == [1, 2, 0.5, 4]
    buf.copy_from(array[::-1].copy())
    assert buf.numpy().astype("float32").tolist() == [4, 0.5, 2, 1]


def test_without_ml_dtypes_the_error_says_what_to_do(python):
    python(
        """
import sys
sys.modules["ml_dtypes"] = None
import gpumem
buf = gpumem.Pool(gpumem.testing.device("host", capacity="8 MiB")).empty(2, "bfloat16")
try:
    buf.numpy()
except ImportError as error:
    assert "ml_dtypes" in str(error) and "uint16" in str(error)
else:
    raise AssertionError
assert buf.view("uint16").numpy().itemsize == 2
assert buf.fill(1.5).tobytes() == bytes.fromhex("c03fc03f")
"""
    )


def test_a_second_interpreter_gets_numpys_own_error(python):
    python(
        """
import gpumem, numpy
try:
    import _xxsubinterpreters as interpreters
except ImportError:
    import _interpreters as interpreters
try:
    identity = interpreters.create(isolated=False)
except TypeError:
    identity = interpreters.create("legacy")
interpreters.run_string(identity, '''
import gpumem
pool = gpumem.Pool(gpumem.testing.device("host", capacity="8 MiB"))
buf = pool.empty(3).fill(1)
assert bytes(memoryview(buf)) == bytes([1, 1, 1])
try:
    array = buf.numpy()
except ImportError:
    pass
else:
    assert array.tolist() == [1, 1, 1]
    del array
del buf, pool
''')
interpreters.destroy(identity)
"""
    )


def test_the_array_needs_memory_that_the_host_reads():
    pool = gpumem.Pool(testing.device("sim", capacity="1 GiB"))
    with pytest.raises(ValueError, match="copy_to"):
        pool.empty(8).numpy()
