"""The exported C functions, called as a framework would: by ctypes, without the GIL."""

import ctypes
import subprocess
import sysconfig
import threading

import pytest

import gpumem
from gpumem import Pool, _core

MIB = 1 << 20


class Stats(ctypes.Structure):
    _fields_ = [
        ("used", ctypes.c_uint64),
        ("used_peak", ctypes.c_uint64),
        ("reserved", ctypes.c_uint64),
        ("reserved_peak", ctypes.c_uint64),
        ("requested", ctypes.c_uint64),
        ("requested_peak", ctypes.c_uint64),
        ("device_allocs", ctypes.c_uint64),
        ("device_frees", ctypes.c_uint64),
        ("maps", ctypes.c_uint64),
        ("unmaps", ctypes.c_uint64),
        ("ooms", ctypes.c_uint64),
    ]


def declare(library):
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    library.gpumem_malloc.argtypes = [size, number, pointer]
    library.gpumem_malloc.restype = pointer
    library.gpumem_free.argtypes = [pointer, size, number, pointer]
    library.gpumem_free.restype = None
    library.gpumem_record_stream.argtypes = [pointer, pointer]
    library.gpumem_record_stream.restype = None
    library.gpumem_empty_cache.argtypes = []
    library.gpumem_empty_cache.restype = None
    library.gpumem_set_memory_fraction.argtypes = [ctypes.c_double, number]
    library.gpumem_set_memory_fraction.restype = None
    for function in (library.gpumem_capture_begin, library.gpumem_capture_end):
        function.argtypes = [number, pointer]
        function.restype = number
    library.gpumem_get_stats.argtypes = [number, ctypes.POINTER(Stats)]
    library.gpumem_get_stats.restype = number
    return library


@pytest.fixture
def c():
    return declare(ctypes.CDLL(_core.__file__))


@pytest.fixture
def c_pool(device):
    """A pool that the C functions use for host device 3."""
    _core.set_c_device("host")
    with Pool(device, name="c") as pool:
        _core.set_c_pool(3, pool)
        yield pool
        _core.set_c_pool(3, None)
    _core.set_c_device("cuda")


def read_stats(c, index=3):
    stats = Stats()
    result = c.gpumem_get_stats(index, ctypes.byref(stats))
    return result, stats


def test_only_the_documented_symbols_are_exported():
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", _core.__file__],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    names = {line.split()[-1] for line in listing.splitlines()}
    names = {name.split("@")[0] for name in names} - {"_init", "_fini"}
    assert names == {
        "PyInit__core",
        "gpumem_malloc",
        "gpumem_free",
        "gpumem_record_stream",
        "gpumem_empty_cache",
        "gpumem_set_memory_fraction",
        "gpumem_capture_begin",
        "gpumem_capture_end",
        "gpumem_get_stats",
    }


def test_malloc_and_free_act_on_the_pool_of_the_device(c, c_pool):
    address = c.gpumem_malloc(1000, 3, None)
    assert address % 512 == 0
    assert c_pool.owns(address)
    result, stats = read_stats(c)
    assert result == 0
    assert (stats.used, stats.requested) == (1024, 1000)
    assert stats.reserved == 2 * MIB
    assert stats.device_allocs == 1
    c.gpumem_free(address, 1000, 3, None)
    assert read_stats(c)[1].used == 0
    assert read_stats(c)[1].used_peak == 1024


def test_malloc_of_nothing_is_null(c, c_pool):
    assert c.gpumem_malloc(0, 3, None) is None
    c.gpumem_free(None, 0, 3, None)


def test_malloc_without_a_pool_is_null_and_counted(c, device):
    _core.set_c_device("host")
    before = Stats()
    with Pool(device) as pool:
        _core.set_c_pool(5, pool)
        c.gpumem_get_stats(5, ctypes.byref(before))
        _core.set_c_pool(5, None)
        assert c.gpumem_malloc(1000, 5, None) is None
        assert read_stats(c, 5)[0] == -1
        _core.set_c_pool(5, pool)
        assert read_stats(c, 5)[1].ooms == before.ooms + 1
        _core.set_c_pool(5, None)
    _core.set_c_device("cuda")


