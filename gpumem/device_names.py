"""Devices by name: which there are, which one a name means, which one is current.

CUDA devices ``cuda:0``, ``cuda:1``, ... are those that the driver shows. Host devices
``host:0``, ``host:1``, ... exist as many as the option ``host_devices`` says, and
beyond that when they were opened by :func:`device`. A device is opened when it is first
used; asking for statistics opens none. The current device belongs to the thread, as in
PyTorch; until :func:`set_device` it is ``cuda:0`` where there is one, else ``host:0``.
An index is one among the CUDA devices where there are any, else among the host devices.
"""

from __future__ import annotations

import os
import threading
from typing import Final

from . import _core, config, cuda_runtime
from ._core import Device, GpumemError
from .sizes import format_size, parse_size

__all__ = [
    "current_device",
    "default_host_capacity",
    "device",
    "devices",
    "find",
    "resolve",
    "set_device",
]

_GRAIN: Final = 2 << 20
_LEAST: Final = 64 << 20

_open: dict[str, Device] = {}
_sims: dict[int | None, str] = {}
_asked: dict[str, tuple[int, str | None]] = {}
_shut_down = False


class _Current(threading.local):
    """The current device of a thread: open, a name, or ``None``: nobody chose."""

    choice: Device | str | None = None


_current = _Current()


def _after_fork() -> None:
    """The child opens devices of its own; names stay what they were."""
    global _current
    choice = _current.choice
    name = choice.name if isinstance(choice, Device) else choice
    known = not isinstance(choice, Device) or _open.get(choice.name) == choice
    _open.clear()
    _sims.clear()
    _current = _Current()
    if known and name is not None and not name.startswith("sim:"):
        _current.choice = name


os.register_at_fork(after_in_child=_after_fork)

# ---- what a name means ---------------------------------------------------------------


def find(device: Device | int | str | None = None) -> Device | str:
    """Return the open device that is meant, or the name of one that is not open yet.

    Opens nothing. The one place where a device argument is checked.

    Parameters
    ----------
    device
        A device, an index, a name, or ``None``: the current device of this thread.

    Raises
    ------
    TypeError, ValueError
        For anything else; the message says which devices there are.
    """
    if device is None:
        device = _current.choice or _default_name()
    if isinstance(device, Device):
        return device
    if isinstance(device, bool) or not isinstance(device, (int, str)):
        raise TypeError(
            f"device must be a Device, an int, a name or None, not {device!r} "
            f"({type(device).__name__}); {_there_are()}"
        )
    name = f"{_kind_of_indices()}:{device}" if isinstance(device, int) else device
    if name in ("host", "cuda"):
        name = f"{name}:0"
    elif name == "sim":
        name = _sims.get(None, name)
    if name in _open:
        return _open[name]
    if name not in _host_names() and name not in _cuda_names():
        raise ValueError(f"there is no device {device!r}; {_there_are()}")
    return name


def resolve(device: Device | int | str | None = None) -> Device:
    """Return the device that is meant, opened if need be; see :func:`find`."""
    found = find(device)
    if isinstance(found, Device):
        require_running()
        return found
    return _open_by_name(found, None, None)


def _default_name() -> str:
    return f"{_kind_of_indices()}:0"


def _kind_of_indices() -> str:
    return "cuda" if cuda_runtime.device_count() else "host"


def _cuda_names() -> list[str]:
    return [f"cuda:{index}" for index in range(cuda_runtime.device_count())]


def _host_names() -> list[str]:
    count = config.get("host_devices")
    names = {f"host:{index}": index for index in range(count)}
    names |= {n: int(n[5:]) for n in _open if n.startswith("host:")}
    return sorted(names, key=names.__getitem__)


