"""The candidates' own predictions: what is chosen where nothing may be measured, and what is measured where it may.

Only what the prediction leaves open is worth measuring. On the kernels of an encoder in training, whose winners were measured,
no candidate predicted 1.6 times slower than the best has won, and the best two of a matmul, predicted alike, were mostly within
5 % of each other and once 23 % apart. A second source takes 0.1-0.4 s to compile; for a kernel of 50 µs that is never earned
back by most programs. Where this is wrong: predictions of few µs, where starting threads costs as much as the work, are off by
2; a candidate lost there is found by a hinted or explicit tuning, which tries more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from polytile import options
from polytile.candidates.candidate import READY_MADE, Candidate
from polytile.dispatch.links import model
from polytile.dispatch.request import Answer, Request, eagers_call, may_measure
from polytile.problem import time_text

Ranked = TypeVar("Ranked")


def choose(request: Request) -> Answer | None:
    """The candidate predicted to be fastest, if none may be timed; equal predictions go to the canonical order. What a learned
    model expects replaces the prediction, even if the model is not sure."""
    if may_measure(request):
        return None
    cost = {candidate.name: candidate.cost(request.sizes) for candidate in request.alive} | model.expected(request)
    for best in sorted(request.alive, key=lambda candidate: cost[candidate.name]):
        if request.without_deadly([best]):
            return Answer(best, f"predicted {time_text(cost[best.name])}")
    return None


CLEAR_LOSER = 1.6
"""A generated candidate predicted to take this many times as long as the best is not measured."""

HOPELESS = 50.0
"""A library candidate predicted to take this many times as long is not measured: it serves only if nothing else can run."""

COMPILE_SECONDS, EXPECTED_CALLS = 0.2, 10_000
"""Seconds to compile one more source, about; and the calls at one size within which that has to pay off, except where measuring
is thorough."""

ON_GPUS = 2
"""A shortlist on a GPU over one on a CPU: candidates there compile in parallel processes."""

OPEN = 0.2
"""How much faster than its prediction says a candidate of the shortlist may well be, relatively."""


LEARNED = 3
"""How many candidates are measured, at most, where a learned model ranks them. Of 254 products on an H100, the best of three of
its ranking took 1.006 times as long as the best of all (95th percentile 1.05), the best of three of the prior's 1.022 (1.14)."""

ALIKE = 0.6
"""What part of a shortlist, two at least, may share a trait, such as the width of their blocks. Predictions err together for what
is alike: on 254 products whose every candidate was measured on an H100, the best of three of the ranking took 1.023 times as long
as the best of all (95th percentile 1.15), the best of three of which no more than two share a trait 1.017 (1.08); of five with
three 1.0085 (1.07) in place of 1.011 (1.08). Where this is wrong: what is alike may be fastest, and the last of it the fastest;
on 64 squares a shortlist of five missed a faster candidate by 2 % at most that way, with no more than two alike by 80 %."""


def shortlist(request: Request) -> tuple[Candidate, ...]:
    """The candidates worth measuring, in canonical order.

    The option `shortlist` says how many there are at most (twice as many on a GPU). One of them is the library kernel with the
    best prediction, since a tuned program must never be slower than the library. Other ready-made candidates are measured in
    addition: they need no compiling, and predictions of generated kernels say nothing about them. The library's candidate for a
    loop, a sequence of ATen calls, is measured in addition on a GPU, and on a CPU if it is one call; several calls must be
    predicted about as fast as the best there.
    If everything measured turns out slower than that candidate's prediction, links/measured.py measures it too. If the option
    `tune` says so, all candidates are measured. If a learned model knows such problems but is not sure, its expectations
    replace the predictions, and LEARNED candidates suffice.

    The list depends only on the sizes, the candidates, the options and the models, so that a later process asks for the same
    ones.
    """
    if options.get("tune") == "all":
        return tuple(request.candidates)
    on_gpu = request.spec.target.type == "cuda"
    count = options.get("shortlist") * (ON_GPUS if on_gpu else 1)
    worth_it = [candidate for candidate in request.candidates if candidate.origin != "reference"] or request.candidates
    learned = model.expected(request)
    cost = {candidate.name: candidate.cost(request.sizes) for candidate in worth_it} | learned
    count = min(count, LEARNED) if learned else count
    ranked = sorted(worth_it, key=lambda candidate: cost[candidate.name])  # ties stay in order
    generated = [candidate for candidate in ranked if candidate.origin not in READY_MADE]
    best = cost[(generated or ranked)[0].name]
    of_a_loop = request.spec.family == "loop"
    slowest = (CLEAR_LOSER if of_a_loop else HOPELESS) * best
    library = next((c for c in ranked if is_library(c) and cost[c.name] <= slowest), None)
    eagers = eagers_call(request)
    takes_a_place = library is not None and eagers is None and not (on_gpu and of_a_loop)
    pays = on_gpu or options.get("tune") == "thorough" or best * OPEN * EXPECTED_CALLS >= COMPILE_SECONDS
    chosen: list[Candidate] = []
    for candidate in generated:
        compiled = not chosen or _recipe(candidate) in {"", *map(_recipe, chosen)}
        if cost[candidate.name] <= CLEAR_LOSER * best and (pays or compiled):
            chosen.append(candidate)
    chosen = varied(chosen, max(1, count - takes_a_place), lambda candidate: candidate.traits)
    ready = [c for c in ranked if c.origin in READY_MADE and not is_library(c)]
    beside = [c for c in ready if c.per_size or cost[c.name] <= CLEAR_LOSER * best]  # a prediction has the price of building
    names = {candidate.name for candidate in [*chosen, *beside, eagers or library or ranked[0]]}
    return tuple(candidate for candidate in request.candidates if candidate.name in names)


def varied(ranked: Sequence[Ranked], count: int, traits: Callable[[Ranked], Iterable[Hashable]]) -> list[Ranked]:
    """The first `count` candidates of which at most the share ALIKE has a trait in common; if there are too few, then the first
    of the others."""
    seen: Counter[Hashable] = Counter()
    most = max(2, math.ceil(ALIKE * count))
    chosen: list[int] = []
    for place, candidate in enumerate(ranked):
        if len(chosen) < count and all(seen[trait] < most for trait in traits(candidate)):
            chosen.append(place)
            seen.update(traits(candidate))
    rest = [place for place in range(len(ranked)) if place not in chosen]
    return [ranked[place] for place in sorted(chosen + rest[: count - len(chosen)])]


def _recipe(candidate: Candidate) -> str:
    """Equal for candidates that share a source; empty if there is nothing to compile."""
    return candidate.recipe


def is_library(candidate: Candidate) -> bool:
    return candidate.origin == "library"
