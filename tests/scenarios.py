"""Prints what became of each reported scenario: ``make scenarios``.

A scenario is something that users of GPU memory have reported, carried over to gpumem.
The ids and a line for each are below; the tests of a scenario are the functions whose
names begin with its id, such as ``test_frag_01_...``. A test that fails, or an id
without one, makes the status 1.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

SCENARIOS = {
    "FRAG-01": "a limit is reached while the cache holds enough",
    "FRAG-02": "the allocator itself holds on to what it should flush",
    "FRAG-03": "a small long-lived block eats a large cached one",
    "FRAG-05": "the second iteration cannot have what the first one had",
    "FRAG-06": "the advertised maximum can be allocated",
    "FRAG-08": "sizes that grow for ever",
    "FRAG-09": "allocation stays fast in long runs",
    "FRAG-10": "freeing a block whose size class has gone",
    "REF-01": "a caught exception keeps memory only while it is handled",
    "REF-03": "the interpreter's last traceback",
    "REF-04": "displayed results in notebooks",
    "REF-06": "garbage in cycles",
    "REF-07": "hooks and history remember no buffer",
    "REF-08": "empty_cache says what is still referenced",
    "PROC-02": "use after fork",
    "PROC-04": "pickling a buffer is refused with advice",
    "PROC-05": "orphans after a kill",
    "MGPU-03": "a free while another device is current",
    "MGPU-06": "statistics heed their device argument",
    "STRM-01": "no reuse while another stream still reads",
    "STRM-02": "a mark before the use is enough",
    "STRM-05": "memory of a one-shot stream is not stranded",
    "STRM-08": "a slow stream delays nobody else",
    "THR-01": "the allocator's lock against the GIL",
    "THR-02": "a collection starts inside the allocator",
    "THR-04": "a flush among threads",
    "THR-05": "waits let other Python threads run",
    "THR-07": "entry points without the GIL",
    "THR-08": "free-threaded builds",
    "EXIT-01": "buffers outlive the library at exit",
    "EXIT-05": "daemon threads at exit",
    "EXIT-06": "queries after shutdown",
    "SIZE-01": "zero bytes",
    "SIZE-03": "negative and very large sizes",
    "SIZE-04": "requested alignment",
    "SIZE-05": "default alignment everywhere",
    "OOM-02": "a failed step leaves nothing behind",
    "OOM-03": "retrying with a smaller batch",
    "OOM-05": "the error tells shortage from fragmentation",
    "OOM-06": "a failure changes nothing",
    "STAT-01": "resetting peaks touches peaks alone",
    "STAT-02": "a section's own peak",
    "STAT-04": "freeing what was never counted",
    "STAT-05": "questions before the first use",
    "STAT-06": "bad device numbers",
    "STAT-07": "current values fall again",
    "STAT-09": "lost events are counted",
    "STAT-10": "history is bounded",
    "STAT-11": "snapshot files that every reader understands",
    "LIMIT-01": "the limit governs the pool, the rest is told apart",
    "LIMIT-02": "the limit is checked before the device is asked",
    "LIMIT-03": "one limit for all threads",
    "LIMIT-04": "nonsense fractions",
    "LIMIT-06": "a pool larger than the device",
    "LIMIT-07": "head-room for others",
    "PIN-01": "pinned sizes are rounded little",
    "PIN-05": "pinned arrays are freed",
    "PIN-06": "no reuse of pinned memory while the device reads",
    "ACC-01": "the mean over tokens, not of means",
    "ACC-03": "a short last window",
    "ACC-04": "windows do not leak into each other",
    "ACC-05": "nonsense settings",
    "ACC-07": "small values in half precision",
    "ACC-08": "norms do not overflow",
    "ACC-10": "accumulating keeps no graph",
    "SCOPE-01": "other threads and tasks stay outside",
    "SCOPE-03": "one scope entered twice",
    "SCOPE-04": "an interrupt in the body",
}

LATER = {
    "OOM-03": "comes with the retry helpers",
    "PROC-05": "comes with the monitor",
}

_NAME = re.compile(r"test_([a-z]+)_(\d\d)_")


def scenario_of(name: str) -> str | None:
    """Return the id that a test's name begins with, if it is one of ours."""
    match = _NAME.match(name)
    key = f"{match.group(1).upper()}-{match.group(2)}" if match else ""
    return key if key in SCENARIOS else None


class _Outcomes:
    """A pytest plugin that runs the tests of scenarios alone and keeps what became."""

    def __init__(self) -> None:
        self.tests: dict[str, dict[str, set[str]]] = {key: {} for key in SCENARIOS}

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        chosen = [item for item in items if scenario_of(item.name) is not None]
        others = [item for item in items if item not in set(chosen)]
        config.hook.pytest_deselected(items=others)
        items[:] = chosen

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.split("::")[-1].split("[")[0]
        key = scenario_of(name)
        if key is not None and (report.when == "call" or report.outcome != "passed"):
            self.tests[key].setdefault(name, set()).add(report.outcome)


def result_of(key: str, tests: dict[str, set[str]]) -> str:
    """Return the word that is printed for a scenario."""
    outcomes = set().union(*tests.values())
    if key in LATER:
        return "later"
    if not outcomes:
        return "no test"
    if "failed" in outcomes:
        return "failed"
    return "passed" if "passed" in outcomes else "skipped"


def main() -> int:
    """Run the tests, print a line for each scenario; returns the exit status."""
    here = Path(__file__).resolve().parent
    outcomes = _Outcomes()
    status = pytest.main(
        [
            f"--config-file={here.parent / 'pyproject.toml'}",
            f"--rootdir={here.parent}",
            "-q",
            "--no-header",
            "-p",
            "no:cacheprovider",
            "-m",
            "not gpu",
            *(sys.argv[1:] or [str(here / "python")]),
        ],
        plugins=[outcomes],
    )
    counts: dict[str, int] = {}
    print()
    for key, summary in SCENARIOS.items():
        tests = outcomes.tests[key]
        result = result_of(key, tests)
        counts[result] = counts.get(result, 0) + 1
        about = LATER.get(key, ", ".join(sorted(tests)) or "-")
        print(f"{key:8}  {result:7}  {summary}: {about}")
    print(", ".join(f"{number} {result}" for result, number in counts.items()))
    bad = status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    return 1 if bad or counts.keys() & {"failed", "no test"} else 0


if __name__ == "__main__":
    sys.exit(main())
