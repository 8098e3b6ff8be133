"""The store in a PostgreSQL database, for many machines: the same tables and statements, in a schema named polytile.

It uses psycopg directly, which has the same database API as sqlite3, so that database.py serves both without a layer in
between. psycopg is imported when a server is first asked (85 ms).

Writers of a file exclude each other. Writers to a server do not, and they commit in another order than that of their row
numbers. A reader that continues from a number must not miss a row with a smaller number that is committed later. So appending
transactions share an advisory lock, and a reader waits for those under way by taking it exclusively.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from polytile.errors import StoreError
from polytile.store import schema
from polytile.store.database import BUSY_SECONDS, Busy, Connection, Database, Gone, Unusable
from polytile.store.migration import bring_up_to_date
from polytile.store.place import Server

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")

SCHEMA = "polytile"
LOCK = 0x706F6C79
"""The advisory lock: appending shares it; reading on, removing and making tables take it exclusively."""

MISSING = "it is on a PostgreSQL server, and psycopg, which speaks to one, is not installed: pip install 'polytile[server]'"

CONNECTING = {
    "connect_timeout": 5,
    "application_name": "polytile",
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}
"""Times in seconds, and in milliseconds: a vanished host is given up after about 20 s. The URL may override them."""

SESSION = (
    f"SET search_path TO {SCHEMA}",
    f"SET lock_timeout = '{BUSY_SECONDS:.0f}s'",
    f"SET idle_in_transaction_session_timeout = '{BUSY_SECONDS:.0f}s'",  # a stopped process must not hold the lock
    "SET client_encoding TO 'UTF8'",
)

TAKE_LEASE, GIVE_LEASE_BACK = "SELECT pg_try_advisory_lock(:number)", "SELECT pg_advisory_unlock(:number)"
"""A lease is a lock of the session: it ends with the connection."""

TRIES = 5
"""How often an operation is tried if the server aborts it because of another one."""

# Connections inherited over a fork: the server is the parent's to talk to, so they are neither used nor closed here.
_inherited: list[Any] = []


class ServerDatabase(Database):
    """Repeats an operation if the connection turns out to be lost. That is safe, since every appended row has a unique name.
    Raises Gone if the server does not answer then either."""

    place: Server

    def __init__(self, server: Server) -> None:
        self.place = server
        self._connection: psycopg.Connection[Any] | None = None
        self._pid = os.getpid()

    def close(self) -> None:
        if self._connection is not None and self._pid == os.getpid():
            self._connection.close()
        elif self._connection is not None:
            _inherited.append(self._connection)
        self._connection = None

    def take_lease(self, number: int) -> bool:
        return bool(self._run(lambda connection: connection.execute(TAKE_LEASE, {"number": number}).fetchall())[0][0])

    def give_lease_back(self, number: int) -> None:
        self._run(lambda connection: connection.execute(GIVE_LEASE_BACK, {"number": number}).fetchall())

    def _writing(self, connection: _Marks) -> contextlib.AbstractContextManager[None]:
        return connection.transaction(f"SELECT pg_advisory_xact_lock_shared({LOCK})", together=True)

    def _alone(self, connection: _Marks) -> contextlib.AbstractContextManager[None]:
        return connection.transaction(f"SELECT pg_advisory_xact_lock({LOCK})")

    def _complete_up_to_now(self, connection: _Marks) -> contextlib.AbstractContextManager[None]:
        return self._alone(connection)

    def _written(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Samples as a list; text without NUL, which the server refuses."""
        clean = {k: v.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(v, str) else v for k, v in row.items()}
        return {**clean, "samples": list(row["samples"])}

    def _run(self, operation: Callable[[Any], T]) -> T:
        psycopg = _psycopg()
        broken_off = (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure)
        lost = 0
        for _ in range(TRIES):
            try:
                return operation(self._opened())
            except broken_off as error:
                reason: Exception = error
                time.sleep(0.01)
            except psycopg.errors.LockNotAvailable:
                raise Busy(f"{self.place} has been locked by another process for {BUSY_SECONDS:.0f} s") from None
            except psycopg.OperationalError as error:
                connected = self._connection is not None
                self.close()
                lost += 1
                if not connected or lost > 1:
                    raise Gone(f"{self.place}: {_words(error)}") from None
                reason = error
            except psycopg.Error as error:
                raise Unusable(f"{self.place}: {_words(error)}") from None
        raise Gone(f"{self.place}: {_words(reason)}")

    def _opened(self) -> _Marks:
        """The connection, opened anew in a forked child and after it was lost."""
        if self._connection is None or self._pid != os.getpid() or self._connection.closed:
            self.close()
            self._pid = os.getpid()
            connection = _connect(self.place)
            try:
                _make_ours(_Marks(connection))
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            self.generation += 1  # it may be another server's database by now
        return _Marks(self._connection)


