"""``gpumem status``."""

import json

import pytest

import gpumem
from gpumem.__main__ import main
from gpumem.status import status


def test_without_a_pool_there_is_none(capsys):
    assert main(["status"]) == 0
    out = capsys.readouterr().out
    assert "host:0" in out
    assert "no pool in this process" in out
    assert gpumem.current_device().counters()["memory_now"] == 0


def test_json_has_devices_pools_and_options(capsys):
    gpumem.configure(oom_wait=3.0)
    kept = gpumem.empty(5 << 20)
    assert main(["status", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["version"], content["gpumem"]) == (1, gpumem.__version__)
    device = content["devices"][0]
    assert (device["name"], device["kind"]) == ("host:0", "host")
    assert 0 < device["free"] <= device["total"]
    (pool,) = device["pools"]
    assert pool["default"]
    assert pool["used"] == kept.nbytes
    assert pool["reserved"] >= pool["used"] + pool["cached"]
    assert pool["limit"] is None
    assert content["config"]["oom_wait"] == {"value": 3.0, "from": "configure"}
    assert content["config"]["steal"]["from"] == "default"


def test_text_names_pools_and_their_limits(capsys):
    with gpumem.Pool(limit="64 MiB", name="mine") as pool:
        assert main(["status"]) == 0
        line = next(x for x in capsys.readouterr().out.splitlines() if "mine" in x)
        assert f"pool mine ({pool.id}): 0 B used" in line
        assert line.endswith("limit 64.00 MiB")


def test_the_function_prints_in_one_line():
    assert repr(status()) == f"<gpumem {gpumem.__version__} on host:0>"


def test_a_malformed_variable_is_one_line(monkeypatch, capsys):
    monkeypatch.setenv("GPUMEM_CONF", "nonsense=1")
    assert main(["status"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "nonsense" in err


@pytest.mark.parametrize("words", [["status", "extra"], ["status", "--what"]])
def test_words_that_mean_nothing_are_refused(words):
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
