"""Types of the extension module: one class for each C type, and the functions under
which the Python layer composes. Sizes are bytes, times seconds unless a name says
otherwise. Everything here takes exact values (ints, not "1 GiB"); the Python layer
parses text."""

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Literal, NoReturn, Self, final

__version__: Final[str]

class GpumemError(RuntimeError): ...

class OutOfMemoryError(GpumemError, MemoryError):
    requested: int
    used: int
    cached: int
    pending: int
    reserved: int
    limit: int | None
    headroom: int
    device_free: int
    device_total: int
    largest_free: int
    stranded: int
    device: str
    reason: str
    collected: bool
    holders: tuple[tuple[str, int], ...]

class CudaError(GpumemError):
    code: int
    name: str
    call: str

class ReleasedError(GpumemError): ...
class GpumemWarning(UserWarning): ...

@final
class Device:
    """A device. Made by open_host, open_sim and open_cuda; compared by identity of the
    device."""

    @property
    def name(self) -> str: ...  # "host:0"
    @property
    def kind(self) -> Literal["host", "sim", "cuda"]: ...
    @property
    def index(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def page_size(self) -> int: ...  # 0 without paging
    @property
    def paging(self) -> bool: ...
    @property
    def aliasing(self) -> bool: ...
    @property
    def host_accessible(self) -> bool: ...
    def memory_info(self) -> tuple[int, int]: ...  # (free, total)
    def counters(self) -> dict[str, int]: ...
    # calls by kind ("page_create", ...), memory_now, memory_peak, pinned_now,
    # mapped_now, address_now
    def synchronize(self) -> None: ...  # all streams that gpumem knows of; no GIL
    # For CUDA devices; ValueError on any other.
    def enable_peer(self, peer: Device, /) -> None: ...
    def describe(self) -> dict[str, Any]: ...
    # model, bus_id, compute_capability, integrated, prepared, granularity, peers,
    # no_paging, no_aliasing, lost
    # For tests; ValueError on a device that cannot.
    def occupy(self, nbytes: int, /) -> None: ...
    def set_reported_free(self, nbytes: int | None, /) -> None: ...
    def advance(self, seconds: float, /) -> None: ...
    def set_capturing(self, stream: int | Stream, capturing: bool, /) -> None: ...
    def with_faults(self) -> Device: ...  # the same device behind a fault plan
    def arm_fault(
        self,
        call: str | None,  # a key of counters(), None: any call
        nth: int,
        *,
        for_ever: bool = False,
        status: str = "out of memory",
        delay: float = 0.0,
    ) -> None: ...
    def disarm_fault(self) -> None: ...
    @property
    def faults_injected(self) -> int: ...
    def record_calls(self, limit: int, /) -> None: ...
    def recorded_calls(self) -> list[str]: ...
    def set_lag(self, operations: int, /) -> None: ...  # sim
    def tick(self) -> None: ...  # sim
    def violations(self) -> tuple[int, str]: ...  # checked devices; (count, lines)
    @property
    def host_waits(self) -> int: ...  # sim

def open_host(
    index: int,
    capacity: int,
    *,
    page_size: int = 0,
    paging: bool = True,
    aliasing: bool = True,
    delayed: bool = False,
    manual_clock: bool = False,
    shared: str | None = None,
    checked: bool = False,
) -> Device: ...
def open_sim(
    index: int,
    capacity: int | None,
    *,
    page_size: int = 0,
    paging: bool = True,
    aliasing: bool = True,
    lag: int = 0,
    checked: bool = False,
) -> Device: ...
def find_cuda(places: tuple[tuple[str, str], ...] | None, /) -> dict[str, Any]: ...
def open_cuda(
    index: int,
    *,
    page_size: int = 0,
    paging: bool = True,
    aliasing: bool = False,
    segments: str = "malloc",
) -> Device: ...

@final
class Stream:
    """A stream of a device. Stream(device) creates one; Stream(device, handle)
    wraps one that somebody else owns (0 is the default stream)."""

    def __new__(cls, device: Device, handle: int | None = None) -> Self: ...
    @property
    def device(self) -> Device: ...
    @property
    def handle(self) -> int: ...
    def synchronize(self, timeout: float | None = None) -> bool: ...
    # False when the time was over first. Without the GIL.
    def wait(self, event: Event, /) -> None: ...
    def record(self, event: Event | None = None) -> Event: ...
    def stall(self) -> None: ...  # host devices, for tests
    def release(self, count: int | None = None) -> int: ...  # pieces of work that ran
    @property
    def waiting(self) -> int: ...
    def close(self) -> None: ...  # also tells every pool (stream_retired)
    def __cuda_stream__(self) -> tuple[int, int]: ...  # CUDA streams
    def __enter__(self) -> Stream: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

@final
class Event:
    def __new__(cls, device: Device) -> Self: ...
    @property
    def device(self) -> Device: ...
    def record(self, stream: Stream | int | None = None) -> None: ...
    def query(self) -> bool: ...
    def synchronize(self, timeout: float | None = None) -> bool: ...

@final
class Pool:
    """The caching allocator of one device."""

    def __new__(
        cls,
        device: Device | None = None,  # None: the default device, asked of Python
        *,
        limit: int | str | None = None,
        headroom: int | str | float | None = None,  # a float is a fraction of the total
        reserve: int | str | None = None,
        steal: str | float = 0.05,
        cross_stream: Literal["done", "wait", "never"] = "done",
        yields: bool = True,
        gc_on_pressure: bool = True,
        oom_wait: float = 10.0,
        decay: float | None = None,
        max_split: int | str | None = None,
        paging: bool = True,
        fallback: Pool | None = None,  # serves what this one cannot; fixed
        name: str | None = None,
    ) -> Self: ...
    # Text sizes go through the state's parse hook (set_hooks).
    @property
    def device(self) -> Device: ...
    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def closed(self) -> bool: ...
    @property
    def fallback(self) -> Pool | None: ...
    @property
    def limit(self) -> int | None: ...
    @limit.setter
    def limit(self, value: int | str | None) -> None: ...
    def options(self) -> dict[str, Any]: ...
    def configure(self, **options: Any) -> None: ...
    def empty(
        self,
        shape: int | Sequence[int],
        dtype: Any = "uint8",
        *,
        stream: Stream | int | None = None,
        name: str | None = None,
        align: int | None = None,
        pitch: int | None = None,  # rows start at multiples of this many bytes
    ) -> Buffer: ...
    def malloc(self, nbytes: int, stream: int | Stream | None = None) -> int: ...
    def free(self, ptr: int, stream: int | Stream | None = None) -> None: ...
    # ValueError for an address that is no live block of this pool.
    def owns(self, ptr: int, /) -> bool: ...
    def iteration(self) -> Iteration: ...  # counts and marks a period
    def scope(self, name: str | None = None, *, trim: Any = "auto") -> Scope: ...
    def trim(
        self,
        target: int | str = 0,
        *,
        older_than: float = 0.0,
        stream: Stream | int | None = None,
        wait: float = 0.0,
    ) -> tuple[int, int, int, int, bool]: ...
    # (released, referenced, skipped, pending, capturing); gpumem.pools wraps it.
    def reserve(self, nbytes: int | str, /) -> None: ...
    def poll(self) -> None: ...
    def stream_retired(self, stream: Stream | int, /) -> None: ...
    def capture_begin(self, stream: Stream | int, /) -> None: ...
    def capture_end(self, stream: Stream | int, /) -> None: ...
    # ValueError for a stream that captures already, or does not.
    def stats(self) -> dict[str, int]: ...  # flat: "allocated_bytes.all.current", ...
    def reset_peaks(self) -> None: ...
    def reset_accumulated(self) -> None: ...
    def view(self) -> tuple[list[tuple[Any, ...]], int]: ...
    # ([(address, size, stream, stable, small, paged, used, requested, active,
    #    [(address, size, requested, state, context), ...]), ...], unplaced)
    # state is "free", "used" or "pending"
    def summary(self, *, abbreviated: bool = False) -> Any: ...  # through the hooks
    def snapshot(self) -> Any: ...  # through the hooks
    def check(self) -> None: ...  # GpumemError with the broken invariant
    def sizes(self) -> dict[str, int]: ...
    # free_blocks, index_entries, lanes, metadata_bytes
    def record_history(self, max_entries: int, stacks: bool = False) -> None: ...
    def history(self) -> tuple[list[tuple[Any, ...]], int, int]: ...
    # ([(action, time_ns, address, size, stream, context), ...], dropped, limit)
    def clear_history(self) -> None: ...
    def close(self, timeout: float = 10.0) -> None: ...
    # BufferError while a buffer of this pool is exported (NumPy view, DLPack).
    def live_buffers(self) -> list[Buffer]: ...  # objects, newest last
    def __enter__(self) -> Pool: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

@final
class Iteration:
    """One period of a program, marked by ``with pool.iteration() as period:``."""

    @property
    def number(self) -> int: ...  # 1 for the pool's first; 0 before entry
    @property
    def allocations(self) -> int | None: ...  # blocks handed out; None before its end
    @property
    def memory_calls(
        self,
    ) -> int | None: ...  # asked of the device; None before its end
    def __enter__(self) -> Iteration: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

@final
class Buffer:
    """Device memory with a shape. Made by Pool.empty and the functions over it."""

    @property
    def ptr(self) -> int: ...
    @property
    def nbytes(self) -> int: ...  # of the elements
    @property
    def itemsize(self) -> int: ...
    @property
    def size(self) -> int: ...  # elements
    @property
    def ndim(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...  # bytes
    @property
    def dtype(self) -> str: ...  # NumPy's name, "bfloat16" and other ml_dtypes' too
    @property
    def device(self) -> Device: ...
    @property
    def stream(self) -> int: ...
    @property
    def pool(self) -> Pool: ...
    @property
    def name(self) -> str | None: ...
    @property
    def context(self) -> int: ...  # id of the stack it was made at; 0: none
    @property
    def released(self) -> bool: ...
    @property
    def exports(self) -> int: ...
    @property
    def base(self) -> Buffer | None: ...  # of a view
    def free(self) -> None: ...  # BufferError while exported; idempotent; of a view:
    # its root
    def copy_from(
        self, source: Any, /, *, stream: Stream | int | None = None
    ) -> Buffer: ...
    def copy_to(self, target: Any, /, *, stream: Stream | int | None = None) -> Any: ...
    def fill(self, value: Any, /, *, stream: Stream | int | None = None) -> Buffer: ...
    def numpy(self) -> Any: ...
    # Zero-copy, writable, on devices the host can read; ValueError elsewhere.
    def tobytes(self) -> bytes: ...
    def view(self, dtype: Any, /) -> Buffer: ...
    def reshape(self, *shape: Any) -> Buffer: ...
    def __getitem__(self, index: Any, /) -> Buffer: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Buffer]: ...
    def __reduce__(self) -> NoReturn: ...  # TypeError: says how to copy
    def record_stream(self, stream: Stream | int, /) -> None: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...  # CUDA devices only
    def __buffer__(self, flags: int) -> memoryview: ...

@final
class PinnedArray:
    """Page-locked host memory from a caching pool; buffer protocol, numpy()."""

    @property
    def ptr(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def released(self) -> bool: ...
    def numpy(self) -> Any: ...
    def free(self) -> None: ...
    def record_stream(self, stream: Stream | int, /) -> None: ...
    def __reduce__(self) -> NoReturn: ...
    def __buffer__(self, flags: int) -> memoryview: ...

def pinned_empty(
    device: Device, shape: int | Sequence[int], dtype: Any, /
) -> PinnedArray: ...
def pinned_stats(device: Device, /) -> dict[str, int]: ...
def pinned_trim(device: Device, /) -> int: ...

@final
class Pin:
    """Registration of somebody else's memory; a context manager. Nested pins of the
    same range count; a partial overlap is a ValueError."""

    def __init__(self, device: Device, array: Any) -> None: ...
    @property
    def active(self) -> bool: ...
    def close(self) -> None: ...
    def __enter__(self) -> Any: ...  # the array
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

@final
class Scope:
    """What gpumem.scope returns. Not re-entrant; RuntimeError for a second entry, an
    exit out of order or without entry."""

    def __new__(
        cls,
        name: str | None = None,
        *,
        pool: Pool | None = None,  # None: allocations in every pool count
        trim: Any = "auto",  # "auto" | True | False | bytes: target at exit
    ) -> Self: ...
    @property
    def name(self) -> str: ...
    @property
    def active(self) -> bool: ...
    @property
    def used(self) -> int: ...  # bytes of its live buffers
    @property
    def peak(self) -> int: ...
    @property
    def count(self) -> int: ...  # its live buffers
    @property
    def released(self) -> int: ...  # bytes freed at exit
    @property
    def deferred(self) -> tuple[tuple[str, int, str], ...]: ...
    # (name or address, bytes, "exported" | "interface read") of what could not go yet
    def keep(self, *buffers: Buffer) -> Any: ...
    # Hands buffers to the enclosing scope, or to nobody; returns the one, or the tuple.
    def __enter__(self) -> Scope: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

def current_scope() -> Scope | None: ...

@final
class GradBuffer:
    """One contiguous accumulation buffer; see its docstring."""

    def __new__(
        cls,
        params: Any,  # sequence or dict of shapes, arrays or buffers
        *,
        window: int | None = None,
        mode: Literal["weighted", "mean", "sum"] = "weighted",
        dtype: str = "float32",
        pool: Pool | None = None,
        stream: Stream | int | None = None,
    ) -> Self: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def views(self) -> tuple[Buffer, ...]: ...
    @property
    def buffer(self) -> Buffer: ...
    @property
    def window(self) -> int | None: ...
    @property
    def mode(self) -> str: ...
    @property
    def count(self) -> int: ...  # micro-steps added since zero()
    @property
    def pending(self) -> int: ...  # added and not finished
    @property
    def weight(self) -> float: ...
    @property
    def rejected(self) -> int: ...  # non-finite micro-steps, since creation
    @property
    def finished(self) -> bool: ...
    @property
    def ready(self) -> bool: ...  # count == window
    def add(self, grads: Any, *, weight: float | None = None) -> bool: ...
    # False: rejected as non-finite
    def finish(self) -> tuple[Buffer, ...]: ...
    def zero(self) -> None: ...
    def norm(self, ord: float = 2.0) -> float: ...
    def clip(self, max_norm: float) -> float: ...
    def state(self) -> dict[str, Any]: ...
    def close(self) -> None: ...
    def __len__(self) -> int: ...
    def __getitem__(self, key: int | str, /) -> Buffer: ...
    def __reduce__(self) -> Any: ...

# ---- process-wide -----------------------------------------------------------------

# Called once by the package. The functions import what they need inside.
def set_hooks(
    *,
    parse_size: Callable[[Any, str], int],  # (value, argument name) -> bytes
    default_device: Callable[[], Device],
    default_pool: Callable[[Device | None], Pool],
    summary: Callable[[Pool, bool], Any],
    snapshot: Callable[[Pool], Any],
    holders: Callable[[Pool], tuple[tuple[str, int], ...]],
    oom: Callable[[Pool, OutOfMemoryError], None],  # before raising: snapshot_on_oom
) -> None: ...
def pools() -> list[Pool]: ...  # open pools of this interpreter, oldest first

# Replaces the whole set. Each gets a dict of numbers and strings: device, pool, ptr,
# size, stream, (oom and pressure) requested, urgency, reason. An exception in one is
# reported through sys.unraisablehook.
def set_callbacks(
    *,
    alloc: Sequence[Callable[[dict[str, Any]], object]] = (),
    free: Sequence[Callable[[dict[str, Any]], object]] = (),
    oom: Sequence[Callable[[dict[str, Any]], object]] = (),
    pressure: Sequence[Callable[[dict[str, Any]], object]] = (),
) -> None: ...

# (file, line, function), innermost first, of a context id; [] if unknown
def stack_frames(context: int, /) -> list[tuple[str, int, str]]: ...
def set_exiting() -> None: ...  # registered with atexit by the module itself
def count_live() -> dict[str, int]: ...  # live objects by type name
def host_kernels() -> tuple[str, ...]: ...  # sets of loops, the preferred one first
def force_host_kernels(name: str | None, /) -> str: ...  # the name of the one before
def noop() -> None: ...  # a no-argument C function, for measurements

# which devices the exported C functions act on
def set_c_device(kind: Literal["cuda", "host"], /) -> None: ...

# the default pool of c_device `index`, for the exported C functions
def set_c_pool(index: int, pool: Pool | None, /) -> None: ...

# ---- replay -----------------------------------------------------------------------

# One dict per pass: ns, cpu_ns (of the thread), pairs, memory_calls, host_waits,
# peak_reserved, peak_requested, failed_at (-1: none), address_now, touched (bytes)
def replay(
    device: Device,
    pool: Pool | None,
    operations: Any,  # C-contiguous int64 buffer (n, 4): op (0 free, 1 alloc,
    #   2 iteration), id, bytes, stream; ids are 0..ids-1 and used once
    ids: int,
    *,
    passes: int = 4,
    check_every: int = 0,
    by_address: bool = False,  # frees as the exported C functions do
) -> list[dict[str, int]]: ...
def lock_pair_ns(count: int, /) -> float: ...  # an uncontended lock and unlock
