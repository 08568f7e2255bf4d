"""Readers of recorded traces."""

import gzip
import json
import pickle
import runpy
from pathlib import Path

import pytest

from gpumem.traces import TraceError, read_trace

DATA = Path(__file__).resolve().parents[1] / "data"
TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
EVENTS = [(1, 0, 1000, 0), (1, 1, 2000, 1), (0, 0, 0, 0), (0, 1, 0, 0)]


def rows(trace):
    values = list(trace.operations)
    return [tuple(values[i : i + 4]) for i in range(0, len(values), 4)]


def event(action, address, size=0, stream=0):
    return {"action": action, "addr": address, "size": size, "stream": stream}


SNAPSHOT = {
    "segments": [],
    "device_traces": [
        [],
        [
            event("segment_alloc", 512, 1 << 20),
            event("alloc", 512, 1000),
            event("alloc", 4096, 2000, 77),
            event("free_requested", 512, 1000),
            event("free_completed", 512, 1000),
            event("free_requested", 4096, 2000, 77),
            event("snapshot", 0),
        ],
    ],
}


@pytest.fixture
def read(tmp_path):
    """Read a file that holds some bytes."""

    def read_bytes(data, name="some.file"):
        path = tmp_path / name
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return read_trace(path)

    return read_bytes


def read_history(read, events, segments=()):
    content = {"segments": list(segments), "device_traces": [events]}
    return rows(read(json.dumps(content)))


# ---- formats -------------------------------------------------------------------------

FORMATS = {
    "text": b"# made by hand\n\na 7 1000 0\na 9 2000 5\nf 7\nf 9\n",
    "csv": (
        b"t_us,op,id,size,stream\n0,a,0,1000,0\n0,a,1,2000,9\n1,f,0,1000,0\n2,f,1,0,9\n"
    ),
    "rmm": (
        b"Thread,Time,Action,Pointer,Size,Stream\n"
        b"1,00:00:01.0,allocate,0x100,1000,0x0\n1,00:00:01.1,allocate,0x900,2000,0x7f\n"
        b"1,00:00:01.2,allocate failure,(nil),9999,0x0\n"
        b"1,00:00:01.3,free,0x100,1000,0x0\n1,00:00:01.4,free,0x900,2000,0x7f\n"
    ),
    "pickle": pickle.dumps(SNAPSHOT, protocol=4),
    "json": json.dumps(SNAPSHOT, indent=1).encode(),
}


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("form", FORMATS)
def test_the_content_tells_the_format(read, form, compressed):
    data = FORMATS[form]
    trace = read(gzip.compress(data) if compressed else data, "misleading.pickle")
    assert rows(trace) == EVENTS
    assert trace.format == {"pickle": "snapshot", "json": "snapshot"}.get(form, form)
    assert (trace.name, trace.ids, trace.events, trace.skipped) == (
        "misleading.pickle",
        2,
        4,
        0,
    )


@pytest.mark.parametrize("form", ["text", "csv", "rmm", "json"])
def test_marks_and_line_ends_of_other_systems_are_read(read, form):
    data = b"\xef\xbb\xbf" + FORMATS[form].replace(b"\n", b"\r\n")
    assert rows(read(data)) == EVENTS


def test_iterations_are_marked(read):
    trace = read("a 7 512 0\ni\nf 7\n")
    assert rows(trace) == [(1, 0, 512, 0), (2, 0, 0, 0), (0, 0, 0, 0)]
    assert trace.events == 2


def test_an_id_may_come_again_after_its_free(read):
    assert read("a 1 512 0\nf 1\na 1 1024 0\nf 1\n").ids == 2


def test_frees_of_unknown_blocks_are_left_out_and_counted(read):
    trace = read("f 9\na 1 512 0\nf 1\nf 1\n")
    assert (trace.skipped, trace.events) == (2, 2)


def test_blocks_of_no_bytes_are_left_out_with_their_frees(read):
    trace = read("a 0 0 0\na 1 512 0\nf 0\nf 1\n")
    assert (trace.ids, trace.events, trace.skipped) == (1, 2, 0)


# ---- RMM -----------------------------------------------------------------------------


def rmm(read, *lines):
    header = "Thread,Time,Action,Pointer,Size,Stream"
    return rows(read("\n".join([header, *(f"{line}" for line in lines)]) + "\n"))


def test_rmm_names_of_the_default_stream_are_one(read):
    found = rmm(
        read,
        "1,0,allocate,0x100,512,0x0",
        "1,0,allocate,0x300,512,0x1",
        "1,0,allocate,0x500,512,(nil)",
        "1,0,allocate,0x700,512,0x2",
        "2,0,allocate,0x900,512,0x2",
    )
    assert [row[3] for row in found] == [0, 0, 0, 1, 2]


def test_rmm_free_logged_after_the_next_allocation_counts_before_it(read):
    found = rmm(
        read,
        "1,0,allocate,0x100,512,0x0",
        "2,0,allocate,0x100,1024,0x0",
        "1,0,free,0x100,512,0x0",
        "2,0,free,0x100,1024,0x0",
    )
    assert found == [(1, 0, 512, 0), (0, 0, 0, 0), (1, 1, 1024, 0), (0, 1, 0, 0)]


def test_rmm_rows_of_no_bytes_are_left_out(read):
    found = rmm(
        read,
        "1,0,allocate,(nil),0,0x0",
        "1,0,allocate,0x100,512,0x0",
        "1,0,free,(nil),0,0x0",
    )
    assert found == [(1, 0, 512, 0)]


# ---- snapshots -----------------------------------------------------------------------