@pytest.mark.parametrize("index", [-1, 64, 2**31 - 1])
def test_devices_outside_the_table_have_no_pool(c, c_pool, index):
    assert c.gpumem_malloc(1000, index, None) is None
    assert read_stats(c, index)[0] == -1
    c.gpumem_set_memory_fraction(0.5, index)
    with pytest.raises(ValueError, match="index"):
        _core.set_c_pool(index, c_pool)


def test_shortage_is_null_and_counted(c, c_pool):
    assert c.gpumem_malloc(1 << 30, 3, None) is None
    assert c_pool.stats()["num_ooms"] == 1
    assert c.gpumem_malloc(1000, 3, None) is not None


def test_wrong_frees_are_counted_and_change_nothing(c, c_pool):
    buffer = c_pool.empty(1024)
    address = c.gpumem_malloc(1024, 3, None)
    for wrong in (address + 512, 4096, buffer.ptr):
        c.gpumem_free(wrong, 0, 3, None)
    assert c_pool.stats()["bad_frees"] == 3
    assert not buffer.released
    buffer.fill(1)
    c.gpumem_free(address, 0, 0, None)
    c.gpumem_free(address, 0, 3, None)
    assert c_pool.stats()["bad_frees"] == 4
    assert c_pool.stats()["allocated_bytes.all.current"] == 1024


def test_record_stream_holds_the_block_back(c, c_pool, device):
    stream = gpumem.Stream(device)
    address = c.gpumem_malloc(MIB, 3, None)
    stream.stall()
    stream.record()
    c.gpumem_record_stream(address, stream.handle)
    c.gpumem_record_stream(12345, stream.handle)
    c.gpumem_free(address, 0, 3, None)
    assert c_pool.stats()["pending_bytes"] == MIB
    stream.release()
    c_pool.poll()
    assert c_pool.stats()["pending_bytes"] == 0


def test_empty_cache_gives_idle_memory_back(c, c_pool, device):
    c.gpumem_free(c.gpumem_malloc(4 * MIB, 3, None), 0, 3, None)
    c.gpumem_empty_cache()
    assert device.counters()["memory_now"] == 0


def test_memory_fraction_is_a_limit(c, c_pool):
    for nonsense in (0.0, -1.0, 1.5, float("nan"), float("inf")):
        c.gpumem_set_memory_fraction(nonsense, 3)
        assert c_pool.limit is None
    c.gpumem_set_memory_fraction(0.25, 3)
    assert c_pool.limit == 16 * MIB
    assert c.gpumem_malloc(17 * MIB, 3, None) is None


def test_captures_are_declared_from_c(c, c_pool, device):
    c_pool.reserve(4 * MIB)
    with gpumem.Stream(device) as stream:
        handle = stream.handle
        assert c.gpumem_capture_end(3, handle) == -1
        assert c.gpumem_capture_begin(3, handle) == 0
        assert c.gpumem_capture_begin(3, handle) == -1
        device.set_capturing(stream, True)
        address = c.gpumem_malloc(MIB, 3, handle)
        c.gpumem_free(address, 0, 3, handle)
        assert c.gpumem_malloc(MIB, 3, handle) == address
        c.gpumem_empty_cache()
        device.set_capturing(stream, False)
        assert c.gpumem_capture_end(3, handle) == 0
        assert c.gpumem_capture_end(3, handle) == -1
        assert read_stats(c)[1].reserved == 4 * MIB
        assert [segment[3] for segment in c_pool.view()[0]] == [True]
        c.gpumem_free(address, 0, 3, handle)


@pytest.mark.parametrize("index", [-1, 4, 64])
def test_captures_need_a_pool(c, c_pool, index):
    assert c.gpumem_capture_begin(index, None) == -1
    assert c.gpumem_capture_end(index, None) == -1


def test_blocks_of_c_belong_to_no_scope(c, c_pool):
    with c_pool.scope() as scope:
        address = c.gpumem_malloc(1000, 3, None)
        assert scope.count == 0
    assert c_pool.owns(address)
    c.gpumem_free(address, 0, 3, None)


def test_table_keeps_the_pool_alive(c, device):
    _core.set_c_device("host")
    _core.set_c_pool(7, Pool(device))
    address = c.gpumem_malloc(1000, 7, None)
    assert address is not None
    c.gpumem_free(address, 0, 7, None)
    _core.set_c_pool(7, None)
    assert device.counters()["memory_now"] == 0
    _core.set_c_device("cuda")


