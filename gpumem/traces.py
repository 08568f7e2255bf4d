"""Recorded allocation traces, read from the formats that people have.

========================  =============================================================
text                      ``a <id> <bytes> <stream>``, ``f <id>``, ``i``, one a line
csv                       header ``t_us,op,id,size,stream``, op ``a`` or ``f``
RMM log                   header ``Thread,Time,Action,Pointer,Size,Stream``
PyTorch snapshot          pickle or JSON, with ``device_traces``
========================  =============================================================

Each may be compressed by gzip. The content decides, not the file's name.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from .snapshot import load_plain_pickle

__all__ = ["Trace", "TraceError", "read_trace"]

FREE: Final = 0
ALLOC: Final = 1
ITERATION: Final = 2

_CSV_HEADER: Final = "t_us,op,id,size,stream"
_RMM_HEADER: Final = "Thread,Time,Action,Pointer,Size,Stream"
_PACKING_HEADER: Final = "id,lower,upper,size"
_GZIP: Final = b"\x1f\x8b"
_MOST_STREAMS: Final = 1024


class TraceError(ValueError):
    """A file is no trace, or a broken one; the text says which and why."""


@dataclass(frozen=True, slots=True)
class Trace:
    """A program's allocations in order.

    Attributes
    ----------
    name
        The file's name without its folder.
    operations
        Rows of four int64: kind (0 free, 1 alloc, 2 iteration), id, bytes, stream.
    ids
        Ids are 0 to ``ids - 1``, each allocated once.
    events
        Allocations and frees.
    skipped
        Frees of blocks that the trace does not know, left out.
    """

    name: str
    operations: array[int]
    ids: int
    events: int
    skipped: int


class _Builder:
    """Collects operations; renames ids and streams to small numbers."""

    def __init__(self) -> None:
        self.rows: array[int] = array("q")
        self.live: dict[object, int] = {}
        self.streams: dict[object, int] = {0: 0}
        self.ids = 0
        self.events = 0
        self.skipped = 0

    def alloc(self, key: object, size: int, stream: object) -> None:
        if size < 0:
            raise TraceError(f"a block has a negative size: {size}")
        if key in self.live:
            raise TraceError(f"block {key} is allocated twice")
        if size == 0:
            return
        number = self.streams.setdefault(stream, len(self.streams))
        if number >= _MOST_STREAMS:
            raise TraceError(f"more than {_MOST_STREAMS} streams")
        self.live[key] = self.ids
        self.rows.extend((ALLOC, self.ids, size, number))
        self.ids += 1
        self.events += 1

    def free(self, key: object) -> None:
        number = self.live.pop(key, None)
        if number is None:
            self.skipped += 1
            return
        self.rows.extend((FREE, number, 0, 0))
        self.events += 1

    def iteration(self) -> None:
        self.rows.extend((ITERATION, 0, 0, 0))

    def build(self, name: str) -> Trace:
        if self.ids == 0:
            raise TraceError("it holds no allocation")
        return Trace(name, self.rows, self.ids, self.events, self.skipped)


def read_trace(path: str | os.PathLike[str]) -> Trace:
    """Return the trace in a file, of whichever format it is.

    Parameters
    ----------
    path
        A text trace, csv, RMM log or PyTorch snapshot, plain or gzip.

    Raises
    ------
    TraceError
        The content is none of these, or broken.
    OSError
        The file cannot be read.
    """
    with open(path, "rb") as file:
        data = file.read()
    if data.startswith(_GZIP):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError) as error:
            raise TraceError(f"broken gzip data: {error}") from None
    builder = _Builder()
    try:
        _read(data, builder)
    except TraceError:
        raise
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise TraceError(f"{type(error).__name__}: {error}") from None
    return builder.build(os.path.basename(os.fspath(path)))


def _read(data: bytes, builder: _Builder) -> None:
    if data[:1] == b"\x80":
        _read_snapshot(load_plain_pickle(data), builder)
        return
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise TraceError("it is neither text, gzip nor a pickle") from None
    if text[:1] in ("{", "["):
        _read_snapshot(json.loads(text), builder)
        return
    lines = text.splitlines()
    header = lines[0].strip() if lines else ""
    if header == _CSV_HEADER:
        _read_csv(lines, builder)
    elif header == _RMM_HEADER:
        _read_rmm(lines, builder)
    elif header.startswith(_PACKING_HEADER):
        raise TraceError(
            "an offline packing instance (id,lower,upper,size) has no order of events "
            "to replay"
        )
    else:
        _read_text(lines, builder)


def _read_text(lines: Iterable[str], builder: _Builder) -> None:
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if words[0] == "a" and len(words) in (3, 4):
            stream = int(words[3]) if len(words) == 4 else 0
            builder.alloc(int(words[1]), int(words[2]), stream)
        elif words[0] == "f" and len(words) == 2:
            builder.free(int(words[1]))
        elif words == ["i"]:
            builder.iteration()
        else:
            raise TraceError(
                f"line {number} is none of 'a <id> <bytes> <stream>', 'f <id>', 'i'"
            )


def _read_csv(lines: Iterable[str], builder: _Builder) -> None:
    for row in csv.DictReader(lines):
        if row["op"] == "a":
            builder.alloc(int(row["id"]), int(row["size"]), int(row["stream"]))
        elif row["op"] == "f":
            builder.free(int(row["id"]))
        else:
            raise TraceError(f"op {row['op']!r} is neither 'a' nor 'f'")


def _read_rmm(lines: Iterable[str], builder: _Builder) -> None:
    for row in csv.DictReader(lines):
        action = row["Action"].strip()
        if action == "allocate":
            stream = int(row["Stream"], 16)
            builder.alloc(row["Pointer"], int(row["Size"]), stream)
        elif action == "free":
            builder.free(row["Pointer"])
        elif action != "allocate failure":
            raise TraceError(f"action {action!r} is not one that RMM writes")


# ---- PyTorch snapshots ------------------------------------------------------------


def _read_snapshot(content: Any, builder: _Builder) -> None:
    if not isinstance(content, dict) or "device_traces" not in content:
        raise TraceError("it is no memory snapshot: it has no 'device_traces'")
    traces = content["device_traces"]
    device = max(range(len(traces)), key=lambda i: len(traces[i]), default=None)
    if device is None or not traces[device]:
        raise TraceError("the snapshot has no history of events")
    events = traces[device]
    for address, size, stream in _live_before(content, device, events):
        builder.alloc(address, size, stream)
    for event in events:
        if event["action"] == "alloc":
            builder.alloc(event["addr"], event["size"], event.get("stream", 0))
        elif event["action"] == "free_requested":
            builder.free(event["addr"])


def _live_before(
    content: dict[str, Any], device: int, events: list[dict[str, Any]]
) -> Iterator[tuple[int, int, int]]:
    """Yield address, size and stream of what was live when recording began.

    That is what the history frees before it allocates it, and what is live at the end
    and was never allocated there.
    """
    touched: set[int] = set()
    for event in events:
        if event["action"] not in ("alloc", "free_requested"):
            continue
        address: int = event["addr"]
        if event["action"] == "free_requested" and address not in touched:
            yield address, event["size"], event.get("stream", 0)
        touched.add(address)
    for segment in content.get("segments", ()):
        if segment.get("device", 0) != device:
            continue
        address = segment["address"]
        for block in segment["blocks"]:
            start: int = block.get("address", address)
            if block["state"] == "active_allocated" and start not in touched:
                size = block.get("requested_size", block["size"])
                yield start, size, segment.get("stream", 0)
            address += block["size"]
