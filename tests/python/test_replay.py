"""Replaying traces: the rows, and the C loop under them."""

from array import array
from pathlib import Path

import numpy as np
import pytest

import gpumem
from gpumem import _core
from gpumem.replay import ReplayRow, replay_trace
from gpumem.traces import read_trace

DATA = Path(__file__).resolve().parents[1] / "data"
MIB = 1 << 20


@pytest.fixture(params=["training", "decoding", "streams"])
def trace(request):
    return read_trace(DATA / f"{request.param}.txt.gz")


@pytest.fixture
def training():
    return read_trace(DATA / "training.txt.gz")


@pytest.fixture
def sim():
    return _core.open_sim(0, None)


def trace_of(tmp_path, text):
    path = tmp_path / "t.txt"
    path.write_text(text)
    return read_trace(path)


def without_time(row):
    content = row.to_dict()
    del content["ns_per_pair"]
    return content


# ---- rows ----------------------------------------------------------------------------


def test_a_row_has_what_the_trace_and_the_device_say(trace):
    row = replay_trace(trace)
    live = most = 0
    sizes = {}
    values = list(trace.operations)
    for i in range(0, len(values), 4):
        kind, number, size, _stream = values[i : i + 4]
        if kind == 1:
            sizes[number] = size
            live += size
            most = max(most, live)
        elif kind == 0:
            live -= sizes[number]
    assert row.peak_requested == most
    assert row.events == trace.events
    assert row.waste == row.peak_reserved / most - 1
    assert row.peak_reserved % (2 * MIB) == 0
    assert row.address_space >= row.peak_reserved
    assert row.memory_calls["first"] > 0
    assert row.ns_per_pair >= 0


def test_a_warm_pool_makes_no_memory_call(trace):
    assert replay_trace(trace, passes=4).memory_calls["warm"] == 0


@pytest.mark.parametrize("lag", [0, 7, 500])
def test_everything_but_the_time_comes_out_equal_twice(trace, lag):
    rows = [replay_trace(trace, lag=lag, find_capacity=True) for _ in range(2)]
    assert without_time(rows[0]) == without_time(rows[1])


def test_one_pass_is_the_first_and_the_last(training):
    calls = replay_trace(training, passes=1).memory_calls
    assert calls["first"] == calls["warm"] > 0


def test_what_is_live_at_the_end_is_freed_between_passes(tmp_path):
    trace = trace_of(tmp_path, f"a 0 {10 * MIB} 0\n")
    row = replay_trace(trace, passes=5)
    assert row.peak_reserved == row.peak_requested == 10 * MIB


def test_rare_fields_are_there_only_when_they_apply(training, tmp_path):
    plain = replay_trace(training).to_dict()
    assert not {"skipped", "min_capacity", "failed_at"} & set(plain)
    trace = trace_of(tmp_path, f"f 5\na 0 {8 * MIB} 0\n")
    rare = replay_trace(trace, capacity=4 * MIB, find_capacity=True).to_dict()
    assert (rare["skipped"], rare["min_capacity"], rare["failed_at"]) == (1, 8 * MIB, 0)


def test_a_row_prints_in_one_line(training):
    row = replay_trace(training)
    assert repr(row).startswith("<ReplayRow: training.txt.gz by gpumem, waste ")
    assert isinstance(row, ReplayRow)


# ---- capacity ------------------------------------------------------------------------


def test_the_smallest_capacity_completes_and_a_page_less_does_not(trace):
    least = replay_trace(trace, find_capacity=True).min_capacity
    assert replay_trace(trace, capacity=least).failed_at is None
    if least > 2 * MIB:
        assert replay_trace(trace, capacity=least - 2 * MIB).failed_at is not None


def test_too_little_memory_says_at_which_operation(tmp_path):
    trace = trace_of(tmp_path, f"a 0 {2 * MIB} 0\ni\na 1 {4 * MIB} 0\nf 0\nf 1\n")
    row = replay_trace(trace, capacity=4 * MIB)
    assert (row.failed_at, row.waste) == (2, None)
    assert row.peak_requested == 6 * MIB
    assert "out of memory" in repr(row)


def test_lag_of_another_stream_delays_its_memory(tmp_path):
    trace = trace_of(tmp_path, f"a 0 {8 * MIB} 0\nf 0\na 1 {8 * MIB} 1\nf 1\n")
    assert replay_trace(trace, lag=0).host_waits == 0
    waiting = replay_trace(trace, lag=100, capacity=8 * MIB)
    assert waiting.failed_at is not None or waiting.host_waits > 0