def test_pools_must_be_of_the_chosen_kind(device, pool):
    with pytest.raises(ValueError, match="cuda"):
        _core.set_c_pool(0, pool)
    with pytest.raises(ValueError, match="'cuda' or 'host'"):
        _core.set_c_device("sim")
    with pytest.raises(TypeError, match="Pool"):
        _core.set_c_pool(0, device)


def test_changing_the_kind_forgets_the_pools(c, c_pool):
    _core.set_c_device("cuda")
    assert read_stats(c)[0] == -1
    _core.set_c_device("host")
    assert read_stats(c)[0] == -1


def test_threads_count_exactly(c, c_pool):
    def work(number):
        for round_ in range(2000):
            address = c.gpumem_malloc(512 * (1 + (number + round_) % 30), 3, None)
            c.gpumem_free(address, 0, 3, None)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = c_pool.stats()
    assert stats["allocation.all.allocated"] == 16_000
    assert stats["allocation.all.current"] == 0
    assert stats["bad_frees"] == 0
    c_pool.check()


def test_callbacks_are_delivered_from_c(c, c_pool):
    heard = []
    _core.set_callbacks(
        alloc=[lambda event: heard.append("alloc")],
        free=[lambda event: heard.append("free")],
        oom=[lambda event: heard.append(event["requested"])],
    )
    try:
        c.gpumem_free(c.gpumem_malloc(10, 3, None), 0, 3, None)
        c.gpumem_malloc(1 << 30, 3, None)
        held = ctypes.PyDLL(_core.__file__)  # calls with the GIL held
        declare(held)
        held.gpumem_free(held.gpumem_malloc(10, 3, None), 0, 3, None)
    finally:
        _core.set_callbacks()
    assert heard == ["alloc", "free", 1 << 30, "alloc", "free"]


FOREIGN_THREADS = r"""
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>

typedef void *(*malloc_fn)(size_t, int, void *);
typedef void (*free_fn)(void *, size_t, int, void *);
static malloc_fn get;
static free_fn give;

static void *work(void *argument)
{
    long failed = 0;
    for (int i = 0; i < 2000; i++) {
        void *block = get(512 + (size_t)i % 4096, 3, NULL);
        failed += block == NULL;
        give(block, 0, 3, NULL);
    }
    (void)argument;
    return (void *)failed;
}

long run(const char *path, int count)
{
    void *library = dlopen(path, RTLD_NOW);
    pthread_t threads[16];
    long failed = 0;
    if (library == NULL) {
        return -1;
    }
    get = (malloc_fn)dlsym(library, "gpumem_malloc");
    give = (free_fn)dlsym(library, "gpumem_free");
    for (int i = 0; i < count; i++) {
        pthread_create(&threads[i], NULL, work, NULL);
    }
    for (int i = 0; i < count; i++) {
        void *result;
        pthread_join(threads[i], &result);
        failed += (long)result;
    }
    return failed;
}
"""


@pytest.fixture(scope="session")
def foreign_threads(tmp_path_factory):
    folder = tmp_path_factory.mktemp("foreign")
    source, library = folder / "foreign.c", folder / "foreign.so"
    source.write_text(FOREIGN_THREADS)
    compiler = sysconfig.get_config_var("CC").split()
    subprocess.run(
        [*compiler, "-shared", "-fPIC", "-pthread", source, "-o", library, "-ldl"],
        check=True,
    )
    function = ctypes.CDLL(str(library)).run
    function.restype = ctypes.c_long
    return function


def test_threads_that_python_never_saw_may_call(c_pool, foreign_threads):
    assert foreign_threads(_core.__file__.encode(), 8) == 0
    stats = c_pool.stats()
    assert stats["allocation.all.allocated"] == 16_000
    assert stats["allocation.all.current"] == 0
    c_pool.check()


def test_callbacks_reach_python_from_threads_it_never_saw(c_pool, foreign_threads):
    counts = {"alloc": 0, "free": 0}

    def count(kind):
        def callback(event):
            counts[kind] += 1

        return callback

    c_pool.record_history(100, stacks=True)
    _core.set_callbacks(alloc=[count("alloc")], free=[count("free")])
    try:
        assert foreign_threads(_core.__file__.encode(), 4) == 0
    finally:
        _core.set_callbacks()
    assert counts == {"alloc": 8000, "free": 8000}
