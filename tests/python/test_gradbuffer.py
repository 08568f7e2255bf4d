"""GradBuffer: what it takes, what it gives, and what it leaves alone when it fails."""

import gc
import pickle
import threading
import weakref

import ml_dtypes
import numpy as np
import pytest

import gpumem
from gpumem import testing


@pytest.fixture
def make(pool):
    def make(params=((2, 3),), **options):
        return gpumem.GradBuffer(params, pool=pool, **options)

    return make


def values(buffer):
    return [view.numpy().tolist() for view in buffer.views]


# ---- form -------------------------------------------------------------------------


def test_views_are_aligned_parts_of_one_buffer(make):
    grads = make({"weight": (3, 5), "bias": (5,), "scale": ()})
    assert grads.names == ("weight", "bias", "scale")
    assert [view.shape for view in grads.views] == [(3, 5), (5,), ()]
    start = grads.buffer.ptr
    assert [view.ptr - start for view in grads.views] == [0, 256, 512]
    assert start % 256 == 0
    assert grads.buffer.shape == (3 * 64,)
    assert not grads.buffer.numpy().any()


def test_params_may_be_anything_with_a_shape(make, pool):
    given = [np.zeros((2, 3)), pool.empty((4,)), memoryview(b"12345"), 7, (0, 2)]
    grads = make(given)
    assert [view.shape for view in grads.views] == [(2, 3), (4,), (5,), (7,), (0, 2)]
    assert grads.names == ("0", "1", "2", "3", "4")
    assert len(make(iter([(1,), (2,)]))) == 2


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ([], ValueError),
        ({}, ValueError),
        ("ab", TypeError),
        (3, TypeError),
        (np.zeros(3), TypeError),
        ([None], TypeError),
        ([(-1,)], ValueError),
        ([(2**40, 2**40)], ValueError),
        ({1: (2,)}, TypeError),
    ],
)
def test_params_that_make_no_sense_raise(make, params, error):
    with pytest.raises(error):
        make(params)


@pytest.mark.parametrize(
    ("option", "error"),
    [
        ({"mode": "average"}, ValueError),
        ({"mode": 1}, TypeError),
        ({"dtype": "int32"}, ValueError),
        ({"dtype": "float31"}, TypeError),
        ({"pool": "host"}, TypeError),
        ({"stream": -1}, ValueError),
    ],
)
def test_options_that_make_no_sense_raise(pool, option, error):
    with pytest.raises(error):
        gpumem.GradBuffer([(1,)], **{"pool": pool, **option})


def test_without_pool_the_default_pool_is_used(device):
    grads = gpumem.GradBuffer([(1,)])
    assert grads.buffer.pool is gpumem.default_pool()


def test_a_device_without_memory_is_refused():
    pool = gpumem.Pool(testing.device("sim", capacity="1 GiB"))
    with pytest.raises(ValueError, match="no memory"):
        gpumem.GradBuffer([(1,)], pool=pool)
    pool.close()


def test_items_by_name_and_by_index(make):
    grads = make({"a": (1,), "b": (2,)})
    assert grads["b"] is grads[1] is grads[-1]
    assert len(grads) == 2
    assert list(grads) == list(grads.views)
    with pytest.raises(KeyError):
        grads["c"]
    with pytest.raises(IndexError):
        grads[2]
    with pytest.raises(TypeError):
        grads[1.0]


def test_repr_says_how_far_it_is(make):
    grads = make(window=4)
    grads.add([None])
    assert repr(grads) == (
        "<gpumem.GradBuffer of 1 parameters, 256 B float32, weighted, 1 of 4 added>"
    )


