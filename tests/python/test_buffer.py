"""Life, attributes and the buffer protocol of Buffer."""

import copy
import gc
import pickle
import sys
import weakref
import zlib

import pytest

import gpumem
from gpumem import _core, testing


def used(pool):
    return pool.stats()["allocated_bytes.all.current"]


def test_attributes_of_a_new_buffer(pool, device):
    buf = pool.empty((4, 6), "float32", name="weights")
    assert buf.shape == (4, 6)
    assert buf.strides == (24, 4)
    assert (buf.size, buf.itemsize, buf.nbytes, buf.ndim) == (24, 4, 96, 2)
    assert buf.dtype == "float32"
    assert buf.name == "weights"
    assert buf.pool is pool
    assert buf.device == device
    assert buf.stream == 0
    assert buf.base is None
    assert buf.exports == 0
    assert buf.context == 0
    assert not buf.released
    assert buf.ptr % 512 == 0
    assert len(buf) == 4


def test_drop_returns_the_memory(pool):
    buf = pool.empty(1000)
    assert used(pool) == 1024
    del buf
    assert used(pool) == 0


def test_free_is_idempotent_and_keeps_the_description(pool):
    buf = pool.empty((2, 3), "int16")
    buf.free()
    buf.free()
    assert buf.released
    assert used(pool) == 0
    assert (buf.shape, buf.dtype, buf.nbytes) == ((2, 3), "int16", 12)


@pytest.mark.parametrize(
    "access",
    [
        lambda buf: buf.ptr,
        lambda buf: buf.numpy(),
        lambda buf: memoryview(buf),
        lambda buf: buf.tobytes(),
        lambda buf: buf.fill(0),
        lambda buf: buf.copy_from(b"12345678"),
        lambda buf: buf.copy_to(bytearray(8)),
        lambda buf: buf.view("int8"),
        lambda buf: buf.reshape(4, 2),
        lambda buf: buf[0],
        lambda buf: list(buf),
        lambda buf: buf.record_stream(3),
        lambda buf: buf.__dlpack__(),
    ],
)
def test_access_to_a_freed_buffer_raises(pool, access):
    buf = pool.empty(8)
    buf.free()
    with pytest.raises(gpumem.ReleasedError, match="freed"):
        access(buf)


def test_released_error_names_the_scope(pool):
    with pool.scope("validation"):
        buf = pool.empty(8)
        view = buf[2:]
    assert buf.released
    assert view.released
    with pytest.raises(gpumem.ReleasedError, match="'validation'"):
        view.tobytes()


def test_free_of_an_exported_buffer_is_refused_with_the_count(pool):
    buf = pool.empty(8)
    first, second = memoryview(buf), memoryview(buf[2:])
    assert buf.exports == 2
    with pytest.raises(BufferError, match="2 live exports"):
        buf.free()
    first.release()
    with pytest.raises(BufferError, match="1 live export "):
        buf.free()
    second.release()
    buf.free()
    assert buf.released


def test_exported_buffer_outlives_its_scope_until_the_last_export(pool):
    with pool.scope("s") as scope:
        buf = pool.empty(600, name="kept")
        array = buf.numpy()
        other = memoryview(buf)
    assert [(name, why) for name, _, why in scope.deferred] == [("kept", "exported")]
    assert not buf.released
    array[:] = 7
    del array
    assert not buf.released
    assert other[599] == 7
    other.release()
    assert buf.released
    assert used(pool) == 0


