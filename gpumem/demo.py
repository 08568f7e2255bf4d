"""``gpumem demo``: train a model in a memory budget that the naive loop does not fit.

A classifier of handwritten digits is trained on a host device whose capacity is too
small for one step over the whole training set at once. The full batch is tried for real
and runs out of memory; micro-batches with a ``GradBuffer`` fit and give the gradient of
the full batch; validation runs in a ``scope`` that gives its memory back.

Needs scikit-learn for the data set, and no GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
import traceback
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from . import _core
from ._core import GpumemError, OutOfMemoryError, Pool
from .rendering import plural
from .sizes import format_size, parse_count, parse_size

if TYPE_CHECKING:
    from ._core import Buffer
    from ._digits_model import Classifier, Digits

__all__ = ["DemoResult", "measure_full_batch", "train"]

NAME: Final = "demo"
HELP: Final = "train a classifier in a budget that the full batch does not fit"

PAGE_SIZE: Final = 64 << 10  # bytes; small, so that a small budget is a sharp one
DEFAULT_CAPACITY: Final = "8 MiB"
DEFAULT_SNAPSHOT: Final = "gpumem_demo.pickle"

_LARGE: Final = 4 << 30  # bytes; a device on which the full batch fits
_HISTORY: Final = 20_000  # events


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What the demo measured; sizes in bytes.

    Attributes
    ----------
    device
        Name of the device, such as ``"host:0"``.
    capacity, page_size
        The memory of the device, and the unit in which it is given out.
    micro_batch, epochs, hidden, seed
        As they were asked for; every epoch is one step over the training set.
    full_batch
        Samples of the training set.
    full_batch_peak
        Memory of the device that a full-batch step takes where there is enough.
    full_batch_oom
        Whether the full-batch step ran out of memory here.
    full_batch_error
        What the error said, or ``None``.
    gradient_difference
        max |accumulated - full| / max |full| of the worst parameter; the full batch is
        worked out in float64 outside the pool.
    loss
        Mean loss of the training set before the last step, in nats.
    accuracy
        Share of the test set that is recognised, from 0 to 1.
    peak
        The most memory in use in the pool during a step of micro-batches.
    peak_reserved
        The most memory of the device that training took.
    outside_peak
        The most memory that Python and NumPy took outside the pool during one step.
    scope_released
        What the pool had less in use after the validation scope than before its end.
    snapshot
        Path of the snapshot file.
    seconds
        Of the whole demo.
    """

    device: str
    capacity: int
    page_size: int
    micro_batch: int
    epochs: int
    hidden: int
    seed: int
    full_batch: int
    full_batch_peak: int
    full_batch_oom: bool
    full_batch_error: str | None
    gradient_difference: float
    loss: float
    accuracy: float
    peak: int
    peak_reserved: int
    outside_peak: int
    scope_released: int
    snapshot: str
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, and the version of their meaning."""
        return {"version": 1, **dataclasses.asdict(self)}

    def __repr__(self) -> str:
        return (
            f"<DemoResult: {format_size(self.capacity)} device, full batch "
            f"{'does not fit' if self.full_batch_oom else 'fits'}, micro-batches of "
            f"{self.micro_batch} peak at {format_size(self.peak)}, "
            f"accuracy {self.accuracy:.4f}>"
        )

    def _repr_html_(self) -> str:
        from .rendering import html_table

        rows = [(name, str(value)) for name, value in self.to_dict().items()]
        return html_table("gpumem demo", rows)


# ---- running -------------------------------------------------------------------------


def train(
    device: str = "host",
    *,
    capacity: int | str = DEFAULT_CAPACITY,
    micro_batch: int = 64,
    epochs: int = 80,
    hidden: int = 1024,
    seed: int = 0,
    snapshot: str | os.PathLike[str] = DEFAULT_SNAPSHOT,
    say: Callable[[str], None] | None = None,
) -> DemoResult:
    """Train the classifier and return what was measured.

    Parameters
    ----------
    device
        ``"host"`` or ``"host:1"``: the name of the device that is made for this run.
    capacity
        Its memory in bytes or text.
    micro_batch
        Samples worked on at a time.
    epochs
        Steps, each over the whole training set.
    hidden
        Units of the hidden layer.
    seed
        Of the split of the data set, the first weights and the order of samples.
    snapshot
        Where the snapshot file goes, ``.pickle`` or ``.json``.
    say
        Called with each line of the story.

    Raises
    ------
    OutOfMemoryError
        When the model or a micro-batch does not fit either.
    ModuleNotFoundError
        Without scikit-learn.
    TypeError, ValueError
        For arguments outside their range.
    GpumemError
        For a device that is no host device.

    Examples
    --------
    >>> from gpumem import demo
    >>> result = demo.train(epochs=1, snapshot="demo.json")  # doctest: +SKIP
    >>> result.full_batch_oom  # doctest: +SKIP
    True
    """
    began = time.monotonic()
    index = _host_index(device)
    size = parse_size(capacity, "capacity")
    if size < PAGE_SIZE:
        raise ValueError(f"capacity must be at least {PAGE_SIZE} bytes, not {size}")
    path = os.fspath(snapshot)
    if not path.endswith((".pickle", ".json")):
        raise ValueError(f"snapshot must end in .pickle or .json, not {path!r}")
    micro_batch = parse_count(micro_batch, "micro_batch", 1, 1 << 30)
    epochs = parse_count(epochs, "epochs", 1, 1 << 30)
    hidden = parse_count(hidden, "hidden", 1, 1 << 20)
    seed = parse_count(seed, "seed", 0, (1 << 63) - 1)

    from . import _digits_model

    digits = _digits_model.load_digits(seed)
    story = _Story(say, size)
    budget = _core.open_host(index, size, page_size=PAGE_SIZE)
    full_peak = measure_full_batch(hidden, seed=seed, digits=digits)
    single = _digits_model.one_thread()
    with single, Pool(budget, name="demo") as pool, _letting_go():
        measured = _measure(
            pool,
            digits,
            hidden=hidden,
            seed=seed,
            micro_batch=micro_batch,
            epochs=epochs,
            full_peak=full_peak,
            path=path,
            story=story,
        )
    return DemoResult(
        device=budget.name,
        capacity=size,
        page_size=PAGE_SIZE,
        micro_batch=micro_batch,
        epochs=epochs,
        hidden=hidden,
        seed=seed,
        full_batch_peak=full_peak,
        snapshot=path,
        seconds=time.monotonic() - began,
        **measured,
    )


@contextmanager
def _letting_go() -> Iterator[None]:
    """Empty the frames of an error that passes: their arrays keep a pool open."""
    try:
        yield
    except Exception as error:
        traceback.clear_frames(error.__traceback__)
        raise


def measure_full_batch(
    hidden: int = 1024, *, seed: int = 0, digits: Digits | None = None
) -> int:
    """Return the memory that one full-batch step takes from a device that has it.

    Bytes, whole pages. A device of this capacity runs the step; with one page less it
    does not.

    Parameters
    ----------
    hidden
        Units of the hidden layer.
    seed
        Of the data set and the weights.
    digits
        The data set, if it is loaded.
    """
    from . import _digits_model

    if digits is None:
        digits = _digits_model.load_digits(seed)
    roomy = _core.open_host(0, _LARGE, page_size=PAGE_SIZE)
    with Pool(roomy, name="demo, full batch") as pool:
        model = _digits_model.Classifier(pool, digits, hidden=hidden, seed=seed)
        model.step(model.samples)
        del model
    return roomy.counters()["memory_peak"]


def _measure(
    pool: Pool,
    digits: Digits,
    *,
    hidden: int,
    seed: int,
    micro_batch: int,
    epochs: int,
    full_peak: int,
    path: str,
    story: _Story,
) -> dict[str, Any]:
    """Do everything that needs the model; returns the measurements."""
    from . import _digits_model
    from .snapshot import dump_snapshot

    pool.record_history(_HISTORY)
    model = _digits_model.Classifier(pool, digits, hidden=hidden, seed=seed)
    error = _try_full_batch(model)
    story.full_batch(model.samples, full_peak, error)
    measured = _train(model, micro_batch, epochs, story)
    dump_snapshot(path, device=pool.device)
    story.end(pool, path, measured["peak"], full_peak, measured["peak_reserved"])
    return {
        "full_batch": model.samples,
        "full_batch_oom": error is not None,
        "full_batch_error": error,
        **measured,
    }


def _host_index(device: str) -> int:
    if not isinstance(device, str):
        raise TypeError(f"device must be a name, not {type(device).__name__}")
    kind, _colon, digits = device.partition(":")
    if kind == "host" and (not digits or digits.isdecimal()):
        return int(digits or 0)
    raise GpumemError(
        f"the demo runs on host devices ('host', 'host:1'), not on {device!r}"
    )


def _try_full_batch(model: Classifier) -> str | None:
    """Take a step over all samples at once; returns what the error said, if any.

    The model is as new afterwards.
    """
    said = None
    try:
        model.step(model.samples)
    except OutOfMemoryError as error:
        said = str(error)
    model.initialise()
    model.pool.trim()
    return said


def _train(
    model: Classifier, micro_batch: int, epochs: int, story: _Story
) -> dict[str, Any]:
    """Take all steps; returns the measurements."""
    pool = model.pool
    model.accumulate(micro_batch)
    difference = model.gradient_difference()
    model.initialise()
    story.gradient(micro_batch, difference)

    pool.reset_peaks()
    loss, outside = _step_traced(model, micro_batch)
    peak = pool.stats()["allocated_bytes.all.peak"]
    accuracy, released = _validate(model)
    story.epoch(1, loss, accuracy, released)
    for epoch in range(2, epochs + 1):
        loss = model.step(micro_batch)
        if epoch == epochs or epoch % 20 == 0:
            accuracy, released = _validate(model)
            story.epoch(epoch, loss, accuracy, released)
    return {
        "gradient_difference": difference,
        "loss": loss,
        "accuracy": accuracy,
        "peak": peak,
        "peak_reserved": pool.stats()["reserved_bytes.all.peak"],
        "outside_peak": outside,
        "scope_released": released,
    }


def _step_traced(model: Classifier, micro_batch: int) -> tuple[float, int]:
    """Take one step; returns its loss and the growth of memory outside the pool."""
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        start, _peak = tracemalloc.get_traced_memory()
        loss = model.step(micro_batch)
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        if not tracing:
            tracemalloc.stop()
    return loss, max(peak - start, 0)


def _validate(model: Classifier) -> tuple[float, int]:
    """Test the model in a scope; returns accuracy and what the scope's end freed."""
    pool = model.pool
    kept: list[Buffer] = []  # alive after the scope, its memory is not
    scope = pool.scope("validation")
    with scope:
        accuracy = model.validate(kept)
        inside = pool.stats()["allocated_bytes.all.current"]
    return accuracy, inside - pool.stats()["allocated_bytes.all.current"]


