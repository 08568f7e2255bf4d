"""GradBuffer to the last bit: quotients rounded once, all instruction sets alike."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import gpumem
from gpumem import testing

# ---- quotients --------------------------------------------------------------------


def rounded(dtype, exact):
    """The number of a dtype next to a fraction; of two, the one with an even end."""
    near = dtype(float(exact))
    around = [np.nextafter(near, dtype(end)) for end in (-np.inf, np.inf)]
    return min(
        [near, *around],
        key=lambda value: (
            abs(Fraction(float(value)) - exact),
            int(value.view(f"u{value.itemsize}")) & 1,
        ),
    )


@pytest.mark.parametrize("mode", ["mean", "weighted"])
@pytest.mark.parametrize("divisor", [3, 49])
def test_finish_gives_quotients_that_a_reciprocal_does_not(pool, mode, divisor):
    sums = np.random.default_rng(divisor).standard_normal(1000)
    assert (sums * (1.0 / divisor) != sums / divisor).any()
    grads = gpumem.GradBuffer([(1000,)], pool=pool, mode=mode, dtype="float64")
    if mode == "mean":
        grads.add([sums])
        for _ in range(divisor - 1):
            grads.add([None])
    else:
        grads.add([sums], weight=1)
        grads.add([None], weight=divisor - 1)
    assert grads.weight == divisor
    assert grads.finish()[0].numpy().tobytes() == (sums / divisor).tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_finish_rounds_each_exact_quotient_once(pool, dtype):
    kind = np.dtype(dtype).type
    rng = np.random.default_rng(5)
    differ = 0
    for _ in range(100):
        # A quotient next to the middle of two fp32 numbers.
        value = kind(rng.integers(2**23, 2**24))
        weight = float(value) / (int(rng.integers(2**23, 2**24)) * 2 + 1)
        grads = gpumem.GradBuffer([(3,)], pool=pool, dtype=dtype)
        grads.add([np.array([0.0, 1.0, -3.0], dtype)], weight=weight)
        grads.views[0].numpy()[0] = value
        sums = grads.views[0].numpy().copy()
        exact = [Fraction(float(one)) / Fraction(weight) for one in sums]
        got = grads.finish()[0].numpy()
        assert got.tolist() == [rounded(kind, one).item() for one in exact]
        differ += (got != (sums * (1.0 / weight)).astype(dtype)).any()
    assert differ > 10


# ---- instruction sets -------------------------------------------------------------


def run_with(name, pool, dtype):
    rng = np.random.default_rng(11)
    kinds = ("f2", "f4", "f8", ml_dtypes.bfloat16)
    grads = gpumem.GradBuffer([(777,)] * 4, pool=pool, dtype=dtype)
    with testing.host_kernels(name):
        for weight in (3, 0.7, 11):
            grads.add(
                [rng.standard_normal(777).astype(k) for k in kinds], weight=weight
            )
        grads.finish()
        norms = [grads.norm(order) for order in (1, 2, 2.5, float("inf"))]
        grads.clip(0.5)
    return norms, grads.buffer.numpy().tobytes()


@pytest.mark.parametrize("name", testing.kernel_sets())
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_every_instruction_set_gives_the_same_bits(pool, name, dtype):
    assert run_with(name, pool, dtype) == run_with("baseline", pool, dtype)


def test_instruction_sets_are_forced_inside_the_block_only():
    sets = testing.kernel_sets()
    assert sets[-1] == "baseline"
    force = gpumem._core.force_host_kernels
    with testing.host_kernels("baseline"):
        assert force("baseline") == "baseline"
    assert force(None) == sets[0]
    for bad, error in (("mmx", ValueError), (1, TypeError)):
        with pytest.raises(error):
            force(bad)
