"""``gpumem snapshot FILE``: what a snapshot file holds, ours or PyTorch's."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from typing import Any, Final

from .sizes import format_size
from .snapshot import load_snapshot

NAME: Final = "snapshot"
HELP: Final = "say what a memory snapshot file holds"


def describe(content: dict[str, Any]) -> dict[str, Any]:
    """Return the sums of a snapshot; sizes in bytes.

    Parameters
    ----------
    content
        In PyTorch's layout: ``segments`` with blocks, ``device_traces``.
    """
    segments = content.get("segments", [])
    blocks = [block for segment in segments for block in segment["blocks"]]
    free = [b["size"] for b in blocks if b["state"] == "inactive"]
    holders: Counter[str] = Counter()
    for block in blocks:
        if block["state"] != "inactive":
            frames = block.get("frames") or []
            where = frames[0] if frames else None
            key = f"{where['filename']}:{where['line']}" if where else "unknown"
            holders[key] += block.get("requested_size", block["size"])
    reserved = sum(segment["total_size"] for segment in segments)
    allocated = sum(segment["allocated_size"] for segment in segments)
    streams: Counter[str] = Counter()
    for segment in segments:
        streams[str(segment.get("stream", 0))] += segment["total_size"]
    return {
        "reserved": reserved,
        "allocated": allocated,
        "active": sum(segment["active_size"] for segment in segments),
        "requested": sum(segment.get("requested_size", 0) for segment in segments),
        "cached": sum(free),
        "largest_free": max(free, default=0),
        "fragmentation": 1 - max(free) / sum(free) if sum(free) else 0.0,
        "segments": len(segments),
        "blocks": len(blocks),
        "events": sum(len(trace) for trace in content.get("device_traces", [])),
        "reserved_by_stream": dict(streams),
        "holders": dict(holders.most_common(5)),
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("file", metavar="FILE", help="a .pickle or .json snapshot")
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit status."""
    try:
        facts = describe(load_snapshot(args.file))
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        print(f"gpumem snapshot: {args.file}: {reason}", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps({"version": 1, **facts}))
        return 0
    for key in ("reserved", "allocated", "requested", "cached", "largest_free"):
        print(f"{key.replace('_', ' '):14} {format_size(facts[key])}")
    print(
        f"{'fragmentation':14} {facts['fragmentation']:.1%} of the free memory is not"
    )
    print(f"{'':14} in the largest free block")
    print(f"{'segments':14} {facts['segments']}, {facts['blocks']} blocks")
    print(f"{'events':14} {facts['events']}")
    for where, size in facts["holders"].items():
        print(f"held by {where}: {format_size(size)}")
    return 0
