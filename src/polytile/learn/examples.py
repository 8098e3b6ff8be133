"""Measurements as training examples: a problem, its candidates as offers, and their times."""

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
"""Number of folds into which all examples are split by their sizes, and the one held out for the report."""


@dataclass(frozen=True)
class Example:
    """The measurements of one problem on one device: an offer and a time in seconds for each candidate that ran, at least two."""

    problem: Problem
    machine: Mapping[str, str]
    offers: tuple[Offer, ...]
    seconds: tuple[float, ...]

    @property
    def family(self) -> tuple[str, str]:
        """Identifies the model that the example trains: the problem's family, and the architecture of its device."""
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
        """The fold of this example, determined by its sizes alone: measurements at the same sizes, of other dtypes or on other
        devices, are in the same fold."""
        return int(digest(compact(self.problem.sizes)), 16) % FOLDS

    def regret(self, place: int) -> float:
        """The time of offer number `place` relative to the fastest."""
        return self.seconds[place] / self.best


@dataclass(frozen=True)
class Examples:
    """Examples in an order that does not depend on when they were measured.

    Attributes
    ----------
    alone
        Number of problems without two candidates that ran undisturbed.
    without_terms
        Number of problems measured before predictions recorded their terms.
    """

    examples: tuple[Example, ...]
    alone: int = 0
    without_terms: int = 0

    def families(self) -> dict[tuple[str, str], list[Example]]:
        """The examples of each model."""
        made: dict[tuple[str, str], list[Example]] = {}
        for example in self.examples:
            made.setdefault(example.family, []).append(example)
        return made


def examples(records: Iterable[Record]) -> Examples:
    """The examples in a store's records.

    Repeated measurements are combined as at run time. Candidates that could not run are left out, as programs do not offer them
    once that is known. So are times that were taken while other programs used the cores: on a machine with two cores, kernels
    with two threads then took 50 times the predicted time.
    """
    learnable: list[Example] = []
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
                learnable.append(_example(problem, sorted(ran, key=lambda c: (c.name, c.source_hash))))
    learnable.sort(key=lambda example: example.problem.key)
    return Examples(tuple(learnable), alone, without)


def _example(problem: Problem, ran: Sequence[Recorded]) -> Example:
    machine = dict(next((c.measurement.machine for c in ran if c.measurement.machine), ()))
    offers = tuple(Offer(c.name, c.config, c.origin, c.predicted, lambda c=c: c.terms({})) for c in ran)  # type: ignore[misc]
    return Example(problem, machine, offers, tuple(c.score.seconds for c in ran))

