"""Measurements as examples to learn from: a problem, its candidates as offers, and what each of them took."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from polytile.learn.features import Row, architecture, features
from polytile.learn.model import competing
from polytile.learn.offer import Offer
from polytile.problem import Problem, digest
from polytile.store.reading import Record
from polytile.store.records import compact
from polytile.tuning.decide import BUSY
from polytile.tuning.replay import Recorded, matrices

FOLDS, TEST = 5, 0
"""Parts that all examples are in, by their sizes; the one that is held out for the report."""


@dataclass(frozen=True)
class Example:
    """What was measured of one problem on one device: an offer and seconds for each candidate that ran, two at least."""

    problem: Problem
    machine: Mapping[str, str]
    offers: tuple[Offer, ...]
    seconds: tuple[float, ...]

    @property
    def family(self) -> tuple[str, str]:
        """Whose model this is for: the problem's family, and the architecture of its device."""
        return self.problem.family, architecture(self.machine)

    @property
    def best(self) -> float:
        """Seconds of the fastest candidate."""
        return min(self.seconds)

    @cached_property
    def rows(self) -> list[Row]:
        """The features of each offer."""
        return features(self.problem, self.machine, self.offers)

    @cached_property
    def ranked(self) -> tuple[list[Offer], list[Row]]:
        """The offers that a model ranks, with their features."""
        able = {id(offer) for offer in competing(self.offers, self.machine.get("kind") == "cuda")}
        pairs = [(offer, row) for offer, row in zip(self.offers, self.rows, strict=True) if id(offer) in able]
        return [offer for offer, _ in pairs], [row for _, row in pairs]

    @property
    def fold(self) -> int:
        """Which of FOLDS parts of all examples this is in. Its sizes alone say so: what was measured at the same sizes, of
        another type or on another device, is in the same part."""
        return int(digest(compact(self.problem.sizes)), 16) % FOLDS

    def regret(self, place: int) -> float:
        """How many times as long as the fastest the offer number `place` takes."""
        return self.seconds[place] / self.best


@dataclass(frozen=True)
class Examples:
    """Examples in an order that does not depend on when they were measured; how many problems had no two candidates that ran
    while nothing else had the cores, and how many were measured before predictions left their terms."""

    found: tuple[Example, ...]
    alone: int = 0
    without_terms: int = 0

    def families(self) -> dict[tuple[str, str], list[Example]]:
        """The examples for each model to be."""
        made: dict[tuple[str, str], list[Example]] = {}
        for example in self.found:
            made.setdefault(example.family, []).append(example)
        return made


def examples(records: Iterable[Record]) -> Examples:
    """The examples in a store's records. What was measured several times is combined as a program would combine it. Candidates
    that could not run are left out, as a program does not offer them either once that is known, and so are times that were taken
    while other programs had the cores: kernels of two threads then took 50 times as long as predicted on a machine of two."""
    found: list[Example] = []
    alone = without = 0
    for matrix in matrices(sorted(records, key=lambda record: (record.taken_at, record.uid))):
        for problem, candidates in matrix.candidates.items():
            calm = [c for c in candidates if c.score.ok and c.score.disturbed <= BUSY]
            ran = [c for c in calm if math.isfinite(c.predicted) and c.predicted > 0]
            if len(ran) < 2:
                alone += 1
            elif not any(c.terms({}) for c in ran):
                without += 1
            else:
                found.append(_example(problem, sorted(ran, key=lambda c: (c.name, c.source_hash))))
    found.sort(key=lambda example: example.problem.key)
    return Examples(tuple(found), alone, without)


def _example(problem: Problem, ran: Sequence[Recorded]) -> Example:
    machine = dict(next((c.measurement.machine for c in ran if c.measurement.machine), ()))
    offers = tuple(Offer(c.name, c.config, c.origin, c.predicted, lambda c=c: c.terms({})) for c in ran)  # type: ignore[misc]
    return Example(problem, machine, offers, tuple(c.score.seconds for c in ran))

