"""Refining: sizes that come often, in a regime that was decided at other sizes, are measured themselves (option `refine`).

A regime's choice is measured at the sizes of its first call. At the sizes that come later another candidate may be some per
cent faster. Of 411 products on an H100, at sizes that had not decided their regime, 16 took more than 1.02 times as long as the
best of cuBLAS and the peer, 1.28 times at worst. Measuring such sizes is worth it once the calls there have taken so long that
measuring is a small part of it:

    calls * seconds of a call * refine >= candidates * (SECONDS_EACH + CALLS_EACH * seconds of a call)

The table counts the calls of an entry (runtime/table.c) and reports one in so many; the sizes of that call stand for all of
them. So a call pays for a decrement, and `refiner.py` does the rest. Where another candidate is faster by more than the noise,
these exact sizes get an entry of their own, and their regime stays as it is. Subdividing it would have all its sub-buckets
measured again, and they may still be too wide.

The same share of the time since the regime was decided must suffice for measuring, too: a kernel that was slow on a busy machine
does not make measuring pay early.

A regime whose times were taken while other programs had the cores is provisional. The sizes that decided it are measured again
when that pays, as other sizes are, and the result decides the regime. So a decision of a busy moment costs no more than `refine`
says, in this process or in a later one that reads it from the store, and MOST_TIMES (tuning/decide.py) times at most.

The candidates measured are the regime's choice and those that may beat it: what was not far behind where it was chosen, and what
the prior and the winners nearby propose. Only what is compiled already takes part; nothing is compiled for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from polytile import options
from polytile.candidates.candidate import Candidate
from polytile.dispatch.decision import Decision
from polytile.dispatch.links.nearby import champions, in_regime
from polytile.dispatch.links.prior import shortlist
from polytile.dispatch.request import Request
from polytile.dispatch.subdivision import Evidence, Expectation
from polytile.store import identity
from polytile.tuning.budget import clock
from polytile.tuning.decide import Score, combine

SECONDS_EACH = 0.03
"""Approximate seconds to measure a candidate, without its calls."""

CALLS_EACH = 10
"""How often a long kernel is called while it is measured, its reference included."""

LEAD = 0.5
"""A candidate that took longer than the chosen one by this share is not expected to be faster at other sizes."""

LEAST_CALLS = 251
"""Calls between two looks, at least. A prime: what a program calls in turns is met in turns."""

MOST_CALLS = 1 << 30
"""Upper bound of the calls after which measuring pays: the table counts no further."""

LOOKS = 4
"""Looks before measuring can pay, where all calls are at the same sizes."""

MOST_SIZES = 32
"""Number of a regime's sizes that are counted: any that make up more than one call in this many are among them."""

MEASURED = ("exact", "nearby", "measured")
"""Links whose answers rest on times."""

Sizes = frozenset[tuple[str, int]]


@dataclass
class Arrivals:
    """What is known of the calls of one entry of the table, since some moment. `seconds`: of a call, about; `price`: seconds that
    measuring at other sizes takes; `closed`: sizes about which nothing is open; `begun`: those whose measuring has begun."""

    seconds: float
    price: float
    closed: set[Sizes]
    since: float = field(default_factory=lambda: clock())
    begun: set[Sizes] = field(default_factory=set)
    calls: dict[Sizes, int] = field(default_factory=dict)

    @property
    def interval(self) -> int:
        """Calls until the next look."""
        return max(LEAST_CALLS, math.ceil(min(self.needed(self.seconds), MOST_CALLS) / LOOKS) | 1)

    def needed(self, seconds: float) -> float:
        """Number of calls of `seconds` each after which measuring pays; infinite if no more time may be spent on it."""
        share = options.get("refine")
        return self.price / (share * seconds) if share else math.inf

    def count_call(self, sizes: Sizes) -> bool:
        """Takes note of a call at these sizes; says whether measuring there may pay. The counts are those of Misra and Gries:
        where there is no room for one more, all lose as much as it would have had."""
        if sizes in self.closed:
            return False
        if sizes not in self.calls and len(self.calls) >= MOST_SIZES:
            self.calls = {known: calls - self.interval for known, calls in self.calls.items() if calls > self.interval}
            return False
        self.calls[sizes] = self.calls.get(sizes, 0) + self.interval
        return self.calls[sizes] >= self.needed(self.seconds)

    def postpone(self, sizes: Sizes) -> None:
        """What was measured at these sizes does not count: it is to be done again when it pays again."""
        self.begun.discard(sizes)
        self.calls.pop(sizes, None)
        self.since = clock()

    def close(self, sizes: Sizes) -> None:
        """Nothing is to be measured at these sizes any more."""
        self.closed.add(sizes)
        self.begun.discard(sizes)
        self.calls.pop(sizes, None)


