"""``gpumem snapshot FILE``: what a snapshot file holds, ours or PyTorch's."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from .rendering import plural
from .sizes import format_size
from .snapshot import FORMAT, load_snapshot

__all__ = [
    "Group",
    "History",
    "Segment",
    "SizeClass",
    "SnapshotReport",
    "Stack",
    "describe",
]

NAME: Final = "snapshot"
HELP: Final = "say what a memory snapshot file holds"

_FRAMES: Final = 6  # of a stack, that are kept
_SHOWN_SEGMENTS: Final = 10
# Of PyTorch, innermost in every stack: where the stack was taken and the block made.
_MACHINERY: Final = (
    "torch::unwind::",
    "torch::CapturedTraceback::",
    "torch::cuda::(anonymous namespace)::gather",
    "c10::cuda::CUDACachingAllocator::",
    "at::detail::",
    "at::TensorBase at::detail::",
)


@dataclass(frozen=True, slots=True)
class Segment:
    """One run of pages, or whole segment; sizes in bytes.

    Attributes
    ----------
    device, address, stream, segment_type
        Where it is and for what blocks: ``"small"`` or ``"large"``.
    size
        ``allocated + pending + free``.
    allocated, pending, free
        In live blocks, in freed ones that wait for a stream, in free ones.
    largest_free
        The largest free block.
    blocks
        How many, free ones included.
    """

    device: int
    address: int
    stream: int
    segment_type: str
    size: int
    allocated: int
    pending: int
    free: int
    largest_free: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Group:
    """The sums of some segments, as in `Segment`; ``name`` says of which."""

    name: str
    segments: int
    size: int
    allocated: int
    pending: int
    free: int
    largest_free: int


@dataclass(frozen=True, slots=True)
class SizeClass:
    """Blocks of ``low`` to ``high - 1`` bytes, a power of two apart."""

    low: int
    high: int
    used_blocks: int
    used_bytes: int
    free_blocks: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class Stack:
    """Live blocks that were allocated at one place.

    ``frames`` are ``"file:line function"``, innermost first, Python's where there are
    any; empty: nobody recorded the place.
    """

    size: int
    blocks: int
    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class History:
    """The recorded events.

    Attributes
    ----------
    events
        How many, over all devices.
    actions
        How many of each kind.
    dropped
        Events that the bounded history lost; ``None``: the file does not say.
    unknown_frees
        Frees of blocks whose allocation is not in the history: it began later, or
        lost its oldest events.
    span_us
        Microseconds from the first to the last event; 0 without times.
    """

    events: int
    actions: dict[str, int]
    dropped: int | None
    unknown_frees: int
    span_us: int


@dataclass(frozen=True, slots=True)
class SnapshotReport:
    """What a snapshot holds; sizes in bytes.

    Attributes
    ----------
    source
        ``"gpumem"`` or ``"PyTorch"``.
    reserved
        ``allocated + pending + cached``, in all segments.
    allocated, requested
        In live blocks, and what was asked for.
    pending, cached
        In freed blocks that wait for a stream, and in free ones.
    unplaced
        In pages without an address, besides ``reserved``.
    largest_free
        The largest free block.
    fragmentation
        The part of ``cached`` that is not in the largest free block, from 0 to 1.
    blocks
        How many, free ones included.
    segments
        Largest first.
    by_type, by_stream
        Sums of the segments of a type, and of a device's stream.
    size_classes
        Blocks by size, smallest first.
    stacks
        Where live blocks were allocated, most bytes first.
    history
        The events.
    """

    source: str
    reserved: int
    allocated: int
    requested: int
    pending: int
    cached: int
    unplaced: int
    largest_free: int
    fragmentation: float
    blocks: int
    segments: tuple[Segment, ...]
    by_type: tuple[Group, ...]
    by_stream: tuple[Group, ...]
    size_classes: tuple[SizeClass, ...]
    stacks: tuple[Stack, ...]
    history: History

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: what ``--json`` prints, less the file's name."""
        return {"version": 1, **asdict(self)}

    def __repr__(self) -> str:
        return (
            f"<SnapshotReport: {self.source}, {format_size(self.allocated)} of "
            f"{format_size(self.reserved)} in {plural(len(self.segments), 'segment')}>"
        )

    def __str__(self) -> str:
        return "\n".join(_lines(self))


# ---- summing -------------------------------------------------------------------------


