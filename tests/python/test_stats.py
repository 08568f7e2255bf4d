"""Statistics under PyTorch's names."""

import pickle
import threading

import pytest

import gpumem
from gpumem import stats

MIB = 1 << 20


def test_memory_stats_has_pytorchs_keys():
    keys = gpumem.memory_stats()
    for row in [
        "allocation",
        "allocated_bytes",
        "requested_bytes",
        "active",
        "active_bytes",
        "segment",
        "reserved_bytes",
        "inactive_split",
        "inactive_split_bytes",
    ]:
        for group in ("all", "small_pool", "large_pool"):
            for sort in ("current", "peak", "allocated", "freed"):
                assert f"{row}.{group}.{sort}" in keys
    for row in ("oversize_allocations", "oversize_segments"):
        assert f"{row}.current" in keys
    for key in [
        "num_alloc_retries",
        "num_ooms",
        "num_sync_all_streams",
        "num_device_alloc",
        "num_device_free",
        "num_oom_rejections",
        "max_split_size",
        "flushes",
        "collections",
        "ooms",
        "outside",
        "zombies",
        "quarantined",
        "maps",
        "unmaps",
        "plan_served",
        "pinned_bytes",
    ]:
        assert key in keys


def test_memory_stats_has_the_same_keys_before_and_after_use(device):
    before = gpumem.memory_stats()
    assert set(before.values()) <= {0, -1}
    buffer = gpumem.empty(MIB)
    assert list(gpumem.memory_stats()) == list(before) == list(stats.STATISTICS)
    del buffer


def test_memory_stats_covers_all_that_a_pool_counts(pool):
    assert set(pool.stats()) <= set(stats.STATISTICS)


def test_every_key_is_of_a_known_kind_and_documented():
    for kind, about in stats.STATISTICS.values():
        assert kind in ("current", "peak", "cumulative", "setting")
        assert about


def test_memory_stats_opens_no_device(python):
    out = python(
        """
import gpumem
from gpumem import _core
stats = gpumem.memory_stats()
for device in (None, 0, "host", "host:0", "all"):
    gpumem.memory_stats(device), gpumem.memory_summary(device)
    gpumem.memory_snapshot(device), gpumem.reset_peak_memory_stats(device)
    gpumem.memory_allocated(device), gpumem.max_memory_reserved(device)
    gpumem.reset_accumulated_memory_stats(device)
free, total = gpumem.mem_get_info()
assert free == total > 0
gpumem.empty_cache()
assert not any(_core.count_live().values()), _core.count_live()
gpumem.empty(1000)
assert list(gpumem.memory_stats()) == list(stats)
"""
    )
    assert out.stderr == ""


def test_memory_stats_prints_well_and_pickles(device):
    buffer = gpumem.empty(MIB)
    found = gpumem.memory_stats()
    assert isinstance(found, gpumem.MemoryStats)
    assert repr(found).startswith("<MemoryStats of host:0: used 1.00 MiB")
    assert "<table" in found._repr_html_()
    assert type(found.to_dict()) is dict
    assert pickle.loads(pickle.dumps(found)) == found
    del buffer


def test_memory_allocated_by_int_name_object_and_in_total():
    gpumem.configure(host_devices=3, host_capacity="64 MiB")
    kept = [gpumem.empty((i + 1) * MIB, device=i) for i in range(3)]
    seen = []

    def look():
        gpumem.set_device(2)
        seen.append(
            [
                (
                    gpumem.memory_allocated(i),
                    gpumem.memory_allocated(f"host:{i}"),
                    gpumem.memory_allocated(gpumem.device(i)),
                )
                for i in range(3)
            ]
        )

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    look()
    gpumem.set_device(1)
    for found in seen:
        assert found == [((i + 1) * MIB,) * 3 for i in range(3)]
    assert gpumem.memory_allocated() == 2 * MIB
    assert gpumem.memory_allocated("all") == 6 * MIB
    kept.clear()


def test_memory_reserved_falls_with_empty_cache(device):
    gpumem.empty(4 * MIB).free()
    assert gpumem.memory_reserved() == 4 * MIB
    gpumem.empty_cache()
    assert gpumem.memory_reserved() == 0
    assert gpumem.max_memory_reserved() == 4 * MIB


def test_max_memory_allocated_and_reset_peak_memory_stats(device):
    held = [gpumem.empty(2 * MIB) for _ in range(2)]
    more = [gpumem.empty(2 * MIB) for _ in range(3)]
    more.clear()
    assert gpumem.max_memory_allocated() == 10 * MIB
    before = gpumem.memory_stats()
    gpumem.reset_peak_memory_stats()
    after = gpumem.memory_stats()
    assert after["allocated_bytes.all.peak"] == 4 * MIB
    assert after["allocated_bytes.all.current"] == 4 * MIB
    assert after["allocation.all.peak"] == 2
    for key, (kind, _about) in stats.STATISTICS.items():
        if kind != "peak":
            assert after[key] == before[key], key
    held.clear()
    assert gpumem.memory_allocated() == 0


def test_reset_accumulated_memory_stats_keeps_currents_and_peaks(device):
    held = gpumem.empty(2 * MIB)
    gpumem.empty(2 * MIB).free()
    before = gpumem.memory_stats()
    gpumem.reset_accumulated_memory_stats()
    after = gpumem.memory_stats()
    for key, (kind, _about) in stats.STATISTICS.items():
        if kind == "cumulative":
            assert after[key] == 0, key
        else:
            assert after[key] == before[key], key
    del held


def test_currents_fall_and_cumulatives_add_up(device):
    def one_round():
        gpumem.empty(3 * MIB).free()
        gpumem.empty_cache()

    one_round()
    first = gpumem.memory_stats()
    assert first["retaken_bytes"] == 0
    for _ in range(99):
        one_round()
    last = gpumem.memory_stats()
    for key, (kind, _about) in stats.STATISTICS.items():
        if kind == "cumulative" and key not in ("num_alloc_retries", "retaken_bytes"):
            assert last[key] == 100 * first[key], key
        elif kind == "current" and key not in ("lanes", "address_bytes"):
            assert last[key] == first[key], key


def test_outside_is_what_somebody_else_holds(device):
    buffer = gpumem.empty(2 * MIB)
    assert gpumem.memory_stats()["outside"] == 0
    device.occupy(10 * MIB)
    assert gpumem.memory_stats()["outside"] == 10 * MIB
    device.occupy(0)
    del buffer


def test_mem_get_info_is_what_the_device_says(device):
    device.occupy(16 * MIB)
    assert gpumem.mem_get_info() == (48 * MIB, 64 * MIB)
    device.occupy(0)


def test_settings_are_those_of_the_default_pool(device):
    assert gpumem.memory_stats()["limit"] == -1
    gpumem.configure(limit="8 MiB", max_split="4 MiB")
    gpumem.default_pool()
    found = gpumem.memory_stats()
    assert (found["limit"], found["max_split_size"]) == (8 * MIB, 4 * MIB)


def test_ooms_are_counted_once(device):
    with pytest.raises(gpumem.OutOfMemoryError):
        gpumem.empty(1 << 40)
    found = gpumem.memory_stats()
    assert found["ooms"] == found["num_ooms"] == 1


def test_pinned_memory_is_counted(device):
    pinned = gpumem.pinned_empty(MIB)
    found = gpumem.memory_stats()
    assert found["pinned_bytes"] == MIB
    assert found["pinned_reserved_bytes"] >= MIB
    del pinned
    assert gpumem.memory_stats()["pinned_bytes"] == 0
