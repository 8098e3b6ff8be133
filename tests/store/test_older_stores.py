"""A store that an older polytile wrote is brought up to date, whole, by whoever opens it first."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from polytile.errors import StoreError
from polytile.facts import Threads
from polytile.problem import Config, Measurement, Outcome, Problem
from polytile.store import Store, check, jsonl, schema, transfer
from polytile.store.place import Server
from polytile.store.reading import Record, records
from tests.store.helpers import ENVIRONMENT, make, writer
from tests.waiting import PATIENCE

FIRST = Path(__file__).with_name("store_version_1.sql")


@pytest.fixture(params=range(1, schema.VERSION))
def old(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of an older version with two measurements."""
    path = tmp_path / "s"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(FIRST.read_text())
    if request.param > 1:
        monkeypatch.setattr(schema, "VERSION", request.param)
        kept = Store(path)
        assert kept.exact(make(1).problem, ENVIRONMENT)
        kept.close()
        monkeypatch.undo()
    assert version(path) == request.param
    return path


def version(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def test_an_older_store_keeps_everything_and_takes_new_measurements(old: Path) -> None:
    kept = Store(old)
    assert len(kept.exact(make(1).problem, ENVIRONMENT)) == 1
    kept.append(make(3))
    assert version(old) == schema.VERSION and not list(old.parent.glob("*.bad"))
    assert Store(old).measurements() == [make(1), make(2), make(3)]
    assert not check.check(old).troubles
    with contextlib.closing(sqlite3.connect(old)) as connection:
        assert len(connection.execute("SELECT * FROM decisions").fetchall()) == 3
        with pytest.raises(sqlite3.IntegrityError, match="never overwritten"):
            connection.execute("UPDATE measurements SET seconds = 0")


def test_commands_read_an_older_store_and_leave_it_as_it_is(old: Path, tmp_path: Path) -> None:
    before = old.read_bytes()
    assert [record.measurement for record in records(old)] == [make(1), make(2)] and not check.check(old).troubles
    assert transfer.merge(old, tmp_path / "new").new == 2
    assert old.read_bytes() == before and version(tmp_path / "new") == schema.VERSION


def test_several_processes_bring_one_store_up_to_date_together(old: Path) -> None:
    writers = [writer(old, worker, 5) for worker in range(1, 5)]
    for process in writers:
        _, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0 and not errors, errors
    assert len(Store(old).measurements()) == 22 and not check.check(old).troubles


def test_the_migrated_tables_are_those_of_a_new_store(old: Path, tmp_path: Path) -> None:
    Store(old).append(make(3))
    Store(tmp_path / "new").append(make(3))
    columns = []
    for path in (old, tmp_path / "new"):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            names = "problems", "environments", "devices", "measurements", "candidates", "decisions"
            columns.append([connection.execute(f"PRAGMA table_info({name})").fetchall() for name in names])
    assert columns[0] == columns[1]


def test_a_servers_older_store_is_brought_up_to_date_by_the_program_that_uses_it(database: Server) -> None:
    import psycopg

    Store(database).append(make(1))
    with psycopg.connect(database.url) as connection:
        connection.execute("SET search_path TO polytile")
        connection.execute("DROP VIEW candidates")
        connection.execute("UPDATE store SET version = 2")
    with pytest.raises(StoreError, match="older schema 2; a program that uses it brings it up to date"):
        records(database)
    Store(database).append(make(2))
    assert [record.measurement for record in records(database)] == [make(1), make(2)]
    assert not check.check(database).troubles


def product(candidate: str, config: Config, packed: str, **others: Any) -> Measurement:
    sizes = (("batch", 1), ("M", 8), ("N", 1024), ("K", 256), (packed, 1))
    problem = Problem("mm", "k1", sizes, ("float32",), (Threads(2),), "cpu-x")
    return Measurement(problem, candidate, config, "abc", Outcome.OK, (1e-5, 2e-5), environment=ENVIRONMENT, **others)


def loop(candidate: str, **values: Any) -> Measurement:
    return dataclasses.replace(make(candidate=candidate), config=Config.of(**values))


RENAMED = [
    (product("tile_kept 6x4 t2", Config.of(form="tile_kept", mr=6), "kept"),
     product("tile_prepacked 6x4 t2", Config.of(form="tile_prepacked", mr=6), "packed")),
    (product("aten 16 parts", Config.of(parts=16), "M2", origin="decomposed", state=(("algorithm_told", "id 6"),)),
     product("aten split_k 16", Config.of(parts=16), "M2", origin="split_k", state=(("algorithm_attributes", "id 6"),))),
    (loop("split gathers=8 r=64", variant="split", gathers=8, r=64),
     loop("split finalise=8 r=64", variant="split", finalise=8, r=64)),
    (loop("plain warps=4 x=64", variant="plain", warps=4, x=64),
     loop("pointwise warps=4 x=64", variant="pointwise", warps=4, x=64)),
    (loop("stripes r=8", variant="stripes", r=8), loop("column_parallel r=8", variant="column_parallel", r=8)),
    (loop("plain t2", variant="plain", threads=2), loop("plain t2", variant="plain", threads=2)),
    (loop("apart"), loop("unfused")),
]  # fmt: skip
"""What version 4 wrote of a measurement, and what is read today."""
OLD, PRESENT = map(list, zip(*RENAMED, strict=True))


def test_names_in_an_older_store_become_the_present_ones(tmp_path: Path) -> None:
    path, left_alone = tmp_path / "s", tmp_path / "read"
    for place in (path, left_alone):
        store = Store(place)
        for measurement in OLD:
            store.append(measurement)
        store.close()
        with contextlib.closing(sqlite3.connect(place)) as connection:
            connection.execute("PRAGMA user_version = 4")
    assert sorted(map(str, (record.measurement for record in records(left_alone)))) == sorted(map(str, PRESENT))
    assert version(left_alone) == 4
    after = Store(path)
    assert after.exact(PRESENT[0].problem, ENVIRONMENT) and not after.exact(OLD[0].problem, ENVIRONMENT)
    assert after.measurements() == PRESENT and not check.check(path).troubles
    with contextlib.closing(sqlite3.connect(path)) as connection, pytest.raises(sqlite3.IntegrityError):
        connection.execute("UPDATE measurements SET seconds = 0")


def test_names_in_a_servers_older_store_become_the_present_ones(database: Server) -> None:
    import psycopg

    for measurement in OLD:
        Store(database).append(measurement)
    with psycopg.connect(database.url) as connection:
        connection.execute("UPDATE polytile.store SET version = 4")
    Store(database).append(make(1))
    assert [record.measurement for record in records(database)] == [*PRESENT, make(1)]
    assert not check.check(database).troubles


def test_names_in_older_files_are_read_as_the_present_ones(tmp_path: Path) -> None:
    lines = [jsonl.line(Record(str(k), 1.0, measurement)) for k, measurement in enumerate(OLD)]
    read = jsonl.parse((jsonl.header() + "".join(lines)).encode(), "old").records
    assert [record.measurement for record in read] == PRESENT
