"""A store file that is truncated, foreign, corrupt, newer, locked or out of reach costs its content at most."""

from __future__ import annotations

import errno
import logging
import os
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from polytile.problem import Measurement
from polytile.store import Store, sqlite

Make = Callable[..., Measurement]


def filled(path: Path, measurement: Make) -> None:
    kept = Store(path)
    kept.append(*(measurement(m) for m in range(10, 200)))
    kept.close()


def usable(path: Path, measurement: Make) -> bool:
    """Whether a store at `path` takes a measurement and another one reads it."""
    kept = Store(path)
    kept.exact(measurement(5).problem, measurement().environment)
    kept.append(measurement(5))
    kept.close()
    return bool(Store(path).exact(measurement(5).problem, measurement().environment))


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.3, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_set_aside(
    tmp_path: Path, measurement: Make, caplog: pytest.LogCaptureFixture, fraction: float
) -> None:
    path = tmp_path / "store.sqlite3"
    filled(path, measurement)
    os.truncate(path, int(path.stat().st_size * fraction))
    assert usable(path, measurement)
    assert (tmp_path / "store.sqlite3.bad").exists()
    assert len(caplog.records) == 1
    assert "set aside as store.sqlite3.bad" in caplog.text


@pytest.mark.parametrize("content", [b"not a database at all " * 300, b"\0" * 8192, random.Random(0).randbytes(50_000)])
def test_garbage_is_set_aside(
    tmp_path: Path, measurement: Make, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    path = tmp_path / "store.sqlite3"
    path.write_bytes(content)
    assert usable(path, measurement)
    assert (tmp_path / "store.sqlite3.bad").read_bytes() == content
    assert "set aside" in caplog.text


def test_an_empty_file_becomes_a_store(tmp_path: Path, measurement: Make, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "s").touch()
    assert usable(tmp_path / "s", measurement)
    assert not caplog.records


def test_another_programs_database_is_set_aside_whole(tmp_path: Path, measurement: Make) -> None:
    path = tmp_path / "store.sqlite3"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
        connection.execute("INSERT INTO recipes VALUES ('bread')")
    connection.close()
    assert usable(path, measurement)
    with sqlite3.connect(tmp_path / "store.sqlite3.bad") as connection:
        assert connection.execute("SELECT * FROM recipes").fetchall() == [("bread",)]
    connection.close()


def test_damage_in_the_middle_of_a_file_in_use_is_set_aside(
    tmp_path: Path, measurement: Make, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "store.sqlite3"
    filled(path, measurement)
    size = path.stat().st_size
    with path.open("r+b") as file:
        for page in range(4096, size, 4096):
            file.seek(page)
            file.write(b"\xff" * 64)
    assert usable(path, measurement)
    assert "set aside" in caplog.text


def test_every_bad_file_is_kept_under_a_name_of_its_own(tmp_path: Path, measurement: Make) -> None:
    path = tmp_path / "s"
    for content in (b"first bad one" * 100, b"second bad one" * 100):
        path.write_bytes(content)
        assert usable(path, measurement)
    assert (tmp_path / "s.bad").read_bytes().startswith(b"first")
    assert (tmp_path / "s.2.bad").read_bytes().startswith(b"second")


def test_a_file_deleted_while_in_use_is_made_again(tmp_path: Path, measurement: Make) -> None:
    path = tmp_path / "s"
    kept = Store(path)
    kept.append(measurement(1))
    for left in tmp_path.iterdir():
        left.unlink()
    kept.append(measurement(2))
    assert Store(path).measurements() == [measurement(2)]
    assert kept.exact(measurement(1).problem, measurement().environment)
    Store(path).append(measurement(3))
    assert kept.refresh() == 1


def test_a_newer_polytiles_store_is_left_alone(
    tmp_path: Path, measurement: Make, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "s"
    filled(path, measurement)
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    kept = Store(path)
    kept.append(measurement(5))
    assert kept.exact(measurement(5).problem, measurement().environment)
    assert not kept.persistent
    assert not list(tmp_path.glob("*.bad"))
    assert "newer polytile" in caplog.text


def test_a_place_that_cannot_be_written_to_costs_one_warning(
    tmp_path: Path, measurement: Make, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    kept = Store(tmp_path / "file" / "store.sqlite3")
    kept.append(measurement(1))
    kept.append(measurement(2))
    assert kept.exact(measurement(1).problem, measurement().environment)
    assert kept.nearby(measurement(1).problem, measurement().environment)
    assert kept.measurements() == [measurement(1), measurement(2)]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "stays in this process" in caplog.text


def test_a_read_only_store_answers_lookups(
    tmp_path: Path, measurement: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    filled(path, measurement)
    connect = sqlite._connect

    def only_reading(name: str, uri: bool = False) -> sqlite3.Connection:
        if not uri:
            raise sqlite3.OperationalError("unable to open database file")
        return connect(name, uri)

    monkeypatch.setattr(sqlite, "_connect", only_reading)
    kept = Store(path)
    assert kept.exact(measurement(50).problem, measurement().environment)
    kept.append(measurement(5))
    kept.append(measurement(6))
    assert kept.exact(measurement(6).problem, measurement().environment)
    assert len(kept.measurements()) == 192
    assert len(caplog.records) == 1


def test_a_full_disk_costs_one_warning(
    tmp_path: Path, measurement: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Store(tmp_path / "s")
    kept.append(measurement(1))
    assert isinstance(kept._database, sqlite.SqliteFile) and kept._database._connection is not None
    connection = kept._database._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    kept.append(*(measurement(m) for m in range(100, 400)))
    kept.append(measurement(2))
    assert kept.exact(measurement(300).problem, measurement().environment)
    assert len(caplog.records) == 1
    assert os.strerror(errno.ENOSPC) in caplog.text or "full" in caplog.text
    assert len(Store(tmp_path / "s").measurements()) == 1


def test_a_store_that_another_process_keeps_locked_is_written_later(
    tmp_path: Path, measurement: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.2)
    path = tmp_path / "s"
    filled(path, measurement)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    kept = Store(path)
    kept.append(measurement(5))
    assert "locked" in caplog.text
    assert kept.exact(measurement(5).problem, measurement().environment)
    holder.execute("ROLLBACK")
    holder.close()
    kept.append(measurement(6))
    assert len(Store(path).measurements()) == 192
