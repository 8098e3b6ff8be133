"""The store as its callers see it: it appends measurements and looks them up, and survives whatever happens to the place."""

from __future__ import annotations

import atexit
import collections
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from polytile import options
from polytile.errors import OptionError, StoreError
from polytile.problem import Measurement, Problem, digest
from polytile.store import schema
from polytile.store.database import Busy, Database, Gone, Unusable
from polytile.store.index import Index
from polytile.store.place import FILE_NAME, Place, Server, place_of
from polytile.store.reading import opened, record_of
from polytile.store.records import (
    Environment,
    Rows,
    Summary,
    environment_digest,
    problem_digest,
    relatives_digest,
    rows_of,
    summary_of,
)

log = logging.getLogger("polytile.store")
T = TypeVar("T")

AWAY_SECONDS = 60.0
"""How long to leave a server alone that did not answer: asking may take seconds, which the program needs."""


class Store:
    """Measurements of all processes that use one place; or, without a place, of this process alone.

    Thread-safe. The place is read once for each device and environment, at the first lookup; `refresh` reads what other
    processes have added since. When a file cannot be used there is one warning and the store goes on in memory.

    When a server does not answer there is one warning, and the store goes on with the file `beside`: lookups find what is
    in it, and measurements go there. Now and then the server is asked again, and gets what it missed.
    """

    def __init__(self, place: Place | None, beside: Path | None = None) -> None:
        self.place = place
        self._database = opened(place) if place is not None else None
        self._beside = opened(beside) if beside is not None else None
        self._lock = threading.RLock()
        self._leases: collections.Counter[str] = collections.Counter()
        """How often this process has taken each lease that it holds."""
        self._indexes: dict[tuple[str, str], Index] = {}
        self._writable = place is not None
        self._unwritten: list[tuple[Measurement, Rows]] = []
        """Not in the place: still to be written, or, where nothing can be written, all there is."""
        self._set_by = 0
        """How many of the unwritten are in the file beside."""
        self._away_until: float | None = None
        """When the server that does not answer is asked again; None while it does."""

    @property
    def persistent(self) -> bool:
        """Whether what is appended outlives the process."""
        return self._writable

    def append(self, *measurements: Measurement) -> None:
        """Adds the measurements, to the place in one transaction. What a lookup returns includes them at once."""
        with self._lock:
            for measurement in measurements:
                rows = rows_of(measurement)
                self._index(measurement.problem.device, rows.measurement["environment"]).add(rows.summary)
                self._unwritten.append((measurement, rows))
            self._write()

    def exact(self, problem: Problem, environment: Environment) -> tuple[Summary, ...]:
        """All measurements of exactly this problem in this environment, oldest first."""
        with self._lock:
            index = self._index(problem.device, environment_digest(environment))
            return tuple(map(summary_of, index.by_problem.get(problem_digest(problem), ())))

    def nearby(
        self, problem: Problem, environment: Environment, near: Callable[[Mapping[str, int]], bool] = lambda sizes: True
    ) -> list[tuple[dict[str, int], tuple[Summary, ...]]]:
        """(sizes, measurements) of every measured problem that differs from `problem` only in its sizes and whose sizes are
        `near`."""
        with self._lock:
            index = self._index(problem.device, environment_digest(environment))
            own = problem_digest(problem)
            relatives = index.by_relatives.get(relatives_digest(problem), {})
            others = [(summary_of(rows[0]).size, rows) for name, rows in relatives.items() if name != own]
            return [(sizes, tuple(map(summary_of, rows))) for sizes, rows in others if near(sizes)]

    def proven(self, device: str, environment: Environment, source_hash: str) -> bool:
        """Whether a kernel of this source has finished here with a right result, and none has taken its process down."""
        with self._lock:
            index = self._index(device, environment_digest(environment))
            return source_hash in index.ran and source_hash not in index.died

    def died(self, device: str, environment: Environment) -> Mapping[str, tuple[Summary, ...]]:
        """The sources with a kernel that took its process down here, and the measurements that say so."""
        with self._lock:
            died = self._index(device, environment_digest(environment)).died
            return {source: tuple(map(summary_of, rows)) for source, rows in died.items()}

    def refresh(self) -> int:
        """Reads what other processes have added since the last look; returns how many measurements that was."""
        with self._lock:
            return sum(self._load(device, environment, index) for (device, environment), index in self._indexes.items())

    def take_lease(self, name: str) -> bool:
        """Whether no other process that uses the place holds the lease of that name. Then this process does, until it has given
        it back as often as it took it, or ends. Where the place cannot be asked, every process gets it."""
        with self._lock:
            taken = self._leases[name] > 0 or self._asked(lambda database: database.take_lease(_number(name))) is not False
            self._leases[name] += taken
            return taken

    def give_lease_back(self, name: str) -> None:
        with self._lock:
            self._leases[name] -= 1
            if self._leases[name] <= 0:
                del self._leases[name]
                self._asked(lambda database: database.give_lease_back(_number(name)))

    def measurements(self) -> list[Measurement]:
        """All measurements of all devices and environments, whole, oldest first."""
        with self._lock:
            self._write()
            rows = self._asked(lambda database: database.rows(schema.RECORDS)) or []
            kept = {record.uid: record.measurement for record in map(record_of, rows)}
            kept.update((rows.measurement["uid"], measurement) for measurement, rows in self._unwritten)
            return list(kept.values())

    def close(self) -> None:
        """Writes what could not be written so far, and lets go of the place."""
        with self._lock:
            self._write()
            for database in (self._database, self._beside):
                if database is not None:
                    database.close()

    def _index(self, device: str, environment: str) -> Index:
        index = self._indexes.get((device, environment))
        if index is None:
            index = self._indexes[device, environment] = Index()
            self._load(device, environment, index)
        return index

    def _load(self, device: str, environment: str, index: Index) -> int:
        return self._asked(lambda database: index.load(database, device, environment)) or 0

    # Troubles.

    def _asked(self, question: Callable[[Database], T]) -> T | None:
        """The answer of the place, or of the file beside it; None where neither can be read."""
        if self._database is not None and not self._away():
            try:
                return question(self._database)
            except Busy as error:
                log.warning("%s; the program goes on with what it knows.", error)
                return None
            except Unusable as error:
                self._lost(error)
        if self._beside is not None:
            try:
                return question(self._beside)
            except Unusable as error:
                self._beside_lost(error)
        return None

    def _write(self) -> None:
        if not self._writable or not self._unwritten:
            return
        if self._database is not None and not self._away():
            try:
                self._database.append([rows for _, rows in self._unwritten])
            except Busy as error:
                log.warning("%s; the measurements are kept and written later.", error)
                return
            except Unusable as error:
                self._lost(error, reading=False)
            else:
                if self._away_until is not None:
                    log.warning("The measurement store %s answers again and has what it missed.", self.place)
                self._unwritten.clear()
                self._set_by, self._away_until = 0, None
        if self._beside is not None and self._unwritten[self._set_by :]:
            try:
                self._beside.append([rows for _, rows in self._unwritten[self._set_by :]])
                self._set_by = len(self._unwritten)
            except Unusable as error:
                self._beside_lost(error)

    def _away(self) -> bool:
        return self._away_until is not None and time.monotonic() < self._away_until

    def _lost(self, error: Unusable, reading: bool = True) -> None:
        """Handles a failure of the place: warns once, and goes on as the warning says."""
        if isinstance(error, Gone) and self._beside is not None:
            if self._away_until is None:
                log.warning(
                    "The measurement store does not answer, so this program goes on with the file %s, and asks the server "
                    "again every %.0f s: %s. If it ends first, `polytile store merge %s --store URL` adds what the server "
                    "missed.",
                    self._beside.place, AWAY_SECONDS, error, self._beside.place,
                )  # fmt: skip
            self._away_until = time.monotonic() + AWAY_SECONDS
        elif self._beside is not None and self._database is not None:
            log.warning(
                "The measurement store cannot be used, so this program goes on with the file %s: %s.", self._beside.place, error
            )
            self._database.close()
            self._database, self._beside = self._beside, None
            self._unwritten = self._unwritten[self._set_by :]
            self._set_by, self._away_until = 0, None
            self._write()
        else:
            self._give_up(error, reading)

    def _give_up(self, error: Unusable, reading: bool) -> None:
        """Stops writing, and reading too if that is what failed, with one warning for both."""
        if self._writable:
            log.warning("The measurement store cannot be used, so what is measured now stays in this process: %s.", error)
        self._writable = False
        if reading and self._database is not None:
            self._database.close()
            self._database = None

    def _beside_lost(self, error: Unusable) -> None:
        log.warning("%s; what is measured while the server is away stays in this process.", error)
        if self._beside is not None:
            self._beside.close()
        self._beside = None


