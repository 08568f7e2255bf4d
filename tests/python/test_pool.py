"""Pool: options, memory, questions, history, life."""

import threading
import weakref

import numpy as np
import pytest

import gpumem
from gpumem import Pool, Stream, _core

MIB = 1 << 20


def used(pool):
    return pool.stats()["allocated_bytes.all.current"]


def reserved(pool):
    return pool.stats()["reserved_bytes.all.current"]


# ---- making one ----------------------------------------------------------------------


def test_pool_has_a_name_a_device_and_a_number(device):
    with Pool(device) as one, Pool(device=device, name="mine") as two:
        assert one.device is two.device is device
        assert two.id > one.id
        assert two.name == "mine"
        assert one.name == f"pool-{one.id}"
        assert "mine" in repr(two)
        assert "\n" not in repr(two)


def test_pool_without_a_device_is_on_the_current_one(device):
    with Pool() as pool:
        assert pool.device == gpumem.current_device() == device


def test_pool_asks_nothing_of_the_device_until_it_is_used(device):
    before = device.counters()
    with Pool(device):
        assert device.counters() == before


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"limit": None, "headroom": 0, "reserve": 0, "steal": 0.05}),
        ({"limit": "1.5 MiB"}, {"limit": 3 * MIB // 2}),
        ({"limit": 5}, {"limit": 5}),
        ({"headroom": 0.25}, {"headroom": 16 * MIB}),
        ({"headroom": "1 MiB"}, {"headroom": MIB}),
        ({"reserve": 4 * MIB}, {"reserve": 4 * MIB}),
        ({"steal": "always"}, {"steal": "always"}),
        ({"steal": "never"}, {"steal": "never"}),
        ({"steal": 0}, {"steal": 0.0}),
        ({"steal": 1000}, {"steal": 1000.0}),
        ({"cross_stream": "wait"}, {"cross_stream": "wait"}),
        ({"gc_on_pressure": False}, {"gc_on_pressure": False}),
        ({"oom_wait": 0.5}, {"oom_wait": 0.5}),
        ({"oom_wait": None}, {"oom_wait": None}),
        ({"decay": 2}, {"decay": 2.0}),
        ({"max_split": np.int64(MIB)}, {"max_split": MIB}),
        ({"paging": False}, {"paging": False}),
    ],
)
def test_options_are_taken_as_given(device, options, expected):
    with Pool(device, **options) as pool:
        assert {name: pool.options()[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"limit": 0}, ValueError, "limit"),
        ({"limit": -1}, ValueError, "limit"),
        ({"limit": 1.5}, TypeError, "limit"),
        ({"limit": "lots"}, ValueError, "limit"),
        ({"headroom": 1.0}, ValueError, "headroom"),
        ({"headroom": float("nan")}, ValueError, "headroom"),
        ({"headroom": True}, TypeError, "headroom"),
        ({"steal": -0.01}, ValueError, "'never', 'always' or a number from 0 to 1000"),
        ({"steal": 1001}, ValueError, "'never', 'always' or a number from 0 to 1000"),
        ({"steal": float("nan")}, ValueError, "number from 0 to 1000, not nan"),
        ({"steal": "sometimes"}, ValueError, "'never', 'always' or a number"),
        ({"steal": True}, ValueError, "'never', 'always' or a number"),
        ({"cross_stream": "maybe"}, ValueError, "'done', 'wait' or 'never'"),
        ({"gc_on_pressure": 1}, TypeError, "gc_on_pressure"),
        ({"oom_wait": -1}, ValueError, "oom_wait"),
        ({"oom_wait": "1"}, TypeError, "oom_wait"),
        ({"decay": 0}, ValueError, "decay"),
        ({"max_split": 0}, ValueError, "max_split"),
        ({"paging": None}, TypeError, "paging"),
        ({"name": 5}, TypeError, "name"),
        ({"nosuch": 5}, TypeError, "limit, headroom"),
    ],
)
def test_options_outside_their_range_are_errors(device, options, error, text):
    with pytest.raises(error, match=text):
        Pool(device, **options)


def test_pool_takes_one_device(device):
    with pytest.raises(TypeError, match="one device"):
        Pool(device, "1 MiB")
    with pytest.raises(TypeError, match="one device"):
        Pool(device, device=device)
    with pytest.raises(TypeError, match="must be a Device"):
        Pool("host")


# ---- changing options ----------------------------------------------------------------