# ---- telling -------------------------------------------------------------------------


class _Story:
    """Says what happens, in sentences, to whoever listens."""

    def __init__(self, say: Callable[[str], None] | None, capacity: int) -> None:
        self._say = say or (lambda _line: None)
        self._say(
            f"A device of {format_size(capacity)}, in pages of "
            f"{format_size(PAGE_SIZE)}. The task: handwritten digits, one hidden layer."
        )
        self._say("")

    def full_batch(self, samples: int, peak: int, error: str | None) -> None:
        self._say(
            f"Full batch: a step over all {samples} samples at once takes "
            f"{format_size(peak)}."
        )
        if error is None:
            self._say("  It fits here. (A smaller --capacity shows the point.)")
        else:
            self._say("  Tried here, it ends with OutOfMemoryError:")
            self._say(f"  {error}")

    def gradient(self, micro_batch: int, difference: float) -> None:
        self._say("")
        self._say(
            f"Micro-batches of {micro_batch}, summed in a GradBuffer: the gradient "
            f"differs from the full batch's"
        )
        self._say(f"  by {difference:.1e} of its largest element (float64 reference).")
        self._say("")
        self._say("Training, one step over the training set per epoch:")

    def epoch(self, epoch: int, loss: float, accuracy: float, released: int) -> None:
        self._say(
            f"  epoch {epoch:4d}   loss {loss:.4f}   test accuracy {accuracy:.4f}   "
            f"validation scope freed {format_size(released)}"
        )

    def end(
        self, pool: Pool, path: str, peak: int, full_peak: int, reserved: int
    ) -> None:
        self._say("")
        self._say("Memory of one step         device        in use")
        self._say(f"  full batch         {format_size(full_peak):>12}")
        self._say(
            f"  micro-batches      {format_size(reserved):>12}  {format_size(peak):>12}"
        )
        self._say("")
        self._say(str(pool.summary()))
        self._say("")
        self._say(f"Snapshot for PyTorch's memory viewer: {path}")


