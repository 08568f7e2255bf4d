from ._core import Buffer as Buffer
from ._core import CudaError as CudaError
from ._core import Device as Device
from ._core import Event as Event
from ._core import GpumemError as GpumemError
from ._core import GpumemWarning as GpumemWarning
from ._core import GradBuffer as GradBuffer
from ._core import OutOfMemoryError as OutOfMemoryError
from ._core import Pin as Pin
from ._core import PinnedArray as PinnedArray
from ._core import Pool as Pool
from ._core import ReleasedError as ReleasedError
from ._core import Scope as Scope
from ._core import Stream as Stream
from ._core import __version__ as __version__
from ._core import current_scope as current_scope
from .cleaning import CleanReport as CleanReport
from .cleaning import clean as clean
from .config import configure as configure
from .config import show_config as show_config
from .device_names import current_device as current_device
from .device_names import device as device
from .device_names import devices as devices
from .device_names import set_device as set_device
from .history import add_callback as add_callback
from .history import record_history as record_history
from .leaks import leak_report as leak_report
from .measuring import measure as measure
from .pools import asarray as asarray
from .pools import current_pool as current_pool
from .pools import default_pool as default_pool
from .pools import empty as empty
from .pools import full as full
from .pools import (
    get_per_process_memory_fraction as get_per_process_memory_fraction,
)
from .pools import ones as ones
from .pools import pin as pin
from .pools import pinned_empty as pinned_empty
from .pools import reset as reset
from .pools import (
    set_per_process_memory_fraction as set_per_process_memory_fraction,
)
from .pools import shutdown as shutdown
from .pools import use_pool as use_pool
from .pools import zeros as zeros
from .snapshot import Snapshot as Snapshot
from .snapshot import dump_snapshot as dump_snapshot
from .snapshot import load_snapshot as load_snapshot
from .snapshot import memory_snapshot as memory_snapshot
from .stats import MemoryStats as MemoryStats
from .stats import max_memory_allocated as max_memory_allocated
from .stats import max_memory_reserved as max_memory_reserved
from .stats import mem_get_info as mem_get_info
from .stats import memory_allocated as memory_allocated
from .stats import memory_reserved as memory_reserved
from .stats import memory_stats as memory_stats
from .stats import reset_accumulated_memory_stats as reset_accumulated_memory_stats
from .stats import reset_peak_memory_stats as reset_peak_memory_stats
from .summary import memory_summary as memory_summary
from .trimming import TrimReport as TrimReport
from .trimming import empty_cache as empty_cache
from .trimming import trim as trim

scope = Scope
