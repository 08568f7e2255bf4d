"""What several scenarios need: garbage that stays, threads that Python never saw."""

import ctypes
import gc
import shutil
import subprocess

import pytest

from gpumem import _core

# gpumem_foreign(path, threads, rounds, device, seed): that many threads each allocate
# and free by the exported functions; returns how many allocations failed, -1 if the
# library or a thread could not be had.
FOREIGN = r"""
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef void *(*malloc_fn)(size_t, int, void *);
typedef void (*free_fn)(void *, size_t, int, void *);

typedef struct job {
    malloc_fn get;
    free_fn give;
    long rounds;
    int device;
    unsigned seed;
    long failed;
} job;

static void *
work(void *argument)
{
    job *mine = argument;
    unsigned state = mine->seed;
    for (long i = 0; i < mine->rounds; i++) {
        state = state * 1103515245u + 12345u;
        size_t size = 1 + (state >> 8) % 20000;
        unsigned char *block = mine->get(size, mine->device, NULL);
        if (block == NULL) {
            mine->failed++;
            continue;
        }
        memset(block, (int)mine->seed, size);
        if (block[0] != (unsigned char)mine->seed ||
            block[size - 1] != (unsigned char)mine->seed) {
            mine->failed++;
        }
        mine->give(block, size, mine->device, NULL);
    }
    return NULL;
}

long
gpumem_foreign(const char *path, int count, long rounds, int device)
{
    void *library = dlopen(path, RTLD_NOW);
    pthread_t threads[16];
    job jobs[16];
    long failed = 0;
    if (library == NULL || count > 16) {
        return -1;
    }
    for (int i = 0; i < count; i++) {
        jobs[i] = (job){(malloc_fn)dlsym(library, "gpumem_malloc"),
                        (free_fn)dlsym(library, "gpumem_free"),
                        rounds, device, (unsigned)i + 1, 0};
        if (pthread_create(&threads[i], NULL, work, &jobs[i]) != 0) {
            return -1;
        }
    }
    for (int i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
        failed += jobs[i].failed;
    }
    return failed;
}
"""


@pytest.fixture
def no_gc():
    """Automatic garbage collection is off, as it was found afterwards."""
    was = gc.isenabled()
    gc.collect()
    gc.disable()
    yield
    if was:
        gc.enable()


@pytest.fixture(scope="session")
def foreign(tmp_path_factory):
    """foreign(threads, rounds, device): see FOREIGN."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed")
    folder = tmp_path_factory.mktemp("foreign")
    source, library = folder / "foreign.c", folder / "foreign.so"
    source.write_text(FOREIGN)
    subprocess.run(
        [
            compiler, "-O1", "-shared", "-fPIC", "-pthread",
            str(source), "-o", str(library), "-ldl",
        ],
        check=True,
    )  # fmt: skip
    function = ctypes.CDLL(str(library)).gpumem_foreign
    function.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_long, ctypes.c_int]
    function.restype = ctypes.c_long
    return lambda threads, rounds, device: function(
        _core.__file__.encode(), threads, rounds, device
    )


class Stats(ctypes.Structure):
    """struct gpumem_stats."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            "used",
            "used_peak",
            "reserved",
            "reserved_peak",
            "requested",
            "requested_peak",
            "device_allocs",
            "device_frees",
            "maps",
            "unmaps",
            "ooms",
        )
    ]


@pytest.fixture
def c_functions():
    """The exported functions, called without the GIL; they act on host devices."""
    library = ctypes.CDLL(_core.__file__)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    library.gpumem_malloc.argtypes = [size, number, pointer]
    library.gpumem_malloc.restype = pointer
    library.gpumem_free.argtypes = [pointer, size, number, pointer]
    library.gpumem_free.restype = None
    library.gpumem_get_stats.argtypes = [number, ctypes.POINTER(Stats)]
    library.gpumem_get_stats.restype = number
    _core.set_c_device("host")

    def read_stats(device):
        stats = Stats()
        assert library.gpumem_get_stats(device, ctypes.byref(stats)) == 0
        return {name: getattr(stats, name) for name, _kind in Stats._fields_}

    library.read_stats = read_stats
    yield library
    _core.set_c_device("cuda")


@pytest.fixture
def c_pool(c_functions, device):
    """A pool on the tested device that the exported functions use as host device 2."""
    from gpumem import Pool

    with Pool(device, name="c") as made:
        _core.set_c_pool(2, made)
        yield made
        _core.set_c_pool(2, None)


@pytest.fixture
def old_objects_aside():
    """Collections in the test look at its own objects alone, and cost little.

    Afterwards what is left is set aside again, as when the session began: to thaw it
    for good would make every later test search the whole heap.
    """
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()