# ---- the command ---------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``gpumem demo``."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--device", default="host", metavar="NAME", help="a host device (host)"
    )
    parser.add_argument(
        "--capacity",
        default=DEFAULT_CAPACITY,
        metavar="SIZE",
        help=f"memory of the device ({DEFAULT_CAPACITY})",
    )
    for name, default, text in (
        ("micro-batch", 64, "samples worked on at a time"),
        ("epochs", 80, "steps over the training set"),
        ("hidden", 1024, "units of the hidden layer"),
        ("seed", 0, "of the split, the weights and the order"),
    ):
        parser.add_argument(
            f"--{name}",
            type=int,
            default=default,
            metavar="N",
            help=f"{text} ({default})",
        )
    parser.add_argument(
        "--snapshot",
        default=DEFAULT_SNAPSHOT,
        metavar="FILE",
        help=f"where the snapshot goes, .pickle or .json ({DEFAULT_SNAPSHOT})",
    )


def run(args: argparse.Namespace) -> int:
    """Run ``gpumem demo``; returns the exit status."""
    try:
        result = train(
            args.device,
            capacity=args.capacity,
            micro_batch=args.micro_batch,
            epochs=args.epochs,
            hidden=args.hidden,
            seed=args.seed,
            snapshot=args.snapshot,
            say=None if args.json else print,
        )
    except OutOfMemoryError as error:
        return _fail(
            f"{error} Give a larger --capacity, a smaller --micro-batch or fewer "
            "--hidden units."
        )
    except (GpumemError, ImportError, OSError, ValueError) as error:
        return _fail(str(error))
    if args.json:
        print(json.dumps(result.to_dict()))
    else:
        print(
            f"Accuracy {result.accuracy:.4f} after {plural(result.epochs, 'epoch')}, "
            f"{result.seconds:.1f} seconds in all."
        )
    return 0


def _fail(text: str) -> int:
    print(f"gpumem demo: {text}", file=sys.stderr)
    return 1
