"""Statistics of devices under PyTorch's names, and what each number is.

:data:`STATISTICS` is the table of all keys of :func:`memory_stats`: each is *current*
(falls again), *peak* (highest current since the last reset), *cumulative* (only
grows, until :func:`reset_accumulated_memory_stats`) or a *setting*. The keys are the
same before first use, with zeros; asking opens no device.

A device's numbers are sums over its open pools in this interpreter. With several
pools on a device the peaks are summed, too: no less than the true peak.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from . import _core, device_names, measuring, peaks, pools
from ._core import Device, Pool
from .rendering import html_table
from .sizes import format_count, format_size

__all__ = [
    "STATISTICS",
    "MemoryStats",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
]

_ROWS: Final = {
    "allocation": "live blocks",
    "allocated_bytes": "bytes in live blocks, rounded up to 512",
    "requested_bytes": "bytes in live blocks as asked for",
    "active": "live and pending blocks",
    "active_bytes": "bytes in live and pending blocks",
    "segment": "mapped pages, or whole segments",
    "reserved_bytes": "bytes held from the device",
    "inactive_split": "free blocks in pages or segments that are partly in use",
    "inactive_split_bytes": "bytes in those",
}
_GROUPS: Final = {
    "all": "",
    "small_pool": ", blocks up to 256 KiB, or half a page with steal='always'",
    "large_pool": ", larger blocks",
}
_SORTS: Final = {
    "current": ("current", ""),
    "peak": ("peak", ", highest so far"),
    "allocated": ("cumulative", ", sum of increases"),
    "freed": ("cumulative", ", sum of decreases"),
}
_OVERSIZE: Final = "0: gpumem has no such class; kept for readers of PyTorch's keys"
_SINGLE: Final = {
    "num_alloc_retries": (
        "cumulative",
        "times that the out-of-memory ladder was climbed",
    ),
    "num_ooms": ("cumulative", "out-of-memory errors raised"),
    "num_sync_all_streams": ("cumulative", "waits of the host for the device"),
    "num_device_alloc": ("cumulative", "pages or segments taken from the device"),
    "num_device_free": ("cumulative", "pages or segments given back"),
    "num_oom_rejections": ("cumulative", _OVERSIZE),
    "max_split_size": ("setting", "option max_split of the default pool; -1: none"),
    "limit": ("setting", "most bytes the default pool may reserve; -1: none"),
    "headroom": ("setting", "bytes the default pool leaves to others"),
    "ooms": ("cumulative", "the same as num_ooms"),
    "maps": ("cumulative", "pages mapped"),
    "unmaps": ("cumulative", "pages unmapped"),
    "flushes": (
        "cumulative",
        "times that idle memory was given back, or taken for another stream",
    ),
    "flushed_bytes": ("cumulative", "bytes of idle memory that were taken so"),
    "retaken_bytes": ("cumulative", "bytes given back and soon taken again"),
    "collections": ("cumulative", "garbage collections run before failing"),
    "bad_frees": ("cumulative", "frees of addresses that are no live block"),
    "deferred_frees": ("cumulative", "frees that found the lock taken"),
    "zombies": ("current", "bytes mapped whose page was given elsewhere"),
    "quarantined": ("current", "bytes of pages lost to failed calls"),
    "pending_bytes": ("current", "bytes freed that a stream may still use"),
    "pending_blocks": ("current", "blocks freed that a stream may still use"),
    "cached_bytes": ("current", "bytes free and mapped"),
    "unplaced_bytes": ("current", "bytes in free pages without an address"),
    "lanes": ("current", "streams with memory of their own"),
    "address_bytes": ("current", "addresses reserved, bytes"),
    "touched_bytes": ("current", "bytes of addresses that ever had a page"),
    "stolen_bytes": ("cumulative", "bytes moved from free blocks of the same stream"),
    "aliased_bytes": ("cumulative", "bytes moved so while the old place was in use"),
    "yielded_bytes": ("cumulative", "bytes given back for other pools of the device"),
    "fallbacks": ("cumulative", "requests that the fallback pool has served"),
    "inserted_waits": ("cumulative", "waits of one stream for another, by the pool"),
    "plan_served": ("cumulative", "blocks placed by a plan"),
    "outside": ("current", "bytes of the device in use that no pool here holds"),
    "pinned_bytes": ("current", "page-locked host memory in live arrays"),
    "pinned_reserved_bytes": ("current", "page-locked host memory held"),
    "pinned_reserved_peak": ("peak", "the same, highest since the device was opened"),
}


def _table() -> Iterator[tuple[str, tuple[str, str]]]:
    for row, about in _ROWS.items():
        for group, where in _GROUPS.items():
            for sort, (kind, how) in _SORTS.items():
                yield f"{row}.{group}.{sort}", (kind, about + where + how)
    for row in ("oversize_allocations", "oversize_segments"):
        for sort, (kind, _how) in _SORTS.items():
            yield f"{row}.{sort}", (kind, _OVERSIZE)
    yield from _SINGLE.items()


STATISTICS: Final[dict[str, tuple[str, str]]] = dict(_table())
"""Key to (kind, what it is); kind is current, peak, cumulative or setting."""

_PINNED: Final = {
    "pinned_bytes": "used",
    "pinned_reserved_bytes": "reserved",
    "pinned_reserved_peak": "reserved_peak",
}
_SETTINGS: Final = ("max_split_size", "limit", "headroom")


class MemoryStats(dict[str, int]):
    """A dict of statistics that prints in one line and as a table in notebooks.

    Attributes
    ----------
    device
        Name of the device, or ``"all"``.
    """

    __slots__ = ("device",)

    def __init__(self, device: str, values: dict[str, int]) -> None:
        super().__init__(values)
        self.device = device

    def __reduce__(self) -> tuple[type[MemoryStats], tuple[str, dict[str, int]]]:
        return MemoryStats, (self.device, dict(self))

    def to_dict(self) -> dict[str, int]:
        """Return a plain dict."""
        return dict(self)

    def __repr__(self) -> str:
        return (
            f"<MemoryStats of {self.device}: "
            f"used {format_size(self['allocated_bytes.all.current'])} "
            f"(peak {format_size(self['allocated_bytes.all.peak'])}), "
            f"reserved {format_size(self['reserved_bytes.all.current'])} "
            f"(peak {format_size(self['reserved_bytes.all.peak'])})>"
        )

    def _repr_html_(self) -> str:
        rows = [
            (
                key,
                format_size(n) if "bytes" in key else format_count(n),
                STATISTICS[key][0],
            )
            for key, n in self.items()
            if n
        ]
        return html_table(f"memory of {self.device}", rows)


# ---- reading -------------------------------------------------------------------------


def memory_stats(device: Device | int | str | None = None) -> MemoryStats:
    """Return all statistics of a device, flat, under PyTorch's keys and our own.

    Parameters
    ----------
    device
        A device, an index, a name, ``None`` (the current device), or ``"all"``: the
        sum over all devices in use.

    Returns
    -------
    MemoryStats
        A dict of ints; :data:`STATISTICS` says what each key is.

    Raises
    ------
    TypeError, ValueError
        For what is no device.
    """
    name, found = subjects(device)
    total = _zeros()
    for one in found:
        for pool in pools.open_pools(one):
            _add(total, pool)
        _add_device(total, one)
    if len(found) == 1:
        default = pools.existing_default(found[0])
        total.update({} if default is None else _settings(default))
    total["ooms"] = total["num_ooms"]
    return MemoryStats(name, total)


def pool_stats(pool: Pool) -> dict[str, int]:
    """Return the same keys for one pool; what it shares is its device's."""
    total = _zeros()
    _add(total, pool)
    _add_device(total, pool.device)
    total.update(_settings(pool))
    total["ooms"] = total["num_ooms"]
    return total


