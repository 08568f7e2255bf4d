"""Objects, modules, processes: what is made is unmade, in every order of ends."""

import gc
import os
import subprocess
import sys
import sysconfig
import textwrap
import threading

import pytest

import gpumem
from gpumem import Pool, Stream, _core

MIB = 1 << 20


# ---- objects -------------------------------------------------------------------------


def make_device():
    return _core.open_host(0, MIB, page_size=4096)


MAKERS = {
    "Device": make_device,
    "Stream": lambda: Stream(make_device()),
    "Event": lambda: _core.Event(make_device()),
    "Pool": lambda: Pool(make_device()),
    "Buffer": lambda: Pool(make_device()).empty((2, 2, 2), name="b")[0],
    "Scope": lambda: _core.Scope("s", pool=Pool(make_device())),
    "Iteration": lambda: Pool(make_device()).iteration(),
}


@pytest.mark.parametrize("name", MAKERS)
def test_types_and_objects_do_not_leak(name):
    make = MAKERS[name]
    kind = type(make())
    gc.collect()
    types = [type(make()) for make in MAKERS.values()]
    gc.collect()
    before = [sys.getrefcount(found) for found in types], _core.count_live()
    for _ in range(500):
        make()
    gc.collect()
    after = [sys.getrefcount(found) for found in types], _core.count_live()
    assert after == before
    assert kind in types


def test_entered_objects_do_not_leak(pool):
    def use():
        with pool.scope() as scope, pool.iteration():
            scope.keep(pool.empty(10))
            pool.empty(10).numpy()
        with pytest.raises(gpumem.OutOfMemoryError):
            pool.empty(1 << 40)

    use()
    gc.collect()
    before = _core.count_live(), sys.getrefcount(type(pool.scope()))
    for _ in range(100):
        use()
    gc.collect()
    assert (_core.count_live(), sys.getrefcount(type(pool.scope()))) == before


def test_failed_constructions_leave_nothing(device):
    before = _core.count_live()
    for call in (
        lambda: Pool(device, limit=-1),
        lambda: Pool(device, reserve=1 << 40),
        lambda: Stream(device, -1),
        lambda: _core.Scope(trim="no"),
        lambda: Pool(device).empty(-1),
        lambda: Pool(device).empty(1, "nosuch"),
    ):
        with pytest.raises((ValueError, TypeError, gpumem.OutOfMemoryError)):
            call()
    gc.collect()
    assert _core.count_live() == before


def test_types_are_immutable():
    for name in ("Device", "Stream", "Event", "Pool", "Buffer", "Scope"):
        kind = getattr(_core, name)
        with pytest.raises(TypeError):
            kind.extra = 1
        with pytest.raises(TypeError):
            type("Sub", (kind,), {})


def test_version_is_that_of_the_distribution():
    from importlib.metadata import version

    assert _core.__version__ == gpumem.__version__ == version("gpumem-alloc")


def test_noop_does_nothing():
    assert _core.noop() is None


# ---- development mode ----------------------------------------------------------------

TOUR = """
import gc, gpumem
from gpumem import _core
device = _core.open_host(0, 1 << 26)
pool = gpumem.Pool(device, name="tour")
with gpumem.Stream(device) as stream, pool.scope("tour") as scope:
    buffer = pool.empty((3, 4), "float32", stream=stream, name="x")
    buffer.fill(1)
    view = memoryview(buffer)
    event = stream.record()
    event.synchronize()
print(scope.deferred[0][2])
del view
try:
    pool.empty(1 << 40)
except gpumem.OutOfMemoryError as error:
    print(error.reason)
pool.record_history(100, stacks=True)
pool.empty(10)
pool.check()
del buffer, event, stream, scope
"""


def test_tour_is_quiet_in_development_mode(python):
    result = python(TOUR, flags=("-X", "dev", "-W", "error"))
    assert result.stdout.split() == ["exported", "shortage"]
    assert result.stderr == ""


# ---- exit ----------------------------------------------------------------------------

