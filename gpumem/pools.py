"""Default pools, the pool in use, and the functions that allocate from it.

Each device has one default pool in an interpreter, made when it is first asked for with
the options in force (:mod:`gpumem.config`). A module function such as :func:`empty`
allocates from the pool of the innermost :func:`use_pool` of this context, else from
the default pool of the current device.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Final, cast

from . import _core, config, cuda_runtime, device_names
from ._core import Buffer, Device, GpumemError, Pin, PinnedArray, Pool, Stream
from .rendering import plural
from .sizes import format_size, parse_fraction

__all__ = [
    "asarray",
    "current_pool",
    "default_pool",
    "empty",
    "full",
    "get_per_process_memory_fraction",
    "ones",
    "pin",
    "pinned_empty",
    "reset",
    "set_per_process_memory_fraction",
    "shutdown",
    "use_pool",
    "zeros",
]

_defaults: dict[Device, Pool] = {}
_fractions: dict[Device, float] = {}
_published: set[int] = set()
_in_use: Final[ContextVar[Pool | None]] = ContextVar("gpumem.pool", default=None)

# Options of a default pool that may change while it lives.
_LIVE: Final = (
    "limit",
    "headroom",
    "cross_stream",
    "yields",
    "gc_on_pressure",
    "oom_wait",
)


def _after_fork() -> None:
    """The child makes pools of its own."""
    _defaults.clear()
    _fractions.clear()


os.register_at_fork(after_in_child=_after_fork)

# ---- which pool ----------------------------------------------------------------------


def default_pool(device: Device | int | str | None = None) -> Pool:
    """Return the default pool of a device, made on the first call.

    Parameters
    ----------
    device
        A device, an index, a name, or ``None``: the current device.

    Raises
    ------
    TypeError, ValueError
        For what is no device.
    GpumemError
        After :func:`shutdown`.
    OutOfMemoryError
        When the pool is made now and cannot take the option ``reserve``; the next call
        tries again.
    """
    resolved = device_names.resolve(device)
    pool = _defaults.get(resolved)
    if pool is not None:
        return pool
    with config.lock:
        pool = _defaults.get(resolved)
        if pool is None:
            pool = _make_default(resolved)
            _defaults[resolved] = pool
            _publish(resolved, pool, config.get("c_device"))
    return pool


def existing_default(device: Device) -> Pool | None:
    """Return the default pool of a device if it was made."""
    return _defaults.get(device)


def _make_default(device: Device) -> Pool:
    from . import history

    values = config.current()
    _check_reserve(values["reserve"], device.name, device.total)
    options = {name: values[name] for name in _LIVE if name != "limit"}
    pool = Pool(
        device,
        limit=_limit_of(device, values),
        steal=values["steal"],
        decay=values["decay"],
        max_split=values["max_split"],
        paging=values["paging"],
        name="default",
        **options,
    )
    history.attach(pool)
    reserve = values["reserve"]
    if not values["allow_growth"]:
        reserve = max(reserve, _all_of(pool))
    if reserve:
        pool.reserve(reserve)
    return pool


def _limit_of(device: Device, values: Mapping[str, Any]) -> int | None:
    """The smaller one of the limit in bytes and the fraction."""
    fraction = _fractions.get(device, values["memory_fraction"])
    limit: int | None = values["limit"]
    if fraction is None:
        return limit
    share = max(int(fraction * device.total), 1)
    return share if limit is None else min(limit, share)


def _all_of(pool: Pool) -> int:
    """What a pool that shall not grow takes: all that it may have, in whole pages."""
    free, _total = pool.device.memory_info()
    headroom: int = pool.options()["headroom"]
    room = max(free - headroom, 0)
    if pool.limit is not None:
        room = min(room, pool.limit)
    page = pool.device.page_size or 1
    return room // page * page


def current_pool(device: Device | int | str | None = None) -> Pool:
    """Return the pool that :func:`empty` would allocate from.

    That is the pool of :func:`use_pool`, if it is on the device asked for, else the
    default pool.
    """
    pool = _in_use.get()
    if pool is not None and (
        device is None or device_names.find(device) == pool.device
    ):
        return pool
    return default_pool(device)


class use_pool:  # noqa: N801 - a context manager that reads as a verb
    """Allocate from a pool inside a ``with`` block, in this thread or task only.

    Parameters
    ----------
    pool
        An open pool.

    Examples
    --------
    >>> import gpumem
    >>> with gpumem.Pool(gpumem.device("host"), limit="1 GiB") as pool:
    ...     with gpumem.use_pool(pool):
    ...         buffer = gpumem.empty(1000)
    ...     assert buffer.pool is pool
    >>> gpumem.reset()
    """

    __slots__ = ("_pool", "_tokens")

    def __init__(self, pool: Pool) -> None:
        if not isinstance(pool, Pool):
            raise TypeError(f"pool must be a Pool, not {type(pool).__name__}")
        self._pool = pool
        self._tokens: list[Token[Pool | None]] = []

    def __enter__(self) -> Pool:
        self._tokens.append(_in_use.set(self._pool))
        return self._pool

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _in_use.reset(self._tokens.pop())


def choose(pool: Pool | None, device: Device | int | str | None) -> Pool:
    """Return the pool given, or the one that :func:`current_pool` names."""
    if pool is None:
        return current_pool(device)
    if device is not None and device_names.find(device) != pool.device:
        raise ValueError(f"the pool is on {pool.device.name}, not on {device}")
    return pool


# ---- allocating ----------------------------------------------------------------------


def empty(
    shape: int | Sequence[int],
    dtype: Any = "uint8",
    *,
    device: Device | int | str | None = None,
    pool: Pool | None = None,
    stream: Stream | int | None = None,
    name: str | None = None,
    align: int | None = None,
    pitch: int | None = None,
) -> Buffer:
    """Return a buffer whose content is not set.

    Parameters
    ----------
    shape
        Sizes in elements; an int is a vector.
    dtype
        A NumPy or ``ml_dtypes`` name, a NumPy dtype, or a Python type.
    device, pool
        Where; by default the pool in use (:func:`use_pool`), else the default pool of
        the current device.
    stream
        That will use it first; the default stream otherwise.
    name
        For reports.
    align
        Bytes; a power of two. Never less than 512.
    pitch
        Rows begin at multiples of this many bytes.

    Raises
    ------
    OutOfMemoryError
        With the numbers that were true.
    """
    return choose(pool, device).empty(
        shape, dtype, stream=stream, name=name, align=align, pitch=pitch
    )


def zeros(
    shape: int | Sequence[int],
    dtype: Any = "uint8",
    *,
    device: Device | int | str | None = None,
    pool: Pool | None = None,
    stream: Stream | int | None = None,
    name: str | None = None,
) -> Buffer:
    """Return a buffer of zeros; the parameters are those of :func:`empty`."""
    return full(shape, 0, dtype, device=device, pool=pool, stream=stream, name=name)


def ones(
    shape: int | Sequence[int],
    dtype: Any = "uint8",
    *,
    device: Device | int | str | None = None,
    pool: Pool | None = None,
    stream: Stream | int | None = None,
    name: str | None = None,
) -> Buffer:
    """Return a buffer of ones; the parameters are those of :func:`empty`."""
    return full(shape, 1, dtype, device=device, pool=pool, stream=stream, name=name)


def full(
    shape: int | Sequence[int],
    value: Any,
    dtype: Any = "uint8",
    *,
    device: Device | int | str | None = None,
    pool: Pool | None = None,
    stream: Stream | int | None = None,
    name: str | None = None,
) -> Buffer:
    """Return a buffer filled with a value; the rest is as in :func:`empty`.

    The fill is queued on the buffer's stream.
    """
    buffer = choose(pool, device).empty(shape, dtype, stream=stream, name=name)
    return buffer.fill(value, stream=stream)


_FORMATS: Final = {
    "?": "bool",
    "c": "uint8",
    "e": "float16",
    "f": "float32",
    "d": "float64",
    "Zf": "complex64",
    "Zd": "complex128",
}


def asarray(
    source: Any,
    dtype: Any = None,
    *,
    device: Device | int | str | None = None,
    pool: Pool | None = None,
    stream: Stream | int | None = None,
    name: str | None = None,
) -> Buffer:
    """Return a buffer with the content of ``source``.

    Parameters
    ----------
    source
        A buffer, an object with the buffer protocol (bytes, ``array.array``, a NumPy
        array), a tensor in host memory, or what ``numpy.asarray`` takes if NumPy is
        installed. A buffer that is already there with that dtype is returned as it is.
    dtype
        Of the result; by default that of the source. Converted as by
        ``Buffer.copy_from``: within a kind of number, or to a wider kind.
    device, pool, stream, name
        As in :func:`empty`.

    Raises
    ------
    TypeError
        For a source that cannot be read, or that needs NumPy where there is none.
    """
    target_pool = choose(pool, device)
    there = isinstance(source, Buffer) and source.device == target_pool.device
    if there and dtype in (None, source.dtype):
        return cast("Buffer", source)
    readable, shape, element = _readable(source)
    target = target_pool.empty(shape, dtype or element, stream=stream, name=name)
    return target.copy_from(readable, stream=stream)


def _readable(source: Any) -> tuple[Any, tuple[int, ...], str]:
    """What ``Buffer.copy_from`` reads, and its shape and dtype."""
    if hasattr(source, "dtype") and hasattr(source, "shape"):
        return source, tuple(source.shape), _dtype_name(source.dtype)
    try:
        view = memoryview(source)
    except TypeError:
        pass
    else:
        element = _format_name(view)
        if element is not None:
            return view, view.shape or (), element
    array = _as_numpy(source)
    return array, array.shape, _dtype_name(array.dtype)


def _dtype_name(dtype: Any) -> str:
    """``float32`` for NumPy's dtype of that name, our own, and ``torch.float32``."""
    return str(getattr(dtype, "name", None) or dtype).removeprefix("torch.")


