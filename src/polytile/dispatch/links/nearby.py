"""Measurements of the same kernel at nearby sizes.

A problem is nearby if all flags are equal (divisibility by 16, alignment, threads), sizes whose value matters are equal, sizes
up to 8 are equal (each is a regime of its own), and each other size is within RADIUS octaves. A neighbour counts if everything
that would be measured now was measured there. The link answers

    - when a neighbour lies in the same regime (the same sub-buckets if it is subdivided), since a decision made there would have
      served this call in its own process; or
    - when neighbours lie on both sides in every size, so that nothing is extrapolated;

and in both cases only if all these neighbours agree on the candidate and it is expected to be as good here (subdivision.py).
Otherwise it abstains. It is wrong if the best candidate changes twice between two neighbours without the predictions showing
it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from polytile.candidates.candidate import Candidate
from polytile.dispatch.links import exact
from polytile.dispatch.links.prior import CLEAR_LOSER, shortlist
from polytile.dispatch.request import Answer, Request, must_measure
from polytile.dispatch.subdivision import Evidence, Expectation, distance
from polytile.problem import sizes_text
from polytile.runtime import regime
from polytile.tuning.decide import Score, combine

RADIUS = 1.0
"""Octaves: two regime buckets. What neighbours on both sides agree on is expected to hold between them (subdivision.py), so
that after a few lengths of text many others need no measurement."""

CHAMPION_RADIUS = 1.5
"""Octaves within which the winner at one size is worth measuring at another."""

CHAMPIONS = 2
"""How many neighbours, the nearest first, send their winners."""


@dataclass(frozen=True)
class Neighbour:
    """A measured problem: its distance in octaves, whether it is in the same regime, on which sides it lies, and its best
    candidate."""

    sizes: Mapping[str, int]
    octaves: float
    same_regime: bool
    winner: Candidate
    scores: tuple[Score | None, ...]


def choose(request: Request) -> Answer | None:
    """The candidate that the neighbours agree on, or a note if they disagree. None if measuring has to be thorough."""
    if must_measure(request):
        return None
    near = neighbours(request)
    inside = [neighbour for neighbour in near if neighbour.same_regime]
    if not inside and not _surrounded(request, near):
        return None
    voters = inside or near
    names = {neighbour.winner.name for neighbour in voters}
    if len(names) > 1:
        return Answer(None, f"neighbours disagree on {' and '.join(sorted(names))}")
    nearest = min(voters, key=lambda neighbour: neighbour.octaves)
    where = sizes_text(nearest.sizes.items())
    if not _holds(request, nearest.winner, voters):
        return Answer(None, f"{nearest.winner.name}, measured nearby at {where}, is expected to be slower here")
    grounds = f"measured before, nearby at {where}"
    return Answer(nearest.winner, grounds, nearest.scores, from_store=True, measured_at=nearest.sizes)


def _holds(request: Request, winner: Candidate, voters: Sequence[Neighbour]) -> bool:
    """Whether nothing that was measured by these neighbours is expected to beat their winner at the request's sizes."""
    expectation = Expectation({c.name: c for c in request.candidates}, request.sizes, request.spec.keys.bucketed)
    evidence = [
        Evidence(
            voter.sizes,
            {c.name: s.seconds for c, s in zip(request.candidates, voter.scores, strict=True) if s is not None and s.ok},
        )
        for voter in voters
    ]
    return expectation.holds(winner.name, dict(request.problem.sizes), evidence)


def neighbours(request: Request) -> list[Neighbour]:
    """The nearby measured problems that say which of the request's candidates is best there."""
    return list(_measured(request, RADIUS, lambda: shortlist(request)))


def champions(request: Request) -> frozenset[str]:
    """Names of the winners of the nearest measured problems, within CHAMPION_RADIUS. They are worth measuring here whatever the
    prior predicts, and are usually compiled already."""
    nearest = sorted(_measured(request, CHAMPION_RADIUS, tuple), key=lambda neighbour: neighbour.octaves)
    return frozenset(neighbour.winner.name for neighbour in nearest[:CHAMPIONS])


def _measured(request: Request, radius: float, wanted: Callable[[], Sequence[Candidate]]) -> Iterator[Neighbour]:
    """The problems within `radius` octaves in each size at which all that are `wanted`, at least, were measured: they are asked
    for where there is such a problem."""
    own = dict(request.problem.sizes)
    octaves = functools.partial(distance, own, bucketed=request.spec.keys.bucketed)
    inside = in_regime(request)
    needed: Sequence[Candidate] | None = None
    for sizes, summaries in request.store.nearby(request.problem, request.environment, lambda sizes: octaves(sizes) <= radius):
        known = combine(summaries)
        needed = wanted() if needed is None else needed
        worth = _worth(request, needed, sizes)
        scores = request.scores(known)
        if not known or not exact.covers(request, known, scores, worth, sizes):
            continue
        best = request.pick(request.usable(scores), sizes)
        if best is not None:
            yield Neighbour(sizes, octaves(sizes), inside(sizes), best, tuple(scores))


def _worth(request: Request, wanted: Sequence[Candidate], sizes: Mapping[str, int]) -> Sequence[Candidate]:
    """The candidates of `wanted` that were worth measuring at other sizes too: predictions of a user's kernel are its
    measurements nearby, and a clear loser was left out there."""
    if request.spec.family != "user":
        return wanted
    cost = {candidate.name: candidate.cost(sizes) for candidate in wanted}
    return [candidate for candidate in wanted if cost[candidate.name] <= CLEAR_LOSER * min(cost.values())]


def in_regime(request: Request) -> Callable[[Mapping[str, int]], bool]:
    """Says whether sizes of a problem like the request's are in the same regime, or in the same sub-buckets where it is
    subdivided."""
    bucketed = request.spec.keys.bucketed
    field = regime.sub_bucket if request.spec.keys.is_sub_bucket(request.key_fields) else regime.bucket
    own = {name: field(size) if name in bucketed else size for name, size in request.problem.sizes}
    return lambda sizes: all(own[name] == (field(size) if name in bucketed else size) for name, size in sizes.items())


def _surrounded(request: Request, near: Sequence[Neighbour]) -> bool:
    """Whether one neighbour is at most and another at least as large in every size."""
    own = dict(request.problem.sizes)
    below = any(all(neighbour.sizes[name] <= size for name, size in own.items()) for neighbour in near)
    above = any(all(neighbour.sizes[name] >= size for name, size in own.items()) for neighbour in near)
    return below and above
