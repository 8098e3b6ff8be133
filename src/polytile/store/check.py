"""Checks whether a store is sound, what it holds, and which damaged files were set aside beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from polytile.errors import StoreError
from polytile.store import schema
from polytile.store.place import Place, Server
from polytile.store.reading import DERIVED_COLUMNS, Reader, reading, record_of
from polytile.store.records import Columns, rows_of

SHOWN = 5
"""How many problems of one kind are listed one by one."""

DERIVED = ("problem", "environment", "seconds")
"""The last columns of schema.RECORDS: they follow from the others, so that a difference means an edit."""


@dataclass(frozen=True)
class Health:
    """The result of a check. `troubles` are sentences; without any, the store is sound. Dates are seconds since 1970."""

    place: Place
    size_bytes: int
    counts: Mapping[str, int]
    outcomes: Mapping[str, int]
    oldest: float | None
    newest: float | None
    troubles: tuple[str, ...]
    set_aside: tuple[Path, ...]


def check(place: Place) -> Health:
    """Reads the whole store. Raises StoreError where it is missing, foreign or cannot be opened at all."""
    troubles: list[str] = []
    counts: dict[str, int] = {}
    outcomes: dict[str, int] = {}
    oldest = newest = None
    size = 0
    with reading(place) as reader:
        try:
            size = _size(reader)
            troubles += _structure(reader)
            counts = {name: _number(reader, question) for name, question in schema.COUNTS.items()}
            outcomes = dict(reader.rows(schema.OUTCOMES))
            ((oldest, newest),) = reader.rows(schema.SPAN)
            troubles += _content(reader)
        except StoreError as error:
            troubles.append(f"reading it ends early: {error}")
    aside = () if isinstance(place, Server) else tuple(sorted(place.parent.glob(f"{place.name}*.bad")))
    return Health(place, size, counts, outcomes, oldest, newest, tuple(troubles), aside)


def _size(reader: Reader) -> int:
    """Bytes of the file, or of the server's tables and indexes."""
    if isinstance(reader.place, Server):
        tables = "problems environments devices measurements".split()
        return sum(_number(reader, f"SELECT pg_total_relation_size('{table}')") for table in tables)
    return reader.place.stat().st_size


def _structure(reader: Reader) -> list[str]:
    """What the database itself reports as damaged. A server checks its own files."""
    said = [] if isinstance(reader.place, Server) else [text for (text,) in reader.rows("PRAGMA integrity_check")]
    troubles = [f"SQLite finds: {text}" for text in said[:SHOWN] if text != "ok"]
    lost = _number(reader, schema.ORPHANS)
    return troubles + ([f"{lost} measurements lack their problem or environment"] if lost else [])


def _content(reader: Reader) -> list[str]:
    """Makes each measurement's row again from its values. Its derived columns must be equal to the stored ones."""
    troubles: list[str] = []
    for row in reader.rows(schema.RECORDS):
        try:
            again = rows_of(record_of(row).measurement).measurement
        except (ValueError, TypeError, IndexError) as error:
            troubles.append(f"measurement {row[0]} cannot be read ({error})")
            continue
        stored = zip(DERIVED, row[-DERIVED_COLUMNS:], strict=True)
        wrong = [name for name, value in stored if not _same(again, name, value)]
        if wrong:
            troubles.append(f"measurement {row[0]} has a {' and '.join(wrong)} that does not follow from the rest")
    more = len(troubles) - SHOWN
    return troubles[:SHOWN] + ([f"and {more} measurements more"] if more > 0 else [])


def _same(again: Columns, name: str, value: object) -> bool:
    if isinstance(value, float):
        return abs(again[name] - value) <= 1e-9 * abs(value)
    return bool(again[name] == value)


def _number(reader: Reader, question: str) -> int:
    return int(reader.rows(question)[0][0])