def _format_name(view: memoryview) -> str | None:
    code = view.format.lstrip("@=<")
    if code in tuple("bhilq"):
        return f"int{view.itemsize * 8}"
    if code in tuple("BHILQ"):
        return f"uint{view.itemsize * 8}"
    return _FORMATS.get(code)


def _as_numpy(source: Any) -> Any:
    try:
        import numpy  # tried with 1.26 and 2.x
    except ImportError:
        raise TypeError(
            f"a {type(source).__name__} can only be read with NumPy, which is not "
            "installed"
        ) from None
    array = numpy.asarray(source)
    if array.dtype.kind not in "biufc":
        raise TypeError(f"a {type(source).__name__} holds no numbers")
    return array


# ---- host memory for transfers -------------------------------------------------------


def pinned_empty(
    shape: int | Sequence[int],
    dtype: Any = "uint8",
    *,
    device: Device | int | str | None = None,
) -> PinnedArray:
    """Return page-locked host memory that ``device`` copies from and to at full speed.

    It comes from a caching pool of the device and goes back there when the array and
    all views of it are gone and copies that were queued are done.
    """
    return _core.pinned_empty(device_names.resolve(device), shape, dtype)


def pin(array: Any, *, device: Device | int | str | None = None) -> Pin:
    """Return a context manager that page-locks the memory of an array inside.

    Nested pins of the same range count; a partial overlap is a ``ValueError``. The
    array stays alive while it is pinned.
    """
    return Pin(device_names.resolve(device), array)