def arrivals(decision: Decision) -> Arrivals | None:
    """What the calls of this decision's regime are counted in; None where no other sizes are to be measured."""
    timed = len(Evidence.from_decision(decision).seconds)
    if not options.get("refine") or options.get("tune") == "all" or decision.link not in MEASURED or timed < 2:
        return None
    seconds = max(1e-9, decision.seconds or 0.0)
    price = timed * (SECONDS_EACH + CALLS_EACH * seconds)
    return Arrivals(seconds, price, set() if decision.provisional else {decided_by(decision)})


def decided_by(decision: Decision) -> Sizes:
    """The sizes whose times the decision rests on."""
    return frozenset(decision.measured_at or decision.sizes)


def pays(request: Request, decision: Decision, arrived: Arrivals, sizes: Sizes) -> bool:
    """Whether the calls at the request's sizes have taken so long, as expected there, that they should be measured."""
    known = Expectation({decision.candidate: request.named(decision.candidate)}, request.sizes, request.spec.keys.bucketed)
    seconds = known.seconds(decision.candidate, dict(request.problem.sizes), Evidence.from_decision(decision))
    passed = (clock() - arrived.since) * options.get("refine")
    return seconds > 0 and arrived.calls[sizes] >= arrived.needed(seconds) and passed >= arrived.price


def leading(request: Request, decision: Decision) -> list[Candidate]:
    """The decision's choice and what may beat it at the request's sizes, in canonical order."""
    timed = Evidence.from_decision(decision).seconds
    near = {name for name, seconds in timed.items() if seconds <= (1 + LEAD) * timed[decision.candidate]}
    names = near.union(champions(request), (candidate.name for candidate in shortlist(request)))
    return [c for c in request.alive if c.name == decision.candidate or (c.name in names and c.ready())]


def on_record(request: Request, chosen: str) -> tuple[Score | None, ...] | None:
    """The scores on record at the request's sizes; None if they do not compare the `chosen` candidate with another one, or if
    it is to be measured again."""
    scores = request.usable(request.scores(combine(request.store.exact(request.problem, request.environment))))
    timed = {c.name for c, score in zip(request.candidates, scores, strict=True) if score is not None and score.ok}
    known = chosen in timed and len(timed) > 1 and not request.provisional(chosen, scores)
    return tuple(scores) if known else None


def better(
    request: Request, chosen: str, scores: Sequence[Score | None], sizes: Mapping[str, int] | None = None
) -> Candidate | None:
    """The candidate to run in place of the `chosen` one of the regime at `sizes` (None: at the request's), where the scores are
    from; None where that is as good, or has none. What runs other code at other sizes has to be chosen at its own."""
    timed = {c.name for c, score in zip(request.candidates, scores, strict=True) if score is not None}
    best = request.pick(scores, sizes, preferred=chosen, alone=True) if chosen in timed else None
    same = best is not None and best.name == chosen and best.steady
    return None if same else best


def known_better(request: Request, decision: Decision) -> Iterator[Mapping[str, int]]:
    """Sizes in the request's regime, or its sub-buckets, at which what is on record speaks against the decision's candidate."""
    chosen = decision.candidate
    elsewhere = decision.measured_at or any(candidate.per_size for candidate in request.candidates)
    scores = on_record(request, chosen) if elsewhere else None
    if scores is not None and better(request, chosen, scores) is not None:
        yield dict(request.problem.sizes)
    candidate = request.named(chosen)
    for sizes, summaries in request.store.nearby(request.problem, request.environment, in_regime(request)):
        known = combine(summaries) if sizes != dict(decision.measured_at) else {}
        mine = known.get(identity(candidate))
        fastest = min((score.seconds for score in known.values() if score.ok), default=math.inf)
        if mine is None or (mine.seconds <= fastest and candidate.steady):
            continue
        if better(request, chosen, request.usable(request.scores(known)), sizes) is not None:
            yield sizes
