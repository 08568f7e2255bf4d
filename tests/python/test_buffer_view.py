"""view, reshape and indexing of Buffer, against NumPy where it is there."""

import random

import pytest

np = pytest.importorskip("numpy")


@pytest.fixture
def cube(pool):
    """2 x 3 x 4 int32 elements 0 .. 23, as a buffer and as an array of its own."""
    array = np.arange(24, dtype="int32").reshape(2, 3, 4)
    return pool.empty((2, 3, 4), "int32").copy_from(array), array


@pytest.mark.parametrize(
    "index",
    [
        0,
        -1,
        (1, 2, 3),
        slice(None),
        slice(1, None),
        (0, slice(None, None, -1)),
        (slice(None), 1),
        (Ellipsis, 2),
        (0, Ellipsis),
        (Ellipsis,),
        (),
        (slice(5, 9),),
        (slice(None), slice(2, None, -2), slice(1, 4, 2)),
        (1, Ellipsis, slice(3, None, -3)),
        np.int64(1),
    ],
)
def test_index_selects_what_numpy_selects(cube, index):
    buf, array = cube
    view, wanted = buf[index], array[index]
    assert view.shape == wanted.shape
    assert view.tobytes() == wanted.tobytes()
    assert view.base is buf
    if wanted.size:
        np.testing.assert_array_equal(view.numpy(), wanted)


def test_random_indices_select_what_numpy_selects(cube):
    seed = 20240
    print("seed", seed)
    draw = random.Random(seed)
    buf, array = cube
    for _ in range(300):
        index = []
        for length in array.shape[: draw.randint(0, 3)]:
            if draw.random() < 0.3:
                index.append(draw.randrange(-length, length))
            else:
                ends = [None, *range(-6, 7)]
                step = draw.choice([None, 1, 2, 3, -1, -2])
                index.append(slice(draw.choice(ends), draw.choice(ends), step))
        view = buf[tuple(index)]
        wanted = array[tuple(index)]
        assert view.shape == wanted.shape
        assert view.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("index", [2, -3, (0, 3), (0, 0, 0, 0), (..., ...)])
def test_index_out_of_range(cube, index):
    with pytest.raises(IndexError):
        cube[0][index]


@pytest.mark.parametrize("index", [1.0, "a", None, True, [0], (0, None)])
def test_index_of_another_type(cube, index):
    with pytest.raises(TypeError, match="ints, slices"):
        cube[0][index]


def test_iteration_gives_views_of_the_first_dimension(cube):
    buf, array = cube
    rows = list(buf)
    assert [row.tobytes() for row in rows] == [row.tobytes() for row in array]
    assert all(row.base is buf for row in rows)


def test_views_write_through(cube):
    buf, array = cube
    buf[1, :, 2].fill(-1)
    array[1, :, 2] = -1
    assert buf.tobytes() == array.tobytes()


def test_views_of_views_refer_to_the_one_root(cube):
    buf, _array = cube
    view = buf[1][0][1:].view("uint8").reshape(3, 4)
    assert view.base is buf
    assert view.name == buf.name


def test_a_view_keeps_the_memory_alive(pool):
    view = pool.empty(1000)[10:]
    assert pool.stats()["allocated_bytes.all.current"] == 1024
    del view
    assert pool.stats()["allocated_bytes.all.current"] == 0


def test_free_of_a_view_frees_the_root(pool):
    buf = pool.empty(12)
    view = buf.reshape(3, 4)
    view.free()
    assert buf.released
    assert view.released


@pytest.mark.parametrize("shape", [(24,), (4, 6), (-1, 3), (2, -1, 2), (1, 24, 1)])
def test_reshape_keeps_the_elements(cube, shape):
    buf, array = cube
    for view in (buf.reshape(*shape), buf.reshape(shape), buf.reshape(list(shape))):
        assert view.shape == array.reshape(shape).shape
        assert view.ptr == buf.ptr
        assert view.tobytes() == array.tobytes()


@pytest.mark.parametrize("shape", [(5, 5), (-1, 5), (-1, -1), (-2,), (0, -1), (25,)])
def test_reshape_that_does_not_fit(cube, shape):
    with pytest.raises(ValueError, match=r"shape|sizes"):
        cube[0].reshape(shape)


@pytest.mark.parametrize("shape", ["24", 24.0, (2.0, 12), (True, 24)])
def test_reshape_of_another_type(cube, shape):
    with pytest.raises(TypeError, match="int"):
        cube[0].reshape(shape)


def test_reshape_of_gaps_is_refused(cube):
    with pytest.raises(ValueError, match="C order"):
        cube[0][:, :, ::2].reshape(12)


def test_reshape_to_zero_dimensions_and_back(pool):
    buf = pool.empty(1).fill(3)
    assert buf.reshape(()).reshape(1, 1).tobytes() == b"\x03"


def test_reshape_of_no_elements(pool):
    assert pool.empty((0, 3)).reshape(3, 0).shape == (3, 0)


def test_view_of_the_same_size_keeps_strides(cube):
    buf, array = cube
    view = buf[:, ::2, ::-1].view("float32")
    assert view.dtype == "float32"
    assert view.tobytes() == array[:, ::2, ::-1].view("float32").tobytes()


@pytest.mark.parametrize("dtype", ["uint8", "int16", "int64", "complex128"])
def test_view_of_another_size_changes_the_last_dimension(cube, dtype):
    buf, array = cube
    view = buf.view(dtype)
    assert view.shape == array.view(dtype).shape
    assert view.tobytes() == array.tobytes()


def test_view_that_does_not_fit(pool, cube):
    buf, _array = cube
    with pytest.raises(ValueError, match="fill evenly"):
        pool.empty(6).view("int32")
    with pytest.raises(ValueError, match="contiguous last"):
        buf[:, :, ::2].view("int64")
    with pytest.raises(ValueError, match="contiguous last"):
        pool.empty((), "int32").view("int8")
    with pytest.raises(ValueError, match="multiples"):
        pool.empty(16)[1:5].view("int32")
    with pytest.raises(ValueError, match="multiples"):
        pool.empty((4, 12))[:, :8].view("int64")


def test_view_needs_a_dtype(cube):
    with pytest.raises(TypeError, match="dtype"):
        cube[0].view("float33")