def test_configure_changes_what_it_names_and_nothing_else(device):
    with Pool(device, limit="32 MiB", oom_wait=3) as pool:
        pool.configure(oom_wait=1, cross_stream="never")
        options = pool.options()
    assert (options["oom_wait"], options["cross_stream"]) == (1, "never")
    assert options["limit"] == 32 * MIB


def test_configure_refuses_what_is_fixed(pool):
    for name, value in [
        ("decay", 1),
        ("max_split", MIB),
        ("paging", False),
        ("reserve", 1),
    ]:
        with pytest.raises(ValueError, match=name):
            pool.configure(**{name: value})
    pool.configure(paging=True, decay=None)


def test_configure_with_one_bad_option_changes_none(pool):
    before = pool.options()
    with pytest.raises(TypeError, match="the options are"):
        pool.configure(limit=MIB, nosuch=1)
    with pytest.raises(ValueError, match="oom_wait"):
        pool.configure(limit=MIB, oom_wait=-1)
    with pytest.raises(TypeError, match="by name"):
        pool.configure(MIB)
    assert pool.options() == before


def test_limit_can_be_read_and_set(pool):
    assert pool.limit is None
    pool.limit = "8 MiB"
    assert pool.limit == 8 * MIB
    with pytest.raises(gpumem.OutOfMemoryError):
        pool.empty(9 * MIB)
    pool.limit = None
    assert pool.limit is None
    with pytest.raises(ValueError, match="limit"):
        pool.limit = 0
    with pytest.raises(TypeError, match="deleted"):
        del pool.limit


# ---- empty ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (7, (7,)),
        (0, (0,)),
        ((), ()),
        ([2, 3], (2, 3)),
        (np.int64(4), (4,)),
        (np.array([2, 2]), (2, 2)),
        (range(1, 4), (1, 2, 3)),
        ((1,) * 32, (1,) * 32),
    ],
)
def test_empty_takes_shapes_of_every_kind(pool, shape, expected):
    assert pool.empty(shape).shape == expected


@pytest.mark.parametrize(
    ("shape", "error"),
    [
        (-1, ValueError),
        ((2, -1), ValueError),
        (2**70, ValueError),
        ((2**40, 2**40), ValueError),
        ((1,) * 33, ValueError),
        (1.5, TypeError),
        (True, TypeError),
        ("12", TypeError),
        (b"12", TypeError),
        (None, TypeError),
        ((1.5,), TypeError),
    ],
)
def test_empty_refuses_what_is_no_shape(pool, shape, error):
    with pytest.raises(error, match="shape"):
        pool.empty(shape)
    assert used(pool) == 0


def test_empty_takes_its_arguments_by_name(pool):
    buffer = pool.empty(shape=(2, 3), dtype="float32", name="w", align=4096, stream=0)
    assert (buffer.shape, buffer.dtype, buffer.name) == ((2, 3), "float32", "w")
    assert buffer.ptr % 4096 == 0
    assert pool.empty(1, name=None, align=None, pitch=None, stream=None).name is None


def test_empty_with_a_pitch_starts_rows_there(pool):
    buffer = pool.empty((4, 3), "float32", pitch=256)
    assert buffer.strides == (256, 4)


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        ((), {}, "shape"),
        ((1, "u1", None), {}, "by position"),
        ((1,), {"nosuch": 1}, "nosuch"),
        ((1,), {"shape": 1}, "twice"),
        ((1, "u1"), {"dtype": "u1"}, "twice"),
        ((1,), {"name": 1}, "name"),
        ((1,), {"align": 1.5}, "align"),
        ((1,), {"stream": 1.5}, "stream"),
        ((1,), {"pitch": 1.5}, "pitch"),
    ],
)
def test_empty_says_which_argument_is_wrong(pool, arguments, options, text):
    with pytest.raises(TypeError, match=text):
        pool.empty(*arguments, **options)


@pytest.mark.parametrize("align", [0, 3, -8, 1 << 31])
def test_empty_refuses_alignments_that_are_no_power_of_two(pool, align):
    with pytest.raises(ValueError, match="align"):
        pool.empty(1, align=align)


@pytest.mark.parametrize("align", [1 << n for n in range(22)])
def test_empty_keeps_the_alignment(pool, align):
    for size in (1, 255, MIB + 1):
        assert pool.empty(size, align=align).ptr % max(align, 512) == 0


def test_dropping_a_buffer_frees_it_at_once(pool):
    buffer = pool.empty(1000)
    address = buffer.ptr
    assert used(pool) == 1024
    del buffer
    assert used(pool) == 0
    assert pool.empty(1000).ptr == address