class _Marks:
    """A psycopg connection that takes `:name` parameters, as sqlite3 does, and gives JSON back as text."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Mapping[str, Any] | None = None, /) -> psycopg.Cursor[Any]:
        return self._connection.execute(_rewritten(statement) if values else statement, values)

    @contextlib.contextmanager
    def transaction(self, first: str, together: bool = False) -> Iterator[None]:
        """A transaction that begins with the statement `first`. `together`: everything is sent at once and nothing is
        asked back, which takes one trip to the server in place of one for each statement."""
        pipeline = self._connection.pipeline() if together else contextlib.nullcontext()
        with _quiet(), pipeline, self._connection.transaction():
            self.execute(first)
            yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences psycopg's log of a lost connection: it also raises an error, which is reported elsewhere."""
    logger, thread = logging.getLogger("psycopg"), threading.get_ident()

    def of_others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(of_others)
    try:
        yield
    finally:
        logger.removeFilter(of_others)


@contextlib.contextmanager
def reading(server: Server) -> Iterator[tuple[Connection, tuple[type[Exception], ...]]]:
    """A read-only connection and the errors that it raises. It sees one snapshot of the store, whatever is written meanwhile.
    Raises StoreError if there is no store or it cannot be read."""
    connection = None
    try:
        psycopg = _psycopg()
        connection = _connect(server)
        marks = _Marks(connection)
        version = _version(marks)
        if version != schema.VERSION:
            raise StoreError(_mismatch(server, version))
        marks.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield marks, (psycopg.Error,)
    except Unusable as error:
        raise StoreError(f"the measurement store {server} cannot be read: {error}.") from None
    except _psycopg().Error as error:
        raise unreadable(server, error) from None
    finally:
        if connection is not None:
            connection.close()


ADVICE = (
    ("permission denied", f"GRANT USAGE ON SCHEMA {SCHEMA} and SELECT ON ALL TABLES IN SCHEMA {SCHEMA} to the user in the URL, "
     "or name another user."),
    ("authentication failed", "check the user and the password in the URL."),
    ("no pg_hba.conf entry", "the server does not let this user in from this machine; its pg_hba.conf says who may."),
    ("role", "check the user in the URL."),
    ("database", "create the database, or name another."),
)  # fmt: skip
"""Words in a server's refusal, and what to do then."""


def unreadable(server: Server, error: BaseException) -> StoreError:
    """The error to raise if the server, or psycopg, refuses to read the store."""
    words = _words(error)
    refused = "FATAL:" in words or getattr(error, "sqlstate", None)
    advice = "is the server there?"
    if refused:
        advice = next((what for word, what in ADVICE if word in words), "see the server's log.")
    return StoreError(f"the measurement store {server} cannot be read ({words}); {advice}")


def _psycopg() -> Any:
    try:
        import psycopg
        import psycopg.errors
    except ImportError:
        raise Unusable(MISSING) from None
    return psycopg


def _connect(server: Server) -> Any:
    psycopg = _psycopg()
    from psycopg.types.string import TextLoader

    asked = psycopg.conninfo.conninfo_to_dict(server.url)
    connection: Any = psycopg.connect(**{**CONNECTING, **asked}, autocommit=True)
    connection.adapters.register_loader("json", TextLoader)
    for statement in SESSION:
        connection.execute(statement)
    return connection


def _version(connection: _Marks) -> int:
    """The version of the tables, 0 where there are none. Raises Unusable for a schema of that name that holds something
    else, and for a newer polytile's."""
    # Not to_regclass: its answer may be one remembered from before another process made the tables.
    question = "SELECT tablename FROM pg_catalog.pg_tables WHERE schemaname = :schema"
    tables = {name for (name,) in connection.execute(question, {"schema": SCHEMA}).fetchall()}
    if "store" not in tables:
        if tables:
            raise Unusable(f"its schema {SCHEMA} holds tables that are not polytile's; name another database")
        return 0
    ((version,),) = connection.execute(f"SELECT version FROM {SCHEMA}.store").fetchall()
    if version > schema.VERSION:
        raise Unusable(
            f"the store was written by a newer polytile (schema {version}; this one reads {schema.VERSION}); "
            "name another database or update"
        )
    return int(version)


def _make_ours(connection: _Marks) -> None:
    """Makes the tables where there are none, and brings older ones up to date; many processes may do so at once."""
    if _version(connection) == schema.VERSION:
        return
    with connection.transaction(f"SELECT pg_advisory_xact_lock({LOCK})"):
        version = _version(connection)
        if version == schema.VERSION:
            return
        if not version:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
            connection.execute("CREATE TABLE store (version INTEGER NOT NULL)")
            connection.execute("INSERT INTO store VALUES (0)")
        bring_up_to_date(connection, version, "postgresql")
        connection.execute("UPDATE store SET version = :version", {"version": schema.VERSION})


def _mismatch(server: Server, version: int) -> str:
    if not version:
        return f"there is no measurement store in {server}; run a compiled program or `polytile tune` first, or name another."
    return f"{server} has the older schema {version}; a program that uses it brings it up to date."


@functools.cache
def _rewritten(statement: str) -> str:
    return re.sub(r"(?<!:):([a-z_]+)", r"%(\1)s", statement)


def _words(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
