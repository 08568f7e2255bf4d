"""Which element types there are, and one element from a Python value."""

import math
import struct

import pytest

import gpumem

NAMES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
    "bfloat16": 2,
    "float8_e3m4": 1,
    "float8_e4m3": 1,
    "float8_e4m3b11fnuz": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}


@pytest.mark.parametrize(("name", "size"), NAMES.items())
def test_name_and_size(pool, name, size):
    buf = pool.empty(3, name)
    assert buf.dtype == name
    assert buf.itemsize == size
    assert buf.nbytes == 3 * size


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("f4", "float32"),
        ("<f4", "float32"),
        ("=i8", "int64"),
        ("|u1", "uint8"),
        ("b1", "bool"),
        ("c16", "complex128"),
        ("half", "float16"),
        ("single", "float32"),
        ("double", "float64"),
        ("bool_", "bool"),
        (float, "float64"),
        (int, "int64"),
        (bool, "bool"),
        (complex, "complex128"),
    ],
)
def test_other_spellings(pool, alias, name):
    assert pool.empty(1, alias).dtype == name


@pytest.mark.parametrize(
    "value", ["float33", ">f4", "", "O", None, 4, str, object(), b"u1"]
)
def test_everything_else_is_a_type_error_that_lists_the_names(pool, value):
    with pytest.raises(TypeError, match=r"uint64, float16.*bfloat16"):
        pool.empty(1, value)


def test_numpy_dtypes_and_scalar_types(pool):
    np = pytest.importorskip("numpy")
    for name in list(NAMES)[:14]:
        assert pool.empty(1, np.dtype(name)).dtype == name
        assert pool.empty(1, np.dtype(name).type).dtype == name
    assert pool.empty(1, np.longlong).dtype == "int64"
    for other in (">f4", "S3", "M8[s]", "O", "f4,i4", np.longdouble):
        with pytest.raises(TypeError, match="dtype must name"):
            pool.empty(1, np.dtype(other))


def test_ml_dtypes_types(pool):
    np = pytest.importorskip("numpy")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name in list(NAMES)[14:]:
        kind = getattr(ml_dtypes, name)
        assert pool.empty(1, kind).dtype == name
        assert pool.empty(1, np.dtype(kind)).dtype == name


def test_names_need_no_numpy(python):
    python(
        """
import sys
import gpumem
pool = gpumem.Pool(gpumem.testing.device("host", capacity="8 MiB"))
for name in ("float32", "f8", float, "bfloat16", "float8_e5m2"):
    pool.empty(3, name).fill(0).tobytes()
pool.empty((3, 3), "float32").fill(2)[:, 1].copy_from(pool.empty(3, "f4").fill(1))
pool.empty(4).copy_from(b"abcd").copy_to(bytearray(4))
assert "numpy" not in sys.modules
"""
    )


# ---- one element ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "value", "letter"),
    [
        ("bool", True, "?"),
        ("bool", 0, "?"),
        ("int8", -128, "b"),
        ("uint8", 255, "B"),
        ("int16", -2, "h"),
        ("uint32", 2**32 - 1, "I"),
        ("int64", -(2**63), "q"),
        ("uint64", 2**64 - 1, "Q"),
        ("int32", True, "i"),
        ("float16", 65504.0, "e"),
        ("float16", 3, "e"),
        ("float32", 0.1, "f"),
        ("float32", math.inf, "f"),
        ("float64", -1e300, "d"),
    ],
)
def test_fill_writes_the_bits_of_struct(pool, dtype, value, letter):
    assert pool.empty(3, dtype).fill(value).tobytes() == 3 * struct.pack(letter, value)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("bool", 2),
        ("int8", 128),
        ("int8", -129),
        ("uint8", -1),
        ("uint8", 256),
        ("int64", 2**63),
        ("uint64", 2**64),
        ("uint64", -1),
        ("float16", 65520),
        ("float32", 1e39),
        ("bfloat16", 3.4e38),
        ("float64", 10**400),
        ("complex64", 1e39j),
    ],
)
def test_values_out_of_range_are_value_errors(pool, dtype, value):
    with pytest.raises(ValueError, match=f"range of {dtype}"):
        pool.empty(1, dtype).fill(value)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("int8", 1.0), ("bool", 0.0), ("float32", 1j), ("uint8", 1j), ("bfloat16", 1j)],
)
def test_values_of_another_kind_are_type_errors(pool, dtype, value):
    with pytest.raises(TypeError, match=dtype):
        pool.empty(1, dtype).fill(value)


def test_text_is_no_value(pool):
    pytest.importorskip("numpy")
    with pytest.raises(TypeError):
        pool.empty(1, "float32").fill("1")


def test_bfloat16_rounds_to_nearest_even(pool):
    def bits(value):
        return pool.empty(1, "bfloat16").fill(value).tobytes()[::-1].hex()

    assert bits(1.0) == "3f80"
    assert bits(1.00390625) == "3f80"  # halfway, to even
    assert bits(1.01171875) == "3f82"
    assert bits(-2.5) == "c020"
    assert bits(math.inf) == "7f80"
    assert bits(-0.0) == "8000"
    assert int(bits(math.nan), 16) & 0x7FFF > 0x7F80


def test_bfloat16_agrees_with_ml_dtypes(pool):
    np = pytest.importorskip("numpy")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    draw = np.random.default_rng(3)
    values = draw.standard_normal(500) * 10.0 ** draw.integers(-40, 38, 500)
    for value in values.tolist():
        wanted = np.array([value], ml_dtypes.bfloat16).tobytes()
        assert pool.empty(1, "bfloat16").fill(value).tobytes() == wanted


def test_float8_values_go_through_ml_dtypes(pool):
    np = pytest.importorskip("numpy")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for name in list(NAMES)[15:]:
        wanted = np.full(5, 0.5, getattr(ml_dtypes, name))
        assert pool.empty(5, name).fill(0.5).tobytes() == wanted.tobytes()


def test_numpy_scalars_are_values(pool):
    np = pytest.importorskip("numpy")
    assert pool.empty(1, "uint8").fill(np.int64(7)).tobytes() == b"\x07"
    assert pool.empty(1, "float32").fill(np.float16(1.5)).tobytes() == struct.pack(
        "f", 1.5
    )
    assert pool.empty(1, "bool").fill(np.True_).tobytes() == b"\x01"
    assert pool.empty(1, "float16").fill(np.array(2.0)).tobytes() == struct.pack("e", 2)
    with pytest.raises(ValueError, match="range of uint8"):
        pool.empty(1, "uint8").fill(np.int64(300))
    with pytest.raises(TypeError, match="int32"):
        pool.empty(1, "int32").fill(np.float32(1))
    with pytest.raises(TypeError, match="float32"):
        pool.empty(2, "float32").fill(np.ones(2))


def test_dtype_errors_leave_the_buffer_alone(pool):
    buf = pool.empty(4).fill(9)
    with pytest.raises(ValueError, match="uint8"):
        buf.fill(256)
    assert buf.tobytes() == b"\x09" * 4


def test_all_module_functions_take_the_names(device):
    for name in NAMES:
        if name != "float8_e8m0fnu":
            assert gpumem.zeros(4, name).tobytes() == bytes(4 * NAMES[name])
