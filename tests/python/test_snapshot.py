"""Snapshots and their files."""

import json
import os
import pickle
import resource
import signal

import pytest

import gpumem
from gpumem import testing

MIB = 1 << 20


@pytest.fixture
def busy(pool):
    """A pool with live, free and named blocks and a history."""
    pool.record_history(1000)
    held = [pool.empty(3 * MIB, name="weights"), pool.empty(1000), pool.empty(5 * MIB)]
    del held[2]
    yield pool
    held.clear()


def test_memory_snapshot_before_use_is_empty():
    found = gpumem.memory_snapshot("host:0")
    assert found["segments"] == []
    assert found["device_traces"] == []


def test_memory_snapshot_tiles_its_segments(busy):
    found = gpumem.memory_snapshot()
    assert found["segments"]
    for segment in found["segments"]:
        assert (
            sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
        )
        used = [b for b in segment["blocks"] if b["state"] == "active_allocated"]
        assert sum(block["size"] for block in used) == segment["allocated_size"]
        requested = sum(block["requested_size"] for block in used)
        assert requested == segment["requested_size"]
        assert segment["address"] == segment["blocks"][0]["address"]
        assert segment["segment_type"] in ("small", "large")
        assert segment["address"] < 2**53
    total = sum(segment["total_size"] for segment in found["segments"])
    unplaced = sum(device["unplaced"] for device in found["devices"])
    assert total + unplaced == gpumem.memory_reserved()


def test_memory_snapshot_names_blocks(busy):
    blocks = [b for s in gpumem.memory_snapshot()["segments"] for b in s["blocks"]]
    assert [b["requested_size"] for b in blocks if b.get("name") == "weights"] == [
        3 * MIB
    ]


def test_memory_snapshot_shows_pending_blocks():
    device = testing.device("host", capacity="64 MiB", delayed=True)
    with gpumem.Pool(device) as pool, gpumem.Stream(device) as side:
        buffer = pool.empty(MIB)
        buffer.record_stream(side)
        buffer.fill(1, stream=side)
        buffer.free()
        states = [b["state"] for s in pool.snapshot()["segments"] for b in s["blocks"]]
        assert "active_pending_free" in states
        side.release()
        gpumem.Stream(device, 0).release()


def test_device_traces_have_the_events_in_order(busy):
    found = gpumem.memory_snapshot()
    trace = found["device_traces"][0]
    actions = [entry["action"] for entry in trace]
    assert actions.count("alloc") == 3
    assert "free_requested" in actions
    times = [entry["time_us"] for entry in trace]
    assert times == sorted(times)
    sizes = [entry["size"] for entry in trace if entry["action"] == "alloc"]
    assert sizes == [3 * MIB, 1000, 5 * MIB]


def test_history_says_what_was_dropped(pool):
    pool.record_history(1000)
    for _ in range(2500):
        pool.empty(512).free()
    found = gpumem.memory_snapshot()
    events = found["device_traces"][0]
    facts = found["history"][0]
    assert len(events) == facts["limit"] == 1000
    assert facts["overflow"] is True
    assert facts["dropped"] >= 4000


def test_history_without_overflow_says_so(busy):
    facts = gpumem.memory_snapshot()["history"][0]
    assert (facts["overflow"], facts["dropped"]) == (False, 0)


def test_memory_snapshot_is_plain_and_survives_float64(busy):
    found = gpumem.memory_snapshot().to_dict()
    back = json.loads(json.dumps(found), parse_int=float)
    for before, after in zip(found["segments"], back["segments"], strict=True):
        assert int(after["address"]) == before["address"]


def test_memory_snapshot_prints_well_and_pickles(busy):
    found = gpumem.memory_snapshot()
    assert repr(found).startswith("<Snapshot: ")
    assert "\n" not in repr(found)
    assert "<table" in found._repr_html_()
    again = pickle.loads(pickle.dumps(found))
    assert again == found
    assert type(again) is gpumem.Snapshot


