"""Whether a store file is sound, what it holds, and which files were set aside beside it."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from polytile.store import schema
from polytile.store.reading import Record, reading
from polytile.store.records import Row, measurement_of, rows_of

SHOWN = 5
"""Troubles of one kind that are told one by one."""

DERIVED = ("problem", "environment", "seconds")
"""Columns of a measurement that follow from the others; a difference means that something has been edited."""


@dataclass(frozen=True)
class Health:
    """What a look at the file found. `troubles` are sentences; none: the store is sound. Dates are seconds since 1970."""

    path: Path
    size_bytes: int
    counts: Mapping[str, int]
    outcomes: Mapping[str, int]
    oldest: float | None
    newest: float | None
    troubles: tuple[str, ...]
    set_aside: tuple[Path, ...]


def check(path: Path) -> Health:
    """Reads the whole file. Raises StoreError where it is missing, foreign or cannot be opened at all."""
    troubles: list[str] = []
    counts: dict[str, int] = {}
    outcomes: dict[str, int] = {}
    oldest = newest = None
    with reading(path) as connection:
        try:
            troubles += _structure(connection)
            counts = {
                "measurements": _number(connection, "SELECT count(*) FROM measurements"),
                "problems": _number(connection, "SELECT count(*) FROM problems"),
                "kernels": _number(connection, "SELECT count(DISTINCT kernel) FROM problems"),
                "devices": _number(connection, "SELECT count(DISTINCT device) FROM problems"),
                "environments": _number(connection, "SELECT count(*) FROM environments"),
            }
            outcomes = dict(connection.execute("SELECT outcome, count(*) FROM measurements GROUP BY outcome"))
            oldest, newest = connection.execute("SELECT min(taken_at), max(taken_at) FROM measurements").fetchone()
            troubles += _content(connection)
        except sqlite3.DatabaseError as error:
            troubles.append(f"reading it ends early: {error}")
    aside = tuple(sorted(path.parent.glob(f"{path.name}*.bad")))
    return Health(path, path.stat().st_size, counts, outcomes, oldest, newest, tuple(troubles), aside)


def _structure(connection: sqlite3.Connection) -> list[str]:
    said = [text for (text,) in connection.execute("PRAGMA integrity_check")]
    lost = connection.execute("PRAGMA foreign_key_check").fetchall()
    troubles = [] if said == ["ok"] else [f"SQLite finds: {text}" for text in said[:SHOWN]]
    return troubles + ([f"{len(lost)} measurements lack their problem or environment"] if lost else [])


def _content(connection: sqlite3.Connection) -> list[str]:
    """Each measurement made again from what it says; the derived columns must come out as they stand."""
    troubles: list[str] = []
    columns = ", ".join(f"m.{name}" for name in DERIVED)
    for row in connection.execute(schema.RECORDS.replace("FROM", f", {columns} FROM", 1)):
        uid, taken_at, *rest = row
        body, stored = rest[: -len(DERIVED)], rest[-len(DERIVED) :]
        try:
            again = rows_of(Record(uid, taken_at, measurement_of(tuple(body))).measurement).measurement
        except (ValueError, TypeError, IndexError) as error:
            troubles.append(f"measurement {uid} cannot be read ({error})")
            continue
        wrong = [name for name, value in zip(DERIVED, stored, strict=True) if not _same(again, name, value)]
        if wrong:
            troubles.append(f"measurement {uid} has a {' and '.join(wrong)} that does not follow from the rest")
    more = len(troubles) - SHOWN
    return troubles[:SHOWN] + ([f"and {more} measurements more"] if more > 0 else [])


def _same(again: Row, name: str, value: object) -> bool:
    if isinstance(value, float):
        return abs(again[name] - value) <= 1e-9 * abs(value)
    return bool(again[name] == value)


def _number(connection: sqlite3.Connection, question: str) -> int:
    return int(connection.execute(question).fetchone()[0])


__all__ = ["Health", "check"]
