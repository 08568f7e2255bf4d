"""Reading pickles of people we do not know: plain data, and nothing is called.

A pickle is a program. What it may build here is dicts, lists, tuples, sets, strings,
bytes, numbers, booleans and ``None``; every name of a class or function, every
reference to something outside the file, and every extension code is refused before it
is looked up. How much memory plain data takes is not bounded here.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, Final, NoReturn

__all__ = ["load_plain_pickle"]

_EXTENSION_OPCODES: Final = frozenset({"EXT1", "EXT2", "EXT4"})


class _PlainUnpickler(pickle.Unpickler):
    """Builds containers, strings and numbers; every name is refused."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(
            f"the file asks for {module}.{name}; only plain containers, strings and "
            "numbers are read"
        )

    def persistent_load(self, pid: object) -> NoReturn:
        raise pickle.UnpicklingError("the file refers to objects outside itself")


def load_plain_pickle(data: bytes) -> Any:
    """Return what a pickle holds, if that is plain containers, strings and numbers.

    Parameters
    ----------
    data
        The whole pickle, of any protocol.

    Raises
    ------
    ValueError
        For anything else and for damaged data. Nothing in the data is ever called.
    """
    import copyreg

    try:
        if getattr(copyreg, "_extension_registry", None):
            _refuse_extensions(data)
        return _PlainUnpickler(io.BytesIO(data)).load()
    except (MemoryError, RecursionError) as error:
        raise ValueError(f"not a plain pickle: {type(error).__name__}") from error
    except Exception as error:
        # The machine behind pickles raises nearly anything on damaged data.
        raise ValueError(f"not a plain pickle: {error}") from error


def _refuse_extensions(data: bytes) -> None:
    """A registered extension code that was used before would bypass find_class."""
    import pickletools

    for opcode, _argument, _position in pickletools.genops(data):
        if opcode.name in _EXTENSION_OPCODES:
            raise pickle.UnpicklingError("the file uses extension codes")