def test_shape_that_changes_while_it_is_read_does_no_harm(pool):
    class Shrinking:
        def __index__(self):
            del shape[1:]
            return 3

    shape = [Shrinking(), 4, 5]
    assert pool.empty(shape).shape == (3, 4, 5)


# ---- malloc and free -----------------------------------------------------------------


def test_malloc_hands_out_addresses_that_free_takes_back(pool):
    address = pool.malloc(1000)
    assert address % 512 == 0
    assert pool.owns(address)
    assert used(pool) == 1024
    pool.free(address)
    assert not pool.owns(address)
    assert used(pool) == 0


def test_malloc_of_nothing_is_null(pool):
    assert pool.malloc(0) == 0
    pool.free(0)


def test_free_refuses_what_malloc_did_not_hand_out(device, pool):
    address = pool.malloc(1024)
    buffer = pool.empty(10)
    with Pool(device) as other:
        for wrong in (address + 512, 12345, buffer.ptr, 2**64 - 1):
            with pytest.raises(ValueError, match="not the address"):
                pool.free(wrong)
        with pytest.raises(ValueError, match="not the address"):
            other.free(address)
    pool.free(address)
    with pytest.raises(ValueError, match="not the address"):
        pool.free(address)
    assert not buffer.released
    assert pool.stats()["bad_frees"] == 5


@pytest.mark.parametrize(
    ("ptr", "error"),
    [(-1, ValueError), (2**64, ValueError), (1.0, TypeError), (True, TypeError)],
)
def test_free_refuses_what_is_no_address(pool, ptr, error):
    with pytest.raises(error, match="ptr"):
        pool.free(ptr)


def test_free_on_another_stream_waits_for_it(device, pool):
    stream = Stream(device)
    address = pool.malloc(MIB)
    stream.stall()
    stream.record()
    pool.free(address, stream)
    assert pool.stats()["pending_bytes"] == MIB
    again = pool.malloc(MIB)
    assert again != address
    stream.release()
    pool.poll()
    assert pool.stats()["pending_bytes"] == 0
    pool.free(again)


def test_malloc_belongs_to_no_scope(pool):
    with pool.scope() as scope:
        address = pool.malloc(1000)
        assert scope.count == 0
    assert pool.owns(address)
    pool.free(address)


# ---- giving back ---------------------------------------------------------------------


def test_trim_gives_idle_memory_back_and_reports_it(device, pool):
    held = pool.empty(4 * MIB)
    pool.empty(8 * MIB)
    released, referenced, skipped, pending, capturing = pool.trim()
    assert released == 8 * MIB
    assert referenced == 4 * MIB
    assert (skipped, pending, capturing) == (0, 0, False)
    assert reserved(pool) == 4 * MIB == device.counters()["memory_now"]
    del held


def test_trim_stops_at_its_target(pool):
    pool.empty(16 * MIB)
    assert pool.trim("6 MiB")[0] == 10 * MIB
    assert reserved(pool) == 6 * MIB


def test_trim_of_one_stream_leaves_the_others(device, pool):
    stream = Stream(device)
    pool.empty(4 * MIB)
    pool.empty(4 * MIB, stream=stream)
    stream.synchronize()
    assert pool.trim(stream=stream)[0] == 4 * MIB
    assert reserved(pool) == 4 * MIB


def test_trim_leaves_memory_that_is_young():
    device = _core.open_host(0, 64 * MIB, manual_clock=True)
    pool = Pool(device)
    pool.empty(4 * MIB)
    device.advance(1)
    assert pool.trim(older_than=10.0)[:3] == (0, 0, 4 * MIB)
    device.advance(10)
    assert pool.trim(older_than=10.0)[0] == 4 * MIB


def test_trim_says_that_a_capture_forbids_it(device, pool):
    pool.empty(4 * MIB)
    device.set_capturing(0, True)
    report = pool.trim()
    device.set_capturing(0, False)
    assert report[0] == 0
    assert report[4] is True
    assert pool.trim()[0] == 4 * MIB


def test_reserve_takes_memory_ahead(device, pool):
    pool.reserve("8 MiB")
    assert reserved(pool) == 8 * MIB
    before = device.counters()["page_create"]
    pool.reserve(4 * MIB)
    buffer = pool.empty(8 * MIB)
    assert device.counters()["page_create"] == before
    del buffer


# ---- looking inside ------------------------------------------------------------------


def test_stats_have_the_same_keys_before_and_after_use(pool):
    before = pool.stats()
    buffer = pool.empty(1000)
    after = pool.stats()
    assert before.keys() == after.keys()
    assert after["requested_bytes.all.current"] == 1000
    assert after["allocated_bytes.small_pool.current"] == 1024
    assert after["allocation.all.allocated"] == 1
    assert after["limit"] == 0
    assert max(after.values()) < 1 << 62
    del buffer


