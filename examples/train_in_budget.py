"""Train within a memory budget: micro-batches, one gradient buffer, scoped checks.

A curve is fitted with 512 random cosine features on a device of 8 MiB. All samples at
once need more than that, micro-batches do not, and the gradient is the same.

Run it with ``python examples/train_in_budget.py``; it needs NumPy alone.
"""

import numpy as np

import gpumem

SAMPLES, FEATURES, MICRO_BATCH, STEPS = 8192, 512, 256, 60

random = np.random.default_rng(0)
x = random.uniform(-1.0, 1.0, (SAMPLES, 1)).astype(np.float32)
y = np.sin(3.0 * x) + 0.1 * random.standard_normal(x.shape, np.float32)
frequencies = random.normal(0.0, 3.0, (1, FEATURES)).astype(np.float32)
phases = random.uniform(0.0, 2.0 * np.pi, FEATURES).astype(np.float32)


def features(pool: gpumem.Pool, inputs: np.ndarray) -> np.ndarray:
    """Return cos(x f + p), shape (samples, features), in memory of the pool."""
    shape = (len(inputs), FEATURES)
    out: np.ndarray = pool.empty(shape, "float32", name="features").numpy()
    np.matmul(inputs, frequencies, out=out)
    np.add(out, phases, out=out)
    np.cos(out, out=out)
    return out


def add_gradient(
    pool: gpumem.Pool, weights: gpumem.Buffer, gradients: gpumem.GradBuffer, part: slice
) -> None:
    """Add the mean gradient of half the squared error over some samples."""
    phi = features(pool, x[part])
    error = phi @ weights.numpy() - y[part]
    gradients.add([phi.T @ error / len(error)], weight=len(error))


def take_step(
    pool: gpumem.Pool, weights: gpumem.Buffer, gradients: gpumem.GradBuffer
) -> None:
    """Descend along the gradient of all samples, worked out a micro-batch at a time."""
    for start in range(0, SAMPLES, MICRO_BATCH):
        add_gradient(pool, weights, gradients, slice(start, start + MICRO_BATCH))
    (gradient,) = gradients.finish()
    weights.numpy()[...] -= np.float32(2.0 / FEATURES) * gradient.numpy()
    gradients.zero()


def mean_error(pool: gpumem.Pool, weights: gpumem.Buffer) -> float:
    """Return the root mean square error over 1024 points of the clean curve."""
    points = np.linspace(-1.0, 1.0, 1024, dtype=np.float32)[:, None]
    difference = features(pool, points) @ weights.numpy() - np.sin(3.0 * points)
    return float(np.sqrt(np.mean(difference**2)))


def main() -> None:
    """Try the full batch, then train in micro-batches."""
    device = gpumem.device("host:1", capacity="8 MiB")
    with gpumem.Pool(device) as pool:
        weights = pool.empty((FEATURES, 1), "float32", name="weights").fill(0.0)
        gradients = gpumem.GradBuffer([weights], pool=pool)

        try:
            add_gradient(pool, weights, gradients, slice(None))
        except gpumem.OutOfMemoryError as error:
            print(f"all {SAMPLES} samples at once: {error}")

        for _step in range(STEPS):
            take_step(pool, weights, gradients)

        with pool.scope("validation") as scope:
            print(f"error after {STEPS} steps: {mean_error(pool, weights):.4f}")
            print(f"the check took {scope.peak >> 10} KiB, given back at its end")
        print(repr(pool.summary()))


if __name__ == "__main__":
    main()
