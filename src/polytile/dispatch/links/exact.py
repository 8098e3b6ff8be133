"""Measurements of exactly this problem in this environment, taken by this process or another."""

from __future__ import annotations

from polytile.dispatch.links.prior import shortlist
from polytile.dispatch.request import Answer, Request, must_measure
from polytile.problem import Outcome
from polytile.store import identity
from polytile.tuning.decide import MOST_TIMES, Score, combine


def choose(request: Request) -> Answer | None:
    """The best candidate on record, if everything that would be measured now is on record (failures are records too). If
    measuring has to be thorough and the record leaves the choice in doubt, there is no answer before MOST_TIMES measurements."""
    scores = recorded(request)
    if scores is None:
        return None
    if must_measure(request) and in_doubt(request, scores):
        return Answer(None, "measured before, but the choice is in doubt")
    best = request.pick(request.usable(scores))
    if best is None:
        return None
    return Answer(best, "measured before, at these sizes", tuple(scores), from_store=True)


def in_doubt(request: Request, scores: list[Score | None]) -> bool:
    """Whether the scores should be taken again."""
    usable = request.usable(scores)
    fewest = min((score.times for score in usable if score is not None and score.ok), default=MOST_TIMES)
    return fewest < MOST_TIMES and request.doubtful(usable)


def recorded(request: Request) -> list[Score | None] | None:
    """Scores of the request's candidates from the store. They have to cover the shortlist, else None; for exact sizes, which have
    an entry for what is on record of them, any will do.

    Candidates that failed here before are rejected on the way.
    """
    known = combine(request.store.exact(request.problem, request.environment))
    if not known:
        return None
    scores = request.scores(known)
    for candidate, score in zip(request.candidates, scores, strict=True):
        if score is not None and score.outcome is not Outcome.OK:
            request.reject(candidate.name, score.outcome, f"{score.outcome.value}, on record")
    alone = request.spec.keys.is_exact_size(request.key_fields)
    if alone or all(identity(candidate) in known for candidate in shortlist(request)):
        return scores
    return None
