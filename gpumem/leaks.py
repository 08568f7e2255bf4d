"""Buffers that are still alive: as a report, and as log lines when Python exits."""

from __future__ import annotations

import atexit
import logging
from dataclasses import dataclass
from typing import Any, Final

from . import config, oom, pools
from .rendering import html_table, plural
from .sizes import format_size

__all__ = ["LeakReport", "leak_report"]

_GROUPS: Final = 20
_watching = False


@dataclass(frozen=True, slots=True, repr=False)
class LeakReport:
    """Live memory of every open pool.

    Attributes
    ----------
    holders
        ``(pool, holder, bytes)``, largest first within a pool.
    buffers
        Live buffers in all.
    bytes
        Bytes in live blocks in all.
    """

    holders: tuple[tuple[str, str, int], ...]
    buffers: int
    bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes by name."""
        return {
            "holders": [list(holder) for holder in self.holders],
            "buffers": self.buffers,
            "bytes": self.bytes,
        }

    def __repr__(self) -> str:
        return (
            f"<LeakReport: {plural(self.buffers, 'live buffer')}, "
            f"{format_size(self.bytes)}>"
        )

    def _repr_html_(self) -> str:
        rows = [(pool, name, format_size(size)) for pool, name, size in self.holders]
        return html_table(
            repr(self).strip("<>"), rows, header=("pool", "held by", "size")
        )


def leak_report() -> LeakReport:
    """Return what is still alive in the open pools of this interpreter.

    ``gpumem.configure(leak_report=True)`` logs it as warnings of the logger
    ``gpumem`` when the interpreter exits, if there is anything.
    """
    held, buffers, total = [], 0, 0
    for pool in pools.open_pools():
        buffers += len(pool.live_buffers())
        total += pool.stats()["allocated_bytes.all.current"]
        title = f"{pool.name} on {pool.device.name}"
        held += [(title, name, size) for name, size in oom.holders(pool, _GROUPS)]
    return LeakReport(tuple(held), buffers, total)


def watch_exit() -> None:
    """Log the report at exit, if the option still says so then; once per process."""
    global _watching
    if not _watching:
        _watching = True
        atexit.register(_log)


def _log() -> None:
    if not config.get("leak_report"):
        return
    report = leak_report()
    if not report.bytes:
        return
    logger = logging.getLogger("gpumem")
    logger.warning(
        "%s alive at exit, %s",
        plural(report.buffers, "buffer"),
        format_size(report.bytes),
    )
    for pool, name, size in report.holders:
        logger.warning("  %s: %s, %s", pool, name, format_size(size))