def test_blocks_live_before_a_snapshot_come_first(read):
    segment = {
        "device": 0,
        "address": 1 << 30,
        "stream": 0,
        "blocks": [
            {"size": 1024, "requested_size": 700, "state": "active_allocated"},
            {"size": 512, "requested_size": 0, "state": "inactive"},
            {"size": 2048, "state": "active_allocated"},
            {"size": 512, "state": "active_pending_free"},
        ],
    }
    events = [
        event("alloc", 4096, 100),
        event("free_requested", 1 << 20, 3000),
        event("free_completed", 1 << 20, 3000),
    ]
    found = read_history(read, events, [segment])
    assert [row[2] for row in found if row[0] == 1] == [3000, 700, 2048, 100]
    assert found[-1] == (0, 0, 0, 0)


def test_segments_of_other_devices_are_left_out(read):
    segment = {
        "device": 1,
        "address": 1 << 30,
        "blocks": [{"size": 1024, "state": "active_allocated"}],
    }
    assert len(read_history(read, [event("alloc", 0, 512)], [segment])) == 1


def test_a_history_of_completed_frees_alone_is_read(read):
    events = [event("alloc", 512, 100), event("free_completed", 512, 100)]
    assert read_history(read, events) == [(1, 0, 100, 0), (0, 0, 0, 0)]


def test_a_free_that_a_history_lacks_is_put_in(read):
    events = [event("alloc", 512, 100), event("alloc", 512, 200)]
    assert [row[0] for row in read_history(read, events)] == [1, 0, 1]


def test_our_own_snapshots_are_read(pool, tmp_path):
    import gpumem

    gpumem.record_history(max_entries=100)
    first = gpumem.default_pool().empty(3000)
    gpumem.default_pool().empty(5000).free()
    for name in ("s.pickle", "s.json"):
        gpumem.dump_snapshot(tmp_path / name)
        trace = read_trace(tmp_path / name)
        assert [row[2] for row in rows(trace) if row[0] == 1] == [3000, 5000]
    first.free()


# ---- what is no trace ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"id,lower,upper,size\n0,1,2,3\n", "offline packing"),
        (b"hello world\n", r"line 1: not 'a <id>"),
        (b"a 0 1000 0\na 0 1000 0\n", "line 2: block 0 is allocated twice"),
        (b"a 0 -5 0\n", "line 1: block 0 has -5 bytes"),
        (b"a 0 99999999999999999999 0\n", "bytes"),
        (b"a x 5 0\n", "line 1: invalid literal"),
        (b"t_us,op,id,size,stream\n0,a,1\n", "line 2: 3 columns instead of 5"),
        (b"t_us,op,id,size,stream\n0,q,1,2,3\n", "line 2: op 'q'"),
        (b"Thread,Time,Action,Pointer,Size,Stream\n1,0,steal,0x1,2,0x0\n", "'steal'"),
        (b"", "no allocation"),
        (b"i\n", "no allocation"),
        (b"\x1f\x8bbroken", "gzip"),
        (gzip.compress(b"a 0 512 0\n" * 99)[:-9], "gzip"),
        (gzip.compress(b"a 0 512 0\n", mtime=0)[:12] + b"\xff" * 20, "gzip"),
        (b"\xff\xfe\x00", "neither"),
        (b"{}", "device_traces"),
        (b"[1, 2]", "device_traces"),
        (b"{" * 200_000, "Expecting property name"),
        (b"[" * 200_000, "RecursionError"),
        (b'{"device_traces": []}', "no history"),
        (b'{"device_traces": 5}', "int"),
        (b'{"device_traces": [[{"action": "alloc"}]]}', "no 'addr'"),
        (b'{"device_traces": [[{"action": "alloc", "addr": 1, "size": 1.5}]]}', "int"),
        (pickle.dumps(Path("x")), "Path"),
        (b"".join(b"a %d 512 %d\n" % (i, i) for i in range(1026)), "streams"),
    ],
    ids=range(25),
)
def test_what_is_no_trace_says_why_in_one_line(read, data, text):
    with pytest.raises(TraceError, match=text) as caught:
        read(data)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_opened_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_trace(tmp_path / "missing")
    with pytest.raises(IsADirectoryError):
        read_trace(tmp_path)


# ---- the traces that there are -------------------------------------------------------


def test_the_traces_in_data_are_what_their_script_writes():
    files = runpy.run_path(str(DATA / "make_traces.py"))["files"]()
    for name, content in files.items():
        assert gzip.decompress((DATA / name).read_bytes()) == content, name


def test_one_program_is_the_same_in_every_format():
    names = ["txt", "csv", "rmm.csv", "pickle", "json"]
    found = [rows(read_trace(DATA / f"streams.{name}.gz")) for name in names]
    assert all(other == found[0] for other in found)


@pytest.mark.skipif(not TRACES.exists(), reason="the recorded traces are not here")
@pytest.mark.parametrize(
    "name", ["forward_bf16_128", "gpt_small_step_200", "gpt_medium_512_train"]
)
def test_snapshots_and_their_csv_hold_the_same_program(name):
    def program(trace):
        """The blocks of the start in any order, then sizes in order."""
        found = rows(trace)
        sizes = {number: size for kind, number, size, _ in found if kind == 1}
        steps = [(kind, sizes[number]) for kind, number, _, _ in found]
        start = next(i for i, step in enumerate(steps) if step[0] == 0)
        return sorted(steps[:start]), steps[start:]

    folder = TRACES / "public"
    snapshot = read_trace(folder / f"{name}.pickle")
    assert program(snapshot) == program(read_trace(folder / f"{name}.csv.gz"))
