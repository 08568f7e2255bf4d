"""Snapshots of memory in PyTorch's layout, and files of them.

The dict and the files have the keys that PyTorch's memory viewer reads (``segments``,
``device_traces``, ``allocator_settings``, ``external_annotations``) and beside them
``format``, ``format_version``, ``devices`` and ``history``. All of it is plain lists,
dicts, strings and numbers; addresses are ints below 2**53.

Times are microseconds of the device's clock.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import secrets
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO, Final

from . import pools, stats
from ._core import Device, Pool, stack_frames
from ._safe_pickle import load_plain_pickle
from .rendering import html_table, plural
from .sizes import format_size

__all__ = [
    "FORMAT",
    "FORMAT_VERSION",
    "Snapshot",
    "dump_snapshot",
    "load_snapshot",
    "memory_snapshot",
    "pool_snapshot",
]

FORMAT: Final = "gpumem-snapshot"
FORMAT_VERSION: Final = 1

_STATES: Final = {
    "free": "inactive",
    "used": "active_allocated",
    "pending": "active_pending_free",
}
_PICKLE_PROTOCOL: Final = 4  # the newest that PyTorch's viewer reads


class Snapshot(dict[str, Any]):
    """A dict in PyTorch's layout; prints in one line, as a table in notebooks."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return a plain dict."""
        return dict(self)

    def __reduce__(self) -> tuple[type[Snapshot], tuple[dict[str, Any]]]:
        return Snapshot, (dict(self),)

    def __repr__(self) -> str:
        segments = self.get("segments", [])
        blocks = sum(len(segment["blocks"]) for segment in segments)
        events = sum(len(trace) for trace in self.get("device_traces", []))
        total = sum(segment["total_size"] for segment in segments)
        used = sum(segment["allocated_size"] for segment in segments)
        return (
            f"<Snapshot: {plural(len(segments), 'segment')} of {format_size(total)}, "
            f"{format_size(used)} used in {plural(blocks, 'block')}, "
            f"{plural(events, 'event')}>"
        )

    def _repr_html_(self) -> str:
        rows = [
            (
                f"{segment['address']:#x}",
                str(segment["stream"]),
                segment["segment_type"],
                format_size(segment["total_size"]),
                format_size(segment["allocated_size"]),
                str(len(segment["blocks"])),
            )
            for segment in self.get("segments", [])[:100]
        ]
        header = ("segment", "stream", "type", "size", "used", "blocks")
        return html_table(repr(self).strip("<>"), rows, header=header)


# ---- making --------------------------------------------------------------------------


def memory_snapshot(device: Device | int | str | None = None) -> Snapshot:
    """Return the whole state of the pools of a device, and their histories.

    Parameters
    ----------
    device
        A device, an index, a name, ``None`` (the current device), or ``"all"``.

    Returns
    -------
    Snapshot
        A dict. ``segments`` lists each run of mapped pages, or whole segment, with its
        ``blocks`` (address, size, state); ``device_traces`` has the events of each
        device, oldest first; ``history`` says for each device how many events were
        dropped (``dropped``, ``overflow``) and how many are kept (``limit``). The
        place in these lists is the number of the device in ``devices``.
    """
    _name, found = stats.subjects(device)
    return _snapshot([(one, pools.open_pools(one)) for one in found])


def pool_snapshot(pool: Pool) -> Snapshot:
    """Return the same of one pool; behind ``Pool.snapshot``."""
    return _snapshot([(pool.device, [pool])])


def _snapshot(subjects: list[tuple[Device, list[Pool]]]) -> Snapshot:
    segments: list[dict[str, Any]] = []
    traces: list[list[dict[str, Any]]] = []
    history: list[dict[str, Any]] = []
    settings: dict[str, Any] = {}
    for number, (device, members) in enumerate(subjects):
        found = [s for pool in members for s in _segments(pool, number)]
        segments += sorted(found, key=lambda segment: segment["address"])
        trace, facts = _trace(members)
        traces.append(trace)
        history.append({"device": number, **facts})
        settings |= {f"{device.name}.{pool.name}.{pool.id}": pool for pool in members}
    return Snapshot(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        segments=segments,
        device_traces=traces,
        allocator_settings=_settings(settings),
        external_annotations=[],
        devices=[_device_facts(*subject) for subject in subjects],
        history=history,
    )


def _device_facts(device: Device, members: list[Pool]) -> dict[str, Any]:
    free, total = device.memory_info()
    return {
        "name": device.name,
        "free": free,
        "total": total,
        "page_size": device.page_size,
        "pools": [{"id": pool.id, "name": pool.name} for pool in members],
        "unplaced": sum(pool.view()[1] for pool in members),
    }


def _settings(members: dict[str, Pool]) -> dict[str, Any]:
    """PyTorch's keys for the first pool, and all options of each pool."""
    every = {name: pool.options() for name, pool in members.items()}
    first = next(iter(every.values()), {})
    split = first.get("max_split")
    return {
        "max_split_size": -1 if split is None else split,
        "garbage_collection_threshold": 0.0,
        "expandable_segments": bool(first.get("paging", False)),
        "pools": every,
    }


