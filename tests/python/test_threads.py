"""Eight threads on one pool: random sizes, streams, scopes, frees by other threads.

The main thread walks the pool all the while. GPUMEM_TEST_SECONDS sets for how long
(default 1).
"""

import contextlib
import os
import queue
import random
import threading
import time

import pytest

import gpumem
from gpumem import Pool, Stream, testing

MIB = 1 << 20
THREADS = 8
SECONDS = float(os.environ.get("GPUMEM_TEST_SECONDS", "1"))


class Worker:
    """One thread's program; the first failure ends all of them."""

    def __init__(self, number, pool, streams, mailboxes, stop):
        self.random = random.Random(number)
        self.number = number
        self.pool = pool
        self.streams = streams
        self.mailboxes = mailboxes
        self.stop = stop
        self.mine = []
        self.steps = 0
        self.failure = None

    def run(self):
        try:
            while not self.stop.is_set():
                self.step()
                self.steps += 1
        except BaseException as error:
            self.failure = error
            self.stop.set()
        finally:
            self.mine.clear()
            self.random = None

    def step(self):
        action = self.random.random()
        if action < 0.45:
            self.allocate()
        elif action < 0.65:
            self.drop()
        elif action < 0.80:
            self.hand_over()
        elif action < 0.95:
            self.take_over()
        elif action < 0.99:
            self.use_scope()
        else:
            self.pool.trim(self.random.choice([0, 8 * MIB]))

    def size(self):
        return int(2 ** self.random.uniform(0, 21))

    def allocate(self):
        """A buffer that is full of this thread's number, written in stream order."""
        stream = self.random.choice(self.streams)
        try:
            buffer = self.pool.empty(self.size(), stream=stream)
        except gpumem.OutOfMemoryError:
            self.mine.clear()
            return
        buffer.fill(self.number, stream=stream)
        self.mine.append((buffer, self.number))
        if len(self.mine) > 40:
            self.drop()

    def verify(self, buffer, number):
        self.pool.device.synchronize()
        with memoryview(buffer) as memory:
            assert memory[0] == memory[-1] == number

    def drop(self):
        if self.mine:
            buffer, number = self.mine.pop(self.random.randrange(len(self.mine)))
            self.verify(buffer, number)
            if self.random.random() < 0.5:
                buffer.free()

    def hand_over(self):
        if self.mine:
            self.random.choice(self.mailboxes).put(self.mine.pop())

    def take_over(self):
        """Frees what another thread allocated, at times after one more use."""
        try:
            buffer, number = self.mailboxes[self.number].get_nowait()
        except queue.Empty:
            return
        self.verify(buffer, number)
        if self.random.random() < 0.3:
            buffer.record_stream(self.random.choice(self.streams))

    def use_scope(self):
        made = []
        scope = self.pool.scope(f"thread {self.number}")
        with scope, contextlib.suppress(gpumem.OutOfMemoryError):
            made += (self.pool.empty(self.size()) for _ in range(5))
        assert all(buffer.released for buffer in made)
        assert scope.count == 0


@pytest.mark.parametrize("paging", [True, False], ids=["pages", "segments"])
def test_threads_share_a_pool(paging):
    device = testing.device("host", capacity=128 * MIB)
    stop = threading.Event()
    mailboxes = [queue.SimpleQueue() for _ in range(THREADS)]
    with Pool(device, paging=paging, limit=96 * MIB) as pool:
        streams = [0, *(Stream(device) for _ in range(3))]
        workers = [
            Worker(number, pool, streams, mailboxes, stop) for number in range(THREADS)
        ]
        threads = [threading.Thread(target=worker.run) for worker in workers]
        for thread in threads:
            thread.start()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and not stop.is_set():
            pool.check()
            assert pool.stats()["reserved_bytes.all.current"] <= 96 * MIB
        stop.set()
        for thread in threads:
            thread.join()
        for worker in workers:
            if worker.failure is not None:
                raise worker.failure
            assert worker.steps > 0
        mailboxes.clear()
        workers.clear()
        pool.check()
        assert pool.stats()["allocation.all.current"] == 0
        for stream in streams[1:]:
            stream.close()
    assert device.counters()["memory_now"] == 0
