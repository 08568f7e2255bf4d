"""Peaks of windows that overlap, over the one set of peak counters that a pool has.

A pool keeps the highest value since its peaks were last reset. Whoever opens a window
(:func:`gpumem.measure`) needs the highest value since then, while the user's own
peaks, reset by :func:`gpumem.reset_peak_memory_stats`, and outer windows go on. So
before the counters of a pool are reset, what they showed is folded into everybody who
still needs it.

Allocations of other threads between the two steps may be missed by a peak; currents
and totals are exact. Calling ``Pool.reset_peaks`` directly shortens windows that are
open.
"""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakKeyDictionary

from . import config
from ._core import Pool

__all__ = ["Window", "forget", "reset", "with_peaks"]

_user: WeakKeyDictionary[Pool, dict[str, int]] = WeakKeyDictionary()
_windows: list[Window] = []


class Window:
    """The peaks of some pools since :meth:`open`; pools made later count from zero."""

    __slots__ = ("_peaks",)

    def __init__(self) -> None:
        self._peaks: dict[Pool, dict[str, int]] = {}

    def open(self, pools: Iterable[Pool]) -> None:
        """Begin: the peaks are the values of now."""
        with config.lock:
            for pool in pools:
                _fold(pool)
                pool.reset_peaks()
                self._peaks[pool] = {}
            _windows.append(self)

    def close(self) -> None:
        """End, and hold no pool any more."""
        with config.lock:
            _windows.remove(self)
            self._peaks.clear()

    def peak(self, pool: Pool, key: str) -> int:
        """Return the highest value of ``key`` (without ``.peak``) so far."""
        held = self._peaks.get(pool, {}).get(f"{key}.peak", 0)
        return max(held, pool.stats()[f"{key}.peak"])

    def fold(self, pool: Pool, peaks: dict[str, int]) -> None:
        """Note what the counters showed before they are reset."""
        _merge(self._peaks.setdefault(pool, {}), peaks)


def with_peaks(pool: Pool) -> dict[str, int]:
    """Return the pool's statistics with the peaks since the user's last reset."""
    stats = pool.stats()
    _merge(stats, _user.get(pool, {}))
    return stats


def reset(pool: Pool) -> None:
    """Reset the user's peaks of a pool; open windows keep theirs."""
    with config.lock:
        _fold(pool)
        _user.pop(pool, None)
        pool.reset_peaks()


def forget() -> None:
    """Drop everything; part of :func:`gpumem.reset`."""
    _user.clear()


def _fold(pool: Pool) -> None:
    peaks = _peaks_of(pool)
    _merge(_user.setdefault(pool, {}), peaks)
    for window in _windows:
        window.fold(pool, peaks)


def _peaks_of(pool: Pool) -> dict[str, int]:
    return {key: n for key, n in pool.stats().items() if key.endswith(".peak")}


def _merge(into: dict[str, int], peaks: dict[str, int]) -> None:
    for key, value in peaks.items():
        into[key] = max(into.get(key, 0), value)
