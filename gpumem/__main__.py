"""The command ``gpumem``, also ``python -m gpumem``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from . import __version__

_COMMANDS = ("demo", "replay_command", "status_command", "snapshot_command")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit status (2: the command line is wrong)."""
    parser = argparse.ArgumentParser(
        prog="gpumem", description="A caching allocator for accelerator memory."
    )
    parser.add_argument("--version", action="version", version=f"gpumem {__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in _COMMANDS:
        module = import_module(f"gpumem.{name}")
        command = commands.add_parser(module.NAME, help=module.HELP)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    args = parser.parse_args(argv)
    try:
        status = int(args.run(args))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader left; what is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
