"""The command ``gpumem``, also ``python -m gpumem``.

Each command is a module with ``NAME``, ``HELP``, ``add_arguments(parser)`` and
``run(args)``, which returns the exit status: 0, 1 when something went wrong that one
line on stderr names, 2 when the command line is wrong. Results go to stdout, as text
or, with ``--json``, as one object with a ``version``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final, NoReturn

from . import __version__

_COMMANDS: Final = ("demo", "replay", "status", "snapshot_command")


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong with a command line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    version = f"gpumem {__version__}"
    parser = _Parser(
        prog="gpumem", description="A caching allocator for accelerator memory."
    )
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in _COMMANDS:
        module = import_module(f"gpumem.{name}")
        command = commands.add_parser(
            module.NAME, help=module.HELP, description=f"{module.HELP}."
        )
        command.add_argument("--version", action="version", version=version)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    Parameters
    ----------
    argv
        The words after ``gpumem``; ``None``: those of this process.

    Raises
    ------
    SystemExit
        After ``--help`` and ``--version`` (0) and for a wrong command line (2).
    """
    args = _parser().parse_args(argv)
    try:
        status = int(args.run(args))
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _drop_output()
        return 1
    except OSError as error:
        # Commands word the failures of files they read; this is where output goes.
        _drop_output()
        print(f"gpumem {args.command}: {error.strerror or error}", file=sys.stderr)
        return 1
    return status


def _drop_output() -> None:
    """What is still buffered has nowhere to go; nothing may try again at exit."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


if __name__ == "__main__":
    sys.exit(main())
