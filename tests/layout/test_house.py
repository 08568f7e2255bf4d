"""What the documents promise is there, and the project speaks of itself alone."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def make_targets():
    text = (ROOT / "Makefile").read_text()
    return set(re.findall(r"^([a-z-]+):", text, re.M))


def test_the_top_level_holds_what_it_should():
    for name in [
        "gpumem",
        "csrc",
        "tests",
        "docs",
        "examples",
        "benchmarks",
        ".ci",
        "setup.py",
        "pyproject.toml",
        "Makefile",
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "LICENSE",
    ]:
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_links_lead_somewhere(path):
    for link in re.findall(r"\]\(([^)#\s]+)\)", path.read_text()):
        if "://" not in link:
            assert (path.parent / link).exists(), link


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: p.name)
def test_make_targets_that_documents_name_exist(path):
    named = set(
        re.findall(r"^\s+make ([a-z][a-z -]*?)(?:\s\s|$|#)", path.read_text(), re.M)
    )
    targets = make_targets()
    for words in named:
        for word in words.split():
            assert word in targets, word


def test_every_script_is_executable():
    for path in (ROOT / ".ci").iterdir():
        assert path.stat().st_mode & 0o111, path.name


def test_the_version_stands_in_one_place():
    found = subprocess.run(
        ["git", "grep", "-lE", r"\bversion = \"[0-9]+\.[0-9]+"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode == 128:
        pytest.skip("not a git checkout")
    assert found.stdout.split() == ["pyproject.toml"]
