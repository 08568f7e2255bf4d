"""Recording what happens: a bounded history of each pool, and callbacks.

A history keeps the newest ``max_entries`` events of a pool in memory of the host, a few
words each; a stack is kept once, however many entries share it.
Callbacks get numbers and strings, never a buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Literal, get_args

from . import _core, config, device_names, pools
from ._core import Device, Pool
from .sizes import parse_count

__all__ = ["Callback", "add_callback", "record_history"]

Kind = Literal["alloc", "free", "oom", "pressure"]
Function = Callable[[dict[str, Any]], object]

_KINDS: Final = get_args(Kind)
_ENTRIES_MAX: Final = 100_000_000
_callbacks: dict[str, list[Callback]] = {kind: [] for kind in _KINDS}

# What pools made later record, by device; the key None is for every device.
_recording: dict[Device | None, tuple[int, bool]] = {}

# ---- history -------------------------------------------------------------------------


def record_history(
    mode: Literal["all"] | None = "all",
    *,
    max_entries: int = 100_000,
    stacks: bool = False,
    device: Device | int | str | None = "all",
) -> None:
    """Record allocations, frees and what pools take and give back, from now on.

    Snapshots contain it as ``device_traces``, in PyTorch's layout.

    Parameters
    ----------
    mode
        ``"all"``: begin, with an empty history. ``None``: stop and forget.
    max_entries
        The newest so many events of each pool are kept; how many older ones were
        dropped is in the snapshot.
    stacks
        Keep the Python stack of each allocation: file, line and function, no frames.
    device
        Whose open pools record; ``"all"``, an int, a name, a device, or ``None`` for
        the current one. Default pools made later do the same.

    Raises
    ------
    TypeError, ValueError
        For another mode, a bad number, or what is no device.
    """
    if mode not in ("all", None):
        raise ValueError(f"mode must be 'all' or None, not {mode!r}")
    if not isinstance(stacks, bool):
        raise TypeError(f"stacks must be True or False, not {stacks!r}")
    entries = parse_count(max_entries, "max_entries", 1, _ENTRIES_MAX)
    one = None if device == "all" else device_names.resolve(device)
    with config.lock:
        if one is None:
            _recording.clear()
        _recording[one] = (0, False) if mode is None else (entries, stacks)
        for pool in pools.open_pools(one):
            pool.record_history(*_recording[one])


def attach(pool: Pool) -> None:
    """Make a new default pool record what was asked for."""
    entries, stacks = _recording.get(pool.device, _recording.get(None, (0, False)))
    if entries:
        pool.record_history(entries, stacks)


# ---- callbacks -----------------------------------------------------------------------


class Callback:
    """A callback that was added; :meth:`remove` takes it away, as does ``with``.

    Attributes
    ----------
    kind
        ``"alloc"``, ``"free"``, ``"oom"`` or ``"pressure"``.
    function
        What is called.
    """

    __slots__ = ("function", "kind")

    def __init__(self, kind: Kind, function: Function) -> None:
        self.kind = kind
        self.function = function

    @property
    def active(self) -> bool:
        """Whether it is called."""
        return self in _callbacks[self.kind]

    def remove(self) -> None:
        """Call it no more; a second time does nothing."""
        with config.lock:
            if self in _callbacks[self.kind]:
                _callbacks[self.kind].remove(self)
                _install()

    def __enter__(self) -> Callback:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()

    def __repr__(self) -> str:
        state = "active" if self.active else "removed"
        return f"<Callback on {self.kind}: {self.function!r}, {state}>"


def add_callback(kind: Kind, function: Function) -> Callback:
    """Call a function at each event of a kind, in every pool, and return its handle.

    Parameters
    ----------
    kind
        ``"alloc"`` and ``"free"``: after each; ``"oom"``: before the error is raised;
        ``"pressure"``: before an allocation fails, so that the function can release
        buffers; the allocation is tried again afterwards.
    function
        Gets one dict of numbers and strings: ``device``, ``pool``, ``ptr``, ``size``,
        ``stream``; for oom and pressure ``requested``, ``urgency`` and ``reason``. An
        exception in it goes to ``sys.unraisablehook``. It runs on the thread of the
        event and holds no lock.

    Raises
    ------
    TypeError, ValueError
        For an unknown kind, or what cannot be called.

    Examples
    --------
    >>> import gpumem
    >>> sizes = []
    >>> pool = gpumem.Pool(gpumem.device("host", capacity="64 MiB"))
    >>> with gpumem.add_callback("alloc", lambda event: sizes.append(event["size"])):
    ...     buffer = pool.empty(1000)
    >>> len(sizes)
    1
    >>> del buffer; pool.close(); gpumem.reset()
    """
    if kind not in _KINDS:
        raise ValueError(f"kind must be one of {', '.join(_KINDS)}, not {kind!r}")
    if not callable(function):
        raise TypeError(f"function must be callable, not {type(function).__name__}")
    handle = Callback(kind, function)
    with config.lock:
        _callbacks[kind].append(handle)
        _install()
    return handle


def _install() -> None:
    _core.set_callbacks(
        **{kind: tuple(h.function for h in added) for kind, added in _callbacks.items()}
    )


def forget() -> None:
    """Drop all callbacks and record nothing; part of :func:`gpumem.reset`."""
    _recording.clear()
    if any(_callbacks.values()):
        for added in _callbacks.values():
            added.clear()
        _install()
