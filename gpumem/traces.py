"""Recorded allocation traces, read from the formats that people have.

====================  ===============================================================
text                  ``a <id> <bytes> <stream>``, ``f <id>``, ``i``, one a line
csv                   header ``t_us,op,id,size,stream``, op ``a`` or ``f``
RMM log               header ``Thread,Time,Action,Pointer,Size,Stream``
PyTorch snapshot      pickle or JSON with ``device_traces``; gpumem's own are the same
====================  ===============================================================

Each may be compressed by gzip. The content decides, not the file's name. A pickle is
opened by a reader that builds nothing but plain data.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from ._safe_pickle import load_plain_pickle

__all__ = ["ALLOC", "FREE", "ITERATION", "Trace", "TraceError", "read_trace"]

FREE: Final = 0
ALLOC: Final = 1
ITERATION: Final = 2

_CSV_HEADER: Final = "t_us,op,id,size,stream"
_RMM_HEADER: Final = "Thread,Time,Action,Pointer,Size,Stream"
_PACKING_HEADER: Final = "id,lower,upper,size"
_GZIP: Final = b"\x1f\x8b"
_PICKLE: Final = b"\x80"
_MOST_STREAMS: Final = 1024  # that one replay can make
_LARGEST: Final = 1 << 60  # bytes; no pool looks at more


class TraceError(ValueError):
    """A file is no trace, or a broken one; one line says which and why."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A program's allocations and frees, in order.

    Attributes
    ----------
    name
        The file's name without its folder.
    format
        ``"text"``, ``"csv"``, ``"rmm"`` or ``"snapshot"``.
    operations
        Rows of four int64: kind (``FREE``, ``ALLOC``, ``ITERATION``), id, bytes,
        stream. Bytes and stream are 0 for what is no allocation; stream 0 is the
        device's default one.
    ids
        Ids are 0 to ``ids - 1``, each allocated once.
    events
        Allocations and frees.
    skipped
        Frees of blocks that the trace does not know, left out.
    """

    name: str
    format: str
    operations: array[int]
    ids: int
    events: int
    skipped: int


class _Builder:
    """Collects operations; gives blocks and streams small numbers."""

    def __init__(self) -> None:
        self.rows: array[int] = array("q")
        self.live: dict[object, int] = {}  # -1: a block of no bytes, not replayed
        self.streams: dict[object, int] = {0: 0}
        self.ids = 0
        self.events = 0
        self.skipped = 0

    def alloc(self, key: object, size: int, stream: object) -> None:
        if not 0 <= size <= _LARGEST:
            raise TraceError(f"block {key} has {size} bytes")
        if key in self.live:
            raise TraceError(f"block {key} is allocated twice")
        if size == 0:
            self.live[key] = -1
            return
        number = self.streams.get(stream)
        if number is None:
            number = len(self.streams)
            if number >= _MOST_STREAMS:
                raise TraceError(f"more than {_MOST_STREAMS} streams")
            self.streams[stream] = number
        self.live[key] = self.ids
        self.rows.extend((ALLOC, self.ids, size, number))
        self.ids += 1
        self.events += 1

    def free(self, key: object) -> None:
        number = self.live.pop(key, None)
        if number is None:
            self.skipped += 1
        elif number >= 0:
            self.rows.extend((FREE, number, 0, 0))
            self.events += 1

    def iteration(self) -> None:
        self.rows.extend((ITERATION, 0, 0, 0))

    def build(self, name: str, kind: str) -> Trace:
        if self.ids == 0:
            raise TraceError("it holds no allocation")
        return Trace(name, kind, self.rows, self.ids, self.events, self.skipped)


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Return the trace in a file, of whichever format it is.

    Parameters
    ----------
    path
        A text trace, csv, RMM log, PyTorch or gpumem snapshot, plain or gzip.

    Raises
    ------
    TraceError
        The content is none of these, or broken.
    OSError
        The file cannot be read.
    """
    with open(path, "rb") as file:
        data = file.read()
    builder = _Builder()
    try:
        if data.startswith(_GZIP):
            data = gzip.decompress(data)
        kind = _read(data, builder)
        return builder.build(os.path.basename(os.fspath(path)), kind)
    except TraceError:
        raise
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"broken gzip data: {error}") from error
    except KeyError as error:
        raise TraceError(f"an entry has no {error}") from error
    except (ValueError, TypeError, AttributeError, IndexError) as error:
        raise TraceError(" ".join(str(error).split())) from error
    except (MemoryError, RecursionError) as error:
        raise TraceError(f"too large to read: {type(error).__name__}") from error


def _read(data: bytes, builder: _Builder) -> str:
    """Read what the content is; returns the format's name."""
    if data.startswith(_PICKLE):
        _read_snapshot(load_plain_pickle(data), builder)
        return "snapshot"
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise TraceError("it is neither text, nor gzip, nor a pickle") from None
    if text.lstrip()[:1] in ("{", "["):
        _read_snapshot(json.loads(text), builder)
        return "snapshot"
    lines = text.splitlines()
    header = lines[0].strip() if lines else ""
    if header == _CSV_HEADER:
        _read_rows(lines, 5, _csv_row, builder)
        return "csv"
    if header == _RMM_HEADER:
        _read_rows(lines, 6, _RmmLog().row, builder)
        return "rmm"
    if header == _PACKING_HEADER:
        raise TraceError(
            "an offline packing instance (id,lower,upper,size) says when blocks live, "
            "not in which order they come and go: nothing to replay"
        )
    _read_text(lines, builder)
    return "text"


