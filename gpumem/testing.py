"""Devices that tests can steer: capacity, streams that wait, time, failing calls.

Examples
--------
>>> from gpumem import Pool, testing
>>> device = testing.device("host", capacity="64 MiB", clock="manual")
>>> pool = Pool(device)
>>> device.occupy(60 << 20)
>>> pool.empty(16 << 20)
Traceback (most recent call last):
    ...
gpumem.OutOfMemoryError: ...
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from . import _core
from ._core import Device
from .sizes import parse_count, parse_size

__all__ = ["device", "faults", "host_kernels", "kernel_sets"]


def device(
    kind: str = "host",
    *,
    capacity: int | str | None = "1 GiB",
    paging: bool = True,
    page_size: int | str = 0,
    delayed: bool = False,
    aliasing: bool = True,
    shared: str | None = None,
    clock: Literal["real", "manual"] = "real",
    lag: int = 0,
    checked: bool = False,
) -> Device:
    """Return a new device that nobody else knows; its name is not registered.

    Its methods ``occupy``, ``set_reported_free``, ``advance``, ``counters``,
    ``set_capturing``, ``with_faults``, ``set_lag`` and ``tick`` steer it; streams have
    ``stall`` and ``release``. ``violations`` is the report of a checked device.

    Parameters
    ----------
    kind
        ``"host"``, ``"sim"``, or with an index: ``"host:1"``.
    capacity
        Bytes or text; ``None`` on a sim device: unlimited.
    paging, page_size, aliasing
        Whether there are pages, of how many bytes (0: 2 MiB), and whether one page may
        be mapped at two addresses.
    delayed
        Streams of a host device start stalled: work waits until ``Stream.release``.
    shared
        A name: the capacity is shared with every process that gives it.
    clock
        ``"manual"``: time of a host device moves by ``Device.advance`` alone.
    lag
        An event of a sim device is done so many ``tick`` calls after it was recorded.
    checked
        ``Device.violations`` tells of each block whose memory somebody else's work may
        still use, and each mapping that goes too early: judged by the events and waits
        that order them, not by whether the work happened to be done.

    Raises
    ------
    TypeError, ValueError
        For another kind, bad values, and options of the other kind.
    """
    name, _colon, digits = kind.partition(":")
    if name not in ("host", "sim") or (digits and not digits.isdecimal()):
        raise ValueError(f"kind must be 'host', 'sim', or as 'host:1', not {kind!r}")
    if clock not in ("real", "manual"):
        raise ValueError(f"clock must be 'real' or 'manual', not {clock!r}")
    index = int(digits or 0)
    size = None if capacity is None else parse_size(capacity, "capacity")
    page = parse_size(page_size, "page_size")
    if name == "sim":
        if delayed or shared is not None or clock != "real":
            raise ValueError("delayed, shared and clock belong to host devices")
        operations = parse_count(lag, "lag", 0, 1 << 62)
        return _core.open_sim(
            index,
            size,
            page_size=page,
            paging=paging,
            aliasing=aliasing,
            lag=operations,
            checked=checked,
        )
    if lag or size is None:
        raise ValueError("lag and capacity=None belong to sim devices")
    return _core.open_host(
        index,
        size,
        page_size=page,
        paging=paging,
        aliasing=aliasing,
        delayed=delayed,
        manual_clock=clock == "manual",
        shared=shared,
        checked=checked,
    )


@contextmanager
def faults(
    device: Device,
    call: str | None,
    nth: int = 1,
    *,
    for_ever: bool = False,
    status: str = "out of memory",
    delay: float = 0.0,
) -> Iterator[Device]:
    """Make calls of a device fail inside a ``with`` block.

    Parameters
    ----------
    device
        Made by ``Device.with_faults()``.
    call
        A key of ``Device.counters()``, such as ``"map"``; ``None``: any call.
    nth
        Which one fails, 1 is the next.
    for_ever
        All later ones fail, too.
    status
        What the failed call answers.
    delay
        Seconds that every such call sleeps first.
    """
    device.arm_fault(call, nth, for_ever=for_ever, status=status, delay=delay)
    try:
        yield device
    finally:
        device.disarm_fault()


def kernel_sets() -> tuple[str, ...]:
    """Return the instruction sets that host devices can compute with on this CPU.

    The preferred one comes first, ``"baseline"`` last: of ``"avx512"``, ``"avx2"``,
    ``"neon"``, ``"baseline"``. All give the same bits.
    """
    return _core.host_kernels()


@contextmanager
def host_kernels(name: str) -> Iterator[None]:
    """Make host devices compute with one instruction set inside a ``with`` block.

    It holds for all threads of the process.

    Parameters
    ----------
    name
        One of ``kernel_sets()``.

    Raises
    ------
    ValueError
        When this CPU cannot run it.
    """
    before = _core.force_host_kernels(name)
    try:
        yield
    finally:
        _core.force_host_kernels(before)
