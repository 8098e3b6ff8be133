"""Work that one process at a time does for all processes with the same cache directory. The others wait and find its result."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from polytile.errors import CacheError
from polytile.problem import digest
from polytile.runtime.cache import Cache

PERIOD_SECONDS = 0.1
"""How often a waiting process checks whether it is its turn."""


@contextlib.contextmanager
def alone(cache: Cache, what: str, seconds: float) -> Iterator[None]:
    """Ensures that no other process does `what` within the block, unless it has waited for `seconds` or the disk does
    not support locks. The system releases a lease when its process ends; a forked child does not inherit it."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError, CacheError):
            path = cache.folder("tmp") / f"lease-{digest(what)}"
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            held.callback(os.close, descriptor)
            end = time.monotonic() + seconds
            while not _locked(descriptor) and time.monotonic() < end:
                time.sleep(PERIOD_SECONDS)
        yield


def _locked(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
