"""What an out-of-memory error brings along, and the report at exit."""

import logging
import os
import pickle

import pytest

import gpumem
from gpumem import oom

MIB = 1 << 20


def test_holders_groups_by_name_then_by_dtype_and_shape(pool):
    kept = [pool.empty(4 * MIB, name="weights")]
    kept += [pool.empty(MIB, name="batch") for _ in range(3)]
    kept += [pool.empty((10, 10), "float32")]
    assert oom.holders(pool) == (
        ("weights", 4 * MIB),
        ("batch x 3", 3 * MIB),
        ("float32[10, 10]", 400),
    )
    assert oom.holders(pool, 1) == (("weights", 4 * MIB),)
    kept.clear()


def test_holders_groups_by_the_line_that_made_them(pool):
    pool.record_history(100, True)
    kept = [pool.empty(MIB) for _ in range(2)]
    ((name, size),) = oom.holders(pool)
    assert name.startswith("test_oom_report.py:")
    assert name.endswith("x 2")
    assert size == 2 * MIB
    kept.clear()


def test_holders_counts_blocks_without_a_buffer(pool):
    address = pool.malloc(MIB)
    assert oom.holders(pool) == (("blocks without a buffer", MIB),)
    pool.free(address)


def test_out_of_memory_error_names_holders_and_is_plain(pool):
    kept = pool.empty(40 * MIB, name="weights")
    with pytest.raises(gpumem.OutOfMemoryError) as info:
        pool.empty(40 * MIB)
    error = info.value
    assert error.holders == (("weights", 40 * MIB),)
    assert "weights" in str(error)
    assert len(error.args) == 1
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    del kept


def test_snapshot_on_oom_writes_a_bounded_number_of_files(pool, tmp_path):
    folder = tmp_path / "new"
    gpumem.configure(snapshot_on_oom=folder, snapshot_on_oom_limit=2)
    for _ in range(5):
        with pytest.raises(gpumem.OutOfMemoryError) as info:
            pool.empty(1 << 40)
    names = sorted(os.listdir(folder))
    assert names == [f"gpumem-oom-{os.getpid()}-{number}.pickle" for number in (0, 1)]
    assert gpumem.load_snapshot(folder / names[0])["devices"][0]["name"] == "host:0"
    assert str(folder) in info.value.__notes__[0]


def test_snapshot_on_oom_that_cannot_be_written_changes_nothing(pool, tmp_path, caplog):
    blocked = tmp_path / "file"
    blocked.write_text("")
    gpumem.configure(snapshot_on_oom=blocked / "folder")
    with pytest.raises(gpumem.OutOfMemoryError):
        pool.empty(1 << 40)
    assert "was not written" in caplog.text


def test_leak_report_lists_what_is_alive(pool):
    kept = [pool.empty(MIB, name="weights"), pool.empty(MIB)]
    report = gpumem.leak_report()
    assert report.buffers == 2
    assert report.bytes == 2 * MIB
    assert ("tested on host:0", "weights", MIB) in report.holders
    assert repr(report) == "<LeakReport: 2 live buffers, 2.00 MiB>"
    assert report.to_dict()["bytes"] == 2 * MIB
    assert "<table" in report._repr_html_()
    kept.clear()


LEAKING = """
import gpumem
{setup}
kept = gpumem.empty(1 << 20, name="weights")
"""


def test_leaks_are_silent_at_exit_by_default(python):
    assert python(LEAKING.format(setup=""), flags=("-X", "dev")).stderr == ""


def test_leaks_are_logged_at_exit_when_asked(python):
    setup = "gpumem.configure(leak_report=True)"
    text = python(LEAKING.format(setup=setup)).stderr
    assert "1 buffer alive at exit, 1.00 MiB" in text
    assert "default on host:0: weights, 1.00 MiB" in text


def test_leaks_are_logged_when_the_variable_asks(python):
    env = {"GPUMEM_CONF": "leak_report=true"}
    assert "weights" in python(LEAKING.format(setup=""), env=env).stderr


def test_no_leaks_no_log(python):
    code = "import gpumem; gpumem.configure(leak_report=True); gpumem.empty(9)"
    assert python(code).stderr == ""


def test_logger_is_quiet_in_normal_use(pool, caplog):
    with caplog.at_level(logging.DEBUG, "gpumem"):
        pool.empty(MIB).free()
        gpumem.empty_cache()
    assert caplog.text == ""
