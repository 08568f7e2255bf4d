"""Readers of recorded traces."""

import gzip
import json
import pickle
from pathlib import Path

import pytest

from gpumem.traces import TraceError, read_trace

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
EVENTS = [(1, 0, 1000, 0), (1, 1, 2000, 1), (0, 0, 0, 0), (0, 1, 0, 0)]


def rows(trace):
    values = list(trace.operations)
    return [tuple(values[i : i + 4]) for i in range(0, len(values), 4)]


def snapshot():
    return {
        "segments": [],
        "device_traces": [
            [
                {"action": "alloc", "addr": 512, "size": 1000, "stream": 0},
                {"action": "alloc", "addr": 4096, "size": 2000, "stream": 77},
                {"action": "free_requested", "addr": 512, "size": 1000, "stream": 0},
                {"action": "free_completed", "addr": 512, "size": 1000, "stream": 0},
                {"action": "free_requested", "addr": 4096, "size": 2000, "stream": 77},
            ]
        ],
    }


FORMATS = {
    "text": b"a 0 1000 0\na 1 2000 5\nf 0\nf 1\n",
    "csv": (
        b"t_us,op,id,size,stream\n0,a,0,1000,0\n0,a,1,2000,9\n1,f,0,1000,0\n2,f,1,0,9\n"
    ),
    "rmm": (
        b"Thread,Time,Action,Pointer,Size,Stream\n"
        b"1,00:00:01.0,allocate,0x100,1000,0x0\n1,00:00:01.1,allocate,0x900,2000,0x7f\n"
        b"1,00:00:01.2,allocate failure,(nil),9999,0x0\n"
        b"1,00:00:01.3,free,0x100,1000,0x0\n1,00:00:01.4,free,0x900,2000,0x7f\n"
    ),
    "pickle": pickle.dumps(snapshot(), protocol=4),
    "json": json.dumps(snapshot()).encode(),
}


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("form", FORMATS)
def test_every_format_is_told_by_its_content(tmp_path, form, compressed):
    path = tmp_path / "some.file"
    data = FORMATS[form]
    path.write_bytes(gzip.compress(data) if compressed else data)
    trace = read_trace(path)
    assert rows(trace) == EVENTS
    assert (trace.name, trace.ids, trace.events, trace.skipped) == (
        "some.file",
        2,
        4,
        0,
    )


def test_iterations_are_marked(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("a 7 512 0\ni\nf 7\n")
    assert rows(read_trace(path)) == [(1, 0, 512, 0), (2, 0, 0, 0), (0, 0, 0, 0)]


def test_blocks_live_before_a_snapshot_come_first(tmp_path):
    content = snapshot()
    content["device_traces"][0][:0] = [
        {"action": "free_requested", "addr": 1 << 20, "size": 3000, "stream": 0}
    ]
    content["segments"] = [
        {
            "device": 0,
            "address": 1 << 30,
            "stream": 0,
            "blocks": [
                {"size": 1024, "requested_size": 700, "state": "active_allocated"},
                {"size": 512, "requested_size": 0, "state": "inactive"},
            ],
        }
    ]
    path = tmp_path / "s.json"
    path.write_text(json.dumps(content))
    assert [row[2] for row in rows(read_trace(path)) if row[0] == 1][:2] == [3000, 700]


def test_a_reused_address_is_a_new_block(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("a 1 512 0\nf 1\na 1 1024 0\nf 1\n")
    assert read_trace(path).ids == 2


def test_frees_of_unknown_blocks_are_left_out_and_counted(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("f 9\na 1 512 0\nf 1\n")
    trace = read_trace(path)
    assert (trace.skipped, trace.events) == (1, 2)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"id,lower,upper,size\n0,1,2,3\n", "offline packing"),
        (b"hello world\n", "line 1"),
        (b"a 0 1000 0\na 0 1000 0\n", "twice"),
        (b"a 0 -5 0\n", "negative"),
        (b"", "no allocation"),
        (b"\x1f\x8bbroken", "gzip"),
        (b"\xff\xfe\x00", "neither"),
        (b"{}", "device_traces"),
        (pickle.dumps(Path("x")), "Path"),
    ],
)
def test_what_is_no_trace_says_why(tmp_path, data, text):
    path = tmp_path / "t"
    path.write_bytes(data)
    with pytest.raises((TraceError, ValueError), match=text):
        read_trace(path)


@pytest.mark.skipif(not TRACES.exists(), reason="the recorded traces are not here")
@pytest.mark.parametrize("name", ["forward_bf16_128", "gpt_small_step_200"])
def test_snapshots_and_their_csv_hold_the_same_program(name):
    def peak(trace):
        live = most = 0
        sizes = {}
        for kind, number, size, _stream in rows(trace):
            if kind == 1:
                sizes[number] = size
                live += size
                most = max(most, live)
            elif kind == 0:
                live -= sizes[number]
        return most

    folder = TRACES / "public"
    snapshot_peak = peak(read_trace(folder / f"{name}.pickle"))
    assert snapshot_peak == peak(read_trace(folder / f"{name}.csv.gz"))
