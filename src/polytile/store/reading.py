"""Reads a store from outside, for commands, copies and checks. It never changes, moves or makes one.

`Store` serves a running program and survives all faults; this module serves people and reports them.
"""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from polytile.errors import StoreError
from polytile.problem import Measurement
from polytile.store import schema, sqlite
from polytile.store.database import BUSY_SECONDS, Connection, Database, Row
from polytile.store.place import Place, Server
from polytile.store.records import Rows, measurement_of, rows_of

Key = TypeVar("Key")

DERIVED_COLUMNS = 3
"""How many columns at the end of schema.RECORDS follow from the others."""


@dataclass(frozen=True)
class Record:
    """A measurement with its unique name and the time it was taken (seconds since 1970)."""

    uid: str
    taken_at: float
    measurement: Measurement

    @property
    def rows(self) -> Rows:
        """The rows that it is in a store."""
        rows = rows_of(self.measurement)
        named = {**rows.measurement, "uid": self.uid, "taken_at": self.taken_at}
        return Rows(rows.problem, rows.environment, named, rows.device)


@dataclass(frozen=True)
class Reader:
    """A store that is open for questions."""

    place: Place
    connection: Connection
    failures: tuple[type[Exception], ...]
    """What the connection raises when it cannot answer."""

    def rows(self, question: str) -> list[Row]:
        """The answer to a statement. Raises StoreError where the store cannot be read."""
        try:
            return self.connection.execute(question).fetchall()
        except self.failures as error:
            raise _unreadable(self.place, error) from None


def opened(place: Place) -> Database:
    """The database at the place, for writing; nothing is opened before its first use."""
    if isinstance(place, Server):
        from polytile.store.postgres import ServerDatabase  # not at the top: it imports psycopg

        return ServerDatabase(place)
    return sqlite.SqliteFile(place)


@contextlib.contextmanager
def reading(place: Place) -> Iterator[Reader]:
    """A reader that cannot write. Raises StoreError where there is no store or it cannot be read."""
    if isinstance(place, Server):
        from polytile.store import postgres

        with postgres.reading(place) as (connection, failures):
            yield Reader(place, connection, failures)
        return
    if not place.exists():
        raise StoreError(
            f"there is no measurement store {place}; run a compiled program or `polytile tune` first, or name another."
        )
    file = None
    try:
        file = _connected(place)
        _must_be_ours(file, place)
        file = sqlite.at_this_version(file)
        yield Reader(place, file, (sqlite3.Error,))
    except sqlite3.Error as error:
        raise _unreadable(place, error) from None
    finally:
        if file is not None:
            file.close()


def records(place: Place, since: float = -math.inf) -> list[Record]:
    """Every measurement of the store, or every one taken at `since` or later (seconds since 1970), oldest first. Raises
    StoreError where the store cannot be read."""
    with reading(place) as reader:
        rows = [record_of(row) for row in reader.rows(schema.RECORDS) if row[1] >= since]
    return sorted(rows, key=lambda record: (record.taken_at, record.uid))


def grouped(records: Iterable[Record], by: Callable[[Measurement], Key]) -> dict[Key, list[Record]]:
    """The records by something of their measurements, in the order of each group's first; within a group they stay in theirs."""
    groups: dict[Key, list[Record]] = {}
    for record in records:
        groups.setdefault(by(record.measurement), []).append(record)
    return groups


def record_of(row: Row) -> Record:
    """A row of schema.RECORDS. Raises ValueError, TypeError or IndexError where a column is not what it should be."""
    uid, taken_at, *rest = row
    return Record(uid, taken_at, measurement_of(rest[:-DERIVED_COLUMNS]))


def _unreadable(place: Place, error: Exception) -> StoreError:
    if isinstance(place, Server):
        from polytile.store import postgres

        return postgres.unreadable(place, error)
    advice = "a program that uses it sets it aside and begins a new one."
    return StoreError(f"the measurement store {place} cannot be read ({str(error).strip()}); {advice}")


def _connected(path: Path) -> sqlite3.Connection:
    """A connection that only reads, and leaves no file beside a store that nobody else has open.

    SQLite removes the log and the index of a store in WAL mode when the last connection that may write is closed, hence mode=rw.
    Where a log holds something, mode=ro reads it and moves nothing of it. immutable=1 is for what this process may not write.
    """
    log = Path(f"{path}-wal")
    logged = log.exists() and log.stat().st_size > 0
    modes = ["mode=ro"] if logged else ["mode=rw"] if os.access(path, os.W_OK) else []
    for mode in (*modes, "immutable=1"):
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=BUSY_SECONDS)
        try:
            connection.execute("PRAGMA query_only = 1")
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return connection
        except sqlite3.OperationalError:
            connection.close()
            if mode == "immutable=1":
                raise
    raise AssertionError("unreachable")


def _must_be_ours(connection: sqlite3.Connection, path: Path) -> None:
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != schema.APPLICATION_ID:
        raise StoreError(f"{path} is no measurement store of polytile; name another file.")
    if version > schema.VERSION:
        raise StoreError(
            f"{path} has schema {version}, and this polytile reads schema {schema.VERSION}; use the polytile that wrote it."
        )
