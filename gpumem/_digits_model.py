"""The model that :mod:`gpumem.demo` trains, in NumPy arithmetic over gpumem buffers.

A classifier of scikit-learn's handwritten digits (8 x 8 pixels, 10 classes) with one
hidden layer. Every array of a step lives in a pool; NumPy writes its results there by
``out=`` and makes no large array of its own. The data set stays in host memory, as it
would beside a GPU; a micro-batch is copied into the pool.

Units: sizes are bytes, losses are means in nats over samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ._core import Buffer, GradBuffer, Pool

__all__ = [
    "CLASSES",
    "PIXELS",
    "Classifier",
    "Digits",
    "load_digits",
    "one_thread",
]

PIXELS: Final = 64
CLASSES: Final = 10

_LEARNING_RATE: Final = 0.3
_MOMENTUM: Final = 0.9
_MAX_NORM: Final = 5.0

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Digits:
    """The data set in host memory.

    Attributes
    ----------
    train_images, test_images
        float32, shape (samples, 64), pixels from 0 to 1.
    train_targets
        float32, shape (samples, 10): 1 at the digit, else 0.
    test_digits
        int64, shape (samples,).
    """

    train_images: Floats
    train_targets: Floats
    test_images: Floats
    test_digits: NDArray[np.int64]


def load_digits(seed: int) -> Digits:
    """Return the data set, four fifths of it for training, shuffled by ``seed``.

    Raises
    ------
    ModuleNotFoundError
        Without scikit-learn; the message says what to install.
    """
    try:
        from sklearn.datasets import load_digits as load  # tried with 1.9
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the demo trains on scikit-learn's digits and {error}; "
            "pip install scikit-learn",
            name=error.name,
        ) from None
    pixels, digits = load(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(digits))
    images = (pixels[order] / 16.0).astype(np.float32)
    digits = digits[order].astype(np.int64)
    train = len(digits) * 4 // 5
    targets = np.zeros((train, CLASSES), np.float32)
    targets[np.arange(train), digits[:train]] = 1.0
    return Digits(images[:train], targets, images[train:], digits[train:])


def one_thread() -> AbstractContextManager[Any]:
    """Return a context in which matrix products use one thread.

    Micro-batches are small: more threads wait for each other longer than they work,
    and one thread rounds alike on every machine.
    """
    from threadpoolctl import threadpool_limits  # scikit-learn requires it

    limits: AbstractContextManager[Any] = threadpool_limits(1)
    return limits


class Classifier:
    """Weights, momentum and a gradient buffer in one pool, and the steps over them.

    Parameters
    ----------
    pool
        Where every array goes.
    digits
        The data set.
    hidden
        Units of the hidden layer.
    seed
        Of the first weights and of the order of samples.
    """

    def __init__(self, pool: Pool, digits: Digits, *, hidden: int, seed: int) -> None:
        self.pool = pool
        self.digits = digits
        self.hidden = hidden
        self._seed = seed
        self._shapes = {
            "weights_1": (PIXELS, hidden),
            "bias_1": (hidden,),
            "weights_2": (hidden, CLASSES),
            "bias_2": (CLASSES,),
        }
        self._weights = {name: self._buffer(name) for name in self._shapes}
        self._momentum = {
            name: self._buffer(f"momentum of {name}") for name in self._shapes
        }
        self.gradients = GradBuffer(self._shapes, mode="weighted", pool=pool)
        self.initialise()

    def _buffer(self, name: str) -> Buffer:
        return self.pool.empty(
            self._shapes[name.removeprefix("momentum of ")], "float32", name=name
        )

    def _array(self, shape: tuple[int, ...], name: str, dtype: str = "float32") -> Any:
        """A new array in the pool; it holds its buffer."""
        return self.pool.empty(shape, dtype, name=name).numpy()

    def initialise(self) -> None:
        """Set the first weights of the seed, and no momentum."""
        self._random = np.random.default_rng(self._seed)
        for name, buffer in self._weights.items():
            weights = buffer.numpy()
            if weights.ndim == 1:
                weights[...] = 0.0
            else:
                self._random.standard_normal(dtype=np.float32, out=weights)
                weights *= np.float32((2.0 / weights.shape[0]) ** 0.5)
            self._momentum[name].fill(0.0)
        self.gradients.zero()

    # ---- training --------------------------------------------------------------------

    @property
    def samples(self) -> int:
        """How many samples the training set has."""
        return len(self.digits.train_images)

    def step(self, micro_batch: int) -> float:
        """Take one step with the gradient of the whole training set; its mean loss.

        Parameters
        ----------
        micro_batch
            Samples that are worked on at a time.
        """
        loss = self.accumulate(micro_batch)
        self.gradients.clip(_MAX_NORM)
        self._update()
        self.gradients.zero()
        return loss

    def accumulate(self, micro_batch: int) -> float:
        """Leave the mean gradient of the training set in ``gradients``; its mean loss.

        Every micro-batch counts by its number of samples, so a short last one is right.
        """
        total = 0.0
        for chosen in self._micro_batches(micro_batch):
            with self.pool.scope("micro-batch"):
                total += self._add_micro_batch(chosen) * len(chosen)
        self.gradients.finish()
        return total / self.samples

    def _micro_batches(self, micro_batch: int) -> Iterator[NDArray[np.int64]]:
        order = self._random.permutation(self.samples)
        for start in range(0, self.samples, micro_batch):
            yield order[start : start + micro_batch]

    def _add_micro_batch(self, chosen: NDArray[np.int64]) -> float:
        """Add the mean gradient of some samples; returns their mean loss."""
        count = len(chosen)
        images = self._array((count, PIXELS), "images")
        targets = self._array((count, CLASSES), "targets")
        np.take(self.digits.train_images, chosen, axis=0, out=images, mode="clip")
        np.take(self.digits.train_targets, chosen, axis=0, out=targets, mode="clip")

        active = self._array((count, self.hidden), "activations")
        scores = self._array((count, CLASSES), "scores")
        self._forward(images, active, scores)
        loss = self._loss_gradient(scores, targets)

        weights_2 = self._weights["weights_2"].numpy()
        gradient = {
            name: self._array(shape, f"gradient of {name}")
            for name, shape in self._shapes.items()
        }
        np.matmul(active.T, scores, out=gradient["weights_2"])
        np.sum(scores, axis=0, out=gradient["bias_2"])
        back = self._array((count, self.hidden), "gradient of activations")
        np.matmul(scores, weights_2.T, out=back)
        passed = self._array((count, self.hidden), "mask", "bool")
        np.greater(active, 0.0, out=passed)
        np.multiply(back, passed, out=back)
        np.matmul(images.T, back, out=gradient["weights_1"])
        np.sum(back, axis=0, out=gradient["bias_1"])
        self.gradients.add(gradient, weight=count)
        return loss

    def _forward(self, images: Floats, active: Floats, scores: Floats) -> None:
        """Write the hidden layer's output and the scores of the classes."""
        weights = {name: buffer.numpy() for name, buffer in self._weights.items()}
        np.matmul(images, weights["weights_1"], out=active)
        np.add(active, weights["bias_1"], out=active)
        np.maximum(active, 0.0, out=active)
        np.matmul(active, weights["weights_2"], out=scores)
        np.add(scores, weights["bias_2"], out=scores)

    def _loss_gradient(self, scores: Floats, targets: Floats) -> float:
        """Turn scores into the gradient of their mean cross-entropy; returns that."""
        count = len(scores)
        row = self._array((count, 1), "row")
        np.max(scores, axis=1, keepdims=True, out=row)
        np.subtract(scores, row, out=scores)
        picked = float(np.vdot(scores, targets))
        np.exp(scores, out=scores)
        np.sum(scores, axis=1, keepdims=True, out=row)
        np.divide(scores, row, out=scores)
        np.log(row, out=row)
        loss = (float(np.sum(row)) - picked) / count
        np.subtract(scores, targets, out=scores)
        np.divide(scores, np.float32(count), out=scores)
        return loss

    def _update(self) -> None:
        """Momentum: v = m v + r g, w = w - v; uses the gradients up."""
        for name, gradient in zip(self._shapes, self.gradients.views, strict=True):
            step = gradient.numpy()
            moving = self._momentum[name].numpy()
            weights = self._weights[name].numpy()
            step *= np.float32(_LEARNING_RATE)
            moving *= np.float32(_MOMENTUM)
            moving += step
            weights -= moving

    # ---- checking --------------------------------------------------------------------

    def validate(self, keep: list[Buffer]) -> float:
        """Return the share of the test set that is recognised, from 0 to 1.

        Parameters
        ----------
        keep
            Receives the buffers of the pass, as a program keeps what it wants to look
            at later; they live until their scope ends.
        """
        count = len(self.digits.test_images)
        shapes = {
            "test images": (count, PIXELS),
            "test activations": (count, self.hidden),
            "test scores": (count, CLASSES),
        }
        keep += [
            self.pool.empty(shape, "float32", name=name)
            for name, shape in shapes.items()
        ]
        images, active, scores = (buffer.numpy() for buffer in keep[-3:])
        images[...] = self.digits.test_images
        self._forward(images, active, scores)
        right = np.argmax(scores, axis=1) == self.digits.test_digits
        return float(np.mean(right))

    def gradient_difference(self) -> float:
        """Compare ``gradients`` with the full batch, computed in float64 by itself.

        Returns
        -------
        float
            max |accumulated - full| / max |full| of the worst parameter. The reference
            is worked out outside the pool, from the same weights.
        """
        full = self._reference()
        worst = 0.0
        for name, view in zip(self._shapes, self.gradients.views, strict=True):
            difference = np.abs(view.numpy() - full[name]).max()
            worst = max(worst, float(difference / np.abs(full[name]).max()))
        return worst

    def _reference(self) -> dict[str, NDArray[np.float64]]:
        weights = {
            name: buffer.numpy().astype(np.float64)
            for name, buffer in self._weights.items()
        }
        images = self.digits.train_images.astype(np.float64)
        active = np.maximum(images @ weights["weights_1"] + weights["bias_1"], 0.0)
        scores = active @ weights["weights_2"] + weights["bias_2"]
        scores = np.exp(scores - scores.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
        scores = (scores - self.digits.train_targets) / self.samples
        back = (scores @ weights["weights_2"].T) * (active > 0.0)
        return {
            "weights_1": images.T @ back,
            "bias_1": back.sum(axis=0),
            "weights_2": active.T @ scores,
            "bias_2": scores.sum(axis=0),
        }
