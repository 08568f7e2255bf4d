"""A page of text about memory, in the spirit of PyTorch's ``memory_summary``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from . import oom, pools, stats
from ._core import Device, Pool
from .rendering import html_table, plural
from .sizes import format_count, format_size

__all__ = ["MemorySummary", "memory_summary", "pool_summary"]

_WIDTH = 77
_ROWS = (
    ("Allocated memory", "allocated_bytes"),
    ("Active memory", "active_bytes"),
    ("Requested memory", "requested_bytes"),
    ("Reserved memory", "reserved_bytes"),
    ("Non-releasable memory", "inactive_split_bytes"),
    ("Allocations", "allocation"),
    ("Active allocs", "active"),
    ("Pages or segments", "segment"),
    ("Non-releasable allocs", "inactive_split"),
)
_SORTS = ("current", "peak", "allocated", "freed")
_HEADER = ("Metric", "Cur Usage", "Peak Usage", "Tot Alloc", "Tot Freed")


class MemorySummary(str):
    """The text of a summary; ``print`` shows it, notebooks show a table.

    Attributes
    ----------
    subject
        What it is about: a device, ``"all"``, or a pool.
    values
        The statistics behind it, bytes and counts.
    holders
        ``(name, bytes)`` of the largest holders of memory.
    """

    subject: str
    values: dict[str, int]
    holders: tuple[tuple[str, int], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return subject, statistics and holders."""
        return {
            "subject": self.subject,
            "statistics": dict(self.values),
            "holders": [list(holder) for holder in self.holders],
        }

    def __repr__(self) -> str:
        used = format_size(self.values["allocated_bytes.all.current"])
        reserved = format_size(self.values["reserved_bytes.all.current"])
        return f"<MemorySummary of {self.subject}: {used} used, {reserved} reserved>"

    def _repr_html_(self) -> str:
        rows = [(label, *cells) for label, cells in _table(self.values, False)]
        rows += [(name, value, "", "", "") for name, value in _facts(self.values)]
        rows += [
            (f"held by {name}", format_size(size), "", "", "")
            for name, size in self.holders
        ]
        return html_table(f"memory of {self.subject}", rows, header=_HEADER)


def memory_summary(
    device: Device | int | str | None = None, abbreviated: bool = False
) -> MemorySummary:
    """Return a page of text about the memory of a device.

    Parameters
    ----------
    device
        A device, an index, a name, ``None`` (the current device), or ``"all"``.
    abbreviated
        Leave out the rows of small and large blocks.
    """
    values = stats.memory_stats(device)
    found = stats.subjects(device)[1]
    held = [
        holder
        for one in found
        for pool in pools.open_pools(one)
        for holder in oom.holders(pool)
    ]
    held.sort(key=lambda holder: -holder[1])
    return _summary(values.device, values.to_dict(), tuple(held[:5]), abbreviated)


def pool_summary(pool: Pool, abbreviated: bool) -> MemorySummary:
    """Return the same about one pool; behind ``Pool.summary``."""
    values = stats.pool_stats(pool)
    title = f"pool {pool.name} on {pool.device.name}"
    return _summary(title, values, oom.holders(pool), abbreviated)


def _summary(
    title: str,
    values: dict[str, int],
    holders: tuple[tuple[str, int], ...],
    abbreviated: bool,
) -> MemorySummary:
    lines = list(_lines(title, values, holders, abbreviated))
    result = MemorySummary("\n".join(lines) + "\n")
    result.subject = title
    result.values = values
    result.holders = holders
    return result


def _lines(
    title: str,
    values: dict[str, int],
    holders: tuple[tuple[str, int], ...],
    abbreviated: bool,
) -> Iterator[str]:
    inner = _WIDTH - 2
    double, single = f"|{'=' * inner}|", f"|{'-' * inner}|"
    yield double
    yield f"|{f'gpumem memory summary, {title}'[:inner]:^{inner}}|"
    yield single
    left = f"out-of-memory errors: {values['num_ooms']}"
    right = f"retries: {values['num_alloc_retries']}"
    yield f"|{left:^37}|{right:^37}|"
    yield double
    yield "|{:^23}|{:^12}|{:^12}|{:^12}|{:^12}|".format(*_HEADER)
    yield single
    for label, cells in _table(values, abbreviated):
        yield "| {:<21} |{} |{} |{} |{} |".format(label, *(f"{c:>11}" for c in cells))
    yield single
    for name, value in _facts(values):
        yield f"| {name:<35} {value:>37} |"
    if holders:
        yield single
        for name, size in holders:
            yield f"| {f'held by {name}'[:56]:<56} {format_size(size):>16} |"
    yield double


def _table(
    values: dict[str, int], abbreviated: bool
) -> Iterator[tuple[str, tuple[str, ...]]]:
    for label, row in _ROWS:
        show = format_size if row.endswith("_bytes") else _short_count
        groups: tuple[tuple[str, str], ...] = (("all", label),)
        if not abbreviated:
            groups += (
                ("large_pool", "      from large pool"),
                ("small_pool", "      from small pool"),
            )
        for group, text in groups:
            yield (
                text,
                tuple(show(values[f"{row}.{group}.{sort}"]) for sort in _SORTS),
            )


def _short_count(count: int) -> str:
    if count < 10_000_000:
        return format_count(count)
    return f"{count / 1e6:,.1f} M"


def _facts(values: dict[str, int]) -> Iterator[tuple[str, str]]:
    reserved = values["reserved_bytes.all.current"]
    stuck = values["inactive_split_bytes.all.current"]
    part = f" ({stuck / reserved:.1%} of reserved)" if reserved else ""
    requested = values["requested_bytes.all.peak"]
    waste = values["reserved_bytes.all.peak"] / requested - 1 if requested else 0.0
    limit = values["limit"]
    idle = values["cached_bytes"] + values["unplaced_bytes"]
    yield "cached", format_size(idle)
    yield "fragmentation", f"{format_size(stuck)}{part}"
    yield "waste: peak reserved over requested", f"{waste:.1%}"
    yield (
        "pending on streams",
        f"{format_size(values['pending_bytes'])} in "
        f"{plural(values['pending_blocks'], 'block')}",
    )
    yield "outside the pools", format_size(values["outside"])
    yield "limit", "none" if limit < 0 else format_size(limit)
    yield "head-room", format_size(values["headroom"])
    yield (
        "given back",
        f"{format_size(values['flushed_bytes'])} in "
        f"{format_count(values['flushes'])} goes",
    )
    yield "garbage collections", format_count(values["collections"])
    if values["quarantined"]:
        yield "quarantined", format_size(values["quarantined"])
    if values["pinned_bytes"]:
        yield "pinned host memory", format_size(values["pinned_bytes"])
