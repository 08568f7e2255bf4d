"""The command line: replay, status, snapshot, and what all commands share."""

import json
import subprocess
import sys

import pytest

import gpumem
from gpumem.__main__ import main

TRACE = "".join(f"a {i} {1000 * (i % 7 + 1)} {i % 3}\n" for i in range(60)) + "".join(
    f"f {i}\n" for i in range(60)
)


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "small.txt"
    path.write_text(TRACE)
    return str(path)


def test_version(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"gpumem {gpumem.__version__}\n"


def test_no_command_is_an_error(capsys):
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    assert "command" in capsys.readouterr().err


def test_replay_reports_each_trace(trace, capsys):
    assert main(["replay", trace, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["version"] == 1
    (row,) = content["rows"]
    assert row["trace"] == "small.txt"
    assert row["events"] == 120
    assert row["peak_requested"] == sum(1000 * (i % 7 + 1) for i in range(60))
    assert row["waste"] == pytest.approx(
        row["peak_reserved"] / row["peak_requested"] - 1
    )
    assert row["memory_calls"]["first"] > 0
    assert row["memory_calls"]["warm"] == 0
    assert "min_capacity" not in row


def test_replay_twice_gives_the_same_numbers(trace, capsys):
    def once():
        assert main(["replay", trace, "--json", "--lag", "10"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["rows"]
        del row["ns_per_pair"]
        return row

    assert once() == once()


def test_replay_finds_the_smallest_capacity(trace, capsys):
    assert main(["replay", trace, "--json", "--find-capacity"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    least = row["min_capacity"]
    assert 0 < least <= row["peak_reserved"]
    assert main(["replay", trace, "--json", "--capacity", str(least)]) == 0
    capsys.readouterr()
    less = str(least - (2 << 20))
    if int(less) > 0:
        assert main(["replay", trace, "--json", "--capacity", less]) == 1


def test_replay_goes_on_after_an_unreadable_file(trace, tmp_path, capsys):
    broken = tmp_path / "broken"
    broken.write_text("nonsense\n")
    missing = str(tmp_path / "missing")
    assert main(["replay", str(broken), missing, trace]) == 1
    out, err = capsys.readouterr()
    assert "small.txt" in out
    assert len(err.splitlines()) == 2


@pytest.mark.parametrize(
    "words",
    [["--steal", "always"], ["--steal", "0.5"], ["--capacity", "lots"]],
)
def test_replay_refuses_bad_options(trace, words, capsys):
    assert main(["replay", trace, *words]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    "words", [["--passes", "0"], ["--lag", "-1"], ["--policy", "x"]]
)
def test_replay_refuses_numbers_out_of_range(trace, words):
    with pytest.raises(SystemExit) as caught:
        main(["replay", trace, *words])
    assert caught.value.code == 2


def test_status_lists_the_devices(capsys):
    assert main(["status", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["devices"][0]["name"] == "host:0"
    assert main(["status"]) == 0
    assert "host:0" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["s.pickle", "s.json"])
def test_snapshot_says_what_a_file_holds(pool, tmp_path, name, capsys):
    held = pool.empty(3 << 20)
    pool.empty(1 << 20).free()
    path = tmp_path / name
    gpumem.dump_snapshot(path)
    assert main(["snapshot", str(path), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["allocated"] == held.nbytes
    assert content["reserved"] >= content["allocated"] + content["largest_free"]
    assert main(["snapshot", str(path)]) == 0
    assert "3.00 MiB" in capsys.readouterr().out


def test_snapshot_of_something_else_is_one_line(tmp_path, capsys):
    path = tmp_path / "x.json"
    path.write_text("[1, 2]")
    assert main(["snapshot", str(path)]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_reader_that_leaves_is_no_error(trace):
    code = f"{sys.executable} -m gpumem replay {trace} | true"
    result = subprocess.run(
        ["bash", "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert "Traceback" not in result.stderr