# ---- inputs -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ml_dtypes.bfloat16, ">f4", ">f8"])
def test_arrays_of_every_float_type_are_added(make, dtype):
    grad = np.arange(6).reshape(2, 3).astype(dtype)
    grads = make(mode="sum")
    assert grads.add([grad])
    assert grads.add([grad])
    assert values(grads) == [[[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]]


def test_strided_and_unaligned_arrays_are_added(make, pool):
    grads = make(mode="sum")
    wide = np.arange(24, dtype="f4").reshape(4, 6)
    grads.add([wide[::2, ::-2]])
    raw = np.zeros(25, "u1")
    unaligned = raw[1:].view("f4").reshape(2, 3)
    unaligned[...] = 1.0
    grads.add([unaligned])
    fortran = np.asfortranarray(np.ones((2, 3), "f8"))
    grads.add([fortran])
    assert values(grads) == [(wide[::2, ::-2] + 2.0).tolist()]


class Tensor:
    """A tensor of another library: DLPack, and a graph to leave behind."""

    def __init__(self, array, requires_grad=True):
        self.array = array
        self.requires_grad = requires_grad

    def detach(self):
        return Tensor(self.array, False)

    def __dlpack__(self, **options):
        if self.requires_grad:
            raise BufferError("part of a graph; use detach()")
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_buffers_memoryviews_pinned_arrays_and_tensors_are_added(make, pool):
    array = np.full((2, 3), 1.5, "f4")
    other = gpumem.Pool(testing.device("host", capacity="16 MiB"))
    pinned = gpumem.pinned_empty((2, 3), "float32")
    pinned.numpy()[...] = 1.5
    given = [
        pool.empty((2, 3), "float32").fill(1.5),
        pool.empty((2, 6), "float64").fill(1.5)[:, ::2],
        other.empty((2, 3), "float16").fill(1.5),
        memoryview(array),
        pinned,
        Tensor(array),
    ]
    grads = make(mode="sum")
    for grad in given:
        assert grads.add([grad])
    assert values(grads) == [[[9.0] * 3] * 2]


def test_a_buffer_of_another_stream_is_waited_for(make, pool):
    with gpumem.Stream(pool.device) as stream:
        grad = pool.empty((2, 3), "float32", stream=stream).fill(2.0)
        grads = make(mode="sum")
        grads.add([grad])
        assert values(grads) == [[[2.0] * 3] * 2]
        del grad


def test_none_is_a_gradient_of_zeros_and_counts(make):
    grads = make([(1,), (1,)], mode="mean")
    grads.add([np.ones(1), None])
    grads.add([None, None])
    assert [view.numpy()[0] for view in grads.finish()] == [0.5, 0.0]


def test_a_dict_is_taken_by_name(make):
    grads = make({"a": (1,), "b": (1,)}, mode="sum")
    grads.add({"b": np.full(1, 2.0), "a": np.full(1, 1.0)})
    assert values(grads) == [[1.0], [2.0]]
    with pytest.raises(ValueError, match="'b'"):
        grads.add({"a": None, "c": None})
    with pytest.raises(ValueError, match="2 parameters"):
        grads.add({"a": None})


@pytest.mark.parametrize(
    ("grad", "error", "text"),
    [
        (np.ones((3, 2)), ValueError, "shape"),
        (np.ones(6), ValueError, "shape"),
        (np.ones((2, 3), "i4"), TypeError, "int32"),
        (np.ones((2, 3), "c8"), TypeError, "complex64"),
        ([[1.0] * 3] * 2, TypeError, "list"),
        (1.0, TypeError, "float"),
    ],
)
def test_one_wrong_gradient_leaves_all_as_they_were(make, grad, error, text):
    grads = make([(2,), (2, 3)])
    grads.add([np.ones(2), np.ones((2, 3))], weight=2)
    before = grads.state()
    with pytest.raises(error, match=text):
        grads.add([np.ones(2), grad], weight=1)
    assert grads.state() == before


def test_arrays_instead_of_sequences_are_refused(make):
    with pytest.raises(TypeError, match="sequence"):
        make().add(np.ones((1, 2, 3)))


def test_released_inputs_are_refused(make, pool):
    grad = pool.empty((2, 3), "float32").fill(1.0)
    grad.free()
    grads = make()
    with pytest.raises(gpumem.ReleasedError):
        grads.add([grad])
    assert grads.count == 0


@pytest.mark.parametrize(
    ("weight", "error"),
    [
        (-1, ValueError),
        (float("nan"), ValueError),
        (float("inf"), ValueError),
        (1e-310, ValueError),
        (True, TypeError),
        ("3", TypeError),
        (1j, TypeError),
    ],
)
def test_weights_that_make_no_sense_raise(make, weight, error):
    grads = make()
    with pytest.raises(error, match="weight"):
        grads.add([None], weight=weight)
    assert grads.count == 0


@pytest.mark.parametrize("mode", ["mean", "sum"])
def test_only_the_weighted_mode_takes_weights(make, mode):
    with pytest.raises(ValueError, match=mode):
        make(mode=mode).add([None], weight=1)


def test_weights_may_be_numbers_of_numpy(make):
    grads = make([(1,)])
    grads.add([np.ones(1)], weight=np.int64(3))
    grads.add([np.zeros(1)], weight=np.float32(1.0))
    assert grads.weight == 4.0
    assert grads.finish()[0].numpy()[0] == 0.75


# ---- what is not finite -----------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ml_dtypes.bfloat16])
def test_a_micro_step_that_is_not_finite_is_rejected_whole(make, bad, dtype):
    grads = make([(300,), (300,)], mode="sum")
    grads.add([np.ones(300), np.ones(300)])
    spoiled = np.ones(300, dtype)
    spoiled[299] = bad
    assert grads.add([np.ones(300), spoiled]) is False
    assert (grads.rejected, grads.count, grads.weight) == (1, 1, 1.0)
    assert (grads.buffer.numpy() <= 1.0).all()
    grads.zero()
    assert grads.rejected == 1


def test_a_sum_that_would_overflow_is_rejected(make):
    grads = make([(2,)], mode="sum")
    assert grads.add([np.array([3e38, 0.0])])
    assert not grads.add([np.array([3e38, 0.0])])
    assert not grads.add([np.array([0.0, 1e39])])
    assert grads.add([np.array([-3e38, 0.0])]) is False
    assert grads.finish()[0].numpy()[0] == np.float32(3e38)
    wide = make([(1,)], dtype="float64", mode="sum")
    assert wide.add([np.full(1, 1e300)])


def test_the_bound_is_measured_before_a_step_is_rejected(make):
    grads = make([(1,)], mode="sum")
    for sign in (1, -1, 1, -1):
        assert grads.add([np.full(1, sign * 2.0**126)])
    assert grads.finish()[0].numpy()[0] == 0.0


# ---- windows ----------------------------------------------------------------------


def test_uneven_token_counts_give_the_mean_of_all_tokens(make):
    grads = make([(1,)])
    grads.add([np.full(1, 4.0)], weight=1)
    grads.add([np.zeros(1)], weight=3)
    assert grads.finish()[0].numpy()[0] == 1.0


def test_a_full_window_takes_no_more(make):
    grads = make(window=2)
    grads.add([None])
    assert not grads.ready
    grads.add([None])
    assert grads.ready
    with pytest.raises(RuntimeError, match="full"):
        grads.add([None])
    assert grads.count == 2


def test_a_finished_window_asks_for_zero(make):
    grads = make([(1,)])
    grads.add([np.ones(1)], weight=4)
    assert (grads.pending, grads.finished) == (1, False)
    first = grads.finish()
    assert grads.finish() == first == grads.views
    assert first[0].numpy()[0] == 1.0
    assert (grads.pending, grads.count, grads.finished) == (0, 1, True)
    with pytest.raises(RuntimeError, match=r"zero\(\)"):
        grads.add([np.ones(1)], weight=4)
    grads.zero()
    assert (grads.count, grads.weight, grads.finished) == (0, 0.0, False)
    assert grads.add([np.full(1, 3.0)])
    assert grads.finish()[0].numpy()[0] == 3.0


def test_a_window_of_nothing_stays_zero(make):
    grads = make([(1,)])
    assert grads.finish()[0].numpy()[0] == 0.0
    assert grads.count == 0
    grads.zero()
    grads.add([np.ones(1)], weight=0)
    assert grads.finish()[0].numpy()[0] == 0.0


def test_zero_is_one_fill(make, pool):
    grads = make([(5,)] * 20)
    before = pool.device.counters()
    grads.zero()
    after = pool.device.counters()
    assert {k for k in after if after[k] != before[k]} == {"fill"}
    assert after["fill"] - before["fill"] == 1


# ---- norm and clip ----------------------------------------------------------------


@pytest.mark.parametrize("order", [0.5, 1, 2, 3, float("inf")])
def test_norms_are_those_of_numpy(make, order):
    rng = np.random.default_rng(7)
    parts = [rng.standard_normal(n) for n in (1, 255, 256, 257, 5000)]
    grads = make([part.shape for part in parts], mode="sum", dtype="float64")
    grads.add(parts)
    whole = np.concatenate(parts)
    expected = (
        np.max(np.abs(whole))
        if order == float("inf")
        else np.sum(np.abs(whole) ** order) ** (1 / order)
    )
    assert grads.norm(order) == pytest.approx(expected, rel=1e-12)


def test_norms_of_extreme_values(make):
    grads = make([(2,)], dtype="float64")
    assert grads.norm() == 0.0
    grads.add([np.array([3e-320, 4e-320])])
    assert grads.norm() == pytest.approx(5e-320, rel=1e-3)
    grads.zero()
    grads.add([np.array([3e307, 4e307])])
    assert grads.norm() == pytest.approx(5e307)


@pytest.mark.parametrize("order", [0, -1, float("nan")])
def test_norms_that_make_no_sense_raise(make, order):
    with pytest.raises(ValueError, match="ord"):
        make().norm(order)


def test_clip_scales_all_or_nothing(make):
    grads = make([(1,), (1,)])
    grads.add([np.full(1, 3.0), np.full(1, 4.0)])
    grads.finish()
    assert grads.clip(10.0) == 5.0
    assert values(grads) == [[3.0], [4.0]]
    assert grads.clip(max_norm=1.0) == 5.0
    assert grads.norm() == pytest.approx(1.0, rel=1e-6)
    for bad in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="max_norm"):
            grads.clip(bad)


