"""Memory that this process and a worker both see."""

from __future__ import annotations

import mmap
import os
import threading

import torch

from polytile.tuning.isolation.child import POPULATED

SPARE_BYTES = 16 << 20
"""Memory of at most this many bytes is kept for the next trial: clearing and mapping new memory takes longer than filling
it."""


class Unavailable(Exception):
    """No worker can be had here; says why. Nothing is known about the kernel."""


class Memory:
    """Memory without a name that two processes can map; `whole` are its bytes. Raises Unavailable where there is not enough."""

    def __init__(self, size: int) -> None:
        self.size = size
        try:
            self.descriptor = os.memfd_create("polytile", os.MFD_CLOEXEC)
        except OSError as error:
            raise Unavailable(f"there is no shared memory ({error})") from None
        try:
            os.posix_fallocate(self.descriptor, 0, size)  # now, not as a bus error in the middle of a copy
            self.whole = torch.frombuffer(mmap.mmap(self.descriptor, size, POPULATED), dtype=torch.uint8)
        except OSError as error:
            self.close()
            raise Unavailable(f"{size} bytes of shared memory are not to be had ({error})") from None

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


_lock = threading.Lock()
_spare: Memory | None = None


def taken(size: int) -> Memory:
    """Memory of at least `size` bytes, whatever they hold. Raises Unavailable."""
    global _spare
    with _lock:
        spare, _spare = _spare, None
    if spare is not None and spare.size >= size:
        return spare
    if spare is not None:
        spare.close()
    return Memory(size)


def kept(memory: Memory) -> bool:
    """Keeps the memory for the next trial. Returns False, and keeps nothing, if it is too large or there is some already."""
    global _spare
    with _lock:
        if _spare is not None or memory.size > SPARE_BYTES:
            return False
        _spare = memory
        return True


def _after_fork() -> None:
    """The parent goes on using it."""
    global _lock, _spare
    _lock, _spare = threading.Lock(), None


os.register_at_fork(after_in_child=_after_fork)
