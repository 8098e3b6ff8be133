"""Many processes share one store: nothing is lost, and a process that dies takes at most what it was writing."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from polytile.problem import Measurement
from polytile.store import Store
from tests.store.helpers import writer


def test_eight_processes_write_500_measurements_each_and_none_is_lost(tmp_path: Path) -> None:
    writers = [writer(tmp_path / "s", worker, 500) for worker in range(8)]
    for process in writers:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0 and not errors, errors
    sizes = {dict(m.problem.sizes)["M"] for m in Store(tmp_path / "s").measurements()}
    assert sizes == {worker * 100_000 + number for worker in range(8) for number in range(500)}


def test_a_killed_process_loses_at_most_what_it_was_writing(tmp_path: Path) -> None:
    path = tmp_path / "s"
    process = writer(path, 0, 1_000_000)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGKILL)
    said = process.stdout.read().split()
    process.wait()
    kept = {dict(m.problem.sizes)["M"] for m in Store(path).measurements()}
    written = 1 + int(said[-1]) if said else 1
    assert kept in (set(range(written)), set(range(written + 1)))
    assert not list(tmp_path.glob("*.bad"))


def test_processes_that_find_the_same_bad_file_set_it_aside_once(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(b"no database" * 1000)
    writers = [writer(path, worker, 20) for worker in range(4)]
    for process in writers:
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert len(Store(path).measurements()) == 80
    assert len(list(tmp_path.glob("s*.bad"))) == 1


def test_a_forked_child_uses_the_store_and_leaves_the_parents_whole(
    tmp_path: Path, measurement: Callable[..., Measurement]
) -> None:
    kept = Store(tmp_path / "s")
    kept.append(measurement(1))
    child = os.fork()
    if child == 0:
        try:
            kept.append(measurement(2))
            os._exit(0 if len(kept.measurements()) == 2 else 1)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    kept.append(measurement(3))
    assert len(kept.measurements()) == 3
    with sqlite3.connect(tmp_path / "s") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize("again", range(3))
def test_stores_made_by_several_processes_at_once_are_one_store(tmp_path: Path, again: int) -> None:
    writers = [writer(tmp_path / "s", worker, 1) for worker in range(4)]
    for process in writers:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0 and not errors, errors
    assert len(Store(tmp_path / "s").measurements()) == 4
