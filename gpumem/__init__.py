"""Accelerator memory: a caching allocator, scoped release, gradient accumulation.

``gpumem.empty`` and its relatives allocate from the current device's default pool,
``gpumem.scope`` releases what was allocated inside, ``gpumem.GradBuffer`` accumulates
gradients, ``gpumem.memory_summary`` says where the memory is. Everything works on a
machine without a GPU: the host device has a GPU's manners.

Importing reads no environment and calls no device. Functions of the Python layer are
loaded when they are first used; ``__init__.pyi`` is the same list for type checkers.
"""

from importlib import import_module as _import_module

from . import _hooks
from ._core import (
    Buffer,
    CudaError,
    Device,
    Event,
    GpumemError,
    GpumemWarning,
    GradBuffer,
    OutOfMemoryError,
    Pin,
    PinnedArray,
    Pool,
    ReleasedError,
    Scope,
    Stream,
    __version__,
    current_scope,
)

scope = Scope

_LOADED_ON_USE = {
    "cleaning": "CleanReport clean",
    "config": "configure show_config",
    "device_names": "current_device device devices set_device",
    "history": "add_callback record_history",
    "leaks": "leak_report",
    "measuring": "measure",
    "pools": "asarray current_pool default_pool empty full "
    "get_per_process_memory_fraction ones pin pinned_empty reset "
    "set_per_process_memory_fraction shutdown use_pool zeros",
    "snapshot": "Snapshot dump_snapshot load_snapshot memory_snapshot",
    "stats": "MemoryStats max_memory_allocated max_memory_reserved mem_get_info "
    "memory_allocated memory_reserved memory_stats reset_accumulated_memory_stats "
    "reset_peak_memory_stats",
    "summary": "memory_summary",
    "trimming": "TrimReport empty_cache trim",
}
_MODULE_OF = {
    name: module for module, names in _LOADED_ON_USE.items() for name in names.split()
}
_SUBMODULES = ("config", "sizes", "stats", "testing")

__all__ = [
    "Buffer",
    "CudaError",
    "Device",
    "Event",
    "GpumemError",
    "GpumemWarning",
    "GradBuffer",
    "OutOfMemoryError",
    "Pin",
    "PinnedArray",
    "Pool",
    "ReleasedError",
    "Scope",
    "Stream",
    "__version__",
    "current_scope",
    "scope",
    *_MODULE_OF,
]


def __getattr__(name: str) -> object:
    if name in _MODULE_OF:
        value = getattr(_import_module(f"gpumem.{_MODULE_OF[name]}"), name)
    elif name in _SUBMODULES:
        value = _import_module(f"gpumem.{name}")
    else:
        raise AttributeError(f"module 'gpumem' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBMODULES})


_hooks.install()
