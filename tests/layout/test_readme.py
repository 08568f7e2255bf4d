"""The code that people read first runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    path
    for path in sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")])
    if "```python" in path.read_text()
]


def run(script, folder):
    return subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_the_readme_has_an_example():
    assert ROOT / "README.md" in PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_python_blocks_of_a_page_run(page, tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    script = tmp_path / "page.py"
    script.write_text("\n".join(["import gpumem", *blocks]))
    result = run(script, tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    "example", sorted(ROOT.glob("examples/*.py")), ids=lambda path: path.name
)
def test_examples_run(example, tmp_path):
    result = run(example, tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout


def test_the_readme_says_what_its_code_prints(tmp_path):
    """Comments of the form ``print(...)  # VALUE: why`` or ``# VALUE, ...``."""
    text = (ROOT / "README.md").read_text()
    blocks = "\n".join(re.findall(r"```python\n(.*?)```", text, re.S))
    script = tmp_path / "readme.py"
    script.write_text(blocks)
    printed = run(script, tmp_path).stdout.splitlines()
    promised = re.findall(r"^print\(.*\)  # ([\w.]+)[,:] ", blocks, re.M)
    assert promised
    for value in promised:
        assert value in printed, value
