"""What the documents promise is there, and the project speaks of itself alone."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import gpumem
from gpumem.stats import STATISTICS

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("[a-z]*/**/*.md")])
DOCUMENTS = [path for path in DOCUMENTS if "build" not in path.parts]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))

TOP_LEVEL = {
    ".ci",
    ".clang-format",
    ".gitignore",
    ".pre-commit-config.yaml",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "benchmarks",
    "csrc",
    "docs",
    "examples",
    "gpumem",
    "pyproject.toml",
    "setup.py",
    "tests",
}

every_document = pytest.mark.parametrize(
    "path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix()
)


def tracked_files():
    """Paths of the checkout; skips where this is none."""
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listing.stdout.split("\0") if name]


def tracked_texts():
    """Path and content of each file of the checkout that is text."""
    for path in tracked_files():
        if path.is_file() and path.suffix != ".gz":
            yield path, path.read_text()


def make_targets():
    lines = re.findall(r"^([a-z][a-z -]*):(?!=)", (ROOT / "Makefile").read_text(), re.M)
    return {word for line in lines for word in line.split()}


def headings(path):
    """The anchors that a Markdown file offers."""
    found = re.findall(r"^#+ (.+)$", path.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", text).lower().replace(" ", "-") for text in found}


def test_the_top_level_holds_what_it_should():
    present = {path.name for path in ROOT.iterdir()}
    assert present >= TOP_LEVEL


def test_the_checkout_holds_nothing_else_at_the_top():
    found = {path.relative_to(ROOT).parts[0] for path in tracked_files()}
    assert found <= TOP_LEVEL


# ---- documents -----------------------------------------------------------------------


@every_document
def test_links_lead_somewhere(path):
    for link in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name) if name else path
        assert target.exists(), link
        if anchor:
            assert anchor in headings(target), link


@every_document
def test_make_targets_that_documents_name_exist(path):
    text = path.read_text()
    named = re.findall(r"^\s+make ([a-z][a-z -]*?)(?:\s\s|$|#)", text, re.M)
    named += re.findall(r"`make ([a-z][a-z -]*)`", text)
    words = {word for line in named for word in line.split()}
    assert words <= make_targets()


@every_document
def test_paths_that_documents_name_exist(path):
    """`csrc/pool/pool.c`, `docs/api.md` and the like, in backquotes."""
    pattern = r"`((?:csrc|gpumem|tests|docs|benchmarks|examples|\.ci)/[\w./-]*)`"
    for name in re.findall(pattern, path.read_text()):
        assert (ROOT / name).exists(), name


@every_document
def test_functions_of_the_core_that_documents_name_exist(path):
    code = "".join(each.read_text() for each in (ROOT / "csrc").rglob("*.[ch]"))
    known = set(re.findall(r"\b(?:gm|GM|gpumem)_\w+", code))
    named = set(re.findall(r"`((?:gm|GM)_\w+)`", path.read_text()))
    assert named <= known


def test_every_target_is_described_where_make_is_read():
    text = (ROOT / "Makefile").read_text()
    described = set(re.findall(r"^#   make ([a-z-]+) ", text, re.M))
    parts = {"install", "torch"}
    parts |= {target for target in make_targets() if target.startswith("sanitize-")}
    assert described == make_targets() - parts


def test_the_readme_names_the_commands_that_set_everything_up():
    text = (ROOT / "README.md").read_text()
    assert re.search(r"^    make demo\b", text, re.M)
    assert re.search(r"^    make test\b", text, re.M)


def test_the_readme_names_every_document():
    text = (ROOT / "README.md").read_text()
    for path in (ROOT / "docs").glob("*.md"):
        assert f"docs/{path.name}" in text, path.name


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.name)
def test_decisions_are_numbered(path):
    number = int(path.name.split("-")[0])
    assert number == DECISIONS.index(path) + 1
    assert path.read_text().startswith(f"# {number}. ")


def test_the_changelog_has_a_part_for_what_comes_next():
    text = (ROOT / "CHANGELOG.md").read_text()
    parts = re.findall(r"^## (.+)$", text, re.M)
    assert parts[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", p) for p in parts[1:])
    entries = text.split("\n## ")[1].splitlines()[1:]
    assert all(line.startswith(("- ", "  ")) for line in entries if line)


def test_the_licence_is_the_one_that_the_package_names():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert settings["project"]["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


# ---- the tree ------------------------------------------------------------------------


def test_scripts_are_executable_and_parse():
    for path in (ROOT / ".ci").iterdir():
        assert path.stat().st_mode & 0o111, path.name
        if "bash" in path.read_text().splitlines()[0]:
            subprocess.run(["bash", "-n", str(path)], check=True)


def test_tools_that_judge_the_form_are_pinned():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for line in settings["project"]["optional-dependencies"]["dev"]:
        assert "==" in line, line


def test_the_version_stands_in_one_place():
    pattern = re.compile(r"\b(?:__version__|version) = \"[0-9]+\.[0-9]+")
    found = [path.name for path, text in tracked_texts() if pattern.search(text)]
    assert found == ["pyproject.toml"]


def test_no_path_of_a_machine_is_written_down():
    home = re.compile(r"(?<![\w.])/(?:home|root|work|Users|opt|mnt)/\w+")
    for path, text in tracked_texts():
        if path.name != Path(__file__).name:
            assert home.findall(text) == [], path


def test_no_work_is_left_to_be_done():
    marker = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
    for path, text in tracked_texts():
        assert marker.findall(text) == [], path


def test_text_files_are_tidy():
    for path, text in tracked_texts():
        assert text[-1:] in ("", "\n"), path
        assert text.count("\r") == 0, path
        assert re.findall(r".*[ \t]+$", text, re.M) == [], path


def test_links_in_the_tree_are_real_files():
    assert [path for path in tracked_files() if os.path.islink(path)] == []


# ---- documents against the code ------------------------------------------------------


def test_the_page_on_statistics_names_every_row():
    text = (ROOT / "docs" / "statistics.md").read_text()
    named = set(re.findall(r"`([\w.]+)`", text))
    named |= {name.split(".")[0] for name in named}
    rows = {key.split(".")[0] for key in STATISTICS}
    assert rows - named == set()


def test_the_page_on_locks_names_every_rank():
    header = (ROOT / "csrc" / "base" / "mutex.h").read_text()
    ranks = re.findall(r"^    (GM_RANK_\w+)", header, re.M)
    text = (ROOT / "docs" / "locking-and-errors.md").read_text()
    assert re.findall(r"^\| `(GM_RANK_\w+)`", text, re.M) == ranks


def test_the_page_of_names_has_every_public_name():
    text = (ROOT / "docs" / "api.md").read_text()
    named = set(re.findall(r"`(\w+)`", text))
    assert set(gpumem.__all__) - named == set()


def test_the_page_of_names_has_every_option():
    text = (ROOT / "docs" / "api.md").read_text()
    rows = set(re.findall(r"^\| `(\w+)` \| ", text, re.M))
    assert set(gpumem.config.OPTIONS) - rows == set()