def test_zero_sizes_ask_nothing_of_the_device():
    device = testing.device("host", capacity="1 MiB")
    before = device.counters()
    with gpumem.Pool(device) as pool:
        buffers = [pool.empty(0) for _ in range(50)]
        buffers += [pool.empty((3, 0, 2), "float64") for _ in range(50)]
        for buf in buffers:
            assert buf.nbytes == 0
            assert buf.ptr == 0
            assert memoryview(buf).nbytes == 0
            assert buf.tobytes() == b""
            buf.fill(0)
        assert pool.stats()["allocated_bytes.all.current"] == 0
        while buffers:
            buffers.pop(len(buffers) // 2)
        after = device.counters()
    for call in ("segment_create", "page_create", "address_reserve", "copy", "fill"):
        assert after[call] == before[call]


@pytest.mark.parametrize("size", [-1, (-1,), (2, -3), 2**64, 2**61, (2**40, 2**40)])
def test_sizes_out_of_range_are_value_errors(pool, size):
    with pytest.raises(ValueError, match="shape"):
        pool.empty(size)


@pytest.mark.parametrize("size", [1.5, True, "12", None, (1.0,), ("1",), (True,), b"1"])
def test_sizes_of_other_types_are_type_errors(pool, size):
    with pytest.raises(TypeError, match=r"int|dimension"):
        pool.empty(size)


def test_overflow_is_not_hidden_by_a_size_of_zero(pool):
    with pytest.raises(ValueError, match="more than"):
        pool.empty((2**40, 0, 2**40))


def test_32_bit_sizes_do_not_wrap():
    with gpumem.Pool(testing.device("host", capacity="1 GiB")) as pool:
        with pytest.raises(
            gpumem.OutOfMemoryError, match="25769803776 bytes"
        ) as caught:
            pool.empty((2**31, 3), "float32")
        assert caught.value.requested == 25769803776


def test_more_dimensions_than_fit_inline(pool):
    buf = pool.empty((2, 3, 4, 5), "int8")
    assert buf.strides == (60, 20, 5, 1)
    assert pool.empty((1,) * 32).ndim == 32
    with pytest.raises(ValueError, match="33 dimensions"):
        pool.empty((1,) * 33)


def test_zero_dimensions(pool):
    buf = pool.empty((), "int32").fill(-5)
    assert (buf.shape, buf.strides, buf.size, buf.nbytes) == ((), (), 1, 4)
    assert memoryview(buf).tolist() == -5
    with pytest.raises(TypeError, match="no length"):
        len(buf)
    with pytest.raises(TypeError, match="no length"):
        iter(buf)


def test_pitch_aligns_rows(pool):
    buf = pool.empty((3, 5), "float32", pitch=64)
    assert buf.strides == (64, 4)
    assert buf.nbytes == 60
    assert used(pool) >= 3 * 64
    buf.fill(2)
    assert memoryview(buf).tolist() == [[2.0] * 5] * 3


@pytest.mark.parametrize(("shape", "pitch"), [(5, 64), ((2, 3), 6), ((2, 3), -8)])
def test_pitch_that_makes_no_sense_is_refused(pool, shape, pitch):
    with pytest.raises(ValueError, match="pitch"):
        pool.empty(shape, "float32", pitch=pitch)


def test_repr_is_one_line(pool):
    buf = pool.empty((2, 1024), "float32", name="act")
    assert repr(buf) == (
        "<gpumem.Buffer 'act' shape=(2, 1024) dtype=float32 device=host:0 "
        "nbytes=8.00 KiB>"
    )
    assert repr(buf[0]).endswith("nbytes=4.00 KiB view>")
    buf.free()
    assert repr(buf).endswith(" released>")


def test_pickle_and_copy_say_what_to_do(pool):
    buf = pool.empty(8)
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match=r"buf\.numpy\(\)\.copy\(\)"):
            attempt(buf)


def test_it_is_made_by_pools_alone():
    with pytest.raises(TypeError):
        gpumem.Buffer()


def test_weak_references_die_with_the_buffer(pool):
    buf = pool.empty(8)
    dead = []
    reference = weakref.ref(buf, dead.append)
    assert reference() is buf
    del buf
    assert dead == [reference]


def test_dealloc_keeps_the_pending_exception(pool):
    def fail():
        local = pool.empty(8)
        raise LookupError(local.nbytes)

    with pytest.raises(LookupError, match="8"):
        fail()
    gc.collect()
    assert used(pool) == 0


def test_no_references_leak(pool):
    kind = gpumem.Buffer
    before = sys.getrefcount(kind), sys.getrefcount(pool)
    for _ in range(1000):
        buf = pool.empty((2, 2), "float32", name="x")
        buf[0].view("uint8").reshape(2, 4)
        with memoryview(buf):
            pass
    del buf
    assert (sys.getrefcount(kind), sys.getrefcount(pool)) == before


def test_a_cycle_is_collected(pool):
    class Holder:
        pass

    holder = Holder()
    holder.self = holder
    holder.buffer = pool.empty(8)
    del holder
    gc.collect()
    assert used(pool) == 0


def test_live_objects_are_counted(pool):
    before = _core.count_live()["Buffer"]
    buf = pool.empty(8)
    view = buf[1:]
    assert _core.count_live()["Buffer"] == before + 2
    del buf, view
    assert _core.count_live()["Buffer"] == before


# ---- buffer protocol -----------------------------------------------------------------