def test_reset_peaks_changes_peaks_alone(pool):
    held = pool.empty(4 * MIB)
    pool.empty(6 * MIB)
    pool.reset_peaks()
    stats = pool.stats()
    assert stats["allocated_bytes.all.peak"] == 4 * MIB
    assert stats["allocated_bytes.all.allocated"] == 10 * MIB
    del held
    pool.reset_accumulated()
    stats = pool.stats()
    assert stats["allocated_bytes.all.allocated"] == 0
    assert stats["allocated_bytes.all.peak"] == 4 * MIB


def test_view_lists_blocks_with_size_and_state(pool):
    buffer = pool.empty(1000)
    segments, unplaced = pool.view()
    address, size, stream, stable, small, paged, in_use, requested, active, blocks = (
        segments[0]
    )
    assert unplaced == 0
    assert (stream, stable, small, paged) == (0, False, True, True)
    assert (in_use, requested, active) == (1024, 1000, 1024)
    assert blocks[0][:4] == (buffer.ptr, 1024, 1000, "used")
    assert sum(block[1] for block in blocks) == size
    assert address <= buffer.ptr < address + size


def test_check_finds_nothing_wrong(pool):
    kept = [pool.empty(size) for size in range(1, 100_000, 777)]
    del kept[::2]
    pool.check()
    sizes = pool.sizes()
    assert sizes["index_entries"] <= sizes["free_blocks"]
    assert sizes["lanes"] == 1
    assert sizes["metadata_bytes"] > 0


def test_live_buffers_are_listed_newest_last(pool):
    buffers = [pool.empty(10) for _ in range(3)]
    assert pool.live_buffers() == buffers
    del buffers[1]
    assert pool.live_buffers() == buffers
    assert pool.empty(0) not in pool.live_buffers()


def test_pools_lists_the_open_ones(device):
    one, two = Pool(device), Pool(device)
    assert _core.pools()[-2:] == [one, two]
    one.close()
    assert one not in _core.pools()


# ---- the end -------------------------------------------------------------------------


def test_closed_pool_refuses_and_lets_live_buffers_go(device):
    pool = Pool(device)
    buffer = pool.empty(MIB)
    buffer.fill(7)
    pool.close()
    pool.close()
    assert pool.closed
    assert "closed" in repr(pool)
    with pytest.raises(gpumem.GpumemError, match="closed"):
        pool.empty(1)
    with pytest.raises(gpumem.GpumemError, match="closed"):
        pool.malloc(1)
    with pytest.raises(gpumem.GpumemError, match="closed"), pool:
        pass
    assert buffer.tobytes()[:1] == b"\x07"
    del buffer
    assert device.counters()["memory_now"] == 0


def test_close_is_refused_while_a_buffer_is_exported(device):
    pool = Pool(device)
    buffer = pool.empty(10)
    view = memoryview(buffer)
    with pytest.raises(BufferError, match="1 buffers"):
        pool.close()
    assert not pool.closed
    with pytest.raises(BufferError), pool:
        pass
    with (
        pytest.warns(gpumem.GpumemWarning, match="not closed"),
        pytest.raises(KeyError),
    ):
        leave_with_an_error(pool)
    view.release()
    pool.close()


def leave_with_an_error(pool):
    with pool:
        raise KeyError


def test_buffer_keeps_its_pool(device):
    pool = Pool(device)
    reference = weakref.ref(pool)
    buffer = pool.empty(10)
    del pool
    assert reference() is buffer.pool
    del buffer
    assert reference() is None
    assert device.counters()["memory_now"] == 0


def test_close_lets_other_threads_run(device):
    pool = Pool(device)
    stream = Stream(device)
    buffer = pool.empty(MIB)
    stream.stall()
    stream.record()
    buffer.record_stream(stream)
    del buffer
    helper = threading.Timer(0.05, stream.release)
    helper.start()
    pool.close(timeout=30)
    helper.join()
    assert device.counters()["memory_now"] == 0


def test_threads_that_allocate_together_see_only_their_own(device):
    def work(number):
        for round_ in range(300):
            buffer = pool.empty(
                512 * (1 + (number * 7 + round_) % 40), name=str(number)
            )
            buffer.fill(number)
            if buffer.tobytes() != bytes([number]) * buffer.nbytes:
                wrong.append(number)

    wrong = []
    pool = Pool(device, limit="4 MiB")
    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert used(pool) == 0
    pool.check()
