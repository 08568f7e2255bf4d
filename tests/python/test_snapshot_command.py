"""``gpumem snapshot FILE``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpumem.__main__ import main


def test_sums(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = [
        {"size": 300, "requested_size": 200, "state": "active_allocated"},
        {"size": 700, "state": "inactive"},
    ]
    sizes = {"total_size": 1000, "allocated_size": 300, "active_size": 300}
    path = tmp_path / "s.json"
    path.write_text(
        json.dumps({"segments": [{**sizes, "blocks": blocks}], "device_traces": []})
    )
    assert main(["snapshot", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["version"], facts["reserved"], facts["cached"]) == (1, 1000, 700)
    assert facts["holders"] == {"unknown": 200}
