"""What the extension module asks of the Python layer; each imports what it needs."""

from __future__ import annotations

from . import _core
from ._core import Device, OutOfMemoryError, Pool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .snapshot import Snapshot
    from .summary import MemorySummary


def _parse_size(value: object, argument: str) -> int:
    from .sizes import parse_size

    return parse_size(value, argument)


def _default_device() -> Device:
    from .device_names import current_device

    return current_device()


def _default_pool(device: Device | None) -> Pool:
    from .pools import current_pool

    return current_pool(device)


def _summary(pool: Pool, abbreviated: bool) -> MemorySummary:
    from .summary import pool_summary

    return pool_summary(pool, abbreviated)


def _snapshot(pool: Pool) -> Snapshot:
    from .snapshot import pool_snapshot

    return pool_snapshot(pool)


def _holders(pool: Pool) -> tuple[tuple[str, int], ...]:
    from .oom import holders

    return holders(pool)


def _oom(pool: Pool, error: OutOfMemoryError) -> None:
    from .oom import write_snapshot

    write_snapshot(pool, error)


def install() -> None:
    """Hand the functions over; called once, by the package."""
    _core.set_hooks(
        parse_size=_parse_size,
        default_device=_default_device,
        default_pool=_default_pool,
        summary=_summary,
        snapshot=_snapshot,
        holders=_holders,
        oom=_oom,
    )
