"""Scenarios of several devices; host devices stand for them."""

import threading

import pytest

import gpumem

MIB = 1 << 20


@pytest.fixture
def three():
    """Devices host:0 to host:2 of 64 MiB each."""
    return [gpumem.device(f"host:{i}", capacity="64 MiB") for i in range(3)]


def test_mgpu_03_a_free_goes_to_the_buffer_s_device(three):
    gpumem.set_device(0)
    warm = gpumem.empty(MIB, device=0)
    untouched = gpumem.memory_stats(0), three[0].counters()
    gpumem.set_device(1)
    buffer = gpumem.empty(3 * MIB)
    address = buffer.ptr
    assert buffer.device is three[1]
    gpumem.set_device(0)
    del buffer
    assert gpumem.memory_allocated(1) == 0
    after = gpumem.memory_stats(0), three[0].counters()
    for key in after[1].keys() - {"memory_info"}:
        assert after[1][key] == untouched[1][key]
    assert after[0] == untouched[0]
    assert gpumem.current_device() is three[0]
    gpumem.set_device(1)
    maps = gpumem.memory_stats(1)["maps"]
    again = gpumem.empty(3 * MIB)
    assert again.ptr == address
    assert gpumem.memory_stats(1)["maps"] == maps
    del warm, again


def test_mgpu_06_statistics_heed_their_argument(three):
    held = [gpumem.empty((i + 1) * MIB, device=i) for i in range(3)]

    def ask(wrong):
        for current in range(3):
            gpumem.set_device(current)
            for index, device in enumerate(three):
                for form in (index, f"host:{index}", device):
                    expected = (index + 1) * MIB
                    found = [
                        gpumem.memory_allocated(form),
                        gpumem.max_memory_allocated(form),
                        gpumem.memory_stats(form)["requested_bytes.all.current"],
                        sum(
                            s["allocated_size"]
                            for s in gpumem.memory_snapshot(form)["segments"]
                        ),
                        gpumem.mem_get_info(form)[1] // 64 * (index + 1),
                    ]
                    wrong += [n for n in found if n != expected]
            if gpumem.memory_allocated() != (current + 1) * MIB:
                wrong.append(f"current {current}")
            if gpumem.memory_allocated("all") != 6 * MIB:
                wrong.append("all")

    wrong = []
    ask(wrong)
    threads = [threading.Thread(target=ask, args=(wrong,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert gpumem.memory_stats("all")["allocation.all.current"] == 3
    del held
