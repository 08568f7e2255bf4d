"""``gpumem replay TRACE...``: how the allocator copes with a recorded trace.

Every trace runs on a fresh sim device, which has addresses and no memory, several times
in a row on the same pool: the first pass shows the peak, the last one whether a warm
pool still calls the device.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from typing import Any, Final

from . import _core
from ._core import GpumemError, Pool
from .sizes import format_size, parse_size
from .traces import Trace, TraceError, read_trace

NAME: Final = "replay"
HELP: Final = "replay recorded allocation traces on the sim device"

POLICIES: Final = ("gpumem",)


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """What one replay measured; sizes in bytes.

    Attributes
    ----------
    trace, policy, steal, lag
        What was replayed, and how.
    events
        Allocations and frees of the trace.
    peak_requested, peak_reserved
        Most live bytes asked for, and most taken from the device, over all passes.
    waste
        ``peak_reserved / peak_requested - 1``.
    memory_calls
        Calls for memory or waits of the first and the last pass, as the device counts.
    address_space
        Addresses reserved at the end.
    host_waits
        Waits of the host for the device, over all passes.
    ns_per_pair
        Median over the passes after the first, less the bare loop; not repeatable.
    min_capacity
        The smallest capacity that completes, when asked for.
    failed_at
        The operation that ran out of memory, or None.
    """

    trace: str
    policy: str
    steal: str
    lag: int
    events: int
    peak_requested: int
    peak_reserved: int
    waste: float
    memory_calls: dict[str, int]
    address_space: int
    host_waits: int
    ns_per_pair: float
    min_capacity: int | None = None
    failed_at: int | None = None


def _run(
    trace: Trace, capacity: int | None, lag: int, steal: str | float, passes: int
) -> list[dict[str, int]]:
    device = _core.open_sim(0, capacity, lag=lag)
    with Pool(device, steal=steal) as pool:
        return _core.replay(device, pool, trace.operations, trace.ids, passes=passes)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _loop_ns(trace: Trace) -> float:
    """Nanoseconds per pair of the replay loop alone."""
    device = _core.open_sim(0, None)
    rows = _core.replay(device, None, trace.operations, trace.ids, passes=3)
    return min(row["ns"] / max(row["pairs"], 1) for row in rows)


def replay_trace(
    trace: Trace,
    *,
    capacity: int | None = None,
    lag: int = 0,
    steal: str | float = "never",
    passes: int = 4,
    find_capacity: bool = False,
) -> ReplayRow:
    """Return what replaying a trace on a fresh sim device shows.

    Parameters
    ----------
    trace
        From `gpumem.traces.read_trace`.
    capacity
        Bytes of the device; None: unlimited.
    lag
        Operations by which the device runs behind the program.
    steal, passes
        The pool's option, and how often the trace runs on the same pool.
    find_capacity
        Also find the smallest capacity that completes, by bisection in pages.

    Raises
    ------
    ValueError
        The pool refuses an option.
    """
    rows = _run(trace, capacity, lag, steal, passes)
    requested = max(row["peak_requested"] for row in rows)
    reserved = max(row["peak_reserved"] for row in rows)
    failed = rows[-1]["failed_at"]
    warm = rows[1:] or rows
    loop = _loop_ns(trace)
    return ReplayRow(
        trace=trace.name,
        policy="gpumem",
        steal=str(steal),
        lag=lag,
        events=trace.events,
        peak_requested=requested,
        peak_reserved=reserved,
        waste=reserved / requested - 1,
        memory_calls={
            "first": rows[0]["memory_calls"],
            "warm": rows[-1]["memory_calls"],
        },
        address_space=rows[-1]["address_now"],
        host_waits=sum(row["host_waits"] for row in rows),
        ns_per_pair=max(
            0.0, _median([row["ns"] / max(row["pairs"], 1) for row in warm]) - loop
        ),
        min_capacity=(
            _min_capacity(trace, reserved, lag, steal) if find_capacity else None
        ),
        failed_at=None if failed < 0 else failed,
    )


def _min_capacity(trace: Trace, enough: int, lag: int, steal: str | float) -> int:
    """The smallest number of pages, in bytes, in which one pass completes."""
    page = _core.open_sim(0, None).page_size

    def completes(pages: int) -> bool:
        rows = _run(trace, pages * page, lag, steal, 1)
        return rows[-1]["failed_at"] < 0

    low, high = 0, -(-enough // page)
    while not completes(high):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        if completes(middle):
            high = middle
        else:
            low = middle
    return high * page


# ---- the command ------------------------------------------------------------------


def _steal(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _not_negative(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="files to replay")
    parser.add_argument("--policy", choices=POLICIES, default="gpumem")
    parser.add_argument("--capacity", metavar="SIZE", help="default: unlimited")
    parser.add_argument(
        "--find-capacity",
        action="store_true",
        help="also find the smallest capacity that completes",
    )
    parser.add_argument("--steal", type=_steal, default="never")
    parser.add_argument(
        "--lag",
        type=_not_negative,
        default=0,
        help="operations by which the device runs behind",
    )
    parser.add_argument("--passes", type=_positive, default=4)
    parser.add_argument("--json", action="store_true")


def _as_json(row: ReplayRow) -> dict[str, Any]:
    content = asdict(row)
    for optional in ("min_capacity", "failed_at"):
        if content[optional] is None:
            del content[optional]
    return content


def _as_text(row: ReplayRow) -> str:
    text = (
        f"{row.trace:32} requested {format_size(row.peak_requested):>10}"
        f"  reserved {format_size(row.peak_reserved):>10}  waste {row.waste:7.2%}"
        f"  calls {row.memory_calls['first']}/{row.memory_calls['warm']}"
        f"  {row.ns_per_pair:.0f} ns/pair"
    )
    if row.min_capacity is not None:
        text += f"  fits in {format_size(row.min_capacity)}"
    if row.failed_at is not None:
        text += f"  OUT OF MEMORY at operation {row.failed_at}"
    return text


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit status."""
    try:
        capacity = None if args.capacity is None else parse_size(args.capacity)
        Pool(_core.open_sim(0, None), steal=args.steal).close()
    except (ValueError, TypeError) as error:
        print(f"gpumem replay: {error}", file=sys.stderr)
        return 2
    status = 0
    rows = []
    for path in args.traces:
        try:
            row = replay_trace(
                read_trace(path),
                capacity=capacity,
                lag=args.lag,
                steal=args.steal,
                passes=args.passes,
                find_capacity=args.find_capacity,
            )
        except (OSError, TraceError, GpumemError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            print(f"gpumem replay: {path}: {reason}", file=sys.stderr)
            status = 1
            continue
        rows.append(row)
        if row.failed_at is not None:
            status = 1
        if not args.json:
            print(_as_text(row), flush=True)
    if args.json:
        print(json.dumps({"version": 1, "rows": [_as_json(row) for row in rows]}))
    return status
