"""The command line: what all commands share, and ``gpumem replay``."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpumem
from gpumem.__main__ import main

DATA = Path(__file__).resolve().parents[1] / "data"
TRAINING = str(DATA / "training.txt.gz")
COMMANDS = ["demo", "replay", "status", "snapshot"]


def shell(line, **env):
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "GPUMEM": f"{sys.executable} -m gpumem", **env},
    )


# ---- all commands --------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)])
def test_version(words, capsys):
    with pytest.raises(SystemExit) as caught:
        main([*words, "--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"gpumem {gpumem.__version__}\n"


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)])
def test_help_names_the_options(words, capsys):
    with pytest.raises(SystemExit) as caught:
        main([*words, "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert ("--json" if words else "replay") in out


@pytest.mark.parametrize(
    "words",
    [[], ["nonsense"], ["replay"], ["snapshot"], ["replay", "x", "--policy", "y"]],
)
def test_a_wrong_command_line_is_one_line_and_status_2(words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("gpumem")


def test_the_module_runs_as_a_program():
    result = shell("$GPUMEM --version")
    assert (result.returncode, result.stdout) == (0, f"gpumem {gpumem.__version__}\n")


def test_a_reader_that_leaves_gets_no_traceback():
    result = shell(f"$GPUMEM replay {TRAINING} {TRAINING} {TRAINING} | true")
    assert result.stderr == ""
    assert result.returncode in (0, 1)


def test_a_full_disk_is_one_line_and_status_1():
    result = shell("$GPUMEM status > /dev/full")
    assert result.returncode == 1
    assert result.stderr == "gpumem status: No space left on device\n"


def test_closed_output_is_no_traceback():
    result = shell("$GPUMEM status >&-")
    assert (result.returncode, result.stderr) == (0, "")


def test_no_colour_when_not_a_terminal():
    result = shell(f"$GPUMEM status; $GPUMEM replay {TRAINING}; $GPUMEM --help")
    assert "\x1b" not in result.stdout + result.stderr


def test_an_interrupt_ends_with_130(monkeypatch):
    def interrupt(*_args):
        raise KeyboardInterrupt

    monkeypatch.setattr("gpumem.replay.read_trace", interrupt)
    assert main(["replay", TRAINING]) == 130


# ---- replay --------------------------------------------------------------------------


def rows_of(capsys):
    content = json.loads(capsys.readouterr().out)
    assert content["version"] == 1
    assert set(content) == {"version", "rows"}
    return content["rows"]


def test_replay_prints_one_row_for_each_trace(capsys):
    names = [str(path) for path in sorted(DATA.glob("*.gz"))]
    assert main(["replay", *names, "--json"]) == 0
    rows = rows_of(capsys)
    assert [row["trace"] for row in rows] == [Path(name).name for name in names]
    for row in rows:
        assert set(row) == {
            "trace",
            "policy",
            "steal",
            "lag",
            "events",
            "peak_requested",
            "peak_reserved",
            "waste",
            "memory_calls",
            "address_space",
            "host_waits",
            "ns_per_pair",
        }
        assert (row["policy"], row["steal"], row["lag"]) == ("gpumem", 0.05, 0)
        assert row["memory_calls"]["warm"] == 0


def test_replay_of_one_program_in_five_formats_is_the_same(capsys):
    names = [str(path) for path in DATA.glob("streams.*.gz")]
    assert main(["replay", *names, "--json", "--lag", "5"]) == 0
    rows = rows_of(capsys)
    assert len(rows) == 5
    for row in rows:
        del row["trace"], row["ns_per_pair"]
        assert row == rows[0]


def test_replay_finds_the_smallest_capacity(capsys):
    assert main(["replay", TRAINING, "--json", "--find-capacity"]) == 0
    (row,) = rows_of(capsys)
    least = row["min_capacity"]
    assert row["peak_requested"] <= least <= row["peak_reserved"]
    assert main(["replay", TRAINING, "--json", "--capacity", str(least)]) == 0
    rows_of(capsys)
    less = str(least - (2 << 20))
    assert main(["replay", TRAINING, "--json", "--capacity", less]) == 1
    (row,) = rows_of(capsys)
    assert row["failed_at"] > 0
    assert row["waste"] is None


def test_replay_text_tells_the_same(tmp_path, capsys):
    path = tmp_path / "odd.txt"
    path.write_text("f 3\na 0 9000000 0\n")
    assert main(["replay", TRAINING, "--find-capacity"]) == 0
    line = capsys.readouterr().out
    assert line.startswith("training.txt.gz")
    assert "waste" in line
    assert "fits in" in line
    assert main(["replay", str(path), "--capacity", "1 MiB"]) == 1
    line = capsys.readouterr().out
    assert "OUT OF MEMORY at operation 0" in line
    assert "1 unknown frees" in line


def test_replay_goes_on_after_an_unreadable_file(tmp_path, capsys):
    broken = tmp_path / "broken"
    broken.write_text("nonsense\n")
    packing = tmp_path / "packing.csv"
    packing.write_text("id,lower,upper,size\n0,1,2,3\n")
    missing = tmp_path / "missing"
    files = [str(path) for path in (broken, packing, missing, tmp_path)]
    assert main(["replay", *files, TRAINING, "--json"]) == 1
    out, err = capsys.readouterr()
    assert [row["trace"] for row in json.loads(out)["rows"]] == ["training.txt.gz"]
    lines = err.splitlines()
    assert len(lines) == 4
    for line, name in zip(lines, files, strict=True):
        assert line.startswith(f"gpumem replay: {name}: ")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--steal", "-1"], "steal"),
        (["--steal", "1001"], "steal"),
        (["--steal", "sometimes"], "steal"),
        (["--capacity", "lots"], "capacity"),
        (["--capacity", "0"], "capacity"),
        (["--passes", "0"], "passes"),
        (["--passes", "many"], "passes"),
        (["--lag", "-1"], "lag"),
        (["--lag", "1.5"], "lag"),
    ],
)
def test_replay_refuses_bad_options_in_one_line(words, text, capsys):
    assert main(["replay", TRAINING, *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert text in err