def describe(content: dict[str, Any], *, stacks: int = 10) -> SnapshotReport:
    """Return what a snapshot holds.

    Parameters
    ----------
    content
        In PyTorch's layout: ``segments`` with ``blocks``, and ``device_traces``.
    stacks
        How many places of allocation to name.

    Raises
    ------
    KeyError, TypeError, ValueError, AttributeError
        For what is not in that layout.
    """
    raw = content["segments"]
    segments = sorted(map(_segment, raw), key=lambda s: (-s.size, s.address))
    blocks = [block for segment in raw for block in segment["blocks"]]
    cached = sum(segment.free for segment in segments)
    largest = max((segment.largest_free for segment in segments), default=0)
    return SnapshotReport(
        source="gpumem" if content.get("format") == FORMAT else "PyTorch",
        reserved=sum(segment.size for segment in segments),
        allocated=sum(segment.allocated for segment in segments),
        requested=sum(_requested(b) for b in blocks if _is_live(b)),
        pending=sum(segment.pending for segment in segments),
        cached=cached,
        unplaced=sum(d.get("unplaced", 0) for d in content.get("devices", ())),
        largest_free=largest,
        fragmentation=1 - largest / cached if cached else 0.0,
        blocks=len(blocks),
        segments=tuple(segments),
        by_type=_groups(segments, lambda s: s.segment_type),
        by_stream=_groups(segments, lambda s: f"device {s.device} stream {s.stream}"),
        size_classes=_size_classes(blocks),
        stacks=_stacks(blocks, stacks),
        history=_history(content),
    )


def _is_live(block: dict[str, Any]) -> bool:
    return bool(block["state"] == "active_allocated")


def _requested(block: dict[str, Any]) -> int:
    return int(block.get("requested_size", block["size"]))


def _segment(raw: dict[str, Any]) -> Segment:
    sizes: Counter[str] = Counter()
    largest = 0
    for block in raw["blocks"]:
        state, size = block["state"], block["size"]
        sizes[state] += size
        if state == "inactive":
            largest = max(largest, size)
    allocated, free = sizes.pop("active_allocated", 0), sizes.pop("inactive", 0)
    pending = sum(sizes.values())
    return Segment(
        device=raw.get("device", 0),
        address=raw["address"],
        stream=raw.get("stream", 0),
        segment_type=raw.get("segment_type", "unknown"),
        size=allocated + pending + free,
        allocated=allocated,
        pending=pending,
        free=free,
        largest_free=largest,
        blocks=len(raw["blocks"]),
    )


def _groups(
    segments: list[Segment], name: Callable[[Segment], str]
) -> tuple[Group, ...]:
    members: defaultdict[str, list[Segment]] = defaultdict(list)
    for segment in segments:
        members[name(segment)].append(segment)
    return tuple(
        Group(
            name=key,
            segments=len(found),
            size=sum(s.size for s in found),
            allocated=sum(s.allocated for s in found),
            pending=sum(s.pending for s in found),
            free=sum(s.free for s in found),
            largest_free=max(s.largest_free for s in found),
        )
        for key, found in sorted(members.items())
    )


def _size_classes(blocks: list[dict[str, Any]]) -> tuple[SizeClass, ...]:
    sums: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for block in blocks:
        size = int(block["size"])
        row = sums[max(size, 1).bit_length() - 1]
        place = 2 if block["state"] == "inactive" else 0
        row[place] += 1
        row[place + 1] += size
    return tuple(
        SizeClass(1 << power, 2 << power, *row) for power, row in sorted(sums.items())
    )


def _stacks(blocks: list[dict[str, Any]], most: int) -> tuple[Stack, ...]:
    sizes: Counter[tuple[str, ...]] = Counter()
    counts: Counter[tuple[str, ...]] = Counter()
    for block in blocks:
        if _is_live(block):
            frames = _place(block.get("frames") or ())
            sizes[frames] += _requested(block)
            counts[frames] += 1
    return tuple(
        Stack(size, counts[frames], frames) for frames, size in sizes.most_common(most)
    )


def _place(frames: Any) -> tuple[str, ...]:
    """The innermost frames; those of Python where there are any."""
    python = [frame for frame in frames if frame["filename"].endswith(".py")]
    chosen = python or [
        frame for frame in frames if not frame["name"].startswith(_MACHINERY)
    ]
    return tuple(
        f"{frame['filename'] or '??'}:{frame['line']} {frame['name']}"
        for frame in chosen[:_FRAMES]
    )


