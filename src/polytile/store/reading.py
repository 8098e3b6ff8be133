"""A store file read from outside: for commands, copies and checks. The file is never changed, moved or made.

`Store` serves a running program and survives whatever it finds; this serves a person and says what it finds.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from polytile.errors import StoreError
from polytile.problem import Measurement
from polytile.store import schema
from polytile.store.records import Rows, measurement_of, rows_of
from polytile.store.store import FILE_NAME

BUSY_SECONDS = 10.0


@dataclass(frozen=True)
class Record:
    """A measurement with its name, which no other has, and the time it was taken (seconds since 1970)."""

    uid: str
    taken_at: float
    measurement: Measurement

    @property
    def rows(self) -> Rows:
        """The rows that it is in a store."""
        rows = rows_of(self.measurement)
        return Rows(rows.problem, rows.environment, {**rows.measurement, "uid": self.uid, "taken_at": self.taken_at})


def store_file(path: Path) -> Path:
    """The store that `path` means: the file itself, or the one in that cache directory."""
    path = path.expanduser()
    return path / FILE_NAME if path.is_dir() else path


@contextlib.contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that cannot write. Raises StoreError where there is no store or it cannot be read."""
    if not path.exists():
        raise StoreError(
            f"there is no measurement store {path}; run a compiled program or `polytile tune` first, or name another."
        )
    connection = None
    try:
        connection = _connected(path)
        _must_be_ours(connection, path)
        yield connection
    except sqlite3.Error as error:
        raise StoreError(
            f"the measurement store {path} cannot be read ({error}); `polytile store check` says more. "
            "A program that uses it sets it aside and begins a new one."
        ) from None
    finally:
        if connection is not None:
            connection.close()


def records(path: Path) -> list[Record]:
    """Every measurement of the store, oldest first. Raises StoreError where it cannot be read."""
    with reading(path) as connection:
        rows = connection.execute(schema.RECORDS).fetchall()
    found = [Record(row[0], row[1], measurement_of(row[2:])) for row in rows]
    return sorted(found, key=lambda record: (record.taken_at, record.uid))


def _connected(path: Path) -> sqlite3.Connection:
    """mode=ro sees what other processes are writing; immutable=1 is for directories in which nothing can be made."""
    for mode in ("mode=ro", "immutable=1"):
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?{mode}", uri=True, timeout=BUSY_SECONDS)
        try:
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
    if version != schema.VERSION:
        raise StoreError(
            f"{path} has schema {version}, and this polytile reads schema {schema.VERSION}; use the polytile that wrote it."
        )


__all__ = ["Record", "reading", "records", "store_file"]
