"""The store in one SQLite file in WAL mode, shared by any number of processes, and what happens if the file is damaged.

It uses the standard library's sqlite3 directly. Importing SQLAlchemy and making its engine takes 125 ms, and psycopg's import
85 ms, while sqlite3 is open in 2 ms (measured on a 2-core Xeon); every warm start would pay for it. Both speak the Python
database API, so that database.py serves either.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from polytile.store import schema
from polytile.store.database import BUSY_SECONDS, Busy, Database, Unusable
from polytile.store.leases import FileLeases
from polytile.store.migration import bring_up_to_date
from polytile.store.records import compact

log = logging.getLogger("polytile.store")
T = TypeVar("T")


class _Foreign(sqlite3.DatabaseError):
    """A sound SQLite file of another program."""


# Connections inherited over a fork: using or closing one in the child could damage the parent's file, so they stay
# here.
_inherited: list[sqlite3.Connection] = []


class SqliteFile(Database):
    """A truncated, corrupt or foreign file is renamed to *.bad with a warning and replaced by an empty one, whichever process
    notices it, and whenever. Raises only Unusable, and only if that does not help."""

    place: Path

    def __init__(self, path: Path) -> None:
        self.path = self.place = path
        self._connection: sqlite3.Connection | None = None
        self._pid = os.getpid()
        self._inode = 0
        self._leases = FileLeases(path)

    def close(self) -> None:
        """Closes the connection and gives leases back; the next operation opens it again."""
        self._disconnect()
        self._leases.close()

    def take_lease(self, number: int) -> bool:
        return self._leases.take(number)

    def give_lease_back(self, number: int) -> None:
        self._leases.give_back(number)

    def _disconnect(self) -> None:
        if self._connection is not None and self._pid == os.getpid():
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
        elif self._connection is not None:
            _inherited.append(self._connection)
        self._connection = None

    def _writing(self, connection: sqlite3.Connection) -> contextlib.AbstractContextManager[None]:
        return _transaction(connection, "BEGIN IMMEDIATE")

    _alone = _writing

    def _written(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        return {**row, "samples": compact(row["samples"])}

    def _compact(self) -> None:
        with contextlib.suppress(Unusable):  # others are at it: the space is used again by what is appended
            self._run(lambda connection: connection.execute("VACUUM"))

    # Errors: retry, set aside, or give up.

    def _run(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        deadline = time.monotonic() + BUSY_SECONDS
        files_set_aside = 0
        while True:
            try:
                return operation(self._opened())
            except sqlite3.OperationalError as error:
                if _is_busy(error):
                    if time.monotonic() > deadline:
                        raise Busy(f"{self.path} has been locked by another process for {BUSY_SECONDS:.0f} s") from None
                    time.sleep(random.uniform(0.001, 0.02))
                    continue
                raise Unusable(f"{self.path}: {error}") from None
            except sqlite3.DatabaseError as error:
                if type(error) not in (sqlite3.DatabaseError, _Foreign):  # a constraint, a closed connection: not the file
                    raise Unusable(f"{self.path}: {error}") from None
                self._disconnect()
                files_set_aside += 1
                if files_set_aside > 2:
                    raise Unusable(f"{self.path}: {error}") from None
                self._set_aside(error)
            except OSError as error:
                raise Unusable(f"{self.path}: {error.strerror or error}") from None

    def _set_aside(self, reason: Exception) -> None:
        """Renames the file that was found bad, unless another process has done so since; its directory is the lock."""
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            if _inode(self.path) != self._inode:
                return
            bad = _unused_name(self.path)
            os.replace(self.path, bad)
            for tail in ("-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{self.path}{tail}", f"{bad}{tail}")
        finally:
            os.close(directory)
        log.warning(
            "The measurement store %s cannot be read (%s); it was set aside as %s and a new one begun.",
            self.path,
            reason,
            bad.name,
        )

    # Opening.

    def _opened(self) -> sqlite3.Connection:
        """The connection, opened anew in a forked child and when the file under the path is no longer the one
        opened."""
        if self._connection is not None and self._pid == os.getpid() and _inode(self.path) == self._inode:
            return self._connection
        self._disconnect()
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._pid = os.getpid()
        self._inode = _inode(self.path)
        connection = self._connect()
        self.generation += 1
        self._inode = _inode(self.path)
        self._connection = connection
        return connection

    def _connect(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = None
        try:
            connection = _connect(str(self.path))
            connection.execute("PRAGMA synchronous = NORMAL")  # a power cut may lose the last writes, a kill does not
            _make_ours(connection)
            (page_size,) = connection.execute("PRAGMA page_size").fetchone()
            if self.path.stat().st_size % page_size:  # SQLite itself only misses whole pages
                raise sqlite3.DatabaseError("its last page is cut off")
            return connection
        except BaseException as error:
            if connection is not None:
                connection.close()
            if not isinstance(error, sqlite3.OperationalError) or _is_busy(error) or not self._inode:
                raise
            return self._connect_read_only(error)

    def _connect_read_only(self, reason: sqlite3.OperationalError) -> sqlite3.Connection:
        """A file that may be read and not written (another user's, a read-only mount) still answers lookups."""
        connection = _connect(f"{self.path.absolute().as_uri()}?immutable=1", uri=True)
        if not _version(connection):
            connection.close()
            raise reason
        return at_this_version(connection)


def _connect(name: str, uri: bool = False) -> sqlite3.Connection:
    return sqlite3.connect(name, timeout=BUSY_SECONDS / 2, isolation_level=None, check_same_thread=False, uri=uri)


def _version(connection: sqlite3.Connection) -> int:
    """The version of the tables, 0 for an empty file. Raises _Foreign for another program's; Unusable for a newer
    polytile's."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application == schema.APPLICATION_ID:
        if version > schema.VERSION:
            raise Unusable(
                f"the store was written by a newer polytile (schema {version}; this one reads {schema.VERSION}); "
                "set another cache_dir or update"
            )
        return int(version)
    if application or tables:
        raise _Foreign("it is a database of another program")
    return 0


def _make_ours(connection: sqlite3.Connection) -> None:
    """Makes the tables where there are none, and brings older ones up to date; many processes may do so at once."""
    with _transaction(connection, "BEGIN"):
        version = _version(connection)
    if version == schema.VERSION:
        return
    if not version:
        connection.execute("PRAGMA journal_mode = WAL")
    with _transaction(connection, "BEGIN IMMEDIATE"):
        _bring_up_to_date(connection)


def _bring_up_to_date(connection: sqlite3.Connection) -> None:
    version = _version(connection)
    bring_up_to_date(connection, version, "sqlite")
    connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {schema.VERSION}")


def at_this_version(connection: sqlite3.Connection) -> sqlite3.Connection:
    """The connection to a store that is only read; of an older version, a copy in memory with the tables of this one."""
    if _version(connection) == schema.VERSION:
        return connection
    memory = _connect(":memory:")
    with contextlib.closing(connection):
        connection.backup(memory)
    _bring_up_to_date(memory)
    return memory


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    connection.execute(begin)
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        raise


def _is_busy(error: sqlite3.OperationalError) -> bool:
    return "locked" in str(error) or "busy" in str(error)


def _inode(path: Path) -> int:
    """Identity of the file under `path`; 0 where there is none."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


def _unused_name(path: Path) -> Path:
    for number in range(1, 1000):
        candidate = path.with_name(f"{path.name}.{number}.bad" if number > 1 else f"{path.name}.bad")
        if not candidate.exists():
            return candidate
    return candidate
