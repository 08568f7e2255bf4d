"""``gpumem snapshot FILE``."""

import json
from pathlib import Path

import pytest

import gpumem
from gpumem.__main__ import main
from gpumem.snapshot_command import describe

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
MIB = 1 << 20


def frame(file, line, name):
    return {"filename": file, "line": line, "name": name}


STACK = [
    frame("??", 0, "torch::unwind::unwind()"),
    frame("model.py", 7, "forward"),
    frame("ceval.c", 1, "PyEval_EvalCode"),
    frame("train.py", 3, "<module>"),
]
NATIVE = [
    frame("x.cpp", 1, "c10::cuda::CUDACachingAllocator::malloc()"),
    frame("", 5, "at::empty"),
]
CONTENT = {
    "segments": [
        {
            "device": 0,
            "address": 1 << 21,
            "total_size": 2048,
            "stream": 0,
            "segment_type": "small",
            "blocks": [
                {
                    "size": 512,
                    "requested_size": 300,
                    "state": "active_allocated",
                    "frames": STACK,
                },
                {"size": 512, "state": "active_pending_free"},
                {"size": 1024, "state": "inactive"},
            ],
        },
        {
            "device": 0,
            "address": 1 << 22,
            "total_size": 8192,
            "stream": 5,
            "segment_type": "large",
            "blocks": [
                {"size": 4096, "state": "active_allocated", "frames": NATIVE},
                {"size": 3072, "state": "inactive"},
                {"size": 1024, "state": "active_allocated"},
            ],
        },
    ],
    "device_traces": [
        [
            {"action": "free_requested", "addr": 9, "size": 1, "time_us": 1000},
            {"action": "alloc", "addr": 7, "size": 1, "time_us": 2000},
            {"action": "free_requested", "addr": 7, "size": 1, "time_us": 501_000},
        ]
    ],
}


@pytest.fixture
def report():
    return describe(CONTENT)


def test_sums(report):
    assert report.source == "PyTorch"
    assert (report.reserved, report.allocated, report.requested) == (10240, 5632, 5420)
    assert (report.pending, report.cached, report.unplaced) == (512, 4096, 0)
    assert (report.largest_free, report.fragmentation) == (3072, 0.25)
    assert report.blocks == 6


def test_segments_largest_first(report):
    assert [segment.size for segment in report.segments] == [8192, 2048]
    large = report.segments[0]
    assert (large.allocated, large.free, large.largest_free) == (5120, 3072, 3072)


def test_sums_by_type_and_by_stream(report):
    assert [(g.name, g.size) for g in report.by_type] == [
        ("large", 8192),
        ("small", 2048),
    ]
    assert [(g.name, g.allocated, g.pending) for g in report.by_stream] == [
        ("device 0 stream 0", 512, 512),
        ("device 0 stream 5", 5120, 0),
    ]


def test_blocks_by_size(report):
    found = [(c.low, c.used_blocks, c.free_blocks) for c in report.size_classes]
    assert found == [(512, 2, 0), (1024, 1, 1), (2048, 0, 1), (4096, 1, 0)]
    assert sum(c.used_bytes for c in report.size_classes) == 5632 + 512
    assert sum(c.free_bytes for c in report.size_classes) == report.cached


def test_stacks_most_bytes_first_python_where_there_is_some(report):
    assert [(s.size, s.frames) for s in report.stacks] == [
        (4096, ("??:5 at::empty",)),
        (1024, ()),
        (300, ("model.py:7 forward", "train.py:3 <module>")),
    ]
    assert len(describe(CONTENT, stacks=1).stacks) == 1


def test_history_tells_what_is_older_than_itself(report):
    history = report.history
    assert (history.events, history.unknown_frees, history.span_us) == (3, 1, 500_000)
    assert history.actions == {"alloc": 1, "free_requested": 2}
    assert history.dropped is None


def test_an_empty_snapshot_is_all_zeros():
    report = describe({"segments": []})
    assert (report.reserved, report.fragmentation, report.history.events) == (0, 0.0, 0)
    assert "no history of events" in str(report)


@pytest.mark.parametrize("name", ["s.pickle", "s.json"])
def test_our_own_files(pool, tmp_path, name, capsys):
    gpumem.record_history(max_entries=4, stacks=True)
    held = pool.empty(3 * MIB, name="weights")
    for _ in range(4):
        pool.empty(MIB).free()
    path = tmp_path / name
    gpumem.dump_snapshot(path)
    assert main(["snapshot", str(path), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["version"], content["file"], content["source"]) == (
        1,
        name,
        "gpumem",
    )
    assert content["allocated"] == content["requested"] == held.nbytes
    assert content["reserved"] == sum(
        content[part] for part in ("allocated", "pending", "cached")
    )
    assert content["history"]["dropped"] > 0
    assert "test_snapshot_command.py" in content["stacks"][0]["frames"][0]
    assert main(["snapshot", str(path)]) == 0
    out = capsys.readouterr().out
    assert "3.00 MiB" in out
    assert "lost: the history was full" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("[1, 2]", "holds no snapshot"),
        ("{", "holds no snapshot"),
        ('{"segments": [{"address": 1}]}', "an entry has no 'blocks'"),
        ('{"segments": [5]}', "int"),
        ('{"segments": [{"blocks": [7], "address": 1}]}', "int"),
        ('{"segments": [], "device_traces": [[3]]}', "int"),
    ],
)
def test_what_is_no_snapshot_is_one_line(tmp_path, data, text, capsys):
    path = tmp_path / "x.json"
    path.write_text(data)
    assert main(["snapshot", str(path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.count(str(path)) == 1
    assert text in err


def test_a_missing_file_is_one_line(tmp_path, capsys):
    assert main(["snapshot", str(tmp_path / "none")]) == 1
    assert "No such file" in capsys.readouterr().err
    assert main(["snapshot", "x", "--stacks", "-1"]) == 2


@pytest.mark.skipif(not TRACES.exists(), reason="the recorded traces are not here")
def test_a_snapshot_of_pytorch(capsys):
    path = TRACES / "public" / "gpt_small_step_200.pickle"
    assert main(["snapshot", str(path), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["source"] == "PyTorch"
    assert content["history"]["actions"]["alloc"] == 3907
    assert len(content["segments"]) == 83
