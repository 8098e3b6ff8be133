"""A process's knowledge of one device in one environment: the rows of all its measurements, by problem and by relatives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from polytile.problem import Outcome
from polytile.store.database import Database
from polytile.store.place import Place
from polytile.store.records import counts

DEADLY = tuple(outcome.value for outcome in (Outcome.CRASHED, Outcome.TIMEOUT, Outcome.OUT_OF_MEMORY))
"""Outcomes that would have taken the user's process down, had the kernel run there."""

SummaryRow = tuple[Any, ...]
"""A row of schema.SUMMARIES; it becomes a Summary when somebody asks for it (20 000 of them would take 60 ms)."""


@dataclass
class Index:
    """All summaries of one device and environment, by problem and by relatives."""

    by_problem: dict[str, list[SummaryRow]] = field(default_factory=dict)
    by_relatives: dict[str, dict[str, list[SummaryRow]]] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    ran: set[str] = field(default_factory=set)
    """Source hashes of which some kernel ran to its end with a right result."""
    died: dict[str, list[SummaryRow]] = field(default_factory=dict)
    """Source hashes of which some kernel took its process down, and the rows that say so."""
    read: dict[Place, tuple[int, int]] = field(default_factory=dict)
    """For each place read from: the generation of its database and the number of the last row read of it."""

    def add(self, row: SummaryRow) -> bool:
        """Takes in the row; returns whether it was new. A verdict by earlier rules of the accuracy gate is ignored."""
        _, uid, problem, relatives, _, _, _, source_hash, outcome, *_, state = row
        if uid in self.seen or not counts(outcome, state):
            return False
        self.seen.add(uid)
        if outcome in DEADLY:
            self.died.setdefault(source_hash, []).append(row)
        elif outcome == Outcome.OK.value:
            self.ran.add(source_hash)
        rows = self.by_problem.get(problem)
        if rows is None:
            rows = self.by_problem[problem] = []
            self.by_relatives.setdefault(relatives, {})[problem] = rows
        rows.append(row)
        return True

    def load(self, database: Database, device: str, environment: str) -> int:
        """Reads the database's new rows; returns how many there were. Raises Unusable."""
        generation, last = self.read.get(database.place, (0, 0))
        rows = database.summaries(device, environment, last)
        if database.generation != generation and last:  # another database's numbers: read it whole
            rows, last = database.summaries(device, environment, 0), 0
        self.read[database.place] = database.generation, rows[-1][0] if rows else last
        return sum(self.add(row) for row in rows)
