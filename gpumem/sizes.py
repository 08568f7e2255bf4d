"""Sizes and fractions: from text and numbers to exact values, and back to text.

The one place where a size is read. A unit with an ``i`` counts in powers of 1024, a
unit of one letter does the same (``"512M"`` is 512 MiB), a unit of a letter and ``B``
counts in powers of 1000: ``"1 GB"`` is 1,000,000,000 bytes and ``"1 GiB"`` is
1,073,741,824.
"""

from __future__ import annotations

import operator
import re
from typing import SupportsIndex, cast

__all__ = [
    "format_count",
    "format_size",
    "parse_count",
    "parse_fraction",
    "parse_seconds",
    "parse_size",
]

_LETTERS = "kmgtpe"
_PATTERN = re.compile(
    r"\s*([0-9]{1,40})(?:\.([0-9]{1,40}))?(?:e([+-]?[0-9]{1,3}))?\s*([kmgtpe]?)(i?)(b?)\s*",
    re.IGNORECASE,
)
_LARGEST = (1 << 63) - 1
_ACCEPTED = (
    "an int of bytes or text such as '1.5 GiB', '512M', '20GB' "
    "(GiB and G are powers of 1024, GB of 1000)"
)
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def parse_size(value: object, argument: str = "size") -> int:
    """Return a number of bytes.

    Parameters
    ----------
    value
        An integer (anything with ``__index__`` but bool), or text: a number, with a
        fraction and an exponent if wanted, and a unit if wanted. Case and blanks do
        not matter. A part of a byte is dropped.
    argument
        Its name in messages.

    Returns
    -------
    int
        Bytes, from 0 to 2**63 - 1.

    Raises
    ------
    TypeError
        For anything else, a float or a bool included.
    ValueError
        For negative or too large numbers, and for text that is no size.
    """
    if isinstance(value, str):
        size = _parse_text(value, argument)
    elif isinstance(value, (bool, float)) or not hasattr(value, "__index__"):
        raise TypeError(f"{argument} must be {_ACCEPTED}, not {_shown(value)}")
    else:
        size = operator.index(cast("SupportsIndex", value))
    if not 0 <= size <= _LARGEST:
        raise ValueError(f"{argument} must be from 0 to 2**63 - 1 bytes, not {value}")
    return size


def _parse_text(text: str, argument: str) -> int:
    match = _PATTERN.fullmatch(text)
    if match is None or (match[5] and not match[4]):
        raise ValueError(f"{argument} must be {_ACCEPTED}, not {text!r}")
    whole, part, exponent, letter, binary, byte = match.groups()
    part = part or ""
    base = 1000 if byte and not binary else 1024
    power = _LETTERS.index(letter.lower()) + 1 if letter else 0
    shift = int(exponent or 0) - len(part)
    digits = int(whole + part) * base**power
    size: int = digits * 10**shift if shift >= 0 else digits // 10**-shift
    if size == 0 and digits:
        raise ValueError(f"{argument} is less than one byte: {text!r}")
    return size


def parse_fraction(value: object, argument: str = "fraction") -> float:
    """Return a fraction: a number with ``0 < value <= 1``.

    Raises
    ------
    TypeError
        For what is no number; text and bool are none.
    ValueError
        For numbers outside the range, and not-a-number.
    """
    accepted = f"{argument} must be a number with 0 < {argument} <= 1"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{accepted}, not {_shown(value)}")
    if not 0 < value <= 1:
        raise ValueError(f"{accepted}, not {value!r}")
    return float(value)


def parse_seconds(value: object, argument: str = "seconds") -> float:
    """Return a time: a finite number of seconds, 0 or more.

    Raises
    ------
    TypeError
        For what is no number; text and bool are none.
    ValueError
        For negative, infinite and not-a-number values.
    """
    accepted = f"{argument} must be a finite number of seconds, 0 or more"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{accepted}, not {_shown(value)}")
    if not 0 <= value < float("inf"):
        raise ValueError(f"{accepted}, not {value!r}")
    return float(value)


def parse_count(value: object, argument: str, low: int, high: int) -> int:
    """Return a whole number from ``low`` to ``high``.

    Raises
    ------
    TypeError
        For what is no whole number; a bool is none.
    ValueError
        For numbers outside the range.
    """
    accepted = f"{argument} must be a whole number from {low} to {high}"
    if isinstance(value, (bool, float, str)) or not hasattr(value, "__index__"):
        raise TypeError(f"{accepted}, not {_shown(value)}")
    count = operator.index(cast("SupportsIndex", value))
    if not low <= count <= high:
        raise ValueError(f"{accepted}, not {count}")
    return count


def format_size(nbytes: int, *, signed: bool = False) -> str:
    """Return bytes as text for people, in powers of 1024: ``"1.50 GiB"``.

    Parameters
    ----------
    nbytes
        Bytes; may be negative, for a difference.
    signed
        Write a plus sign, too.
    """
    sign = "-" if nbytes < 0 else "+" if signed and nbytes > 0 else ""
    amount = float(abs(nbytes))
    if amount < 1024:
        return f"{sign}{abs(nbytes)} B"
    unit = 0
    # 1023.995 would be rounded to 1024.00 of its unit.
    while amount >= 1023.995 and unit < len(_UNITS) - 1:
        amount /= 1024
        unit += 1
    return f"{sign}{amount:.2f} {_UNITS[unit]}"


def format_count(count: int) -> str:
    """Return a number with its thousands apart: ``"1,234,567"``."""
    return f"{count:,}"


def _shown(value: object) -> str:
    text = repr(value)
    if len(text) > 60:
        text = text[:57] + "..."
    return f"{text} ({type(value).__name__})"
