"""The page of text."""

import pytest

import gpumem

MIB = 1 << 20


def test_memory_summary_has_straight_lines(device):
    buffer = gpumem.empty(3 * MIB, name="activations " * 10)
    text = gpumem.memory_summary()
    assert {len(line) for line in text.splitlines()} == {77}
    assert "3.00 MiB" in text
    assert "held by activations" in text
    del buffer


def test_memory_summary_before_use_is_the_same_table():
    lines = gpumem.memory_summary("host:0").splitlines()
    assert len(lines) > 30
    assert any("Allocated memory" in line and " 0 B" in line for line in lines)


def test_memory_summary_abbreviated_has_no_rows_of_small_and_large(device):
    whole = gpumem.memory_summary()
    short = gpumem.memory_summary(abbreviated=True)
    assert "from small pool" in whole
    assert "from small pool" not in short


@pytest.mark.parametrize(
    "word",
    ["fragmentation", "pending on streams", "outside the pools", "limit", "head-room"],
)
def test_memory_summary_names_what_pytorchs_does_not(device, word):
    assert f"| {word}" in gpumem.memory_summary()


def test_memory_summary_prints_well(device):
    buffer = gpumem.empty(MIB, name="<w>")
    found = gpumem.memory_summary()
    assert repr(found) == "<MemorySummary of host:0: 1.00 MiB used, 2.00 MiB reserved>"
    assert found.to_dict()["holders"] == [["<w>", MIB]]
    assert found.to_dict()["statistics"]["allocation.all.current"] == 1
    assert "held by &lt;w&gt;" in found._repr_html_()
    del buffer


def test_pool_summary_is_about_one_pool(pool):
    kept = [pool.empty(MIB), gpumem.empty(MIB, device=pool.device)]
    text = pool.summary()
    assert "pool tested on host:0" in text
    assert text.to_dict()["statistics"]["allocation.all.current"] == 1
    assert "from small pool" not in pool.summary(abbreviated=True)
    kept.clear()


def test_memory_summary_of_all_devices():
    gpumem.configure(host_devices=2, host_capacity="64 MiB")
    kept = [gpumem.empty(MIB, device=i) for i in range(2)]
    assert "2.00 MiB" in gpumem.memory_summary("all")
    kept.clear()
