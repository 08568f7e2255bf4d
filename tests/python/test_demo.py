"""The demo: what it claims is measured, and follows from what it was asked."""

import argparse
import dataclasses
import importlib.util
import json
import subprocess
import sys

import pytest

import gpumem
from gpumem import demo

pytest.importorskip("sklearn")

SMALL = {"epochs": 2, "hidden": 64}


@pytest.fixture(scope="module")
def peak():
    """Memory that a full-batch step of the small model takes."""
    return demo.measure_full_batch(SMALL["hidden"])


@pytest.fixture
def train(tmp_path):
    def train(**options):
        return demo.train(snapshot=tmp_path / "demo.pickle", **SMALL | options)

    return train


@pytest.fixture
def run(tmp_path, capsys):
    """Run the command; returns its status and what it printed."""

    def run(*words):
        parser = argparse.ArgumentParser()
        demo.add_arguments(parser)
        small = ["--epochs", "2", "--hidden", "64"]
        where = ["--snapshot", str(tmp_path / "demo.json")]
        status = demo.run(parser.parse_args([*small, *where, *words]))
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


@pytest.mark.parametrize("seed", [0, 1])
def test_the_model_learns_in_a_budget_that_the_full_batch_exceeds(tmp_path, seed):
    path = tmp_path / "demo.pickle"
    result = demo.train(
        snapshot=path, epochs=40, hidden=256, seed=seed, capacity="3MiB"
    )
    assert result.full_batch_oom
    assert result.full_batch_peak > result.capacity
    assert "out of memory" in result.full_batch_error
    assert result.accuracy >= 0.95
    assert result.gradient_difference <= 1e-5
    assert 0 < result.peak <= result.peak_reserved <= result.capacity
    assert result.scope_released > 0
    assert result.outside_peak <= 1 << 20
    assert gpumem.load_snapshot(path).to_dict()["segments"]


def test_the_full_batch_fits_from_its_measured_peak_on(train, peak):
    assert train(capacity=peak).full_batch_oom is False
    assert train(capacity=peak - demo.PAGE_SIZE).full_batch_oom is True


def test_other_arguments_give_other_figures(train, peak):
    base = train(capacity=peak)
    assert train(capacity=peak, micro_batch=16).peak < base.peak
    assert train(capacity=peak, seed=5).loss != base.loss
    assert train(capacity=2 * peak).capacity == 2 * peak


def test_the_same_seed_gives_the_same_figures(train, peak):
    first, second = (train(capacity=peak) for _ in range(2))
    same = {"seconds": 0.0, "outside_peak": 0, "loss": 0.0, "gradient_difference": 0.0}
    assert dataclasses.replace(first, **same) == dataclasses.replace(second, **same)
    assert first.loss == pytest.approx(second.loss, rel=1e-4)


def test_a_micro_batch_that_does_not_divide_the_set_is_right(train, peak):
    result = train(capacity=peak, micro_batch=100)
    assert result.full_batch % 100 != 0
    assert result.gradient_difference <= 1e-5


def test_results_are_plain_and_print_in_a_line(train, peak):
    result = train(capacity=peak)
    assert json.loads(json.dumps(result.to_dict()))["version"] == 1
    assert len(repr(result).splitlines()) == 1
    assert "accuracy" in result._repr_html_()
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.accuracy = 1.0


@pytest.mark.parametrize(
    ("option", "error"),
    [
        ({"capacity": 1}, ValueError),
        ({"capacity": "many"}, ValueError),
        ({"micro_batch": 0}, ValueError),
        ({"epochs": 0}, ValueError),
        ({"seed": -1}, ValueError),
        ({"device": "cuda:0"}, gpumem.GpumemError),
        ({"device": 3}, TypeError),
        ({"capacity": 128 << 10}, gpumem.OutOfMemoryError),
    ],
)
def test_arguments_that_cannot_work_raise(train, option, error):
    with pytest.raises(error):
        train(**option)


def test_a_snapshot_of_no_known_kind_is_refused():
    with pytest.raises(ValueError, match="snapshot"):
        demo.train(snapshot="demo.txt", **SMALL)


def test_the_command_prints_one_json_object(run):
    status, out, err = run("--json", "--capacity", "1MiB", "--micro-batch", "32")
    assert (status, err) == (0, "")
    values = json.loads(out)
    assert values["version"] == 1
    assert values["capacity"] == 1 << 20
    assert values["micro_batch"] == 32
    fields = {field.name for field in dataclasses.fields(demo.DemoResult)}
    assert set(values) == fields | {"version"}


def test_the_command_tells_its_story(run):
    status, out, err = run("--capacity", "1MiB")
    assert (status, err) == (0, "")
    for word in ("OutOfMemoryError", "GradBuffer", "epoch", "Snapshot", "Accuracy"):
        assert word in out


def test_the_command_fails_with_one_line(run):
    for words in (
        ["--capacity", "1"],
        ["--device", "cuda:0"],
        ["--capacity", "128KiB"],
    ):
        status, out, err = run("--json", *words)
        assert (status, out) == (1, "")
        assert len(err.splitlines()) == 1


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch is not installed"
)
@pytest.mark.parametrize("action", ["stats", "trace"])
def test_pytorchs_viewer_reads_the_snapshot(train, tmp_path, action):
    result = train()
    viewer = [sys.executable, "-W", "ignore", "-m", "torch.cuda._memory_viz"]
    shown = subprocess.run(
        [*viewer, action, str(tmp_path / "demo.pickle")],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert str(tmp_path / "demo.pickle") == result.snapshot
    assert "total_reserved" in shown if action == "stats" else "Device 0" in shown
