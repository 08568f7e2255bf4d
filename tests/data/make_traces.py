"""Writes the small traces beside it: ``python tests/data/make_traces.py [FOLDER]``.

They are made up, the same on every run: a training loop with marked iterations, a
decoder whose cache grows, and three streams at once; and one program in every format
that ``gpumem replay`` reads. test_traces.py compares the files with what this writes.
"""

from __future__ import annotations

import gzip
import json
import pickle
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Event = tuple[str, int, int, int]  # "a", id, bytes, stream; "f", id, 0, 0; "i", 0, 0, 0

MIB = 1 << 20


def training() -> Iterator[Event]:
    """Six equal steps: parameters stay, activations go newest first."""
    ids = iter(range(1 << 30))
    layers = [(64 << 10) * (1 + layer % 3) + 72 * layer for layer in range(12)]
    for size in layers:
        for copy in range(3):  # weights and two optimizer states
            yield "a", next(ids), size * (1 if copy else 2), 0
    for _step in range(6):
        yield "i", 0, 0, 0
        kept: list[int] = []
        for size in layers:
            scratch = next(ids)
            yield "a", scratch, size * 5, 0
            kept.append(next(ids))
            yield "a", kept[-1], size * 16, 0
            yield "f", scratch, 0, 0
        for place, key in enumerate(reversed(kept)):
            gradient = next(ids)
            yield "a", gradient, layers[-1 - place], 0
            yield "f", key, 0, 0
            yield "f", gradient, 0, 0


def decoding() -> Iterator[Event]:
    """Five requests; every token makes a longer cache and drops the old one."""
    draw = random.Random(0)
    ids = iter(range(1 << 30))
    for _request in range(5):
        caches: dict[int, int] = {}
        length = draw.randint(16, 200)
        for _token in range(draw.randint(8, 24)):
            for layer in range(4):
                new = next(ids)
                yield "a", new, length * 2048, 0
                if layer in caches:
                    yield "f", caches[layer], 0, 0
                caches[layer] = new
                work = next(ids)
                yield "a", work, draw.randint(1, 40) * 1000, 0
                yield "f", work, 0, 0
            length += 1
        for key in caches.values():
            yield "f", key, 0, 0


def streams() -> Iterator[Event]:
    """Three streams with sizes of their own, as a stack each, in turns."""
    draw = random.Random(1)
    ids = iter(range(1 << 30))
    stacks: list[list[int]] = [[], [], []]
    for _round in range(400):
        stream = draw.randrange(3)
        stack = stacks[stream]
        if stack and draw.random() < 0.5:
            yield "f", stack.pop(), 0, 0
        else:
            stack.append(next(ids))
            yield "a", stack[-1], draw.randint(1, 64) * 4096 * (stream + 1), stream
    for stack in stacks:
        for key in reversed(stack):
            yield "f", key, 0, 0


def as_text(events: list[Event]) -> bytes:
    """Lines of our own format."""
    lines = []
    for kind, key, size, stream in events:
        rest = {"a": f" {key} {size} {stream}", "f": f" {key}", "i": ""}
        lines.append(kind + rest[kind])
    return ("\n".join(lines) + "\n").encode()


def as_csv(events: list[Event]) -> bytes:
    """Rows of time, operation, id, size and stream."""
    places = {key: (size, stream) for kind, key, size, stream in events if kind == "a"}
    lines = ["t_us,op,id,size,stream"]
    for time, (kind, key, _size, _stream) in enumerate(events):
        size, stream = places[key]
        lines.append(f"{time},{kind},{key},{size},{stream}")
    return ("\n".join(lines) + "\n").encode()


def addresses(events: list[Event]) -> list[int]:
    """An address for each event: the lowest place where its block fits."""
    live: dict[int, tuple[int, int]] = {}
    found = []
    for kind, key, size, _stream in events:
        if kind == "f":
            found.append(live.pop(key)[0])
            continue
        place = MIB
        for start, length in sorted(live.values()):
            if place + size <= start:
                break
            place = start + (length + 511) // 512 * 512
        live[key] = (place, size)
        found.append(place)
    return found


def as_rmm(events: list[Event]) -> bytes:
    """Rows of RMM's log."""
    places = {key: (size, stream) for kind, key, size, stream in events if kind == "a"}
    lines = ["Thread,Time,Action,Pointer,Size,Stream"]
    for time, ((kind, key, _size, _stream), address) in enumerate(
        zip(events, addresses(events), strict=True)
    ):
        size, stream = places[key]
        handle = hex(0x1000 * stream) if stream else "0x0"
        action = "allocate" if kind == "a" else "free"
        lines.append(f"1,00:00:00.{time:06},{action},{address:#x},{size},{handle}")
    return ("\n".join(lines) + "\n").encode()


def as_snapshot(events: list[Event]) -> dict[str, Any]:
    """A snapshot taken at the end, when everything was freed."""
    places = {key: (size, stream) for kind, key, size, stream in events if kind == "a"}
    trace = []
    for time, ((kind, key, _size, _stream), address) in enumerate(
        zip(events, addresses(events), strict=True)
    ):
        size, stream = places[key]
        actions = ["alloc"] if kind == "a" else ["free_requested", "free_completed"]
        for action in actions:
            entry = {"action": action, "addr": address, "size": size}
            trace.append({**entry, "stream": 0x1000 * stream, "time_us": time})
    return {"segments": [], "device_traces": [trace]}


def files() -> dict[str, bytes]:
    """Name to content, before compression."""
    several = list(streams())
    snapshot = as_snapshot(several)
    return {
        "training.txt.gz": as_text(list(training())),
        "decoding.txt.gz": as_text(list(decoding())),
        "streams.txt.gz": as_text(several),
        "streams.csv.gz": as_csv(several),
        "streams.rmm.csv.gz": as_rmm(several),
        "streams.pickle.gz": pickle.dumps(snapshot, protocol=4),
        "streams.json.gz": json.dumps(snapshot, separators=(",", ":")).encode(),
    }


def main() -> None:
    """Write the files."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for name, content in files().items():
        (folder / name).write_bytes(gzip.compress(content, 9, mtime=0))


if __name__ == "__main__":
    main()