HOLDERS = {
    "global": "held = pool.empty(10)",
    "class attribute": "class Holder: held = pool.empty(10)",
    "cycle": "cycle = [pool.empty(10)]; cycle.append(cycle); del cycle",
    "running scope": "scope = pool.scope(); scope.__enter__(); held = pool.empty(10)",
    "thread-local": "import threading; box = threading.local(); box.x = pool.empty(10)",
    "exported": "view = memoryview(pool.empty(10))",
    "array": "array = pool.empty(10).numpy()",
    "pending": (
        "stream = gpumem.Stream(device); stream.stall(); b = pool.empty(10);"
        "b.record_stream(stream); stream.record(); del b"
    ),
    "callback": "_core.set_callbacks(free=[print]); held = pool.empty(10)",
    "malloc": "pool.malloc(100)",
    "raising": "held = pool.empty(10); import atexit; atexit.register(pool.close)",
    "late finalizer": (
        "class Late:\n"
        "    def __del__(self):\n"
        "        self.buffer.free()\n"
        "late = Late(); late.buffer = pool.empty(10); late.me = late\n"
    ),
    "allocating finalizer": (
        "class Late:\n"
        "    def __del__(self):\n"
        "        try:\n"
        "            self.pool.empty(10)\n"
        "        except gpumem.GpumemError:\n"
        "            pass\n"
        "late = Late(); late.pool = pool\n"
    ),
}


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("first", ["gpumem", "numpy"])
def test_exit_with_live_objects_is_quiet(python, holder, first):
    code = f"import {first}\nimport gpumem, numpy\nfrom gpumem import _core\n"
    code += "device = _core.open_host(0, 1 << 26)\npool = gpumem.Pool(device)\n"
    result = python(code + HOLDERS[holder])
    assert result.stderr == ""


def test_daemon_threads_do_not_hold_the_end_up(python):
    code = """
    import threading, gpumem
    from gpumem import _core
    pool = gpumem.Pool(_core.open_host(0, 1 << 26))
    _core.set_callbacks(alloc=[lambda event: None])
    def work():
        while True:
            held = [pool.empty(n) for n in (10, 1 << 20, 1000)]
            with pool.scope():
                pool.empty(10)
    for _ in range(4):
        threading.Thread(target=work, daemon=True).start()
    """
    for _ in range(5):
        result = python(textwrap.dedent(code))
        assert result.stderr == ""


def test_after_set_exiting_nothing_calls_the_device(python):
    result = python(
        """
import gpumem
from gpumem import _core
device = _core.open_host(0, 1 << 26)
pool = gpumem.Pool(device)
buffer = pool.empty(1 << 20)
_core.set_exiting()
before = device.counters()
buffer.free()
pool.close()
try:
    pool.empty(10)
except gpumem.GpumemError as error:
    print("exiting" in str(error))
del buffer
print(device.counters() == before)
"""
    )
    assert result.stdout.split() == ["True", "True"]


# ---- fork ----------------------------------------------------------------------------


def in_child(function):
    """What function() returns in a forked child, as text."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(writer, str(function()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, text
    return text


def test_forked_child_cannot_use_the_parents_pool(pool):
    def child():
        try:
            pool.empty(10)
        except gpumem.GpumemError as error:
            return str(error)

    text = in_child(child)
    assert "fork" in text
    assert "spawn" in text
    assert pool.empty(10).nbytes == 10


def test_forked_child_finds_the_parents_buffers_dead(pool):
    def child():
        try:
            buffer.fill(0)
        except gpumem.ReleasedError as error:
            return type(error).__name__

    buffer = pool.empty(10)
    buffer.fill(7)
    assert in_child(child) == "ReleasedError"
    assert buffer.tobytes() == bytes([7] * 10)


def test_forked_child_may_look_and_let_go(pool):
    def child():
        pool.stats()
        pool.reset_peaks()
        pool.poll()
        repr(pool), repr(held)
        held.clear()
        gc.collect()
        return pool.closed, pool in _core.pools()

    held = [pool.empty(10)]
    address = held[0].ptr
    assert in_child(child) == "(True, False)"
    assert held[0].ptr == address
    assert pool.stats()["allocation.all.current"] == 1


def test_forked_child_changes_nothing_of_the_parents_pool(pool):
    def refusal(function, *args, **kwargs):
        with pytest.raises(gpumem.GpumemError, match="parent process"):
            function(*args, **kwargs)

    def child():
        refusal(pool.record_history, 100)
        refusal(setattr, pool, "limit", MIB)
        refusal(pool.configure, oom_wait=1.0)
        refusal(pool.reserve, MIB)
        pool.clear_history()
        pool.reset_accumulated()
        return pool.limit, pool.history()

    pool.record_history(10)
    buffer = pool.empty(10)
    assert in_child(child) == "(None, ([], 0, 0))"
    assert [entry[0] for entry in pool.history()[0]] == ["segment_map", "alloc"]
    assert pool.stats()["allocation.all.allocated"] == 1
    buffer.free()


def test_forked_child_makes_pools_of_its_own(pool):
    def child():
        with Pool(_core.open_host(0, 64 * MIB)) as fresh:
            buffer = fresh.empty(1000)
            buffer.fill(5)
            with fresh.scope():
                fresh.empty(10)
            return buffer.tobytes()[:2], fresh.stats()["allocation.all.current"]

    assert in_child(child) == str((b"\x05\x05", 1))


def test_fork_while_threads_allocate_does_not_hang(device, pool):
    def work():
        while not stop.is_set():
            pool.empty(1000)
            pool.empty(4 * MIB)

    def child():
        with Pool(_core.open_host(0, 64 * MIB)) as fresh:
            return fresh.empty(10).nbytes, pool.stats()["limit"]

    stop = threading.Event()
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            assert in_child(child) == "(10, 0)"
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    pool.check()


def test_forked_child_exits_quietly(python):
    result = python(
        """
