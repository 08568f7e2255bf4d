"""Letting go of what keeps memory alive by accident, and giving the rest back.

An uncaught error stays in ``sys.last_traceback`` with the locals of every frame; a
notebook keeps each displayed result in ``Out``, ``_`` and hidden names. Both are
cleared on request only; garbage and idle memory always.
"""

from __future__ import annotations

import builtins
import gc
import sys
import traceback
from collections.abc import Iterator, MutableMapping
from dataclasses import asdict, dataclass
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    ModuleType,
    TracebackType,
)
from typing import Any, Final

from . import _core, pools, stats, trimming
from ._core import Buffer, Device, GradBuffer, PinnedArray
from .rendering import html_table, plural
from .sizes import format_size, parse_seconds

__all__ = ["CleanReport", "clean"]

_SEARCHED: Final = 20_000
_OPAQUE: Final = (
    ModuleType,
    type,
    FunctionType,
    BuiltinFunctionType,
    FrameType,
    CodeType,
    str,
    bytes,
    int,
    float,
)


@dataclass(frozen=True, slots=True, repr=False)
class CleanReport:
    """What :func:`clean` did; bytes unless said otherwise.

    Attributes
    ----------
    released
        By how much the devices' own count of free memory grew; negative when somebody
        took more meanwhile.
    trimmed
        Given back by our pools.
    used_before, used_after
        In live blocks.
    referenced
        Still in live blocks, so still held by somebody: ``used_after``.
    skipped
        Idle and kept, see :class:`gpumem.TrimReport`.
    pinned
        Page-locked host memory given back.
    collected
        Objects that the garbage collector found.
    tracebacks
        Tracebacks that were cut.
    names
        Notebook names that were dropped.
    """

    released: int
    trimmed: int
    used_before: int
    used_after: int
    skipped: int
    pinned: int
    collected: int
    tracebacks: int
    names: tuple[str, ...]

    @property
    def referenced(self) -> int:
        """Bytes still in live blocks."""
        return self.used_after

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes by name."""
        return {
            **asdict(self),
            "names": list(self.names),
            "referenced": self.referenced,
        }

    def __repr__(self) -> str:
        return (
            f"<CleanReport: {format_size(self.released)} released, "
            f"{format_size(self.used_before - self.used_after)} let go, "
            f"{format_size(self.referenced)} still referenced, "
            f"{plural(self.collected, 'object')} collected>"
        )

    def _repr_html_(self) -> str:
        counts = ("collected", "tracebacks")
        rows = [
            (
                name,
                ", ".join(value)
                if name == "names"
                else str(value)
                if name in counts
                else format_size(value),
            )
            for name, value in self.to_dict().items()
        ]
        return html_table("memory cleaned", rows)


def clean(
    *,
    tracebacks: bool = False,
    notebook: bool = False,
    shell: Any = None,
    wait: float = 0.0,
) -> CleanReport:
    """Let go of hidden references, collect garbage, give idle memory back.

    Parameters
    ----------
    tracebacks
        Clear the frames of ``sys.last_traceback``, ``sys.last_value`` and
        ``sys.last_exc``, and of the errors that led to them. Type and message stay.
    notebook
        Drop displayed results that hold buffers: ``Out[n]``, ``_``, ``__``, ``___``,
        ``_n`` and the shell's hidden names; with ``tracebacks`` also the shell's own
        traceback. Names that hold no buffer, and variables of the user, stay.
    shell
        The shell meant; by default the running IPython shell, if IPython is loaded,
        and ``_`` of a plain console.
    wait
        Seconds to wait for work that still uses freed memory.

    Returns
    -------
    CleanReport
        Measured on the devices in use.
    """
    patience = parse_seconds(wait, "wait")
    if shell is None and (notebook or tracebacks):
        shell = _running_shell()
    free_before = _free()
    used_before = stats.memory_allocated("all")
    cut = _cut_tracebacks(shell if notebook else None) if tracebacks else 0
    names = tuple(_drop_results(shell)) if notebook else ()
    collected = gc.collect()
    devices = stats.in_use()
    report = trimming.trim_all(pools.open_pools(), wait=patience)
    pinned = sum(_core.pinned_trim(device) for device in devices)
    free_after = _free()
    return CleanReport(
        released=sum(
            free_after[device] - free
            for device, free in free_before.items()
            if device in free_after
        ),
        trimmed=report.released,
        used_before=used_before,
        used_after=stats.memory_allocated("all"),
        skipped=report.skipped,
        pinned=pinned,
        collected=collected,
        tracebacks=cut,
        names=names,
    )


def _free() -> dict[Device, int]:
    return {device: device.memory_info()[0] for device in stats.in_use()}


# ---- tracebacks ----------------------------------------------------------------------


def _cut_tracebacks(shell: Any) -> int:
    """Clear what the interpreter, and the shell, keep of the last error."""
    roots: list[Any] = [
        getattr(sys, name, None)
        for name in ("last_exc", "last_value", "last_traceback")
    ]
    formatter = getattr(shell, "InteractiveTB", None)
    roots.append(getattr(formatter, "tb", None))
    seen: set[int] = set()
    for root in roots:
        if isinstance(root, TracebackType):
            _cut(root, seen)
        elif isinstance(root, BaseException):
            for error in _related(root):
                if error.__traceback__ is not None:
                    _cut(error.__traceback__, seen)
    return len(seen)


def _related(error: BaseException) -> Iterator[BaseException]:
    """The error, its causes and contexts, and the members of groups; each once."""
    waiting = [error]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [e for e in (one.__cause__, one.__context__) if e is not None]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions


def _cut(first: TracebackType, seen: set[int]) -> None:
    """Clear all frames that are not running and drop all entries but the first."""
    if id(first) in seen:
        return
    seen.add(id(first))
    traceback.clear_frames(first)
    first.tb_next = None


# ---- notebooks -----------------------------------------------------------------------


def _running_shell() -> Any:
    ipython = sys.modules.get("IPython")
    get_ipython = getattr(ipython, "get_ipython", None)
    return get_ipython() if callable(get_ipython) else None


def _drop_results(shell: Any) -> Iterator[str]:
    """Drop displayed results that hold a buffer and say what they were called."""
    user = _mapping(getattr(shell, "user_ns", None))
    hidden = _mapping(getattr(shell, "user_ns_hidden", None))
    for title, results in _result_dicts(shell, user):
        for key in [key for key, value in results.items() if _holds_buffer(value)]:
            del results[key]
            yield f"{title}[{key}]"
    for names in (user, hidden):
        for name in [
            n for n in names if _is_result_name(n) and _holds_buffer(names[n])
        ]:
            del names[name]
            yield name
    display = getattr(shell, "displayhook", None)
    for name in ("_", "__", "___"):
        if _holds_buffer(getattr(display, name, None)):
            setattr(display, name, "")
        if _holds_buffer(getattr(builtins, name, None)):
            delattr(builtins, name)
            yield f"builtins.{name}"
    for owner, name in ((shell, "last_execution_result"), (display, "exec_result")):
        outcome: Any = getattr(owner, name, None)
        if _holds_buffer(getattr(outcome, "result", None)):
            outcome.result = None
            yield f"{name}.result"


def _result_dicts(
    shell: Any, user: MutableMapping[str, Any]
) -> Iterator[tuple[str, MutableMapping[Any, Any]]]:
    """Each dict of displayed results once."""
    seen = set()
    for candidate in (getattr(shell, "Out", None), user.get("Out"), user.get("_oh")):
        if isinstance(candidate, dict) and id(candidate) not in seen:
            seen.add(id(candidate))
            yield "Out", candidate


def _mapping(value: Any) -> MutableMapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _is_result_name(name: Any) -> bool:
    if not isinstance(name, str) or not name.startswith("_"):
        return False
    return name in ("_", "__", "___") or name[1:].isdecimal()


def _holds_buffer(value: Any) -> bool:
    """Whether a buffer can be reached from a value without passing code or modules."""
    waiting = [value]
    seen: set[int] = set()
    while waiting and len(seen) < _SEARCHED:
        one = waiting.pop()
        if isinstance(one, (Buffer, PinnedArray, GradBuffer)):
            return True
        if one is None or isinstance(one, _OPAQUE) or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, memoryview):
            waiting.append(one.obj)
        elif type(one).__module__ == "numpy":
            waiting.append(getattr(one, "base", None))
        waiting += gc.get_referents(one)
    return False
