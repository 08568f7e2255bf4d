"""What every test starts from and must come back to."""

import gc
import os
import subprocess
import sys
import threading

import pytest

import gpumem
from gpumem import _core, testing

os.environ.pop("GPUMEM_CONF", None)

# The suite is about host and sim devices, also on a machine that has a GPU; tests of
# CUDA run in processes of their own.
os.environ.pop("GPUMEM_CUDART", None)
os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_finish(session):
    """Objects from before the first test need not be searched for garbage."""
    gc.collect()
    gc.freeze()


_OURS = (
    _core.Buffer,
    _core.Event,
    _core.GradBuffer,
    _core.PinnedArray,
    _core.Pool,
    _core.Scope,
    _core.Stream,
)
_PROCESS = os.getpid()


def check_after_calls(frame, event, function):
    """A profile function: after each method of ours every pool is walked."""
    if event == "c_return" and isinstance(getattr(function, "__self__", None), _OURS):
        check_pools()


def check_pools():
    if os.getpid() == _PROCESS:
        for pool in _core.pools():
            pool.check()


@pytest.fixture(autouse=True)
def checked():
    """With GPUMEM_TEST_CHECK=1 no test leaves a pool wrong, not even for a moment."""
    if os.environ.get("GPUMEM_TEST_CHECK") != "1":
        yield
        return
    threading.setprofile(check_after_calls)
    sys.setprofile(check_after_calls)
    yield
    sys.setprofile(None)
    threading.setprofile(None)
    check_pools()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call":
        item.gpumem_passed = report.passed
    return report


@pytest.fixture(autouse=True)
def as_found(request, monkeypatch):
    """No test leaves an option, a device, a callback or an object of ours behind."""
    monkeypatch.delenv("GPUMEM_CONF", raising=False)
    gc.collect()
    before = _core.count_live()
    yield
    request.node.funcargs.clear()
    gc.collect()
    gpumem.reset()
    gc.collect()
    assert gc.get_freeze_count(), "a test thawed what was set aside at the start"
    if getattr(request.node, "gpumem_passed", False):
        left = _core.count_live()
        assert not {kind: n for kind, n in left.items() if n > before.get(kind, 0)}


@pytest.fixture
def device():
    """A host device of 64 MiB with pages of 2 MiB, current in this thread."""
    made = testing.device("host", capacity="64 MiB")
    gpumem.set_device(made)
    return made


@pytest.fixture
def pool(device):
    """A pool on that device."""
    with gpumem.Pool(device, name="tested") as made:
        yield made


@pytest.fixture
def python():
    """Run code in a fresh interpreter; returns what it printed."""

    def run(code, *, env=None, flags=()):
        result = subprocess.run(
            [sys.executable, *flags, "-c", code],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, **(env or {})},
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return result

    return run
