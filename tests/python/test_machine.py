"""Random programs over a pool, against a small model of what must hold.

Every step is followed by a walk of the pool, and by comparing its counters and the
device's own with the model. Buffers are filled in stream order with a byte of their
own, so memory that is handed out too early shows as a wrong byte.

GPUMEM_TEST_STEPS sets how many steps there are in all (default 2,000).
"""

import ast
import contextlib
import os
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

import gpumem
from gpumem import Pool, Stream, testing

MIB = 1 << 20
CAPACITY = 48 * MIB
STEPS = int(os.environ.get("GPUMEM_TEST_STEPS", "2000"))
STEPS_EACH = 50

SIZES = st.one_of(
    st.integers(0, 4096),
    st.integers(1, 300 << 10),
    st.integers(1, 12 * MIB),
    st.sampled_from([1, 512, 513, 256 << 10, (256 << 10) + 1, 2 * MIB, CAPACITY]),
)
STREAMS = st.integers(0, 2)


class Held:
    """A live buffer of the model: the object, and the byte that it is filled with."""

    def __init__(self, buffer, value):
        self.buffer = buffer
        self.value = value


class PoolMachine(RuleBasedStateMachine):
    """One pool on one device, three streams, and everything a program may do."""

    buffers = Bundle("buffers")
    addresses = Bundle("addresses")

    # ---- life ------------------------------------------------------------------------

    @initialize(
        paging=st.booleans(),
        limit=st.sampled_from([None, 32 * MIB]),
        headroom=st.sampled_from([0, 4 * MIB]),
        cross_stream=st.sampled_from(["done", "wait", "never"]),
        max_split=st.sampled_from([None, 20 * MIB]),
        steal=st.sampled_from(["always", "never", 0.05, 0]),
        aliasing=st.booleans(),
    )
    def open(self, paging, limit, headroom, cross_stream, max_split, steal, aliasing):
        self.device = testing.device(
            "host", capacity=CAPACITY, clock="manual", aliasing=aliasing
        )
        options = {"max_split": max_split} if not paging else {}
        self.pool = Pool(
            self.device,
            limit=limit,
            headroom=headroom,
            cross_stream=cross_stream,
            paging=paging,
            steal=steal,
            oom_wait=0,
            gc_on_pressure=False,
            name="machine",
            **options,
        )
        self.streams = [0, Stream(self.device), Stream(self.device)]
        self.held = {}
        self.raw = {}
        self.scopes = []
        self.captures = set()
        self.closed = False
        self.occupied = 0
        self.value = 0
        assert self.pool.device is self.device
        assert self.pool.name == "machine"
        assert self.pool.id > 0
        assert self.pool.fallback is None

    def teardown(self):
        if not hasattr(self, "pool"):
            return
        if sys.exc_info()[0] is not None:
            # What is raised shall be seen, but an active scope would stay the thread's.
            # Hypothesis also breaks programs off that it finds too long.
            while self.scopes:
                with contextlib.suppress(Exception):
                    self.scopes.pop().__exit__(None, None, None)
            return
        self.run_streams()
        for stream in list(self.captures):
            self.end_capture(stream)
        while self.scopes:
            self.scopes.pop().__exit__(None, None, None)
        for held in self.held.values():
            held.buffer.free()
        for address in self.raw:
            self.pool.free(address)
        self.device.occupy(0)
        self.pool.close(timeout=0)
        assert self.device.counters()["memory_now"] == 0
        for stream in self.streams[1:]:
            stream.close()

    def run_streams(self):
        for stream in self.streams[1:]:
            stream.release()

    def end_capture(self, stream):
        self.captures.remove(stream)
        self.device.set_capturing(self.streams[stream], False)
        self.pool.capture_end(self.streams[stream])

    # ---- allocating ------------------------------------------------------------------

    def keep(self, buffer, stream):
        """Notes a new buffer, and queues the byte that it must hold from now on."""
        self.value = self.value % 250 + 1
        if buffer.nbytes:
            buffer.fill(self.value, stream=stream)
        held = Held(buffer, self.value)
        self.held[id(held)] = held
        return held

    def attempt(self, make):
        """What `make` returns, or None when it may fail and did."""
        before = self.pool.stats()
        try:
            return make()
        except gpumem.OutOfMemoryError as error:
            self.failed_cleanly(error, before)
        except gpumem.GpumemError:
            if not self.closed and not self.captures:
                raise
        return None

    def failed_cleanly(self, error, before):
        """A failure is counted, and has changed nothing else."""
        after = self.pool.stats()
        assert error.device_total == CAPACITY
        assert after["num_ooms"] == before["num_ooms"] + 1
        for row in ("allocated_bytes", "requested_bytes", "allocation"):
            assert after[f"{row}.all.current"] == before[f"{row}.all.current"]
        key = "reserved_bytes.all.current"
        assert after[key] <= before[key]

    @rule(target=buffers, size=SIZES, stream=STREAMS)
    def empty(self, size, stream):
        where = self.streams[stream]
        buffer = self.attempt(lambda: self.pool.empty(size, stream=where))
        return multiple() if buffer is None else self.keep(buffer, where)

    @rule(
        target=buffers,
        rows=st.integers(1, 9),
        columns=st.integers(1, 3000),
        align=st.sampled_from([512, 4096, 2 * MIB, 8 * MIB]),
    )
    def empty_aligned(self, rows, columns, align):
        buffer = self.attempt(lambda: self.pool.empty((rows, columns), align=align))
        if buffer is None:
            return multiple()
        assert buffer.ptr % align == 0
        return self.keep(buffer, 0)

    @rule(target=addresses, size=st.integers(1, 3 * MIB), stream=STREAMS)
    def malloc(self, size, stream):
        where = self.streams[stream]
        address = self.attempt(lambda: self.pool.malloc(size, where))
        if address is None:
            return multiple()
        assert self.pool.owns(address)
        self.raw[address] = size
        return address

    # ---- using and freeing -----------------------------------------------------------

    @rule(held=buffers, stream=STREAMS)
    def use_elsewhere(self, held, stream):
        """Another stream writes; what is written last is not known."""
        if id(held) in self.held and held.buffer.nbytes:
            held.buffer.fill(255, stream=self.streams[stream])
            own = held.buffer.stream == getattr(self.streams[stream], "handle", 0)
            held.value = 255 if own and held.value is not None else None

    @rule(held=buffers, stream=STREAMS)
    def record(self, held, stream):
        if id(held) in self.held:
            held.buffer.record_stream(self.streams[stream])

    @rule(held=consumes(buffers), explicitly=st.booleans())
    def free(self, held, explicitly):
        if self.held.pop(id(held), None) is not None:
            if explicitly:
                held.buffer.free()
                assert held.buffer.released
            held.buffer = None

    @rule(address=consumes(addresses))
    def free_address(self, address):
        if self.raw.pop(address, None) is not None:
            self.pool.free(address)
            assert not self.pool.owns(address)

    @rule(address=st.integers(1, 1 << 47))
    def free_what_is_nobodys(self, address):
        if address in self.raw:
            return
        before = self.pool.stats()["bad_frees"]
        with pytest.raises(ValueError, match="block"):
            self.pool.free(address)
        assert self.pool.stats()["bad_frees"] == before + 1

    # ---- streams, the device ---------------------------------------------------------

    @rule(stream=st.integers(1, 2))
    def stall(self, stream):
        self.streams[stream].stall()

    @rule(stream=st.integers(1, 2), count=st.one_of(st.none(), st.integers(1, 3)))
    def release(self, stream, count):
        self.streams[stream].release(count)

    @rule(stream=st.integers(1, 2))
    def replace_stream(self, stream):
        if stream in self.captures:
            self.captures.remove(stream)
            self.device.set_capturing(self.streams[stream], False)
        self.pool.stream_retired(self.streams[stream])
        self.streams[stream].release()
        self.streams[stream].close()
        self.streams[stream] = Stream(self.device)

    @precondition(lambda self: not self.closed)
    @rule(stream=STREAMS)
    def capture(self, stream):
        """The device makes no memory meanwhile, and takes none back."""
        if stream in self.captures:
            self.end_capture(stream)
            return
        self.captures.add(stream)
        self.pool.capture_begin(self.streams[stream])
        self.device.set_capturing(self.streams[stream], True)
        with pytest.raises(ValueError, match="already"):
            self.pool.capture_begin(self.streams[stream])

    @precondition(lambda self: self.captures)
    @rule()
    def end_captures(self):
        for stream in list(self.captures):
            self.end_capture(stream)

    @rule(size=st.integers(0, 8 * MIB))
    def occupy(self, size):
        try:
            self.device.occupy(size)
            self.occupied = size
        except gpumem.GpumemError:
            pass

    # ---- scopes, periods -------------------------------------------------------------

    @precondition(lambda self: len(self.scopes) < 3)
    @rule(trim=st.sampled_from(["auto", True, False, 4 * MIB]))
    def enter_scope(self, trim):
        scope = self.pool.scope(f"scope {len(self.scopes)}", trim=trim)
        self.scopes.append(scope.__enter__())

    @precondition(lambda self: self.scopes)
    @rule()
    def leave_scope(self):
        scope = self.scopes.pop()
        used = scope.used
        scope.__exit__(None, None, None)
        assert scope.released == used
        self.held = {k: h for k, h in self.held.items() if not h.buffer.released}

    @precondition(lambda self: self.scopes)
    @rule(held=buffers)
    def keep_in_scope(self, held):
        if id(held) in self.held:
            self.scopes[-1].keep(held.buffer)

    @precondition(lambda self: not self.closed)
    @rule(size=st.integers(1, MIB))
    def iterate(self, size):
        with self.pool.iteration() as period:
            block = self.attempt(lambda: self.pool.empty(size))
            del block
        assert period.number > 0
        assert period.allocations is not None

    # ---- giving back, options --------------------------------------------------------

    @rule(
        target_size=st.sampled_from([0, 0, 4 * MIB, 64 * MIB]),
        older_than=st.sampled_from([0.0, 0.0, 5.0]),
        stream=st.one_of(st.none(), STREAMS),
    )
    def trim(self, target_size, older_than, stream):
        where = None if stream is None else self.streams[stream]
        before = self.pool.stats()["reserved_bytes.all.current"]
        report = self.pool.trim(target_size, older_than=older_than, stream=where)
        after = self.pool.stats()["reserved_bytes.all.current"]
        assert report[0] == before - after
        assert report[4] == bool(self.captures)

    @rule(seconds=st.floats(0, 10))
    def wait(self, seconds):
        self.device.advance(seconds)

    @rule(size=st.integers(0, 16 * MIB))
    def reserve(self, size):
        try:
            self.pool.reserve(size)
        except gpumem.OutOfMemoryError:
            return
        except gpumem.GpumemError:
            if not self.closed and not self.captures:
                raise
            return
        assert self.pool.stats()["reserved_bytes.all.current"] >= size

    @rule(limit=st.sampled_from([None, 8 * MIB, 24 * MIB, 64 * MIB]))
    def set_limit(self, limit):
        self.pool.limit = limit
        assert self.pool.limit == limit

    @rule(headroom=st.sampled_from([0, MIB, 16 * MIB]))
    def configure(self, headroom):
        self.pool.configure(headroom=headroom)
        assert self.pool.options()["headroom"] == headroom

    @rule()
    def poll(self):
        self.pool.poll()

    # ---- looking ---------------------------------------------------------------------

    @rule(count=st.sampled_from([0, 1, 7, 100]))
    def record_history(self, count):
        self.pool.record_history(count)

    @rule()
    def read_history(self):
        events, dropped, limit = self.pool.history()
        assert len(events) <= limit
        assert dropped >= 0

    @rule()
    def clear_history(self):
        self.pool.clear_history()
        assert self.pool.history()[0] == []

    @rule()
    def reset_peaks(self):
        before = self.pool.stats()
        self.pool.reset_peaks()
        after = self.pool.stats()
        for key in before:
            if key.endswith(".peak"):
                assert after[key] == after[key.removesuffix("peak") + "current"]
            elif not key.startswith("outside"):
                assert after[key] == before[key], key

    @rule()
    def reset_accumulated(self):
        self.pool.reset_accumulated()
        assert self.pool.stats()["allocation.all.allocated"] == 0

    @rule()
    def view(self):
        segments, unplaced = self.pool.view()
        used = sum(segment[6] for segment in segments)
        size = sum(segment[1] for segment in segments)
        stats = self.pool.stats()
        assert used == stats["allocated_bytes.all.current"]
        assert size + unplaced == stats["reserved_bytes.all.current"]

    @rule()
    def reports(self):
        assert "machine" in str(self.pool.summary())
        assert self.pool.snapshot() is not None

    @rule()
    def close_and_open(self):
        """Live buffers stay readable, and their memory goes when they do."""
        self.closed = True
        self.pool.close(timeout=0)
        assert self.pool.closed

    # ---- what always holds -----------------------------------------------------------

    @invariant()
    def pool_is_whole(self):
        if hasattr(self, "pool"):
            self.pool.check()

    @invariant()
    def counters_agree(self):
        if not hasattr(self, "pool"):
            return
        stats = self.pool.stats()
        reserved = stats["reserved_bytes.all.current"]
        live = [h.buffer.nbytes for h in self.held.values() if h.buffer.nbytes]
        assert stats["allocation.all.current"] == len(live) + len(self.raw)
        assert stats["requested_bytes.all.current"] >= sum(live)
        assert len(self.pool.live_buffers()) == len(live)
        assert reserved == (
            stats["allocated_bytes.all.current"]
            + stats["pending_bytes"]
            + stats["cached_bytes"]
            + stats["unplaced_bytes"]
        )
        counters = self.device.counters()
        assert counters["memory_now"] == reserved
        assert stats["quarantined"] == 0
        assert self.pool.sizes()["lanes"] == stats["lanes"]

    @invariant()
    def memory_is_whose_it_is(self):
        """Looked at only while no stream has work left to do."""
        if not hasattr(self, "pool") or any(s.waiting for s in self.streams[1:]):
            return
        for held in self.held.values():
            if held.value is not None and held.buffer.nbytes:
                with memoryview(held.buffer) as memory, memory.cast("B") as flat:
                    assert flat[0] == flat[-1] == held.value


def test_random_programs_keep_every_promise():
    profile = settings(
        max_examples=max(STEPS // STEPS_EACH, 1),
        stateful_step_count=STEPS_EACH,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gpumem.GpumemWarning)
        run_state_machine_as_test(PoolMachine, settings=profile)


def test_the_machine_uses_every_public_name_of_a_pool():
    tree = ast.parse(Path(__file__).read_text())
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self.pool"
    }
    public = {name for name in dir(Pool) if not name.startswith("_")}
    assert public - used == set()
