"""How much a piece of a program takes: ``with gpumem.measure() as m: ...``."""

from __future__ import annotations

from types import TracebackType

from . import device_names, peaks
from ._core import Device, Pool
from .pools import open_pools
from .rendering import html_table
from .sizes import format_size

__all__ = ["Measurement", "measure"]

_USED = "allocated_bytes.all"
_RESERVED = "reserved_bytes.all"


def measure(
    device: Device | int | str | None = None, *, pool: Pool | None = None
) -> Measurement:
    """Return a context manager that measures what happens inside it.

    Windows nest and overlap; none disturbs the peaks of another, nor those of
    :func:`gpumem.max_memory_allocated`. All threads are counted; for one task's own
    buffers see :class:`gpumem.Scope`.

    Parameters
    ----------
    device
        Whose pools are measured, all of this interpreter; ``None``: the current one.
    pool
        Measure this pool alone.

    Examples
    --------
    >>> import gpumem
    >>> pool = gpumem.Pool(gpumem.device("host", capacity="64 MiB"))
    >>> with gpumem.measure(pool=pool) as m:
    ...     kept = pool.empty(1 << 20)
    ...     dropped = pool.empty(1 << 20)
    ...     del dropped
    >>> m.delta, m.peak
    (1048576, 2097152)
    >>> del kept; pool.close(); gpumem.reset()
    """
    if pool is not None and not isinstance(pool, Pool):
        raise TypeError(f"pool must be a Pool, not {type(pool).__name__}")
    if pool is not None and device is not None:
        raise ValueError("give a device or a pool, not both")
    return Measurement(device_names.find(device) if pool is None else pool)


class Measurement:
    """The result of :func:`measure`; current inside the block, final after it.

    All figures are bytes. Those that are signed are negative when there is less than
    before: freeing what was there at the beginning makes ``delta`` negative.
    ``others`` is never part of the other figures.
    """

    __slots__ = ("_before", "_final", "_subject", "_used_before", "_window")

    def __init__(self, subject: Device | str | Pool) -> None:
        self._subject = subject
        self._window: peaks.Window | None = None
        self._before: dict[Pool, tuple[int, int]] = {}
        self._used_before = 0
        self._final: dict[str, int] | None = None

    def __enter__(self) -> Measurement:
        if self._window is not None:
            raise RuntimeError("a measurement is entered once")
        self._window = peaks.Window()
        now = self._pools()
        self._window.open(now)
        self._before = {pool: _held(pool) for pool in now}
        self._used_before = self._outside()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._window is None or self._final is not None:
            raise RuntimeError("the measurement is not running")
        self._final = self.to_dict()
        self._window.close()
        self._before = {}
        self._subject = "done"

    @property
    def delta(self) -> int:
        """Change of the bytes in live blocks, signed."""
        return self.to_dict()["delta"]

    @property
    def peak(self) -> int:
        """Highest such change at any time."""
        return self.to_dict()["peak"]

    @property
    def reserved(self) -> int:
        """Change of the bytes held from the device, signed."""
        return self.to_dict()["reserved"]

    @property
    def reserved_peak(self) -> int:
        """Highest such change at any time."""
        return self.to_dict()["reserved_peak"]

    @property
    def others(self) -> int:
        """Change of what the device has in use and no pool here holds, signed."""
        return self.to_dict()["others"]

    def to_dict(self) -> dict[str, int]:
        """Return the five figures by name, bytes."""
        if self._final is not None:
            return dict(self._final)
        if self._window is None:
            return dict.fromkeys(
                ("delta", "peak", "reserved", "reserved_peak", "others"), 0
            )
        used, reserved, used_peak, reserved_peak = 0, 0, 0, 0
        for pool in {**self._before, **dict.fromkeys(self._pools())}:
            used_now, reserved_now = _held(pool)
            used_then, reserved_then = self._before.get(pool, (0, 0))
            used += used_now - used_then
            reserved += reserved_now - reserved_then
            used_peak += self._window.peak(pool, _USED) - used_then
            reserved_peak += self._window.peak(pool, _RESERVED) - reserved_then
        return {
            "delta": used,
            "peak": max(used_peak, 0),
            "reserved": reserved,
            "reserved_peak": max(reserved_peak, 0),
            "others": self._outside() - self._used_before,
        }

    def _pools(self) -> list[Pool]:
        if isinstance(self._subject, Pool):
            return [self._subject]
        device = self._device()
        return [] if device is None else open_pools(device)

    def _device(self) -> Device | None:
        if isinstance(self._subject, Pool):
            return self._subject.device
        found = device_names.find(self._subject)
        return found if isinstance(found, Device) else None

    def _outside(self) -> int:
        device = self._device()
        return 0 if device is None else outside(device)

    def __repr__(self) -> str:
        figures = self.to_dict()
        return (
            f"<Measurement: {format_size(figures['delta'], signed=True)}, "
            f"peak {format_size(figures['peak'], signed=True)}, "
            f"others {format_size(figures['others'], signed=True)}>"
        )

    def _repr_html_(self) -> str:
        rows = [(k, format_size(n, signed=True)) for k, n in self.to_dict().items()]
        return html_table("measured", rows)


def _held(pool: Pool) -> tuple[int, int]:
    stats = pool.stats()
    return stats[f"{_USED}.current"], stats[f"{_RESERVED}.current"]


def outside(device: Device) -> int:
    """Return the bytes of a device in use that no pool of this interpreter holds."""
    free, total = device.memory_info()
    return max(total - free - sum(_held(p)[1] for p in open_pools(device)), 0)
