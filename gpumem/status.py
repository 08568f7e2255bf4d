"""``gpumem status``: the devices, their pools, and the options in force.

Makes no pool and takes no memory: a CUDA device that this process does not use is named
and not touched, since asking it for its free memory would take some. Pools are those of
this process: none on a command line, those of the program when it calls :func:`status`
itself.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from typing import Any, Final

from . import _core
from ._core import Device, GpumemError, Pool
from .config import ConfigReport, show_config
from .sizes import format_size

__all__ = ["DeviceStatus", "PoolStatus", "Status", "status"]

NAME: Final = "status"
HELP: Final = "show devices, pools and options"


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """One open pool; sizes in bytes.

    Attributes
    ----------
    id, name, default
        Which it is; ``default``: the device's default pool.
    used, cached, reserved
        In live blocks, idle, and both with what waits for streams.
    limit
        The most that it may reserve; ``None``: no limit.
    """

    id: int
    name: str
    default: bool
    used: int
    cached: int
    reserved: int
    limit: int | None


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """One device; sizes in bytes.

    Attributes
    ----------
    name, kind
        Such as ``"host:0"`` and ``"host"``.
    free
        As the device says; ``None``: a CUDA device that this process has not used.
    total
        As the device says.
    page_size
        The unit in which memory is taken; 0 without paging; ``None`` as for ``free``.
    pools
        Its open pools, oldest first.
    """

    name: str
    kind: str
    free: int | None
    total: int
    page_size: int | None
    pools: tuple[PoolStatus, ...]


@dataclass(frozen=True, slots=True)
class Status:
    """What ``gpumem status`` shows.

    Attributes
    ----------
    version
        Of gpumem.
    devices
        Host devices first.
    config
        The options in force and where each value is from.
    """

    version: str
    devices: tuple[DeviceStatus, ...]
    config: ConfigReport

    def to_dict(self) -> dict[str, Any]:
        """Return plain data: what ``--json`` prints."""
        return {
            "version": 1,
            "gpumem": self.version,
            "devices": [asdict(device) for device in self.devices],
            "config": {
                name: {"value": value, "from": source}
                for name, value, source in self.config.options
            },
        }

    def __str__(self) -> str:
        lines = []
        for device in self.devices:
            lines.append(f"{device.name:<12} {_memory(device)}")
            lines += [f"  {_pool_line(pool)}" for pool in device.pools]
            if not device.pools:
                lines.append("  no pool in this process")
        return "\n".join([*lines, str(self.config)])

    def __repr__(self) -> str:
        names = ", ".join(device.name for device in self.devices)
        return f"<gpumem {self.version} on {names}>"


def _memory(device: DeviceStatus) -> str:
    total = format_size(device.total)
    if device.free is None:
        return f"{total}, not used by this process"
    return f"{format_size(device.free)} free of {total}"


def _pool_line(pool: PoolStatus) -> str:
    limit = "no limit" if pool.limit is None else f"limit {format_size(pool.limit)}"
    return (
        f"pool {pool.name} ({pool.id}): {format_size(pool.used)} used, "
        f"{format_size(pool.cached)} cached, {format_size(pool.reserved)} reserved, "
        f"{limit}"
    )


def status() -> Status:
    """Return the devices, the open pools of this process and the options in force.

    Raises
    ------
    ValueError
        When ``GPUMEM_CONF`` is malformed.
    GpumemError
        After :func:`gpumem.shutdown`.
    """
    from .device_names import devices

    config = show_config()
    return Status(_core.__version__, tuple(_device(one) for one in devices()), config)


def _device(device: Device) -> DeviceStatus:
    from . import pools

    used = device.kind != "cuda" or device.describe()["prepared"]
    default = pools.existing_default(device)
    return DeviceStatus(
        name=device.name,
        kind=device.kind,
        free=device.memory_info()[0] if used else None,
        total=device.total,
        page_size=device.page_size if used else None,
        pools=tuple(_pool(pool, default) for pool in pools.open_pools(device)),
    )


def _pool(pool: Pool, default: Pool | None) -> PoolStatus:
    values = pool.stats()
    return PoolStatus(
        id=pool.id,
        name=pool.name,
        default=pool is default,
        used=values["allocated_bytes.all.current"],
        cached=values["cached_bytes"] + values["unplaced_bytes"],
        reserved=values["reserved_bytes.all.current"],
        limit=pool.limit,
    )


# ---- the command ---------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit status."""
    try:
        found = status()
    except (GpumemError, ValueError) as error:
        print(f"gpumem status: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found.to_dict()) if args.json else found)
    return 0