# ---- pickling ---------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 5])
def test_pickle_restores_an_open_window(make, protocol):
    grads = make({"a": (3,), "b": (2, 2)}, window=4)
    grads.add([np.arange(3.0), np.ones((2, 2))], weight=5)
    grads.add([np.full(3, np.nan), None], weight=1)
    copy = pickle.loads(pickle.dumps(grads, protocol))
    assert copy.state() == grads.state()
    assert copy.buffer.pool is gpumem.default_pool()
    assert (copy.names, copy.window, copy.rejected) == (("a", "b"), 4, 1)
    with pytest.raises(ValueError, match="weight"):
        copy.add([None, None])
    copy.add([None, None], weight=5)
    assert copy.finish()[0].numpy().tolist() == [0.0, 0.5, 1.0]


def test_a_spoiled_state_is_refused(make):
    state = make().state()
    restore = type(make())._restore
    for change in ({"values": b"1"}, {"dtype": "int8"}, {"mode": "x"}, {"count": -1}):
        with pytest.raises(ValueError):  # noqa: PT011 - each has its own text
            restore({**state, **change})
    with pytest.raises(TypeError):
        restore([])
    with pytest.raises(ValueError, match="names"):
        restore({k: v for k, v in state.items() if k != "names"})


# ---- life -------------------------------------------------------------------------