@pytest.mark.parametrize("steal", ["sometimes", -0.05])
def test_an_option_that_the_pool_refuses_is_a_value_error(training, steal):
    with pytest.raises(ValueError, match="steal"):
        replay_trace(training, steal=steal)


# ---- the loop ------------------------------------------------------------------------


def test_the_loop_takes_arrays_of_numpy_and_of_python(sim):
    rows = [(1, 0, 1000, 0), (1, 1, 5000, 0), (0, 0, 0, 0)]
    flat = array("q", [value for row in rows for value in row])
    with gpumem.Pool(sim) as pool:
        for operations in (flat, np.array(rows, dtype="int64")):
            first, _second = _core.replay(sim, pool, operations, 2, passes=2)
            assert (first["pairs"], first["peak_requested"]) == (2, 6000)
        assert pool.stats()["allocated_bytes.all.current"] == 0


def test_a_pass_says_what_it_cost(sim, training):
    with gpumem.Pool(sim) as pool:
        (row,) = _core.replay(sim, pool, training.operations, training.ids, passes=1)
    assert set(row) == {
        "ns",
        "cpu_ns",
        "pairs",
        "memory_calls",
        "host_waits",
        "peak_reserved",
        "peak_requested",
        "failed_at",
        "address_now",
        "touched",
    }
    assert row["pairs"] == training.ids
    assert row["failed_at"] == -1
    assert row["ns"] > 0


def test_without_a_pool_nothing_is_allocated(sim, training):
    (row,) = _core.replay(sim, None, training.operations, training.ids, passes=1)
    assert row["memory_calls"] == row["peak_reserved"] == 0
    assert row["peak_requested"] > 0


def test_frees_by_address_are_the_same_program(sim, trace):
    with gpumem.Pool(sim) as pool:
        handle = _core.replay(sim, pool, trace.operations, trace.ids, passes=1)
        peak = pool.stats()["reserved_bytes.all.peak"]
    other = _core.open_sim(0, None)
    with gpumem.Pool(other) as pool:
        address = _core.replay(
            other, pool, trace.operations, trace.ids, passes=1, by_address=True
        )
        assert pool.stats()["reserved_bytes.all.peak"] == peak
        assert pool.stats()["allocated_bytes.all.current"] == 0
    for rows in (handle, address):
        del rows[0]["ns"], rows[0]["cpu_ns"]
    assert handle == address


def test_the_pool_holds_its_invariants_all_along(sim, trace):
    with gpumem.Pool(sim) as pool:
        _core.replay(sim, pool, trace.operations, trace.ids, passes=2, check_every=25)
        pool.check()


@pytest.mark.parametrize(
    "row",
    [
        (3, 0, 512, 0),
        (-1, 0, 512, 0),
        (1, 5, 512, 0),
        (1, -1, 512, 0),
        (1, 0, 0, 0),
        (1, 0, 512, 1024),
        (1, 0, 512, -1),
        (0, 1, 0, 0),
    ],
)
def test_operations_out_of_range_are_refused(sim, row):
    with pytest.raises(ValueError, match="operation 0 is out of range"):
        _core.replay(sim, None, array("q", row), 1)


@pytest.mark.parametrize(
    "operations",
    [
        array("q", [1, 0, 512]),
        array("i", [1, 0, 512, 0] * 2),
        np.zeros((2, 2), "int64"),
        np.zeros((1, 4), "float64"),
        bytes(32),
        memoryview(bytes(33))[1:],
    ],
    ids=["three", "int32", "columns", "float", "bytes", "odd"],
)
def test_other_buffers_are_refused(sim, operations):
    with pytest.raises(ValueError, match="rows of four int64"):
        _core.replay(sim, None, operations, 1)


def test_a_strided_buffer_is_refused(sim):
    with pytest.raises((ValueError, BufferError)):
        _core.replay(sim, None, np.zeros((4, 8), "int64")[:, ::2], 1)


@pytest.mark.parametrize("words", [{"passes": 0}, {"check_every": -1}])
def test_settings_out_of_range_are_refused(sim, words):
    with pytest.raises(ValueError, match="must not be negative"):
        _core.replay(sim, None, array("q"), 0, **words)


def test_a_pool_of_another_device_is_refused(sim, pool):
    with pytest.raises(ValueError, match="another device"):
        _core.replay(sim, pool, array("q"), 0)
    with pytest.raises(TypeError):
        _core.replay(sim, "pool", array("q"), 0)


def test_a_lock_pair_takes_time():
    assert 0 < _core.lock_pair_ns(10_000) < 1e6
    with pytest.raises(ValueError, match="at least 1"):
        _core.lock_pair_ns(0)
