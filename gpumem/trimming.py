"""Giving idle memory back to the device, and saying what stays and why."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from . import pools
from ._core import Device, Pool, Stream
from .rendering import html_table
from .sizes import format_size

__all__ = ["TrimReport", "empty_cache", "trim"]


@dataclass(frozen=True, slots=True, repr=False)
class TrimReport:
    """What giving back memory did; bytes.

    Attributes
    ----------
    released
        Given back to the device.
    referenced
        Still in live blocks: somebody holds the buffers.
    skipped
        Idle and kept: unfinished work, pages partly in use, a capture, or too young.
    pending
        The part of ``skipped`` that waits for unfinished work.
    capturing
        Nothing was done since a stream captures a graph.
    """

    released: int
    referenced: int
    skipped: int
    pending: int = 0
    capturing: bool = False

    def to_dict(self) -> dict[str, int | bool]:
        """Return the attributes by name."""
        return asdict(self)

    def __repr__(self) -> str:
        notes = [f"{format_size(self.released)} released"]
        notes.append(f"{format_size(self.referenced)} still referenced")
        if self.skipped:
            notes.append(f"{format_size(self.skipped)} skipped")
        if self.pending:
            notes.append(f"{format_size(self.pending)} of it pending")
        if self.capturing:
            notes.append("a stream is capturing")
        return f"<TrimReport: {', '.join(notes)}>"

    def _repr_html_(self) -> str:
        rows = [
            (name, str(value) if name == "capturing" else format_size(value))
            for name, value in self.to_dict().items()
        ]
        return html_table("memory given back", rows)


def empty_cache(
    collect: bool = False, *, device: Device | int | str | None = None
) -> TrimReport:
    """Give all idle memory back to its device and return what happened.

    Memory of live buffers cannot be given back; ``referenced`` says how much that is.

    Parameters
    ----------
    collect
        Collect Python's garbage first, so that buffers in dead cycles count as idle.
    device
        Of this device alone; ``None``: of every device that was used. Devices that
        were not used are not touched.
    """
    if collect:
        gc.collect()
    return trim_all(_pools_of(device))


def trim(
    target: int | str = 0,
    *,
    pool: Pool | None = None,
    device: Device | int | str | None = None,
    older_than: float = 0.0,
    stream: Stream | int | None = None,
    wait: float = 0.0,
) -> TrimReport:
    """Give idle memory back until no more than ``target`` bytes are reserved.

    Parameters
    ----------
    target
        Bytes or text; 0 gives back all that is idle.
    pool
        By default the pool in use, else the default pool of the device.
    device
        Of which the default pool is meant.
    older_than
        Only memory that has been idle for so many seconds.
    stream
        Only memory that belongs to this stream.
    wait
        Seconds to wait for unfinished work, in all.
    """
    chosen = pools.choose(pool, device)
    return TrimReport(
        *chosen.trim(target, older_than=older_than, stream=stream, wait=wait)
    )


def trim_all(chosen: Iterable[Pool], wait: float = 0.0) -> TrimReport:
    """Trim several pools; the report is the sum."""
    reports = [TrimReport(*pool.trim(wait=wait)) for pool in chosen]
    return TrimReport(
        released=sum(report.released for report in reports),
        referenced=sum(report.referenced for report in reports),
        skipped=sum(report.skipped for report in reports),
        pending=sum(report.pending for report in reports),
        capturing=any(report.capturing for report in reports),
    )


def _pools_of(device: Device | int | str | None) -> list[Pool]:
    if device is None:
        return pools.open_pools()
    from . import device_names

    found = device_names.find(device)
    return pools.open_pools(found) if isinstance(found, Device) else []
