"""Many processes share one store, a file or a server: nothing is lost, and nobody gets in another's way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from polytile.problem import Measurement
from polytile.store import Store, check
from polytile.store.place import Place
from tests.store.helpers import number, writer
from tests.waiting import PATIENCE, until


def ended_well(place: Place, processes: int, each: int) -> None:
    """So many processes append so many measurements at once, and say nothing."""
    writers = [writer(place, worker, each) for worker in range(processes)]
    for process in writers:
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0 and not errors, errors


def test_eight_processes_write_500_measurements_each_and_none_is_lost(place: Place) -> None:
    ended_well(place, 8, 500)
    kept = [number(m) for m in Store(place).measurements()]
    assert sorted(kept) == [worker * 100_000 + n for worker in range(8) for n in range(500)]
    assert not check.check(place).troubles


@pytest.mark.parametrize("again", range(3))
def test_stores_made_by_several_processes_at_once_are_one_store(place: Place, again: int) -> None:
    ended_well(place, 4, 1)
    assert len(Store(place).measurements()) == 4


def test_processes_that_find_the_same_bad_file_set_it_aside_once(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(b"no database" * 1000)
    writers = [writer(path, worker, 20) for worker in range(4)]
    for process in writers:
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
    assert len(Store(path).measurements()) == 80
    assert len(list(tmp_path.glob("s*.bad"))) == 1


def test_a_forked_child_uses_the_store_and_leaves_the_parents_whole(
    place: Place, measurement: Callable[..., Measurement]
) -> None:
    kept = Store(place)
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
    assert len(kept.measurements()) == 3 and not check.check(place).troubles


def test_one_process_at_a_time_holds_a_lease_and_it_ends_with_the_process(place: Place) -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        theirs = Store(place)
        os.write(writing, b"1" if theirs.take_lease("a regime") else b"0")
        signal.pause()
    mine = Store(place)
    try:
        assert os.read(reading, 1) == b"1"
        assert not mine.take_lease("a regime") and mine.take_lease("another")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    until(lambda: mine.take_lease("a regime"), "the lease is free")
    assert mine.take_lease("a regime"), "a process may take it again"
    mine.give_lease_back("a regime")
    mine.give_lease_back("a regime")
