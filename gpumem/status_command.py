"""``gpumem status``: devices, options and pools, without touching a device's memory."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any, Final

from . import _core
from ._core import GpumemError
from .sizes import format_size

NAME: Final = "status"
HELP: Final = "devices, options and pools"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--json", action="store_true")


def run(args: argparse.Namespace) -> int:
    """Run the command; returns its exit status."""
    from .config import show_config
    from .device_names import devices

    try:
        found: list[dict[str, Any]] = []
        for device in devices():
            free, total = device.memory_info()
            found.append(
                {
                    "name": device.name,
                    "kind": device.kind,
                    "free": free,
                    "total": total,
                    "page_size": device.page_size,
                }
            )
        options = show_config()
    except (GpumemError, ValueError) as error:
        print(f"gpumem status: {error}", file=sys.stderr)
        return 1
    if args.json:
        content = {
            "version": 1,
            "gpumem": _core.__version__,
            "devices": found,
            "config": str(options),
        }
        print(json.dumps(content))
        return 0
    print(f"gpumem {_core.__version__}")
    for row in found:
        print(
            f"{row['name']}: {format_size(row['free'])} free of "
            f"{format_size(row['total'])}"
        )
    print(options)
    return 0
