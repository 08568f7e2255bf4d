"""CUDA in this process: where its library may be, and what was found.

The library is opened by C (``csrc/device/cuda_load.c``) when a CUDA device, or the
default device, is first asked for. Paths that only Python knows, those of installed
wheels, are found here and handed down. The answer is kept until :func:`gpumem.reset`.
"""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import asdict, dataclass
from typing import Any, Final

from . import _core, config

__all__ = ["CudaReport", "device_count", "report"]

# Folders below site-packages, newest first, and the library in each.
_IN_WHEELS: Final = (
    ("nvidia/cu13/lib", "libcudart.so.13"),
    ("nvidia/cuda_runtime/lib", "libcudart.so.13"),
    ("nvidia/cuda_runtime/lib", "libcudart.so.12"),
)
_PLACES_MOST: Final = 16


@dataclass(frozen=True, slots=True)
class CudaReport:
    """What was found of CUDA.

    Attributes
    ----------
    state
        ``"ready"``, or what is missing: ``"no backend"``, ``"no library"``, ``"bad
        library"``, ``"wrong version"``, ``"no driver"``, ``"old driver"``, ``"no
        device"``, ``"broken driver"``, ``"forked"``.
    who
        Who can change that.
    runtime_version, driver_version
        As CUDA numbers them, such as 13000; 0: unknown.
    devices
        How many there are.
    code, name
        The runtime's error, if it gave one.
    path, how
        The library, and how it was found; empty: none was.
    message
        What to do, in a sentence or two; empty when ready.
    """

    state: str
    who: str
    runtime_version: int
    driver_version: int
    devices: int
    code: int
    name: str
    path: str
    how: str
    message: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


_report: CudaReport | None = None


def report() -> CudaReport:
    """Return what was found of CUDA, looking for it on the first call."""
    global _report
    with config.lock:
        if _report is None:
            found = _core.find_cuda(None)
            if found["state"] == "no library" and not found["path"]:
                found = _core.find_cuda(tuple(places()))
            _report = CudaReport(**found)
        return _report


def device_count() -> int:
    """Return the number of CUDA devices; 0 where CUDA is not ready."""
    found = report()
    return found.devices if found.state == "ready" else 0


def forget() -> None:
    """Look again at the next call; part of :func:`gpumem.reset`."""
    global _report
    _report = None


def places() -> list[tuple[str, str]]:
    """Return paths of the libraries of installed wheels, and how each is known."""
    found = _by_pathfinder()
    for folder in sys.path:
        for below, name in _IN_WHEELS:
            path = os.path.join(folder, below, name)
            if os.path.isfile(path):
                found.append((path, "an installed wheel"))
    return found[:_PLACES_MOST]


def _by_pathfinder() -> list[tuple[str, str]]:
    """NVIDIA's own way to its libraries, where it is installed."""
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
        library = pathfinder.load_nvidia_dynamic_lib("cudart")
        path = library.abs_path
    except Exception:
        # Not installed, or it finds nothing; what it raises differs by version.
        return []
    return [(path, "cuda-pathfinder")] if isinstance(path, str) else []
