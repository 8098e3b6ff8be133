"""Measuring a shortlist, and the winners at nearby sizes, on the caller's own arguments. The link answers where nothing is
known."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch

from polytile import options
from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import Entry
from polytile.counters import counters
from polytile.dispatch import leases, trials
from polytile.dispatch.links import exact
from polytile.dispatch.links.nearby import champions
from polytile.dispatch.links.prior import is_library, shortlist
from polytile.dispatch.request import Answer, Request, may_measure, must_measure
from polytile.problem import Measurement, Outcome
from polytile.store.records import LIVE, disturbed, region_excess
from polytile.tuning import budget, tune
from polytile.tuning.decide import Score, combine, noise_band
from polytile.tuning.headroom import NoHeadroom
from polytile.tuning.isolation import policy
from polytile.tuning.limits import GPU_LIMITS, GPU_THOROUGH, LIMITS, THOROUGH, Limits
from polytile.tuning.run_conditions import machine_state, with_run_conditions
from polytile.tuning.task import Attempt, Interrupted, Task, measured

BUSY = 2.0
"""How many times longer than predicted kernels may take on a CPU that other programs use too."""

tuner: tune.Tuner = tune.tune
"""What tries the candidates. Tests and replays put something else in its place."""


def choose(request: Request) -> Answer | None:
    """The fastest of those candidates, timed now and recorded; or the one that another process has recorded in the mean
    time."""
    if not may_measure(request):
        return None
    if _nothing_to_do(request):
        return Answer(request.alive[0], "outputs are empty") if request.alive else None
    if request.store.refresh() and (answer := exact.choose(request)) is not None and answer.candidate is not None:
        return answer
    tightest = budget.tightest(request.budget)
    if tightest is not None and tightest.left() <= 0:
        return _best_known(request, f"the time of {tightest.whose} for measuring ({tightest.seconds:.4g} s) is spent")
    with leases.turn(request) as waited:
        if waited and request.store.refresh() and (answer := exact.choose(request)) is not None and answer.candidate is not None:
            return answer
        return _measured_now(request)


def worth_measuring(request: Request) -> list[Candidate]:
    """What `choose` compiles and times: the shortlist, and the winners at nearby sizes."""
    names = champions(request).union(candidate.name for candidate in shortlist(request))
    return [candidate for candidate in request.alive if candidate.name in names]


def _measured_now(request: Request) -> Answer | None:
    worth_it = _not_on_record(request, worth_measuring(request))
    try:
        return _with_overlooked(request, _first_that_runs(request, worth_it), worth_it)
    except (torch.OutOfMemoryError, NoHeadroom) as error:
        why = str(error) if isinstance(error, NoHeadroom) else "there was no memory for it"
        answer = _best_known(request, f"not measured yet: {why}")
        return None if answer is None else dataclasses.replace(answer, postponed=True)


def _not_on_record(request: Request, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """The candidates of a user's kernel, which are added one by one, that have no time on record at these very sizes; all of
    them if every one has."""
    if request.spec.family != "user" or must_measure(request):
        return candidates
    scores = request.scores(combine(request.store.exact(request.problem, request.environment)))
    timed = {c.name for c, score in zip(request.candidates, scores, strict=True) if score is not None and score.ok}
    return [candidate for candidate in candidates if candidate.name not in timed] or candidates


def measure_again(request: Request, candidates: Sequence[Candidate]) -> Answer:
    """The fastest of `candidates`, while something else serves calls; no candidate if time or memory is short."""
    tightest = budget.tightest(request.budget)
    if tightest is not None and tightest.left() <= 0:
        return Answer(None, f"the time of {tightest.whose} for measuring is spent")
    try:
        return trial(request, candidates, remember=True)
    except (torch.OutOfMemoryError, NoHeadroom):
        return Answer(None, "there was no memory for measuring")


def _first_that_runs(request: Request, worth_it: Sequence[Candidate]) -> Answer:
    """The fastest candidate of the shortlist. If none of them is usable, the best predicted of the others that is."""
    answer = trial(request, worth_it, remember=True)
    for candidate in sorted(request.alive, key=lambda candidate: candidate.cost(request.sizes)):
        if answer.candidate is not None:
            break
        answer = trial(request, [candidate], remember=True)
    return answer


def _with_overlooked(request: Request, answer: Answer, tried: Sequence[Candidate]) -> Answer:
    """The answer, once the library's candidate was measured too, where it was left out for its prediction and all that was tried
    turned out slower than that. Predictions of a CPU's kernels are of an idle machine's."""
    seconds = [score.seconds for score in answer.scores if score is not None and score.ok]
    left_out = [c for c in request.alive if is_library(c) and c not in tried]
    busy = BUSY if request.spec.target.type == "cpu" else 1.0
    promising = [c for c in left_out if seconds and busy * c.cost(request.sizes) < min(seconds)]
    if not promising or answer.candidate is None:
        return answer
    again = trial(request, [answer.candidate, *promising], remember=True)
    return again if again.candidate is not None else answer


def _best_known(request: Request, why: str) -> Answer | None:
    """The best of what is on record, incomplete as it is; the best prediction where nothing is."""
    known = combine(request.store.exact(request.problem, request.environment))
    scores = request.usable(request.scores(known))
    best = request.pick(scores)
    if best is not None:
        return Answer(best, f"best measured so far; {why}", tuple(scores), from_store=True)
    predicted = min(request.alive, key=lambda candidate: candidate.cost(request.sizes), default=None)
    return Answer(predicted, f"predicted; {why}") if predicted is not None else None


def trial(request: Request, candidates: Sequence[Candidate], remember: bool) -> Answer:
    """The fastest of `candidates`; those that fail are rejected. With `remember` the store gets the measurements, also those
    taken before Ctrl-C."""
    candidates = request.without_deadly(candidates)
    request.compile_first(candidates)
    own = budget.Budget(options.get("problem_seconds"), "the problem")
    tightest = budget.tightest(own, request.budget)
    task = _task(request, candidates, tightest)
    begun = budget.clock()
    try:
        with trials.trial():
            attempts = (request.tuner or tuner)(task)
    except Interrupted as interrupted:
        _keep(request, interrupted.attempts, remember)
        raise
    finally:
        if request.budget is not None:
            request.budget.charge(budget.clock() - begun)
    _keep(request, attempts, remember)
    scores: dict[str, Score] = {}
    for attempt in attempts:
        if attempt.ok and attempt.measurement is not None:
            moment = attempt.measurement.state
            scores[attempt.candidate.name] = Score(
                attempt.seconds, attempt.noise, excess=region_excess(moment), disturbed=disturbed(moment)
            )
        elif not attempt.untried:
            request.reject(attempt.candidate.name, _outcome(attempt.measurement), attempt.detail)
    in_order = tuple(scores.get(candidate.name) for candidate in request.candidates)
    if remember:
        in_order = _with_earlier(request, in_order)
    best = request.pick(in_order)
    if best is None:
        return Answer(None, "no candidate of the shortlist could be used", in_order)
    left_out = sum(attempt.untried for attempt in attempts)
    grounds = f"measured now, {left_out} of {len(attempts)} left out" if left_out else "measured now"
    return Answer(best, grounds, in_order, tried=True)


def check(request: Request, candidates: Sequence[Candidate]) -> list[tuple[Candidate, Entry, float | None]]:
    """The `candidates` whose results are right, with their entries and errors; the others are rejected. Nothing is timed."""
    candidates = request.without_deadly(candidates)
    request.compile_first(candidates)
    task = _task(request, candidates, budget.tightest(request.budget))
    with trials.trial():
        passed, attempts = tune.check(task)
    _keep(request, attempts, remember=True)
    for attempt in attempts:
        if not attempt.untried:
            request.reject(attempt.candidate.name, _outcome(attempt.measurement), attempt.detail)
    return passed


def keep_live(request: Request, timed: Sequence[tuple[Candidate, Sequence[float], float | None]]) -> None:
    """Appends to the store the seconds that calls of the program took: (candidate, seconds, its error)."""
    task = _task(request, [candidate for candidate, _, _ in timed], None)
    attempts = [
        Attempt(candidate, measured(task, index, Outcome.OK, tuple(seconds), error, state=((LIVE, True),)))
        for index, (candidate, seconds, error) in enumerate(timed)
    ]
    _keep(request, attempts, remember=True)


def _task(request: Request, candidates: Sequence[Candidate], tightest: budget.Budget | None) -> Task:
    spec = request.spec
    assert request.args is not None

    def proven(source_hash: str) -> bool:
        return request.store.proven(request.problem.device, request.environment, source_hash)

    return Task(
        problem=request.problem,
        candidates=tuple(candidates),
        args=request.args,
        names=spec.names,
        roles=spec.roles,
        reference=spec.reference,
        reduction=spec.reduction_length(request.ints),
        coarse=spec.coarse(request.ints),
        predicted=tuple(candidate.cost(request.sizes) for candidate in candidates),
        limits=_limits(spec.target),
        isolated=policy.isolated(candidates, proven),
        trial_seconds=options.get("trial_seconds"),
        only_isolated=options.get("isolation") == "always",
        barred=frozenset(request.rejected),
        target=spec.target,
        seconds=math.inf if tightest is None else tightest.left(),
        sampler=spec.sampler,
        wide=spec.wide,
        patient=options.get("tune") in ("thorough", "all"),
        whole=options.get("tune") == "all",
        last_chance=request.last_chance,
        kernel=spec.name,
    )


def _keep(request: Request, attempts: Sequence[Attempt], remember: bool) -> None:
    """Counts the measurements among the attempts and appends them to the store."""
    moment = machine_state(request.spec.target)
    measurements = [
        with_run_conditions(result, tried, tried.cost(request.sizes), moment, tried.terms(request.sizes))
        for tried, result in ((attempt.candidate, attempt.measurement) for attempt in attempts)
        if result is not None
    ]
    counters.add("candidates_benchmarked", sum(bool(measurement.samples) for measurement in measurements))
    at_fault = request.spec.family == "user" and bool(measurements) and all(m.outcome is Outcome.RAISED for m in measurements)
    if remember and measurements and not at_fault:  # where all raise, the arguments are to blame, and no later call is
        request.store.append(*measurements)


def _limits(target: torch.device) -> Limits:
    thorough = options.get("tune") == "thorough"
    if target.type == "cuda":
        limits = GPU_THOROUGH if thorough else GPU_LIMITS
    else:
        limits = THOROUGH if thorough else LIMITS
    return dataclasses.replace(limits, band=noise_band(target.type))


def _with_earlier(request: Request, scores: tuple[Score | None, ...]) -> tuple[Score | None, ...]:
    """The scores together with what was measured at these sizes before, as the link `exact` of a later process sees them."""
    known = request.usable(request.scores(combine(request.store.exact(request.problem, request.environment))))
    return tuple(on_record if on_record is not None else now for on_record, now in zip(known, scores, strict=True))


def _outcome(measurement: Measurement | None) -> Outcome:
    return Outcome.COMPILE_ERROR if measurement is None else measurement.outcome


def _nothing_to_do(request: Request) -> bool:
    assert request.args is not None
    tensors = request.spec.tensors_of(request.args)
    written = [
        t for t, role in zip(tensors, request.spec.roles, strict=True) if role in ("out", "inout") and t is not None
    ]
    return bool(written) and not any(tensor.numel() for tensor in written)