def _segments(pool: Pool, number: int) -> Iterable[dict[str, Any]]:
    names = {b.ptr: b.name for b in pool.live_buffers() if b.name is not None}
    found, _unplaced = pool.view()
    for segment in found:
        address, size, stream, stable, small, paged, used, requested, active = segment[
            :9
        ]
        yield {
            "device": number,
            "address": address,
            "total_size": size,
            "allocated_size": used,
            "active_size": active,
            "requested_size": requested,
            "stream": stream,
            "segment_type": "small" if small else "large",
            "segment_pool_id": (0, pool.id),
            "is_expandable": bool(paged),
            "is_stable": bool(stable),
            "frames": [],
            "blocks": [_block(block, names) for block in segment[9]],
        }


def _block(block: tuple[Any, ...], names: dict[int, str]) -> dict[str, Any]:
    address, size, requested, state, context = block
    entry = {
        "address": address,
        "size": size,
        "requested_size": requested,
        "state": _STATES[state],
        "frames": _frames(context),
    }
    if address in names:
        entry["name"] = names[address]
    return entry


def _frames(context: int) -> list[dict[str, Any]]:
    if not context:
        return []
    return [
        {"filename": file, "line": line, "name": function}
        for file, line, function in stack_frames(context)
    ]


def _trace(members: list[Pool]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    entries: list[tuple[int, dict[str, Any]]] = []
    dropped, limit = 0, 0
    for pool in members:
        events, lost, most = pool.history()
        entries += [(event[1], _event(event)) for event in events]
        dropped += lost
        limit += most
    if len(members) > 1:
        entries.sort(key=lambda entry: entry[0])
    facts = {"limit": limit, "dropped": dropped, "overflow": dropped > 0}
    return [entry for _time, entry in entries], facts


def _event(event: tuple[Any, ...]) -> dict[str, Any]:
    action, time_ns, address, size, stream, context = event
    return {
        "action": action,
        "device_free" if action == "oom" else "addr": address,
        "size": size,
        "stream": stream,
        "time_us": time_ns // 1000,
        "frames": _frames(context),
    }


# ---- files: writing ------------------------------------------------------------------


def dump_snapshot(
    path: str | os.PathLike[str], *, device: Device | int | str | None = None
) -> None:
    """Write :func:`memory_snapshot` to a file that PyTorch's memory viewer opens.

    The file appears whole or not at all.

    Parameters
    ----------
    path
        Ends in ``.pickle`` (protocol 4) or ``.json``.
    device
        As in :func:`memory_snapshot`.

    Raises
    ------
    ValueError
        For another ending.
    OSError
        When the file cannot be written; an older file of that name is untouched.
    """
    name = os.fspath(path)
    writers: dict[str, Callable[[dict[str, Any], BinaryIO], None]] = {
        ".pickle": _write_pickle,
        ".json": _write_json,
    }
    writer = writers.get(os.path.splitext(name)[1])
    if writer is None:
        raise ValueError(
            f"a snapshot's name must end in .pickle or .json, not {name!r}"
        )
    content = memory_snapshot(device).to_dict()
    _write_whole(name, lambda file: writer(content, file))


def _write_pickle(content: dict[str, Any], file: BinaryIO) -> None:
    pickle.dump(content, file, protocol=_PICKLE_PROTOCOL)


def _write_json(content: dict[str, Any], file: BinaryIO) -> None:
    file.write(json.dumps(content, allow_nan=False, separators=(",", ":")).encode())


def _write_whole(path: str, write: Callable[[BinaryIO], None]) -> None:
    """Through a file beside it that takes its name once everything is on disk."""
    draft = f"{path}.{os.getpid()}.{secrets.token_hex(4)}.part"
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with open(descriptor, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


# ---- files: reading ------------------------------------------------------------------


def load_snapshot(path: str | os.PathLike[str]) -> Snapshot:
    """Return the snapshot in a file of ours or of PyTorch, pickle or JSON.

    The content decides which, not the name. A pickle is opened by a reader that can
    build nothing but plain containers, strings and numbers.

    Raises
    ------
    ValueError
        When the file holds no snapshot, or one of a later format version.
    OSError
        When it cannot be read.
    """
    with open(path, "rb") as file:
        data = file.read()
    try:
        content = json.loads(data) if data[:1] in b"{[ \n" else load_plain_pickle(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{os.fspath(path)} holds no snapshot: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("segments"), list):
        raise ValueError(f"{os.fspath(path)} holds no snapshot: there are no segments")
    version = content.get("format_version", FORMAT_VERSION)
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise ValueError(
            f"{os.fspath(path)} has format version {version!r}; this gpumem reads up "
            f"to {FORMAT_VERSION}: open it with a later one"
        )
    return Snapshot(content)
