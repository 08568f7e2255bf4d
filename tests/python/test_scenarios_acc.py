"""Scenarios of gradient accumulation."""

import gc
import warnings
import weakref

import ml_dtypes
import numpy as np
import pytest

import gpumem


@pytest.fixture
def make(pool):
    """Make a GradBuffer on the tested pool."""

    def make(params=((1,),), **options):
        return gpumem.GradBuffer(params, pool=pool, **options)

    return make


def test_acc_01_mean_by_weight_is_the_mean_of_all_tokens(make):
    one, zero = np.ones(1, "f4"), np.zeros(1, "f4")
    weighted = make()
    weighted.add([one], weight=10)
    weighted.add([zero], weight=100.0)
    assert weighted.finish()[0].numpy()[0] == pytest.approx(10 / 110, rel=1e-7)
    for mode, expected in (("mean", 0.5), ("sum", 1.0)):
        plain = make(mode=mode)
        plain.add([one])
        plain.add([zero])
        assert plain.finish()[0].numpy()[0] == expected

    rng = np.random.default_rng(1)
    shape = (37, 11)
    for mode in ("weighted", "mean", "sum"):
        buffer = make([shape], mode=mode)
        total, weights = np.zeros(shape), 0
        for _ in range(5):
            grad = rng.standard_normal(shape).astype("f4")
            weight = int(rng.integers(1, 200)) if mode == "weighted" else None
            buffer.add([grad], weight=weight)
            total += grad.astype("f8") * (weight or 1)
            weights += weight or 1
        expected = total if mode == "sum" else total / weights
        got = buffer.finish()[0].numpy()
        assert np.max(np.abs(got - expected)) <= 1e-6 * np.max(np.abs(expected))


def test_acc_01_mixing_weighted_and_unweighted_raises(make):
    for first, second in ((3, None), (None, 3)):
        buffer = make()
        buffer.add([np.ones(1)], weight=first)
        with pytest.raises(ValueError, match="weight"):
            buffer.add([np.ones(1)], weight=second)
        assert buffer.count == 1
        assert buffer.finish()[0].numpy()[0] == 1.0


def test_acc_03_last_partial_window_is_divided_by_what_was_added(make):
    buffer = make(window=4)
    buffer.add([np.ones(1)])
    assert buffer.finish()[0].numpy()[0] == 1.0
    assert (buffer.count, buffer.window, buffer.ready) == (1, 4, False)


def test_acc_04_left_over_micro_batches_make_a_step(make):
    buffer = make(window=4)
    steps, results = [], []

    def step():
        results.append(float(buffer.finish()[0].numpy()[0]))
        steps.append(buffer.count)
        buffer.zero()

    for epoch in range(2):
        for _ in range(7):
            buffer.add([np.full(1, 1.0 + epoch)])
            if buffer.ready:
                step()
        assert buffer.pending == 3
        step()
        assert buffer.pending == 0
    assert steps == [4, 3, 4, 3]
    assert results == [1.0, 1.0, 2.0, 2.0]

    for _ in range(3):
        buffer.add([np.ones(1)])
    assert not buffer.ready
    step()
    assert steps[-1] == 3


@pytest.mark.parametrize(
    ("window", "error"),
    [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)],
)
def test_acc_05_nonsense_windows_are_refused_by_name(make, window, error):
    with pytest.raises(error, match="window"):
        make(window=window)


@pytest.mark.parametrize(
    ("dtype", "sum_"), [(np.float16, 125.027), (ml_dtypes.bfloat16, 125.122)]
)
def test_acc_07_small_values_do_not_vanish(make, dtype, sum_):
    grad = np.full(1000, 0.01, dtype)
    buffer = make([(1000,)], mode="sum")
    for _ in range(12_500):
        buffer.add([grad])
    expected = 12_500 * float(grad[0])
    assert expected == pytest.approx(sum_, abs=5e-4)
    assert buffer.buffer.dtype == "float32"
    got = buffer.finish()[0].numpy()
    assert np.max(np.abs(got - expected)) <= 1e-4 * expected


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_acc_07_a_16_bit_buffer_warns(make, dtype):
    with pytest.warns(gpumem.GpumemWarning, match=dtype):
        buffer = make([(3,)], dtype=dtype)
    assert buffer.buffer.dtype == dtype
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make([(3,)])
        make([(3,)], dtype="float64")


@pytest.mark.parametrize(
    ("dtype", "count", "value", "expected"),
    [
        ("f2", 4, 5000.0, 1e4),
        ("f2", 1_000_000, 60000.0, 6e7),
        ("f4", 4, 1e30, 2e30),
    ],
)
def test_acc_08_the_norm_does_not_overflow(make, dtype, count, value, expected):
    buffer = make([(count,)])
    assert buffer.add([np.full(count, value, dtype)])
    assert buffer.norm() == pytest.approx(expected, rel=1e-3)


def test_acc_08_sums_of_16_bit_values_overflow_only_in_16_bits(make):
    buffer = make(mode="sum")
    for _ in range(2):
        assert buffer.add([np.full(1, 60000.0, "f2")])
    result = buffer.finish()[0].numpy()
    assert result[0] == buffer.norm() == 120000.0
    with pytest.warns(RuntimeWarning, match="overflow"):
        assert np.isinf(result.astype("f2")[0])


class Array(np.ndarray):
    """An array that weak references can watch."""


@pytest.fixture
def no_gc():
    """Automatic garbage collection is off, as it was found afterwards."""
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    yield
    if was:
        gc.enable()


def test_acc_10_accumulating_keeps_no_input(make, pool, no_gc):
    buffer = make([(256,)], mode="sum")
    used = pool.stats()["allocated_bytes.all.current"]
    for _ in range(1000):
        grad = np.full(256, 0.5, "f4").view(Array)
        watched = weakref.ref(grad)
        buffer.add([grad])
        assert (grad == 0.5).all()
        del grad
        assert watched() is None
    assert pool.stats()["allocated_bytes.all.current"] == used
    assert (buffer.finish()[0].numpy() == 500.0).all()


def test_acc_10_torch_tensors_lose_their_graph(make, no_gc):
    torch = pytest.importorskip("torch")
    buffer = make([(4,)], mode="sum")
    for _ in range(1000):
        leaf = torch.ones(4, requires_grad=True)
        grad = leaf * 2.0
        watched = [weakref.ref(leaf), weakref.ref(grad)]
        buffer.add([grad])
        assert grad.requires_grad
        del leaf, grad
        assert [ref() for ref in watched] == [None, None]
    assert (buffer.finish()[0].numpy() == 2000.0).all()


def test_acc_10_own_views_are_added_as_they_were(make):
    buffer = make([(2,), (2,)], mode="sum")
    buffer.add([np.array([1.0, 2.0]), np.array([3.0, 4.0])])
    buffer.add([buffer[1], buffer[0]])
    assert buffer[0].numpy().tolist() == [4.0, 6.0]
    assert buffer[1].numpy().tolist() == [4.0, 6.0]
