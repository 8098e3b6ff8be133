"""One process at a time does what all find in the cache directory afterwards."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from polytile.runtime.cache import Cache
from polytile.runtime.lease import alone


def holder(cache: Cache) -> int:
    """A process that holds the lease "work" until it is killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with alone(cache, "work", 60):
            os.write(writing, b".")
            time.sleep(600)
    assert os.read(reading, 1) == b"."
    os.close(reading)
    os.close(writing)
    return child


def test_a_process_waits_for_the_one_that_holds_the_lease_and_no_longer_than_it_lives(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    child = holder(cache)
    with alone(cache, "other work", 600):
        pass
    begun = time.monotonic()
    with alone(cache, "work", 0.3):
        assert time.monotonic() - begun >= 0.3, "it has given up"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with alone(cache, "work", 600):
        pass
    with alone(cache, "work", 600):
        pass


def test_a_directory_that_takes_no_locks_keeps_nobody_waiting(tmp_path: Path) -> None:
    (tmp_path / "tmp").write_text("no directory")
    with alone(Cache(tmp_path), "work", 600):
        pass
