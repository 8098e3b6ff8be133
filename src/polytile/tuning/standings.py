"""Where the candidates of one problem stand by its measurements on record, as a program in that environment would see them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from polytile.problem import Measurement
from polytile.runtime.device import kind_of
from polytile.store.reading import Record
from polytile.store.records import Identity, reading_of
from polytile.tuning.decide import Entrant, Score, combine


@dataclass(frozen=True)
class Standing:
    """A candidate's score, what was known of it before it was last measured, and its measurements, oldest first."""

    score: Score
    entrant: Entrant
    measured: tuple[Measurement, ...]


def standings(records: Sequence[Record]) -> dict[Identity, Standing]:
    """Each candidate with its latest source, in the order in which candidates were first measured. The records, oldest first, are
    of one problem in one environment."""
    measured = [record.measurement for record in records]
    latest = {(one.candidate, one.config): one.source_hash for one in measured}
    current = [one for one in measured if latest[one.candidate, one.config] == one.source_hash]
    readings = [reading_of(one) for one in current]
    own: dict[Identity, list[Measurement]] = {}
    for reading, one in zip(readings, current, strict=True):
        own.setdefault(reading.who, []).append(one)
    return {who: Standing(score, _entrant(own[who][-1]), tuple(own[who])) for who, score in combine(readings).items()}


def _entrant(newest: Measurement) -> Entrant:
    predicted = math.inf if newest.predicted is None else newest.predicted
    problem = newest.problem
    return Entrant.known(predicted, newest.config, newest.origin, problem.family, kind_of(problem.device))