def _history(content: dict[str, Any]) -> History:
    actions: Counter[str] = Counter()
    unknown = 0
    times: list[int] = []
    for trace in content.get("device_traces", ()):
        known: set[int] = set()
        for event in trace:
            action = event["action"]
            actions[action] += 1
            if action == "alloc":
                known.add(event["addr"])
            elif action == "free_requested":
                unknown += event["addr"] not in known
                known.discard(event["addr"])
        times += [event["time_us"] for event in trace if "time_us" in event]
    facts = content.get("history")
    return History(
        events=sum(actions.values()),
        actions=dict(sorted(actions.items())),
        dropped=sum(f["dropped"] for f in facts) if facts is not None else None,
        unknown_frees=unknown,
        span_us=max(times) - min(times) if times else 0,
    )


# ---- the command ---------------------------------------------------------------------


def _lines(report: SnapshotReport) -> Iterator[str]:
    yield f"snapshot of {report.source}, {plural(report.blocks, 'block')}"
    for name in ("reserved", "allocated", "requested", "pending", "cached", "unplaced"):
        yield f"  {name:<14}{format_size(getattr(report, name)):>12}"
    yield f"  {'largest free':<14}{format_size(report.largest_free):>12}"
    yield (
        f"  {'fragmentation':<14}{report.fragmentation:>12.1%}  of cached is not in "
        "the largest free block"
    )
    yield ""
    yield f"{'segments':<28}{'count':>7}{'size':>12}{'used':>12}{'free':>12}"
    for group in (*report.by_type, *report.by_stream):
        yield (
            f"  {group.name:<26}{group.segments:>7,}{format_size(group.size):>12}"
            f"{format_size(group.allocated):>12}{format_size(group.free):>12}"
        )
    yield from _segment_lines(report.segments)
    yield ""
    yield f"{'blocks from':<28}{'used':>7}{'bytes':>12}{'free':>12}{'bytes':>12}"
    for row in report.size_classes:
        yield (
            f"  {format_size(row.low):<26}{row.used_blocks:>7,}"
            f"{format_size(row.used_bytes):>12}{row.free_blocks:>12,}"
            f"{format_size(row.free_bytes):>12}"
        )
    yield from _stack_lines(report.stacks)
    yield ""
    yield from _history_lines(report.history)


def _segment_lines(segments: tuple[Segment, ...]) -> Iterator[str]:
    for segment in segments[:_SHOWN_SEGMENTS]:
        yield (
            f"  {segment.address:#018x} {segment.segment_type:<7}{segment.blocks:>7,}"
            f"{format_size(segment.size):>12}{format_size(segment.allocated):>12}"
            f"{format_size(segment.free):>12}"
        )
    if len(segments) > _SHOWN_SEGMENTS:
        yield f"  and {plural(len(segments) - _SHOWN_SEGMENTS, 'smaller segment')}"


def _stack_lines(stacks: tuple[Stack, ...]) -> Iterator[str]:
    if stacks:
        yield ""
        yield "most memory was allocated at"
    for stack in stacks:
        yield f"  {format_size(stack.size)} in {plural(stack.blocks, 'block')}"
        for frame in stack.frames or ("an unrecorded place",):
            yield f"    {frame}"


def _history_lines(history: History) -> Iterator[str]:
    if not history.events:
        yield "no history of events"
        return
    yield f"{plural(history.events, 'event')} in {history.span_us / 1e6:.3f} s"
    for action, count in history.actions.items():
        yield f"  {action:<20}{count:>10,}"
    if history.dropped:
        yield f"  {plural(history.dropped, 'older event')} lost: the history was full"
    if history.unknown_frees:
        yield (
            f"  {plural(history.unknown_frees, 'free')} of blocks that are older than "
            "the history"
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("file", metavar="FILE", help="a snapshot, pickle or JSON")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--stacks",
        type=int,
        default=10,
        metavar="N",
        help="places of allocation to name (10)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit status."""
    if args.stacks < 0:
        print("gpumem snapshot: stacks must not be negative", file=sys.stderr)
        return 2
    try:
        report = describe(load_snapshot(args.file), stacks=args.stacks)
    except OSError as error:
        reason = error.strerror or str(error)
    except KeyError as error:
        reason = f"an entry has no {error}"
    except (ValueError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split()).removeprefix(f"{args.file} ")
    else:
        name = os.path.basename(args.file)
        if args.json:
            print(json.dumps({"version": 1, "file": name, **report.to_dict()}))
        else:
            print(f"{name}: {report}")
        return 0
    print(f"gpumem snapshot: {args.file}: {reason}", file=sys.stderr)
    return 1