# ---- limits --------------------------------------------------------------------------


def set_per_process_memory_fraction(
    fraction: float, device: Device | int | str | None = None
) -> None:
    """Limit the default pool of a device to a fraction of the device's memory.

    Parameters
    ----------
    fraction
        A number with ``0 < fraction <= 1``.
    device
        ``None``: the current one. Other devices keep their limits; all threads see the
        same.

    Raises
    ------
    TypeError, ValueError
        For text, bools and numbers out of range, and for what is no device.
    """
    share = parse_fraction(fraction)
    resolved = device_names.resolve(device)
    with config.lock:
        _fractions[resolved] = share
        pool = _defaults.get(resolved)
        if pool is not None:
            pool.limit = _limit_of(resolved, config.current())


def get_per_process_memory_fraction(device: Device | int | str | None = None) -> float:
    """Return the fraction that limits the default pool of a device; 1.0: none."""
    found = device_names.find(device)
    if isinstance(found, Device) and found in _fractions:
        return _fractions[found]
    configured: float | None = config.get("memory_fraction")
    return 1.0 if configured is None else configured


def _check_reserve(reserve: int, name: str, total: int) -> None:
    if reserve > total:
        raise ValueError(
            f"reserve={reserve} ({format_size(reserve)}) is more than {name} has: "
            f"{total} bytes ({format_size(total)})"
        )