def _zeros() -> dict[str, int]:
    return {**dict.fromkeys(STATISTICS, 0), "max_split_size": -1, "limit": -1}


def subjects(device: Device | int | str | None) -> tuple[str, list[Device]]:
    """Return the name of what is asked for and its devices that are open."""
    if isinstance(device, str) and device == "all":
        return "all", in_use()
    found = device_names.find(device)
    if isinstance(found, str):
        return found, []
    return found.name, [found]


def in_use() -> list[Device]:
    """Return the devices that are open by name or have an open pool."""
    pooled = [pool.device for pool in pools.open_pools()]
    return list(dict.fromkeys([*device_names.open_devices(), *pooled]))


def _add(total: dict[str, int], pool: Pool) -> None:
    stats = peaks.with_peaks(pool)
    for key in total:
        if key in stats and key not in _SETTINGS:
            total[key] += stats[key]


def _add_device(total: dict[str, int], device: Device) -> None:
    total["outside"] += measuring.outside(device)
    pinned = _core.pinned_stats(device)
    for key, name in _PINNED.items():
        total[key] += pinned[name]


def _settings(pool: Pool) -> dict[str, int]:
    options = pool.options()
    return {
        "max_split_size": -1 if options["max_split"] is None else options["max_split"],
        "limit": -1 if pool.limit is None else pool.limit,
        "headroom": options["headroom"],
    }


def memory_allocated(device: Device | int | str | None = None) -> int:
    """Return the bytes in live blocks of a device; see :func:`memory_stats`."""
    return _sum(device, "allocated_bytes.all.current")


def max_memory_allocated(device: Device | int | str | None = None) -> int:
    """Return the highest :func:`memory_allocated` since the last reset of peaks."""
    return _sum(device, "allocated_bytes.all.peak")


def memory_reserved(device: Device | int | str | None = None) -> int:
    """Return the bytes that pools hold from a device: used, pending and cached."""
    return _sum(device, "reserved_bytes.all.current")


def max_memory_reserved(device: Device | int | str | None = None) -> int:
    """Return the highest :func:`memory_reserved` since the last reset of peaks."""
    return _sum(device, "reserved_bytes.all.peak")


def _sum(device: Device | int | str | None, key: str) -> int:
    _name, found = subjects(device)
    return sum(
        peaks.with_peaks(pool)[key] for one in found for pool in pools.open_pools(one)
    )


def mem_get_info(device: Device | int | str | None = None) -> tuple[int, int]:
    """Return free and total bytes of a device, as the device says.

    A device that is not open yet is not opened: all of its capacity is free.
    """
    found = device_names.find(device)
    if isinstance(found, Device):
        return found.memory_info()
    capacity = device_names.host_capacity()
    return capacity, capacity


# ---- resetting -----------------------------------------------------------------------


def reset_peak_memory_stats(device: Device | int | str | None = None) -> None:
    """Make the peaks of a device its current values; nothing else changes."""
    _name, found = subjects(device)
    for one in found:
        for pool in pools.open_pools(one):
            peaks.reset(pool)


def reset_accumulated_memory_stats(device: Device | int | str | None = None) -> None:
    """Set the cumulative counters of a device to 0; currents and peaks stay."""
    _name, found = subjects(device)
    for one in found:
        for pool in pools.open_pools(one):
            pool.reset_accumulated()