def _number(lease: str) -> int:
    """The number by which databases know a lease: 62 bits, of which the highest is set."""
    return 1 << 61 | int(digest(lease, 15), 16)


_stores: dict[tuple[Place | None, Path | None], Store] = {}
_stores_lock = threading.Lock()
_inherited: list[dict[tuple[Place | None, Path | None], Store]] = []


def current() -> Store:
    """The store that the options in force name: `store`, or else <cache_dir>/store.sqlite3; with persist off, this
    process's memory.

    Where the cache directory cannot be written to, but holds a store, lookups still go to that one.
    """
    where = _named() if options.get("persist") else (None, None)
    with _stores_lock:
        if where not in _stores:
            _stores[where] = Store(*where)
        return _stores[where]


def _named() -> tuple[Place, Path | None]:
    """The place that the options name, and the file that stands in for a server."""
    named = options.get("store")
    try:
        place = place_of(named) if named else None
    except StoreError as error:
        raise OptionError(f"option 'store': {error}") from None
    if place is not None and not isinstance(place, Server):
        return place, None
    from polytile.runtime import cache

    directory = cache.current()
    file = directory.root / FILE_NAME
    if place is not None:
        return place, file
    if directory.behind is not None and (directory.behind.root / FILE_NAME).exists():
        file = directory.behind.root / FILE_NAME
    return file, None


def forget() -> None:
    """Closes this process's stores; the next lookup reads the places anew."""
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