def test_pool_snapshot_is_of_one_pool(busy):
    with gpumem.Pool(busy.device) as other:
        kept = other.empty(MIB)
        whole = gpumem.memory_snapshot()
        part = other.snapshot()
        assert len(part["segments"]) == 1
        assert len(whole["segments"]) > 1
        assert {s["segment_pool_id"][1] for s in part["segments"]} == {other.id}
        del kept


@pytest.mark.parametrize("ending", [".pickle", ".json"])
def test_dump_snapshot_and_load_snapshot(busy, tmp_path, ending):
    path = tmp_path / f"memory{ending}"
    gpumem.dump_snapshot(path)
    found = gpumem.load_snapshot(path)
    expected = gpumem.memory_snapshot().to_dict()
    if ending == ".json":
        expected = json.loads(json.dumps(expected))
    assert found == expected
    assert os.listdir(tmp_path) == [path.name]


def test_dump_snapshot_pickle_is_protocol_4_and_plain(busy, tmp_path):
    path = tmp_path / "memory.pickle"
    gpumem.dump_snapshot(path)
    data = path.read_bytes()
    assert data[:2] == b"\x80\x04"
    assert b"gpumem.snapshot" not in data


@pytest.mark.parametrize(
    "name", ["memory", "memory.txt", "memory.pkl", "memory.json.gz"]
)
def test_dump_snapshot_refuses_other_endings(tmp_path, name):
    with pytest.raises(ValueError, match=r"end in \.pickle or \.json"):
        gpumem.dump_snapshot(tmp_path / name)
    assert os.listdir(tmp_path) == []


def test_dump_snapshot_on_a_full_disk_leaves_the_old_file(busy, tmp_path):
    path = tmp_path / "memory.json"
    path.write_text("old")
    former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            gpumem.dump_snapshot(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, former)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["memory.json"]


def test_load_snapshot_of_a_later_version_is_a_clear_error(tmp_path):
    path = tmp_path / "memory.json"
    path.write_text(json.dumps({"format_version": 99, "segments": []}))
    with pytest.raises(
        ValueError, match="format version 99; this gpumem reads up to 1"
    ):
        gpumem.load_snapshot(path)


def test_load_snapshot_reads_pytorchs_files(tmp_path):
    path = tmp_path / "torch.pickle"
    content = {"segments": [], "device_traces": [[]], "allocator_settings": {}}
    path.write_bytes(pickle.dumps(content, protocol=4))
    assert gpumem.load_snapshot(path) == content


class Evil:
    def __reduce__(self):
        return os.system, ("exit 1",)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Evil()),
        pickle.dumps({"segments": [Evil()]}, protocol=0),
        pickle.dumps({"segments": print}),
        pickle.dumps({"segments": complex(1, 2)}),
        pickle.dumps([1, 2]),
        b"",
        b"\x80",
        b"\x80\x04",
        b"{",
        b"[]",
        b"{}",
        b"no snapshot at all",
        b"\x80\x04\x8e" + (1 << 60).to_bytes(8, "little"),
    ],
)
def test_load_snapshot_refuses_everything_else(tmp_path, data):
    path = tmp_path / "memory.pickle"
    path.write_bytes(data)
    with pytest.raises(ValueError, match="holds no snapshot"):
        gpumem.load_snapshot(path)


def test_stacks_are_in_blocks_and_traces(pool):
    pool.record_history(100, True)
    kept = pool.empty(MIB)
    found = gpumem.memory_snapshot()
    frames = [
        b["frames"] for s in found["segments"] for b in s["blocks"] if b["frames"]
    ]
    assert frames[0][0]["name"] == "test_stacks_are_in_blocks_and_traces"
    assert frames[0][0]["filename"] == __file__
    allocs = [e for e in found["device_traces"][0] if e["action"] == "alloc"]
    assert allocs[0]["frames"] == frames[0]
    del kept
