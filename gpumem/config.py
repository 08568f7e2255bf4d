"""What can be set: one table of options, read from calls and from GPUMEM_CONF.

A value comes from the last :func:`configure` call that named the option, else from the
environment variable ``GPUMEM_CONF``, else from the table. The variable is read when a
value is first asked for, never at import; ``GPUMEM_CONF=`` (empty) is the same as
unset. Setting one option leaves all others as they are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import RLock
from typing import Any, Final

from . import _core
from .rendering import html_table
from .sizes import (
    format_size,
    parse_count,
    parse_fraction,
    parse_seconds,
    parse_size,
)

__all__ = [
    "OPTIONS",
    "ConfigReport",
    "Option",
    "configure",
    "current",
    "get",
    "lock",
    "parse_conf",
    "show_config",
]

VARIABLE: Final = "GPUMEM_CONF"
HOST_DEVICES_MAX: Final = 64
STEAL_MOST: Final = 1000

# ---- parsers: from a value of a call, and from a word of the variable ----------------


def _or_none(parse: Callable[[object, str], Any]) -> Callable[[object, str], Any]:
    def parse_or_none(value: object, argument: str) -> Any:
        return None if value is None else parse(value, argument)

    return parse_or_none


def _share(value: object, argument: str) -> int | float:
    if isinstance(value, float):
        if value == 1:
            raise ValueError(f"{argument} as a fraction must be below 1, not {value}")
        return parse_fraction(value, argument)
    return parse_size(value, argument)


def _some(parse: Callable[[object, str], Any]) -> Callable[[object, str], Any]:
    def parse_some(value: object, argument: str) -> Any:
        number = parse(value, argument)
        if number == 0:
            raise ValueError(f"{argument} must be above 0, or None; not {value!r}")
        return number

    return parse_some


def _flag(value: object, argument: str) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{argument} must be True or False, not {value!r}")
    return value


def _one_of(*names: str) -> Callable[[object, str], str]:
    def parse(value: object, argument: str) -> str:
        accepted = f"{argument} must be one of {', '.join(map(repr, names))}"
        if not isinstance(value, str):
            raise TypeError(f"{accepted}, not {value!r}")
        if value not in names:
            raise ValueError(f"{accepted}, not {value!r}")
        return value

    return parse


def _steal(value: object, argument: str) -> str | float:
    accepted = (
        f"{argument} must be 'never', 'always' or a number from 0 to {STEAL_MOST}"
    )
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise TypeError(f"{accepted}, not {value!r}")
    if isinstance(value, str):
        if value not in ("never", "always"):
            raise ValueError(f"{accepted}, not {value!r}")
        return value
    if not 0 <= value <= STEAL_MOST:
        raise ValueError(f"{accepted}, not {value!r}")
    return float(value)


def _path(value: object, argument: str) -> str:
    if not isinstance(value, (str, os.PathLike)):
        raise TypeError(f"{argument} must be the path of a folder, not {value!r}")
    path = os.fspath(value)
    if not isinstance(path, str) or not path:
        raise ValueError(f"{argument} must be the path of a folder, not {value!r}")
    return path


def _number_from(low: int, high: int) -> Callable[[object, str], int]:
    def parse(value: object, argument: str) -> int:
        return parse_count(value, argument, low, high)

    return parse


def _word(text: str, argument: str) -> object:
    return text


def _word_number(text: str, argument: str) -> object:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{argument} must be a number, not {text!r}") from None


def _word_or_number(text: str, argument: str) -> object:
    try:
        return float(text)
    except ValueError:
        return text


def _word_count(text: str, argument: str) -> object:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{argument} must be a whole number, not {text!r}") from None


def _word_flag(text: str, argument: str) -> object:
    words = {"true": True, "1": True, "false": False, "0": False}
    if text.lower() not in words:
        raise ValueError(f"{argument} must be true or false, not {text!r}")
    return words[text.lower()]


def _word_share(text: str, argument: str) -> object:
    """A number with a point and no unit is a fraction."""
    try:
        return float(text) if "." in text else text
    except ValueError:
        return text


# ---- the table -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table of options.

    Attributes
    ----------
    name
        Keyword of :func:`configure` and key in ``GPUMEM_CONF``.
    default
        The value while nothing was set.
    parse
        From a value of a call to an exact one.
    from_word
        From a word of the variable to what ``parse`` takes.
    optional
        ``None`` is accepted, ``none`` in the variable.
    when
        ``"live"``: a change holds at once; ``"pool"``: for default pools made later;
        ``"device"``: for devices opened later. The latter two are refused while such
        an object exists.
    about
        What it does, in a line.
    """

    name: str
    default: Any
    parse: Callable[[object, str], Any]
    from_word: Callable[[str, str], object]
    optional: bool
    when: str
    about: str


def _option(
    name: str,
    default: Any,
    parse: Callable[[object, str], Any],
    from_word: Callable[[str, str], object],
    when: str,
    about: str,
    *,
    optional: bool = False,
) -> Option:
    return Option(
        name,
        default,
        _or_none(parse) if optional else parse,
        from_word,
        optional,
        when,
        about,
    )