def test_close_gives_the_memory_back(make, pool):
    grads = make()
    view = grads[0].numpy()
    with pytest.raises(BufferError):
        grads.close()
    del view
    used = pool.stats()["allocated_bytes.all.current"]
    grads.close()
    grads.close()
    assert pool.stats()["allocated_bytes.all.current"] < used
    for call in (grads.finish, grads.zero, grads.norm, grads.state):
        with pytest.raises(gpumem.ReleasedError):
            call()
    with pytest.raises(gpumem.ReleasedError):
        grads.add([None])


def test_it_belongs_to_its_scope(pool):
    with gpumem.scope("step"):
        grads = gpumem.GradBuffer([(1,)], pool=pool)
    with pytest.raises(gpumem.ReleasedError, match="step"):
        grads.zero()


def test_objects_do_not_leak(make):
    grads = make()
    watched = weakref.ref(grads)
    del grads
    gc.collect()
    assert watched() is None


def test_a_second_thread_is_turned_away(make, device):
    class Slow:
        requires_grad = False

        def __init__(self):
            self.entered, self.leave = threading.Event(), threading.Event()

        def detach(self):
            self.entered.set()
            self.leave.wait(30)
            return np.ones((2, 3))

    grads, slow = make(), Slow()
    thread = threading.Thread(target=grads.add, args=([slow],))
    thread.start()
    slow.entered.wait(30)
    with pytest.raises(RuntimeError, match="one thread"):
        grads.zero()
    with pytest.raises(BufferError):
        grads.close()
    slow.leave.set()
    thread.join()
    assert grads.count == 1


def test_the_main_thread_runs_while_the_device_works():
    device = testing.device("host", capacity="16 MiB", delayed=True)
    pool = gpumem.Pool(device)
    with gpumem.Stream(device) as stream:
        grads = gpumem.GradBuffer([(1,)], pool=pool, mode="sum", stream=stream)
        stream.stall()
        grad = np.ones(1)
        thread = threading.Thread(target=grads.add, args=([grad],))
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
        stream.release()
        thread.join(30)
        assert grads.count == 1
        del grads
    pool.close()
