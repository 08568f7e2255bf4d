"""``gpumem replay TRACE...``: how the allocator copes with a recorded program.

Every trace runs on a fresh sim device, which has addresses and no memory, several times
in a row on the same pool: the first pass shows what growing costs, the last one whether
a warm pool still calls the device.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from . import _core
from ._core import GpumemError, Pool
from .sizes import format_size, parse_count, parse_size
from .traces import Trace, TraceError, read_trace

__all__ = ["POLICIES", "ReplayRow", "replay_trace"]

NAME: Final = "replay"
HELP: Final = "replay recorded allocations on a device without memory"

POLICIES: Final = ("gpumem",)

_CrossStream: TypeAlias = Literal["done", "wait", "never"]

_MOST_PASSES: Final = 1_000_000
_MOST_LAG: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """What one replay measured; sizes in bytes.

    Attributes
    ----------
    trace, policy, steal, lag
        What was replayed (the file's name), and how.
    events
        Allocations and frees of the trace.
    peak_requested
        The most that the trace has alive at a time, as it asked for it.
    peak_reserved
        The most that was taken from the device, over all passes.
    waste
        ``peak_reserved / peak_requested - 1``; ``None`` when memory ran out.
    memory_calls
        Calls of the device for memory, addresses or waiting, as the device counts
        them: ``"first"`` and last (``"warm"``) pass.
    address_space
        Addresses that ever had memory, up to the highest in each reserved range.
    host_waits
        Waits of the host for the device, over all passes.
    ns_per_pair
        Processor time for one allocation and its free, less the bare loop; the median
        of the passes after the first. The only field that differs between runs.
    skipped
        Frees of blocks that the trace does not know.
    min_capacity
        The smallest capacity in which all passes complete; ``None``: not asked for.
    failed_at
        The operation that ran out of memory, or ``None``.
    """

    trace: str
    policy: str
    steal: str | float
    lag: int
    events: int
    peak_requested: int
    peak_reserved: int
    waste: float | None
    memory_calls: dict[str, int]
    address_space: int
    host_waits: int
    ns_per_pair: float
    skipped: int = 0
    min_capacity: int | None = None
    failed_at: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields; those of rare cases only where they apply."""
        content = asdict(self)
        if not self.skipped:
            del content["skipped"]
        for rare in ("min_capacity", "failed_at"):
            if content[rare] is None:
                del content[rare]
        return content

    def __repr__(self) -> str:
        waste = "out of memory" if self.waste is None else f"waste {self.waste:.2%}"
        return f"<ReplayRow: {self.trace} by {self.policy}, {waste}>"


@dataclass(frozen=True, slots=True)
class _Setting:
    """How a trace is replayed."""

    capacity: int | None
    lag: int
    steal: str | float
    passes: int
    aliasing: bool = True
    cross_stream: _CrossStream = "done"

    def open_pool(self, device: _core.Device) -> Pool:
        """The pool that serves the trace."""
        return Pool(device, steal=self.steal, cross_stream=self.cross_stream)


def replay_trace(
    trace: Trace,
    *,
    capacity: int | None = None,
    lag: int = 0,
    steal: str | float = 0.05,
    passes: int = 4,
    aliasing: bool = True,
    cross_stream: _CrossStream = "done",
    find_capacity: bool = False,
) -> ReplayRow:
    """Return what replaying a trace on a fresh sim device shows.

    Parameters
    ----------
    trace
        From `gpumem.traces.read_trace`.
    capacity
        Bytes of the device; ``None``: unlimited.
    lag
        Operations by which the device runs behind the program.
    steal
        The pool's option.
    passes
        How often the trace runs on the same pool, 1 or more. What is alive at the end
        of a pass is freed before the next.
    aliasing
        May the device map one page at two places at once?
    cross_stream
        The pool's option.
    find_capacity
        Also find the smallest capacity in which all passes complete, by bisection in
        pages; independent of ``capacity``.

    Raises
    ------
    ValueError
        The pool refuses an option.
    GpumemError
        The pool failed in another way than by running out of memory.
    """
    setting = _Setting(capacity, lag, steal, passes, aliasing, cross_stream)
    bare = _bare(trace)
    requested = bare[0]["peak_requested"]
    rows = _run(trace, setting)
    reserved = max(row["peak_reserved"] for row in rows)
    failed = rows[-1]["failed_at"]
    least = None
    if find_capacity:
        least = _min_capacity(trace, setting, requested, reserved)
    return ReplayRow(
        trace=trace.name,
        policy="gpumem",
        steal=steal,
        lag=lag,
        events=trace.events,
        peak_requested=requested,
        peak_reserved=reserved,
        waste=reserved / requested - 1 if failed < 0 else None,
        memory_calls={
            "first": rows[0]["memory_calls"],
            "warm": rows[-1]["memory_calls"],
        },
        address_space=rows[-1]["touched"],
        host_waits=sum(row["host_waits"] for row in rows),
        ns_per_pair=max(0.0, _ns_per_pair(rows[1:] or rows) - _ns_per_pair(bare)),
        skipped=trace.skipped,
        min_capacity=least,
        failed_at=None if failed < 0 else failed,
    )


def _run(trace: Trace, setting: _Setting) -> list[dict[str, int]]:
    """One dict for each pass that began."""
    device = _core.open_sim(
        0, setting.capacity, lag=setting.lag, aliasing=setting.aliasing
    )
    with setting.open_pool(device) as pool:
        return _core.replay(
            device, pool, trace.operations, trace.ids, passes=setting.passes
        )


def _bare(trace: Trace) -> list[dict[str, int]]:
    """The passes of a loop that allocates nothing."""
    device = _core.open_sim(0, None)
    return _core.replay(device, None, trace.operations, trace.ids, passes=3)


def _ns_per_pair(rows: list[dict[str, int]]) -> float:
    return statistics.median(row["cpu_ns"] / max(row["pairs"], 1) for row in rows)


def _min_capacity(
    trace: Trace, setting: _Setting, requested: int, reserved: int
) -> int:
    """The smallest number of pages, in bytes, in which all passes complete."""
    page = _core.open_sim(0, None).page_size

    def completes(pages: int) -> bool:
        tried = replace(setting, capacity=pages * page)
        return _run(trace, tried)[-1]["failed_at"] < 0

    low = -(-requested // page) - 1  # too few: the live blocks alone need more
    high = max(-(-reserved // page), low + 1)
    while not completes(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if completes(middle):
            high = middle
        else:
            low = middle
    return high * page


# ---- the command ---------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="files to replay")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--policy", choices=POLICIES, default="gpumem", help="the allocator (gpumem)"
    )
    parser.add_argument(
        "--capacity", metavar="SIZE", help="memory of the device (unlimited)"
    )
    parser.add_argument(
        "--find-capacity",
        action="store_true",
        help="also find the smallest capacity that completes",
    )
    parser.add_argument(
        "--steal", default="0.05", metavar="WHEN", help="the pool's option (0.05)"
    )
    parser.add_argument(
        "--no-aliasing",
        dest="aliasing",
        action="store_false",
        help="the device maps a page at one place at a time",
    )
    parser.add_argument(
        "--cross-stream",
        choices=("done", "wait", "never"),
        default="done",
        help="the pool's option (done)",
    )
    parser.add_argument(
        "--lag",
        default="0",
        metavar="N",
        help="operations that the device runs behind (0)",
    )
    parser.add_argument(
        "--passes", default="4", metavar="N", help="runs on the same pool (4)"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit status."""
    try:
        setting = _setting(args)
        setting.open_pool(_core.open_sim(0, None)).close()
    except (ValueError, TypeError) as error:
        print(f"gpumem replay: {error}", file=sys.stderr)
        return 2
    status = 0
    rows = []
    for path in args.traces:
        row = _replay_file(path, setting, args.find_capacity)
        if row is None or row.failed_at is not None:
            status = 1
        if row is None:
            continue
        rows.append(row.to_dict())
        if not args.json:
            print(_as_text(row), flush=True)
    if args.json:
        print(json.dumps({"version": 1, "rows": rows}))
    return status


def _setting(args: argparse.Namespace) -> _Setting:
    capacity = None if args.capacity is None else parse_size(args.capacity, "capacity")
    if capacity == 0:
        raise ValueError("capacity must be at least one byte")
    try:
        steal: str | float = float(args.steal)
    except ValueError:
        steal = args.steal
    return _Setting(
        capacity=capacity,
        lag=_whole_number(args.lag, "lag", 0, _MOST_LAG),
        steal=steal,
        passes=_whole_number(args.passes, "passes", 1, _MOST_PASSES),
        aliasing=args.aliasing,
        cross_stream=args.cross_stream,
    )


def _whole_number(text: str, argument: str, low: int, high: int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"{argument} must be a whole number, not {text!r}") from None
    return parse_count(number, argument, low, high)


def _replay_file(path: str, setting: _Setting, find_capacity: bool) -> ReplayRow | None:
    """Replay one file; None after a line about what is wrong with it."""
    try:
        return replay_trace(
            read_trace(path),
            capacity=setting.capacity,
            lag=setting.lag,
            steal=setting.steal,
            passes=setting.passes,
            aliasing=setting.aliasing,
            cross_stream=setting.cross_stream,
            find_capacity=find_capacity,
        )
    except OSError as error:
        reason = error.strerror or str(error)
    except (TraceError, GpumemError) as error:
        reason = str(error)
    print(f"gpumem replay: {path}: {reason}", file=sys.stderr)
    return None


def _as_text(row: ReplayRow) -> str:
    parts = [
        f"{row.trace:28}",
        f"requested {format_size(row.peak_requested):>10}",
        f"reserved {format_size(row.peak_reserved):>10}",
    ]
    if row.waste is None:
        parts.append(f"OUT OF MEMORY at operation {row.failed_at}")
    else:
        parts.append(f"waste {row.waste:7.2%}")
    calls = row.memory_calls
    parts.append(f"memory calls {calls['first']} then {calls['warm']}")
    parts.append(f"{row.ns_per_pair:.0f} ns a pair")
    if row.min_capacity is not None:
        parts.append(f"fits in {format_size(row.min_capacity)}")
    if row.skipped:
        parts.append(f"{row.skipped} unknown frees")
    return "  ".join(parts)
