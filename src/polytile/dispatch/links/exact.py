"""Measurements of exactly this problem in this environment, taken by this process or another."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from polytile.candidates.candidate import Candidate
from polytile.dispatch.links.prior import shortlist
from polytile.dispatch.request import Answer, Request, must_measure
from polytile.host_time import host_seconds, weighed
from polytile.problem import Outcome
from polytile.store import identity
from polytile.store.records import Identity
from polytile.tuning import hopeless
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
    return scores if alone or covers(request, known, scores, shortlist(request), request.sizes) else None


def covers(
    request: Request, known: Collection[Identity], scores: Sequence[Score | None], wanted: Iterable[Candidate],
    sizes: Mapping[str, int],
) -> bool:  # fmt: skip
    """Whether what is on record at `sizes`, with these scores of the request's candidates, tells of all that are wanted: on a GPU
    those that could not win were not compiled (tuning/hopeless.py). The source of one whose name is not on record is not
    generated. A record has the sizes that a choice depends on; predictions take the others from the request."""
    names = {name for name, _, _ in known}
    lacking = [candidate for candidate in wanted if candidate.name not in names or identity(candidate) not in known]
    if not lacking or request.spec.target.type != "cuda":
        return not lacking
    at = {**request.sizes, **sizes}
    standing = hopeless.Standing(hopeless.ON_RECORD)
    for candidate, score in zip(request.candidates, scores, strict=True):
        if score is not None and score.ok:
            host = host_seconds(request.problem.family, candidate.origin, request.spec.target.type)
            standing.add(candidate.origin, weighed(score.seconds, host), candidate.cost(at))
    return all(standing.cannot_win(candidate.origin, candidate.cost(at)) for candidate in lacking)
