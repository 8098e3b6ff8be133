"""The operations of a store on its database, for every kind of database: the statements of schema.py through the Python
database API. A kind of database defines how to get its connection, how its transactions begin, and what its errors mean."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from polytile.store import schema
from polytile.store.place import Place
from polytile.store.records import Rows

T = TypeVar("T")
Row = tuple[Any, ...]

BUSY_SECONDS = 10.0
"""How long one operation waits for other processes' writes. A write takes about 0.1 ms, so this means a stuck process."""


class Unusable(Exception):
    """The store cannot be used, and a new one would not help or would destroy good data. The message says why."""


class Busy(Unusable):
    """Another process has kept the store locked for BUSY_SECONDS; worth trying again later."""


class Gone(Unusable):
    """The server does not answer, or has no room; worth trying again later."""


class Cursor(Protocol):
    """What a statement gives back: the part of the database API that is used."""

    @property
    def rowcount(self) -> int: ...
    def fetchall(self) -> list[Any]: ...


class Connection(Protocol):
    """A database that takes statements with `:name` parameters."""

    def execute(self, statement: str, values: Mapping[str, Any] = ..., /) -> Cursor: ...


class Database(abc.ABC):
    """Appends and reads rows. Raises only Unusable. Callers keep other threads out, but not other processes."""

    place: Place
    generation = 0
    """How many databases have been opened at the place. Row numbers are only valid within one generation."""

    def append(self, rows: Sequence[Rows]) -> None:
        """Writes the rows in one transaction, all or none. Existing rows stay as they are."""

        def write(connection: Connection) -> None:
            with self._writing(connection):
                for statement, table in _INSERTS:
                    for values in _distinct(getattr(row, table) for row in rows):
                        connection.execute(statement, values)
                for row in rows:
                    connection.execute(schema.ADD_MEASUREMENT, self._written(row.measurement))

        self._run(write)

    def summaries(self, device: str, environment: str, after: int) -> list[Row]:
        """Rows of schema.SUMMARIES with numbers above `after`: all there will ever be up to the last of them."""
        values = {"device": device, "environment": environment, "after": after}

        def read(connection: Connection) -> list[Row]:
            with self._complete_up_to_now(connection):
                return connection.execute(schema.SUMMARIES, values).fetchall()

        return self._run(read)

    def rows(self, question: str) -> list[Row]:
        """The answer to one of the questions of schema.py that have no parameters."""
        return self._run(lambda connection: connection.execute(question).fetchall())

    def remove(self, numbers: Iterable[int]) -> int:
        """Removes the measurements of these numbers, all or nothing, with whatever only they referred to. Returns how many
        there were."""

        def remove(connection: Connection) -> int:
            with self._alone(connection):
                removed = sum(connection.execute(schema.REMOVE, {"id": number}).rowcount for number in numbers)
                for statement in schema.REMOVE_UNUSED:
                    connection.execute(statement)
            return removed

        removed = self._run(remove)
        self._compact()
        return removed

    @abc.abstractmethod
    def take_lease(self, number: int) -> bool:
        """Whether no other process holds the lease of this number; then this one does, until it gives it back or ends."""

    @abc.abstractmethod
    def give_lease_back(self, number: int) -> None: ...

    @abc.abstractmethod
    def close(self) -> None:
        """Closes the connection and gives all leases back. The next operation opens it again."""

    @abc.abstractmethod
    def _run(self, operation: Callable[[Any], T]) -> T:
        """Runs the operation on an open connection. Retries what can be retried, and turns errors into Unusable."""

    @abc.abstractmethod
    def _writing(self, connection: Any) -> contextlib.AbstractContextManager[None]:
        """A transaction that appends."""

    @abc.abstractmethod
    def _alone(self, connection: Any) -> contextlib.AbstractContextManager[None]:
        """A transaction during which nobody else appends."""

    def _complete_up_to_now(self, connection: Any) -> contextlib.AbstractContextManager[None]:
        """A transaction that sees every row whose number has been given out, except those that will never exist."""
        return contextlib.nullcontext()

    def _written(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """The measurement's row in the database's own types."""
        return row

    def _compact(self) -> None:  # noqa: B027 - a database that does so by itself has nothing to do
        """Gives back space after a removal."""


_INSERTS = ((schema.ADD_ENVIRONMENT, "environment"), (schema.ADD_DEVICE, "device"), (schema.ADD_PROBLEM, "problem"))


def _distinct(rows: Iterable[Mapping[str, Any] | None]) -> list[Mapping[str, Any]]:
    """The distinct rows in the order of their keys, so that two writers that insert the same rows cannot deadlock."""
    keyed = {next(iter(row.values())): row for row in rows if row is not None}
    return [keyed[key] for key in sorted(keyed)]