import os, gpumem
from gpumem import _core
pool = gpumem.Pool(_core.open_host(0, 1 << 26))
held = pool.empty(10)
if os.fork() == 0:
    raise SystemExit(0)
_, status = os.wait()
print(status)
"""
    )
    assert (result.stdout, result.stderr) == ("0\n", "")


# ---- a second interpreter ------------------------------------------------------------

EMBEDDED = r"""
#include <Python.h>

static int
run(const char *text)
{
    return PyRun_SimpleString(text);
}

int
main(int count, char **arguments)
{
    int failed = 0;
    for (int round = 0; round < 2; round++) {
        Py_Initialize();
        failed |= run(arguments[count - 1]);
        PyThreadState *main_state = PyThreadState_Get();
        PyThreadState *second = Py_NewInterpreter();
        failed |= second == NULL || run(arguments[count - 1]);
        Py_EndInterpreter(second);
        PyThreadState_Swap(main_state);
        failed |= Py_FinalizeEx() < 0;
    }
    return failed != 0;
}
"""

SECOND = """
import sys
sys.path[:0] = {path!r}
from gpumem import _core, Pool
pool = Pool(_core.open_host(0, 1 << 26))
heard = []
_core.set_callbacks(alloc=[heard.append])
buffer = pool.empty(10)
memoryview(buffer)[:] = bytes(range(10))
assert buffer.tobytes() == bytes(range(10))
assert len(heard) == 1
with pool.scope():
    pool.empty(10)
view = memoryview(pool.empty(10))
"""


@pytest.fixture(scope="module")
def embedded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("embedded")
    source, program = folder / "embedded.c", folder / "embedded"
    source.write_text(EMBEDDED)
    names = ("INCLUDEPY", "LIBDIR", "LIBPL", "CC", "LDVERSION", "LIBS", "SYSLIBS")
    v = {name: sysconfig.get_config_var(name) or "" for name in names}
    command = [*v["CC"].split(), f"-I{v['INCLUDEPY']}", str(source), "-o", str(program)]
    command += [f"-L{v['LIBPL']}", f"-L{v['LIBDIR']}", f"-Wl,-rpath,{v['LIBDIR']}"]
    command += [f"-lpython{v['LDVERSION']}", *v["LIBS"].split(), *v["SYSLIBS"].split()]
    command += ["-lm", "-rdynamic"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode != 0:
        pytest.skip(f"no library to embed Python: {built.stderr[-200:]}")
    return program


def test_second_interpreter_and_second_start_work(embedded):
    code = SECOND.format(path=[path for path in sys.path if path])
    result = subprocess.run(
        [embedded, code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONHOME": sys.base_prefix},
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.skipif(
    sys.version_info < (3, 12), reason="interpreters with their own GIL"
)
def test_interpreter_with_a_gil_of_its_own_works(python):
    module = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    isolated = "'isolated'" if sys.version_info >= (3, 13) else "isolated=True"
    code = f"""
import {module} as interpreters
from gpumem import Pool, _core
number = interpreters.create({isolated})
code = {SECOND.format(path=[path for path in sys.path if path])!r}
failure = interpreters.run_string(number, code)
if failure is not None:
    print(failure.formatted)
interpreters.destroy(number)
print(Pool(_core.open_host(0, 1 << 26)).empty(10).nbytes)
"""
    result = python(code)
    assert (result.stdout, result.stderr) == ("10\n", "")


def test_second_interpreter_gets_numpy_s_own_error(python):
    if sys.version_info >= (3, 13):
        module, create = "_interpreters", "create('legacy')"
    else:
        module, create = "_xxsubinterpreters", "create(isolated=False)"
    code = f"""
import numpy
import {module} as interpreters
number = interpreters.{create}
code = '''
import sys
sys.path[:0] = {[path for path in sys.path if path]!r}
import warnings
from gpumem import Pool, _core
buffer = Pool(_core.open_host(0, 1 << 26)).empty(10)
try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        buffer.numpy().sum()
except ImportError:
    pass
assert memoryview(buffer).nbytes == 10
'''
failure = interpreters.run_string(number, code)
print(failure)
"""
    assert python(code).stdout == "None\n"
