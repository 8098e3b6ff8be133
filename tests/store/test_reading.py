"""What reading a store from outside leaves behind: nothing."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from polytile.problem import Measurement
from polytile.store import Store
from polytile.store.reading import reading, records

Make = Callable[..., Measurement]


def closed_store(path: Path, *measurements: Measurement) -> Path:
    store = Store(path)
    store.append(*measurements)
    store.close()
    return path


def test_reading_leaves_no_file_beside_a_store_and_its_bytes_as_they_were(tmp_path: Path, measurement: Make) -> None:
    path = closed_store(tmp_path / "store.sqlite3", measurement())
    before, changed = path.read_bytes(), path.stat().st_mtime_ns
    assert len(records(path)) == 1
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (before, changed)


def test_reading_sees_what_a_running_program_has_written_and_leaves_its_files(tmp_path: Path, measurement: Make) -> None:
    path = tmp_path / "store.sqlite3"
    store = Store(path)
    store.append(measurement(1))
    assert len(records(path)) == 1
    store.append(measurement(2))
    assert len(records(path)) == 2
    assert Path(f"{path}-wal").stat().st_size
    store.close()
    assert not Path(f"{path}-wal").exists() and len(records(path)) == 2


def test_the_log_of_a_killed_program_is_read_and_not_moved(tmp_path: Path, measurement: Make) -> None:
    running, killed = tmp_path / "running", tmp_path / "killed"
    running.mkdir()
    store = Store(running / "store.sqlite3")
    store.append(measurement(1), measurement(2))
    shutil.copytree(running, killed)  # as it lies there if the program ends now
    store.close()
    path = killed / "store.sqlite3"
    before = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    assert len(records(path)) == 2
    assert (path.read_bytes(), Path(f"{path}-wal").read_bytes()) == before


def test_a_reader_cannot_write(tmp_path: Path, measurement: Make) -> None:
    path = closed_store(tmp_path / "store.sqlite3", measurement())
    with reading(path) as reader:
        for statement in ("DELETE FROM measurements", "CREATE TABLE t (x)"):
            with pytest.raises(sqlite3.OperationalError, match="readonly"):
                reader.connection.execute(statement)