def apply_options(changed: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Carry changed options to the default pools that exist: all of them or none."""
    _refuse_late(changed)
    if "reserve" in changed:
        for device in _defaults or device_names.open_devices():
            _check_reserve(values["reserve"], device.name, device.total)
        if not device_names.open_devices() and not cuda_runtime.device_count():
            total = values["host_capacity"] or device_names.default_host_capacity()
            _check_reserve(values["reserve"], "host:0", total)
    if not {*_LIVE, "memory_fraction", "reserve"} & changed.keys():
        return
    former = [(pool, pool.options()) for pool in _defaults.values()]
    try:
        for pool, _options in former:
            _change(pool, {**values, "limit": _limit_of(pool.device, values)})
            if values["reserve"] and "reserve" in changed:
                pool.reserve(values["reserve"])
    except BaseException:
        for pool, options in former:
            _change(pool, options)
        raise


def _change(pool: Pool, values: Mapping[str, Any]) -> None:
    pool.configure(**{name: values[name] for name in _LIVE})


def _refuse_late(changed: Mapping[str, Any]) -> None:
    for name in changed:
        when = config.OPTIONS[name].when
        if when == "pool" and _defaults:
            made = ", ".join(device.name for device in _defaults)
            raise GpumemError(
                f"{name} cannot change: the default pool of {made} exists. Set it "
                "before first use, or call gpumem.reset() first"
            )
        if when == "device":
            kind = name.partition("_")[0]
            names = [d.name for d in device_names.open_devices() if d.kind == kind]
            if names:
                raise GpumemError(
                    f"{name} cannot change: {', '.join(names)} is open. Set it before "
                    "first use, or call gpumem.reset() first"
                )


# ---- the exported C functions --------------------------------------------------------


def publish_defaults(c_device: str) -> None:
    """Tell the exported C functions which default pools they act on."""
    _published.clear()
    for device, pool in _defaults.items():
        _publish(device, pool, c_device)


def _publish(device: Device, pool: Pool, c_device: str) -> None:
    if device.kind == c_device and device in device_names.open_devices():
        _core.set_c_pool(device.index, pool)
        _published.add(device.index)


# ---- life ----------------------------------------------------------------------------


def open_pools(device: Device | None = None) -> list[Pool]:
    """Return the open pools of this interpreter, oldest first; of one device or all."""
    return [
        pool
        for pool in _core.pools()
        if not pool.closed and (device is None or pool.device == device)
    ]


def reset() -> None:
    """Go back to the state after import: no pools, no devices, no options, no counters.

    Closes every pool of this interpreter. Live buffers stay readable until they are
    dropped. ``GPUMEM_CONF`` is read again at the next use.

    Raises
    ------
    BufferError
        While buffers are exported (NumPy views, memoryviews, DLPack); the message
        lists them, and nothing was changed.
    """
    _close_all("reset")
    device_names.forget(shut_down=False)
    config.forget()


def shutdown() -> None:
    """Close every pool and device of this interpreter; a second call does nothing.

    Afterwards allocations raise :class:`GpumemError`, dropping buffers is silent, and
    statistics are zero. :func:`reset` makes everything usable again, with counters
    from zero.

    Raises
    ------
    BufferError
        While buffers are exported; the message lists them, and nothing was changed.
    """
    _close_all("shutdown")
    device_names.forget(shut_down=True)


def _close_all(what: str) -> None:
    from . import history, peaks

    with config.lock:
        open_now = open_pools()
        exported = [
            f"{buffer.name or hex(buffer.ptr)} ({format_size(buffer.nbytes)}, "
            f"{plural(buffer.exports, 'export')})"
            for pool in open_now
            for buffer in pool.live_buffers()
            if buffer.exports
        ]
        if exported:
            more = f", and {len(exported) - 10} more" if len(exported) > 10 else ""
            raise BufferError(
                f"gpumem.{what}() would pull memory away from "
                f"{plural(len(exported), 'exported buffer')}: "
                f"{', '.join(exported[:10])}{more}"
            )
        for index in _published:
            _core.set_c_pool(index, None)
        _published.clear()
        _defaults.clear()
        _fractions.clear()
        history.forget()
        peaks.forget()
        for pool in open_now:
            pool.close()
