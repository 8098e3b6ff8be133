"""The store as its callers see it: append measurements, look them up; one in-memory index for the process."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from polytile import options
from polytile.problem import Measurement, Outcome, Problem
from polytile.store.records import (
    Environment,
    Rows,
    Summary,
    environment_digest,
    measurement_of,
    problem_digest,
    relatives_digest,
    rows_of,
    summary_of,
)
from polytile.store.sqlite import Busy, SqliteFile, Unusable

log = logging.getLogger("polytile.store")
FILE_NAME = "store.sqlite3"


DEADLY = tuple(outcome.value for outcome in (Outcome.CRASHED, Outcome.TIMEOUT, Outcome.OUT_OF_MEMORY))
"""Outcomes that would have taken the user's process down, had the kernel run there."""

SummaryRow = tuple[Any, ...]
"""A row of schema.SUMMARIES; it becomes a Summary when somebody asks for it (20 000 of them would take 60 ms)."""


@dataclass
class _Index:
    """All summaries of one device and environment, by problem and by relatives."""

    by_problem: dict[str, list[SummaryRow]] = field(default_factory=dict)
    by_relatives: dict[str, dict[str, list[SummaryRow]]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    ran: set[str] = field(default_factory=set)
    """Source hashes of which some kernel ran to its end with a right result."""
    died: set[str] = field(default_factory=set)
    """Source hashes of which some kernel took its process down."""
    generation: int = 0
    last: int = 0
    """Number of the last row read, in the file of that generation."""

    def add(self, row: SummaryRow) -> bool:
        _, uid, problem, relatives, _, _, _, source_hash, outcome, *_ = row
        if uid in self.seen:
            return False
        self.seen.add(uid)
        if outcome in DEADLY:
            self.died.add(source_hash)
        elif outcome == Outcome.OK.value:
            self.ran.add(source_hash)
        rows = self.by_problem.get(problem)
        if rows is None:
            rows = self.by_problem[problem] = []
            self.by_relatives.setdefault(relatives, {})[problem] = rows
        rows.append(row)
        return True


class Store:
    """Measurements of all processes that use one file; or, without a path, of this process alone.

    Thread-safe. The file is read once for each device and environment, at the first lookup; `refresh` reads what other
    processes have added since. When the file cannot be used there is one warning and the store goes on in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._file = SqliteFile(path) if path is not None else None
        self._lock = threading.RLock()
        self._indexes: dict[tuple[str, str], _Index] = {}
        self._writable = path is not None
        self._unwritten: list[tuple[Measurement, Rows]] = []
        """Not in the file: still to be written, or, where nothing can be written, all there is."""

    @property
    def persistent(self) -> bool:
        """Whether what is appended reaches a file."""
        return self._writable

    def append(self, *measurements: Measurement) -> None:
        """Adds the measurements, to the file in one transaction. What a lookup returns includes them at once."""
        with self._lock:
            for measurement in measurements:
                rows = rows_of(measurement)
                self._index(measurement.problem.device, rows.measurement["environment"]).add(rows.summary)
                self._unwritten.append((measurement, rows))
            self._write()

    def exact(self, problem: Problem, environment: Environment) -> tuple[Summary, ...]:
        """Every measurement of this very problem in this environment, oldest first."""
        with self._lock:
            index = self._index(problem.device, environment_digest(environment))
            return tuple(map(summary_of, index.by_problem.get(problem_digest(problem), ())))

    def nearby(self, problem: Problem, environment: Environment) -> list[tuple[dict[str, int], tuple[Summary, ...]]]:
        """(sizes, measurements) of every measured problem that differs from `problem` in its sizes alone."""
        with self._lock:
            index = self._index(problem.device, environment_digest(environment))
            own = problem_digest(problem)
            relatives = index.by_relatives.get(relatives_digest(problem), {})
            others = [tuple(map(summary_of, rows)) for name, rows in relatives.items() if name != own]
            return [(summaries[0].size, summaries) for summaries in others]

    def proven(self, device: str, environment: Environment, source_hash: str) -> bool:
        """Whether a kernel of this source has run to its end here with a right result, and none took its process down."""
        with self._lock:
            index = self._index(device, environment_digest(environment))
            return source_hash in index.ran and source_hash not in index.died

    def refresh(self) -> int:
        """Reads what other processes have added since the last look; returns how many measurements that was."""
        with self._lock:
            return sum(self._load(device, environment, index) for (device, environment), index in self._indexes.items())

    def measurements(self) -> list[Measurement]:
        """All measurements of all devices and environments, whole, oldest first."""
        with self._lock:
            self._write()
            kept: list[Measurement] = []
            if self._file is not None:
                try:
                    kept = [measurement_of(row) for row in self._file.measurements()]
                except Unusable as error:
                    self._give_up(error)
            return kept + [measurement for measurement, _ in self._unwritten]

    def close(self) -> None:
        """Writes what could not be written so far, and lets go of the file."""
        with self._lock:
            self._write()
            if self._file is not None:
                self._file.close()

    def _index(self, device: str, environment: str) -> _Index:
        index = self._indexes.get((device, environment))
        if index is None:
            index = self._indexes[device, environment] = _Index()
            self._load(device, environment, index)
        return index

    def _load(self, device: str, environment: str, index: _Index) -> int:
        if self._file is None:
            return 0
        try:
            rows = self._file.summaries(device, environment, index.last)
            if self._file.generation != index.generation and index.last:  # another file's numbers: read it whole
                rows = self._file.summaries(device, environment, 0)
        except Unusable as error:
            self._give_up(error)
            return 0
        index.generation = self._file.generation
        index.last = rows[-1][0] if rows else index.last
        return sum(index.add(row) for row in rows)

    def _write(self) -> None:
        if self._file is None or not self._writable or not self._unwritten:
            return
        try:
            self._file.append([rows for _, rows in self._unwritten])
            self._unwritten.clear()
        except Busy as error:
            log.warning("%s; the measurements are kept and written later.", error)
        except Unusable as error:
            self._give_up(error, reading=False)

    def _give_up(self, error: Unusable, reading: bool = True) -> None:
        """No more writing; no more reading either where that is what failed. One warning for the two."""
        if self._writable:
            log.warning(
                "The measurement store cannot be used, so what is measured now stays in this process: %s.", error
            )
        self._writable = False
        if reading and self._file is not None:
            self._file.close()
            self._file = None


_stores: dict[Path | None, Store] = {}
_stores_lock = threading.Lock()
_inherited: list[dict[Path | None, Store]] = []


def current() -> Store:
    """The store that the options in force name: <cache_dir>/store.sqlite3, or this process's memory with persist off.

    Where the cache directory cannot be written to, but holds a store, lookups still go to that one.
    """
    path = None
    if options.get("persist"):
        from polytile.runtime import cache  # not at the top: it imports torch, which reading a store does not need

        found = cache.current()
        path = found.root / FILE_NAME
        if found.behind is not None and (found.behind.root / FILE_NAME).exists():
            path = found.behind.root / FILE_NAME
    with _stores_lock:
        if path not in _stores:
            _stores[path] = Store(path)
        return _stores[path]


def forget() -> None:
    """Closes this process's stores; the next lookup reads the files anew."""
    with _stores_lock:
        for store in _stores.values():
            store.close()
        _stores.clear()


def _after_fork() -> None:
    """A forked child starts with no store: the parent's locks and connections are not its own. They are kept, not
    closed."""
    global _stores, _stores_lock
    _inherited.append(_stores)
    _stores, _stores_lock = {}, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(forget)

__all__ = ["FILE_NAME", "Store", "current", "forget"]