def _there_are() -> str:
    cuda, hosts = _cuda_names(), _host_names()
    indices = [int(name[5:]) for name in cuda or hosts]
    if indices == list(range(len(indices))):
        ints = f"ints 0 to {len(indices) - 1}" if len(indices) > 1 else "int 0"
    else:
        ints = f"ints {', '.join(map(str, indices))}"
    names = [*cuda, *hosts, *(n for n in _open if n.startswith("sim:"))]
    without = "" if cuda else f" (no CUDA: {cuda_runtime.report().message})"
    return f"valid are {', '.join(names)} and the {ints}{without}"


# ---- opening -------------------------------------------------------------------------


def device(
    name: Device | int | str | None = None,
    *,
    capacity: int | str | None = None,
    shared: str | None = None,
) -> Device:
    """Return a device, opened if it was not.

    Parameters
    ----------
    name
        ``"cuda"`` or ``"cuda:1"``: a CUDA device. ``"host"`` or ``"host:1"``: a host
        device. ``"sim:24GiB"``: addresses of so much memory and no memory; ``"sim"``:
        without a limit. An int, a device, or ``None`` as everywhere.
    capacity
        Bytes of a host device that is opened now. Default: the option
        ``host_capacity``, else the memory of this machine.
    shared
        A name: the capacity is shared with every process that gives the same name.

    Raises
    ------
    ValueError
        For an unknown name, or when the device is open with another capacity.
    GpumemError
        For a CUDA device where CUDA is not ready; the message says who can change that.

    Examples
    --------
    >>> import gpumem
    >>> small = gpumem.device("host:1", capacity="64 MiB")
    >>> small.name, small.total
    ('host:1', 67108864)
    >>> gpumem.reset()
    """
    require_running()
    size = None if capacity is None else parse_size(capacity, "capacity")
    if isinstance(name, str):
        kind, _colon, rest = name.partition(":")
        if kind == "cuda" and (not rest or rest.isdecimal()):
            return _open_by_name(f"cuda:{int(rest or 0)}", size, shared)
        if kind == "sim" and name not in _open:
            if size is not None or shared is not None:
                raise ValueError("a sim device takes its capacity in the name")
            return _open_sim(rest)
        if kind == "host" and (not rest or rest.isdecimal()):
            return _open_by_name(f"host:{int(rest or 0)}", size, shared)
    found = find(name)
    if isinstance(found, str):
        return _open_by_name(found, size, shared)
    if found.name in _asked and _open.get(found.name) == found:
        _require_same(found.name, size, shared)
    elif size is not None or shared is not None:
        raise ValueError(f"{found.name} is open; its capacity cannot change")
    return found


def _open_by_name(name: str, capacity: int | None, shared: str | None) -> Device:
    if name.startswith("host:"):
        return _open_host(name, capacity, shared)
    if capacity is not None or shared is not None:
        raise ValueError(f"{name} has the capacity that it has, of its own")
    return _open_cuda(name)


def _open_cuda(name: str) -> Device:
    with config.lock:
        require_running()
        if name in _open:
            return _open[name]
        found = cuda_runtime.report()
        if found.state != "ready":
            raise GpumemError(f"{name}: {found.message}. Host devices work everywhere")
        if name not in _cuda_names():
            raise ValueError(f"there is no device {name!r}; {_there_are()}")
        opened = _core.open_cuda(
            int(name[5:]),
            page_size=config.get("cuda_page_size") or 0,
            aliasing=config.get("cuda_aliasing"),
            segments=config.get("cuda_segments"),
        )
        _open[name] = opened
        return opened


def _open_host(name: str, capacity: int | None, shared: str | None) -> Device:
    index = int(name[5:])
    if index >= config.HOST_DEVICES_MAX:
        raise ValueError(
            f"there is no device {name!r}; host devices are host:0 to "
            f"host:{config.HOST_DEVICES_MAX - 1}"
        )
    with config.lock:
        require_running()
        if name in _open:
            _require_same(name, capacity, shared)
            return _open[name]
        size = host_capacity() if capacity is None else capacity
        opened = _core.open_host(index, size, shared=shared)
        _open[name] = opened
        _asked[name] = (size, shared)
        return opened