def test_memoryview_shares_the_memory(pool):
    buf = pool.empty((2, 3), "int32").fill(4)
    view = memoryview(buf)
    assert (view.format, view.itemsize, view.shape) == ("i", 4, (2, 3))
    assert not view.readonly
    view[1, 2] = 9
    assert buf.tobytes()[-4:] == (9).to_bytes(4, "little")


def test_memoryview_of_a_strided_view(pool):
    buf = pool.empty(10)
    memoryview(buf)[:] = bytes(range(10))
    assert memoryview(buf[8:0:-3]).tolist() == [8, 5, 2]
    assert not memoryview(buf[::2]).c_contiguous


def test_consumers_that_need_contiguous_memory_are_refused(pool):
    with pytest.raises(BufferError, match="strides"):
        zlib.crc32(pool.empty(8)[::2])


@pytest.mark.parametrize(
    ("dtype", "letter"),
    [
        ("bool", "?"),
        ("int8", "b"),
        ("uint16", "H"),
        ("int64", "l"),
        ("uint64", "L"),
        ("float16", "e"),
        ("float64", "d"),
        ("complex64", "Zf"),
        ("complex128", "Zd"),
        ("bfloat16", "H"),
        ("float8_e4m3fn", "B"),
    ],
)
def test_format_letters(pool, dtype, letter):
    view = memoryview(pool.empty(4, dtype))
    assert view.format == letter
    assert view.nbytes == 4 * view.itemsize


def test_a_device_without_memory_cannot_be_read():
    with gpumem.Pool(testing.device("sim", capacity="1 GiB")) as pool:
        buf = pool.empty(100)
        for export in (
            memoryview,
            lambda b: b.__dlpack__(),
            lambda b: b.__dlpack_device__(),
        ):
            with pytest.raises(BufferError):
                export(buf)
        with pytest.raises(ValueError, match="copy"):
            buf.numpy()
        for access in (
            lambda: buf.fill(0),
            buf.tobytes,
            lambda: buf.copy_from(b"1" * 100),
        ):
            with pytest.raises(ValueError, match="no memory"):
                access()


def test_cuda_array_interface_is_absent_elsewhere(pool):
    assert not hasattr(pool.empty(8), "__cuda_array_interface__")


def test_record_stream_needs_a_stream(pool):
    buf = pool.empty(8)
    with pytest.raises(TypeError):
        buf.record_stream(None)
    with pytest.raises(TypeError):
        buf.record_stream("0")
    with pytest.raises(ValueError, match="stream"):
        buf.record_stream(-1)
    buf.record_stream(buf.stream)


def test_record_stream_delays_reuse():
    device = testing.device("host", capacity="64 MiB")
    with gpumem.Pool(device) as pool, gpumem.Stream(device) as side:
        buf = pool.empty(1 << 20)
        address = buf.ptr
        side.stall()
        pool.empty(1 << 20, stream=side).fill(0, stream=side)
        buf.record_stream(side)
        buf.free()
        assert pool.stats()["pending_bytes"] >= 1 << 20
        assert pool.empty(1 << 20).ptr != address
        side.release()
        pool.poll()
        assert pool.stats()["pending_bytes"] == 0


@pytest.mark.parametrize("exponent", range(22))
def test_requested_alignment_holds(pool, exponent):
    align = 1 << exponent
    for size in (1, 32, 255, 256, (1 << 20) + 1):
        buf = pool.empty(size, align=align)
        assert buf.ptr % max(align, 512) == 0
        assert buf.fill(255).tobytes() == b"\xff" * size


@pytest.mark.parametrize("align", [0, 3, -8])
def test_alignment_must_be_a_power_of_two(pool, align):
    with pytest.raises(ValueError, match="align"):
        pool.empty(8, align=align)


def test_orphans_of_a_fork_are_released(python):
    python(
        """
import os, sys
import gpumem
pool = gpumem.Pool(gpumem.testing.device("host", capacity="8 MiB"))
buf = pool.empty(100)
child = os.fork()
if child == 0:
    try:
        buf.tobytes()
    except gpumem.ReleasedError as error:
        os._exit(0 if buf.released and "fork" in str(error) else 2)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert len(buf.tobytes()) == 100
"""
    )


def test_exit_with_live_buffers_and_exports(python):
    result = python(
        """
import gpumem
pool = gpumem.Pool(gpumem.testing.device("host", capacity="8 MiB"))
buf = pool.empty(100)
view = memoryview(buf)
""",
        flags=("-X", "dev", "-W", "error"),
    )
    assert "Error" not in result.stderr
