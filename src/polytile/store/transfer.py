"""Copies measurements from one store or file into another: each is added once, however often and in whatever order files are
copied.

A measurement's random `uid` identifies it everywhere. Merging is a union of sets: A into B and B into A give equal sets, and
repeating it changes nothing.
"""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from polytile import files
from polytile.errors import StoreError
from polytile.store import jsonl, kernel_tuner, schema
from polytile.store.database import Unusable
from polytile.store.place import Place, Server
from polytile.store.reading import Record, opened, reading, records

SQLITE = b"SQLite format 3\0"
"""How a file of SQLite begins."""

BATCH = 1000
"""Number of measurements per transaction: an import that is killed keeps what it has done, and continues when run again."""


@dataclass(frozen=True)
class Transfer:
    """How many measurements were new and how many were there already; `damaged` has a sentence for each line that could
    not be read, `partial` one for a last line that was never finished ("": there is none)."""

    new: int
    known: int
    damaged: tuple[str, ...] = ()
    partial: str = ""

    def __str__(self) -> str:
        return f"{self.new} new, {self.known} known"


def merge(source: Place, target: Place) -> Transfer:
    """Adds every measurement of the store `source` to the store `target`, which is made if it is not there.

    Raises StoreError where the source cannot be read, or the target is something else or cannot be written.
    """
    return add(records(source), target)


def export_lines(source: Place, target: Path) -> Transfer:
    """Appends the measurements of the store `source` that are not in the file `target` yet, as JSON lines.

    What stands in the file stays as it is, except for a last line without an end, which a writer that was killed left
    behind: that is cut off and reported. One exporter at a time: others wait. Raises StoreError where the source cannot be
    read, or the target is something else than such a file or cannot be written.
    """
    measured = records(source)
    try:
        files.check(target)  # a device may have no end
        with open(target, "a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            content = file.read()
            there = jsonl.parse(content, str(target))
            if there.partial:
                content = content[: content.rfind(b"\n") + 1]
                file.truncate(len(content))
            known = {record.uid for record in there.records}
            new = [record for record in measured if record.uid not in known]
            lines = [] if content else [jsonl.header()]
            ended = b"" if not content or content.endswith(b"\n") else b"\n"
            file.write(ended + "".join(lines + [jsonl.line(record) for record in new]).encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(f"the measurements cannot be written to {target}: {error.strerror or error}.") from None
    return Transfer(len(new), len(measured) - len(new), there.damaged, there.partial)


def import_file(source: Path, target: Place) -> Transfer:
    """Adds the measurements of the file `source` to the store `target`, which is made if it is not there.

    What cannot be read is left out and reported. Raises StoreError where the file is something else altogether, or the
    target is something else or cannot be written.
    """
    lines = parsed(source)
    done = add(lines.records, target)
    return Transfer(done.new, done.known, lines.damaged, lines.partial)


def parsed(source: Path) -> jsonl.Lines:
    """What a file of JSON lines or of T4 results holds. Raises StoreError where it is something else or cannot be read."""
    try:
        content = source.read_bytes()
    except OSError as error:
        raise StoreError(f"the measurements in {source} cannot be read: {error.strerror or error}.") from None
    try:
        values = json.loads(content)  # JSON lines are no JSON from the second line on
    except ValueError:
        values = None
    if isinstance(values, dict) and isinstance(values.get("results"), list):
        return kernel_tuner.parse(values, str(source))
    return jsonl.parse(content, str(source))


def held(place: Place) -> jsonl.Lines:
    """The content of a store, or of a file that `parsed` reads, oldest first. Raises StoreError if it is neither."""
    if isinstance(place, Server) or not is_exported(place):
        return jsonl.Lines(tuple(records(place)))
    lines = parsed(place)
    return dataclasses.replace(lines, records=tuple(sorted(lines.records, key=lambda record: (record.taken_at, record.uid))))


def is_exported(path: Path) -> bool:
    """Whether there is a file that is no database. Raises StoreError where it cannot be read."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(SQLITE)) != SQLITE
    except OSError as error:
        raise StoreError(f"the measurements in {path} cannot be read: {error.strerror or error}.") from None


def add(added: Iterable[Record], target: Place) -> Transfer:
    """Adds the records that the store `target` does not have. Raises StoreError where it cannot take them."""
    if isinstance(target, Path) and target.exists() and target.stat().st_size:
        with reading(target):  # a program's own way of opening would set aside what is no store
            pass
    given = {record.uid: record for record in added}
    database = opened(target)
    try:
        known = {uid for (uid,) in database.rows(schema.UIDS)}
        new = [record.rows for uid, record in given.items() if uid not in known]
        for first in range(0, len(new), BATCH):
            database.append(new[first : first + BATCH])
    except Unusable as error:
        raise StoreError(f"the measurements cannot be added: {error}.") from None
    finally:
        database.close()
    return Transfer(len(new), len(given) - len(new))