OPTIONS: Final[Mapping[str, Option]] = {
    option.name: option
    for option in (
        _option(
            "limit", None, _some(parse_size), _word, "live",
            "most bytes a default pool may reserve", optional=True,
        ),
        _option(
            "memory_fraction", None, parse_fraction, _word_number, "live",
            "the same as a fraction of the device, 0 < f <= 1", optional=True,
        ),
        _option(
            "headroom", 0, _share, _word_share, "live",
            "bytes, or a fraction, of the device left free for others",
        ),
        _option(
            "reserve", 0, parse_size, _word, "live",
            "bytes taken from the device before they are asked for",
        ),
        _option(
            "allow_growth", True, _flag, _word_flag, "pool",
            "False: take all memory within the limit when the pool is made",
        ),
        _option(
            "steal", 0.05, _steal, _word_or_number, "pool",
            "when pages of free blocks move to where pages are missing: 'always' "
            "before the pool grows, 'never', or a number r: once more than (1 + r) "
            "times the peak is reserved",
        ),
        _option(
            "cross_stream", "done", _one_of("done", "wait", "never"), _word, "live",
            "when memory freed on one stream may serve another",
        ),
        _option(
            "yields", True, _flag, _word_flag, "live",
            "give idle memory back before another pool of the device fails",
        ),
        _option(
            "gc_on_pressure", True, _flag, _word_flag, "live",
            "collect garbage before an allocation fails",
        ),
        _option(
            "oom_wait", 10.0, parse_seconds, _word_number, "live",
            "seconds to wait for pending frees before failing; none: for ever",
            optional=True,
        ),
        _option(
            "decay", None, _some(parse_seconds), _word_number, "pool",
            "seconds after which idle memory is given back", optional=True,
        ),
        _option(
            "max_split", None, _some(parse_size), _word, "pool",
            "without paging: cached blocks above this are not split", optional=True,
        ),
        _option(
            "paging", True, _flag, _word_flag, "pool",
            "use pages where the device has them",
        ),
        _option(
            "host_capacity", None, _some(parse_size), _word, "device",
            "bytes of a host device; none: the memory of this machine", optional=True,
        ),
        _option(
            "host_devices", 1, _number_from(1, HOST_DEVICES_MAX), _word_count, "live",
            "how many host devices there are without opening more by name",
        ),
        _option(
            "cuda_page_size", None, _some(parse_size), _word, "device",
            "bytes of a page of CUDA devices, a multiple of the driver's granularity; "
            "none: that", optional=True,
        ),
        _option(
            "cuda_aliasing", False, _flag, _word_flag, "device",
            "map a page of CUDA devices at two addresses at once while it moves",
        ),
        _option(
            "cuda_segments", "malloc", _one_of("malloc", "async"), _word, "device",
            "where whole segments of CUDA devices come from: cudaMalloc, or the "
            "driver's pool (cudaMallocAsync)",
        ),
        _option(
            "c_device", "cuda", _one_of("cuda", "host"), _word, "live",
            "which devices the exported C functions act on",
        ),
        _option(
            "snapshot_on_oom", None, _path, _word, "live",
            "folder for a snapshot file at each out-of-memory error", optional=True,
        ),
        _option(
            "snapshot_on_oom_limit", 5, _number_from(1, 1000), _word_count, "live",
            "how many of those files are kept by one process",
        ),
        _option(
            "leak_report", False, _flag, _word_flag, "live",
            "log the buffers that are still alive when the interpreter exits",
        ),
    )
}  # fmt: skip

# ---- the values in force -------------------------------------------------------------

# One lock for all registries of the Python layer: options, devices, default pools,
# callbacks. Held over a fork, so that a child finds them whole.
lock: Final = RLock()
os.register_at_fork(
    before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
)

_set: dict[str, Any] = {}
_environment: dict[str, Any] | None = None


def parse_conf(text: str) -> dict[str, Any]:
    """Return the options that a text like ``"limit=20GiB,oom_wait=5"`` sets.

    Raises
    ------
    ValueError
        For an unknown name, a value out of range, a name given twice, or text that is
        no list of ``name=value``; the message names what is accepted.
    """
    values: dict[str, Any] = {}
    if not text.strip():
        return values
    for item in text.split(","):
        name, equals, word = (part.strip() for part in item.partition("="))
        if not (name and equals and word):
            raise ValueError(
                f"{VARIABLE}: {item.strip()!r} is not of the form name=value; "
                f"{_accepted_names()}"
            )
        if name in values:
            raise ValueError(f"{VARIABLE}: {name} is given twice")
        option = OPTIONS.get(name)
        if option is None:
            raise ValueError(
                f"{VARIABLE}: unknown option {name!r}; {_accepted_names()}"
            )
        values[name] = _from_word(option, word)
    return values


