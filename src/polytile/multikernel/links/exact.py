"""What has been measured on this very problem, here or by another process, in this environment."""

from __future__ import annotations

from polytile import options
from polytile.multikernel.links.prior import shortlist
from polytile.multikernel.selector import Answer, Request
from polytile.problem import Outcome
from polytile.store import identity
from polytile.tuning.decide import Score, combine, pick


def choose(request: Request) -> Answer | None:
    """The best on record, if all that would be measured now is on record (failures are records too)."""
    scores = recorded(request)
    if scores is None:
        return None
    index = pick(request.usable(scores), options.get("noise_band"))
    if index is None:
        return None
    return Answer(request.candidates[index], "measured before, at these sizes", tuple(scores), from_store=True)


def recorded(request: Request) -> list[Score | None] | None:
    """Scores of the request's candidates from the store; None unless they cover the shortlist.

    Candidates that failed here before are rejected on the way.
    """
    known = combine(request.store.exact(request.problem, request.environment))
    if not known:
        return None
    scores = request.scores(known)
    for candidate, score in zip(request.candidates, scores, strict=True):
        if score is not None and score.outcome is not Outcome.OK:
            request.reject(candidate.name, score.outcome, f"{score.outcome.value}, on record")
    if all(identity(candidate) in known for candidate in shortlist(request)):
        return scores
    return None


__all__ = ["choose", "recorded"]