# ---- lines ---------------------------------------------------------------------------


def _read_text(lines: list[str], builder: _Builder) -> None:
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            if words[0] == "a" and len(words) == 4:
                builder.alloc(int(words[1]), int(words[2]), int(words[3]))
            elif words[0] == "f" and len(words) == 2:
                builder.free(int(words[1]))
            elif words == ["i"]:
                builder.iteration()
            else:
                raise TraceError("not 'a <id> <bytes> <stream>', 'f <id>' or 'i'")
        except ValueError as error:
            raise TraceError(f"line {number}: {error}") from error


def _read_rows(
    lines: list[str],
    width: int,
    take: Callable[[list[str], _Builder], None],
    builder: _Builder,
) -> None:
    """Pass the cells of every line after the first to ``take``."""
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split(",")]
        try:
            if len(cells) != width:
                raise TraceError(f"{len(cells)} columns instead of {width}")
            take(cells, builder)
        except ValueError as error:
            raise TraceError(f"line {number}: {error}") from error


def _csv_row(cells: list[str], builder: _Builder) -> None:
    _time, action, key, size, stream = cells
    if action == "a":
        builder.alloc(int(key), int(size), int(stream))
    elif action == "f":
        builder.free(int(key))
    else:
        raise TraceError(f"op {action!r} is neither 'a' nor 'f'")


class _RmmLog:
    """Rows of RMM's log.

    RMM writes a free after the memory went, so another thread's allocation of the same
    address may stand before it: then the free counts as if it stood first.
    """

    def __init__(self) -> None:
        self.early: Counter[int] = Counter()  # frees done before their row, by address

    def row(self, cells: list[str], builder: _Builder) -> None:
        thread, _time, action, pointer, size, stream = cells
        if action == "allocate failure":
            return
        if action not in ("allocate", "free"):
            raise TraceError(f"action {action!r} is not one that RMM writes")
        address, nbytes = _address(pointer), int(size)
        if nbytes == 0:
            return  # RMM logs them, with an address of its own choice
        if action == "allocate":
            if address in builder.live:
                builder.free(address)
                self.early[address] += 1
            builder.alloc(address, nbytes, _rmm_stream(_address(stream), thread))
        elif self.early[address] > 0:
            self.early[address] -= 1
        else:
            builder.free(address)


def _address(text: str) -> int:
    return 0 if text == "(nil)" else int(text, 16)


def _rmm_stream(handle: int, thread: str) -> object:
    """CUDA's special handles: 1 is the legacy default stream, 2 one per thread."""
    if handle == 2:
        return (thread, handle)
    return 0 if handle == 1 else handle


# ---- PyTorch snapshots ---------------------------------------------------------------


def _read_snapshot(content: Any, builder: _Builder) -> None:
    """Read the history of the device that has most of it."""
    if not isinstance(content, dict) or "device_traces" not in content:
        raise TraceError("it is no memory snapshot: it has no 'device_traces'")
    traces = content["device_traces"]
    device = max(range(len(traces)), key=lambda i: len(traces[i]), default=-1)
    if device < 0 or not traces[device]:
        raise TraceError("the snapshot has no history of events")
    events = traces[device]
    actions = {event["action"] for event in events}
    # A history may be told to keep only one of the two.
    freed = "free_requested" if "free_requested" in actions else "free_completed"
    for address, size, stream in _live_before(content, device, events, freed):
        builder.alloc(address, size, stream)
    for event in events:
        action = event["action"]
        if action == "alloc":
            address = event["addr"]
            if address in builder.live:  # its free is not in the history
                builder.free(address)
            builder.alloc(address, event["size"], event.get("stream", 0))
        elif action == freed:
            builder.free(event["addr"])


def _live_before(
    content: dict[str, Any], device: int, events: list[dict[str, Any]], freed: str
) -> Iterator[tuple[int, int, int]]:
    """Yield address, size and stream of what was live when recording began.

    That is what the history frees before it allocates it, and what is live at the end
    and was never allocated there.
    """
    touched: set[int] = set()
    for event in events:
        action = event["action"]
        if action in ("alloc", freed):
            address = event["addr"]
            if action == freed and address not in touched:
                yield address, event["size"], event.get("stream", 0)
            touched.add(address)
    for segment in content.get("segments", ()):
        if segment.get("device", 0) != device:
            continue
        address = segment["address"]
        for block in segment["blocks"]:
            start = block.get("address", address)
            if block["state"] == "active_allocated" and start not in touched:
                size = block.get("requested_size", block["size"])
                yield start, size, segment.get("stream", 0)
            address = start + block["size"]