def _from_word(option: Option, word: str) -> Any:
    if option.optional and word.lower() == "none":
        return None
    try:
        return option.parse(option.from_word(word, option.name), option.name)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{VARIABLE}: {option.name}={word}: {error}") from None


def _accepted_names() -> str:
    return "the options are " + ", ".join(OPTIONS)


def _loaded() -> dict[str, Any]:
    """The values of the variable, read once."""
    global _environment
    with lock:
        if _environment is None:
            _environment = parse_conf(os.environ.get(VARIABLE, ""))
            _take_effect(_environment)
        return _environment


def get(name: str) -> Any:
    """Return the value of an option in force."""
    environment = _loaded()
    if name in _set:
        return _set[name]
    return environment.get(name, OPTIONS[name].default)


def current() -> dict[str, Any]:
    """Return all options in force, by name."""
    return {name: get(name) for name in OPTIONS}


def configure(**options: Any) -> None:
    """Set options; those that are not named stay as they are.

    All names and values are checked before anything changes. Sizes are ints of bytes
    or text (``"20GiB"``), fractions are numbers.

    Parameters
    ----------
    **options
        Any of the rows of ``gpumem.config.OPTIONS``: ``limit``, ``memory_fraction``,
        ``headroom``, ``reserve``, ``allow_growth``, ``steal``, ``cross_stream``,
        ``yields``, ``gc_on_pressure``, ``oom_wait``, ``decay``, ``max_split``,
        ``paging``, ``host_capacity``, ``host_devices``, ``cuda_page_size``,
        ``cuda_aliasing``, ``cuda_segments``, ``c_device``, ``snapshot_on_oom``,
        ``snapshot_on_oom_limit``, ``leak_report``.

    Raises
    ------
    TypeError, ValueError
        For an unknown option or a bad value; the message says what is accepted.
    GpumemError
        For an option that cannot change while a default pool or a device exists
        (:func:`gpumem.reset` starts anew).
    OutOfMemoryError
        When an existing pool cannot take ``reserve`` bytes from its device.

    Examples
    --------
    >>> import gpumem
    >>> gpumem.configure(limit="2GiB", oom_wait=5)
    >>> gpumem.config.get("limit")
    2147483648
    >>> gpumem.reset()
    """
    unknown = [name for name in options if name not in OPTIONS]
    if unknown:
        raise TypeError(f"unknown option {unknown[0]!r}; {_accepted_names()}")
    values = {name: OPTIONS[name].parse(value, name) for name, value in options.items()}
    from . import pools

    with lock:
        _loaded()
        changed = {name: value for name, value in values.items() if value != get(name)}
        pools.apply_options(changed, {**current(), **values})
        _set.update(values)
        _take_effect(changed)


def forget() -> None:
    """Go back to the state before first use; part of :func:`gpumem.reset`."""
    global _environment
    with lock:
        _set.clear()
        _environment = None
        _core.set_c_device("cuda")


def _take_effect(changed: Mapping[str, Any]) -> None:
    """Options that are no pool's business."""
    if "c_device" in changed:
        from . import pools

        _core.set_c_device(changed["c_device"])
        pools.publish_defaults(changed["c_device"])
    if changed.get("leak_report"):
        from . import leaks

        leaks.watch_exit()


# ---- showing it ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class ConfigReport:
    """The options in force; ``print`` shows them as a table.

    Attributes
    ----------
    version
        Of gpumem.
    options
        ``(name, value, source)`` rows; source is ``"default"``, ``"GPUMEM_CONF"`` or
        ``"configure"``.
    """

    version: str
    options: tuple[tuple[str, Any, str], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return name to value."""
        return {name: value for name, value, _source in self.options}

    def __repr__(self) -> str:
        changed = [
            f"{name}={value!r}"
            for name, value, source in self.options
            if source != "default"
        ]
        return f"<gpumem {self.version} config: {', '.join(changed) or 'defaults'}>"

    def __str__(self) -> str:
        lines = [f"gpumem {self.version}"]
        for name, value, source in self._shown():
            lines.append(f"  {name:<22} {value:<16} {source}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_table(
            f"gpumem {self.version}", self._shown(), header=("option", "value", "from")
        )

    def _shown(self) -> list[tuple[str, str, str]]:
        return [
            (name, _shown_value(name, value), source)
            for name, value, source in self.options
        ]


def _shown_value(name: str, value: Any) -> str:
    sizes = {"limit", "headroom", "reserve", "max_split", "host_capacity"}
    sizes.add("cuda_page_size")
    if name in sizes and isinstance(value, int):
        return format_size(value)
    return "none" if value is None else str(value)


def show_config() -> ConfigReport:
    """Return the options in force and where each value is from.

    Opens no device. ``print(gpumem.show_config())`` shows a table.
    """
    environment = _loaded()
    rows = []
    for name in OPTIONS:
        source = (
            "configure"
            if name in _set
            else VARIABLE
            if name in environment
            else "default"
        )
        rows.append((name, get(name), source))
    return ConfigReport(_core.__version__, tuple(rows))
