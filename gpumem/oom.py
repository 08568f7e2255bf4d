"""What is added to an out-of-memory error: who holds the memory, and a snapshot file.

Both run while an allocation fails. They return numbers and text alone, so that the
error keeps no buffer alive.
"""

from __future__ import annotations

import os

from . import config
from ._core import Buffer, OutOfMemoryError, Pool, stack_frames

__all__ = ["holders", "write_snapshot"]

_SHOWN = 5
_written = 0


def holders(pool: Pool, count: int = _SHOWN) -> tuple[tuple[str, int], ...]:
    """Return who holds most of a pool's live memory.

    Buffers are grouped by their name, else by the line that made them (when the
    history records stacks), else by dtype and shape.

    Returns
    -------
    tuple of (str, int)
        Largest first, bytes as asked for; blocks of ``Pool.malloc`` and of the exported
        C functions are one group.
    """
    sizes: dict[str, int] = {}
    numbers: dict[str, int] = {}
    for buffer in pool.live_buffers():
        key = _key(buffer)
        sizes[key] = sizes.get(key, 0) + buffer.nbytes
        numbers[key] = numbers.get(key, 0) + 1
    without = pool.stats()["requested_bytes.all.current"] - sum(sizes.values())
    named = [
        (key if numbers[key] == 1 else f"{key} x {numbers[key]}", size)
        for key, size in sizes.items()
        if size
    ]
    if without > 0:
        named.append(("blocks without a buffer", without))
    named.sort(key=lambda holder: -holder[1])
    return tuple(named[:count])


def _key(buffer: Buffer) -> str:
    if buffer.name is not None:
        return buffer.name
    if buffer.context:
        frames = stack_frames(buffer.context)
        if frames:
            file, line, function = frames[0]
            return f"{os.path.basename(file)}:{line} {function}"
    shape = ", ".join(map(str, buffer.shape))
    return f"{buffer.dtype}[{shape}]"


def write_snapshot(pool: Pool, error: OutOfMemoryError) -> None:
    """Write a snapshot of the pool's device, if the option ``snapshot_on_oom`` is set.

    The newest files of this process are kept, as many as ``snapshot_on_oom_limit``
    says. The path is added to the error as a note. A failure to write is logged and
    changes nothing for the caller.
    """
    global _written
    folder = config.get("snapshot_on_oom")
    if folder is None:
        return
    from . import snapshot

    number = _written % int(config.get("snapshot_on_oom_limit"))
    path = os.path.join(folder, f"gpumem-oom-{os.getpid()}-{number}.pickle")
    try:
        os.makedirs(folder, exist_ok=True)
        snapshot.dump_snapshot(path, device=pool.device)
    except Exception as problem:
        import logging

        logging.getLogger("gpumem").warning(
            "the snapshot of an out-of-memory error was not written to %s: %s",
            path,
            str(problem),
        )
        return
    _written += 1
    error.add_note(f"A snapshot of the memory is in {path}")