def _require_same(name: str, capacity: int | None, shared: str | None) -> None:
    had, had_shared = _asked[name]
    if capacity not in (None, had):
        raise ValueError(
            f"{name} is open with a capacity of {had} bytes ({format_size(had)}), "
            f"not {capacity}"
        )
    if shared not in (None, had_shared):
        raise ValueError(f"{name} is open with shared={had_shared!r}, not {shared!r}")


def _open_sim(rest: str) -> Device:
    if rest.isdecimal() and rest != "0":
        raise ValueError(
            f"there is no device 'sim:{rest}'; a capacity needs its unit, as in "
            "'sim:24GiB'"
        )
    capacity = parse_size(rest, "the capacity of a sim device") if rest else None
    capacity = capacity or None
    with config.lock:
        name = _sims.get(capacity)
        if name is None:
            opened = _core.open_sim(len(_sims), capacity)
            name = opened.name
            _open[name] = opened
            _sims[capacity] = name
        return _open[name]


# ---- capacity ------------------------------------------------------------------------


def host_capacity() -> int:
    """Return the bytes that a host device gets unless it is told."""
    configured: int | None = config.get("host_capacity")
    return default_host_capacity() if configured is None else configured


def default_host_capacity() -> int:
    """Return the memory of this machine, or of its control group if that is less.

    Bytes, a multiple of 2 MiB.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _group_limit()
    least = memory if limit is None else min(memory, limit)
    return max(least // _GRAIN * _GRAIN, _LEAST)


def _group_limit(
    root: str = "/sys/fs/cgroup", own: str = "/proc/self/cgroup"
) -> int | None:
    """The smallest memory limit of this process's control groups, both versions."""
    try:
        with open(own, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    limits = []
    for line in lines:
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0" and not controllers:
            limits += _limits_upwards(root, path, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _limits_upwards(f"{root}/memory", path, "memory.limit_in_bytes")
    return min(limits, default=None)


def _limits_upwards(root: str, path: str, file_name: str) -> list[int]:
    limits = []
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        try:
            with open(
                "/".join([root, *parts[:depth], file_name]), encoding="utf-8"
            ) as f:
                text = f.read().strip()
        except OSError:
            continue
        if text.isdecimal() and int(text) > 0:
            limits.append(int(text))
    return limits


# ---- all and current -----------------------------------------------------------------


def devices() -> tuple[Device, ...]:
    """Return all devices, host devices first; opens those that are not open yet.

    A CUDA device that is only listed has no context: nothing of its memory is taken.
    """
    hosts = [resolve(name) for name in _host_names()]
    cuda = [resolve(name) for name in _cuda_names()]
    return (*hosts, *cuda, *(d for n, d in _open.items() if n.startswith("sim:")))


def set_device(device: Device | int | str | None) -> None:
    """Make a device the current one of this thread; ``None`` changes nothing.

    Raises
    ------
    TypeError, ValueError
        For what is no device; the message says which there are.
    """
    _current.choice = find(device)


def current_device() -> Device:
    """Return the current device of this thread."""
    return resolve(None)


# ---- life ----------------------------------------------------------------------------


def open_devices() -> tuple[Device, ...]:
    """Return the devices that were opened by name."""
    return tuple(_open.values())


def require_running() -> None:
    """Raise GpumemError after :func:`gpumem.shutdown`."""
    if _shut_down:
        raise GpumemError(
            "gpumem was shut down by gpumem.shutdown(); gpumem.reset() starts it anew"
        )


def forget(*, shut_down: bool) -> None:
    """Drop all devices; part of :func:`gpumem.reset` and :func:`gpumem.shutdown`."""
    global _current, _shut_down
    with config.lock:
        _open.clear()
        _sims.clear()
        _asked.clear()
        cuda_runtime.forget()
        _current = _Current()
        _shut_down = shut_down
