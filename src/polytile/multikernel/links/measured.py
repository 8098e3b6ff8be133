"""Measuring a shortlist and what won at sizes close by, on the caller's own arguments, where nothing is known (SPEC M6)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from polytile import options
from polytile.counters import counters
from polytile.kernels.candidate import Candidate
from polytile.multikernel.links import exact
from polytile.multikernel.links.nearby import champions
from polytile.multikernel.links.prior import shortlist
from polytile.multikernel.selector import Answer, Request, may_measure
from polytile.problem import Measurement, Outcome
from polytile.tuning import measure, tune
from polytile.tuning.circumstances import completed
from polytile.tuning.decide import Score, pick
from polytile.tuning.isolation import policy

tuner: tune.Tuner = tune.tune
"""What tries candidates; something else that does can take its place."""


def choose(request: Request) -> Answer | None:
    """The fastest of those, timed now and recorded; or what another process has recorded in the meantime."""
    if not may_measure(request):
        return None
    if _nothing_to_do(request):
        return Answer(request.alive[0], "outputs are empty") if request.alive else None
    if request.store.refresh() and (answer := exact.choose(request)) is not None:
        return answer
    names = champions(request).union(candidate.name for candidate in shortlist(request))
    worth_it = [candidate for candidate in request.alive if candidate.name in names]
    try:
        return trial(request, worth_it, remember=True)
    except torch.OutOfMemoryError:
        return _untried(request)


def _untried(request: Request) -> Answer | None:
    """The best by prediction, where there is no memory for trying: clones and a reference need some."""
    if not request.alive:
        return None
    best = min(request.alive, key=lambda candidate: candidate.cost(request.sizes))
    return Answer(best, "predicted, since there was no memory for measuring")


def trial(request: Request, candidates: Sequence[Candidate], remember: bool) -> Answer:
    """The fastest of `candidates`; those that fail are rejected. With `remember` the store gets the measurements."""
    spec = request.spec
    assert request.args is not None

    def proven(source_hash: str) -> bool:
        return request.store.proven(request.problem.device, request.environment, source_hash)

    task = tune.Task(
        request.problem,
        tuple(candidates),
        request.args,
        spec.names,
        spec.roles,
        spec.reference,
        spec.reduction_length(request.ints),
        min((candidate.cost(request.sizes) for candidate in candidates), default=0.0),
        options.get("check_accuracy"),
        measure.GPU_LIMITS if spec.target.type == "cuda" else measure.LIMITS,
        apart=policy.apart(candidates, proven),
        trial_seconds=options.get("trial_seconds"),
        only_apart=options.get("isolation") == "always",
        target=spec.target,
    )
    attempts = (request.tuner or tuner)(task)
    measurements = [
        completed(attempt.measurement, attempt.candidate, attempt.candidate.cost(request.sizes))
        for attempt in attempts
        if attempt.measurement is not None
    ]
    counters.add("candidates_benchmarked", sum(bool(measurement.samples) for measurement in measurements))
    if remember and measurements:
        request.store.append(*measurements)
    scores: dict[str, Score] = {}
    for attempt in attempts:
        if attempt.ok and attempt.measurement is not None:
            scores[attempt.candidate.name] = Score(attempt.seconds, attempt.noise)
        else:
            request.reject(attempt.candidate.name, _outcome(attempt.measurement), attempt.detail)
    in_order = tuple(scores.get(candidate.name) for candidate in request.candidates)
    best = pick(in_order, options.get("noise_band"))
    if best is None:
        return Answer(None, "no candidate of the shortlist could be used", in_order)
    return Answer(request.candidates[best], "measured now", in_order, tried=True)


def _outcome(measurement: Measurement | None) -> Outcome:
    return Outcome.COMPILE_ERROR if measurement is None else measurement.outcome


def _nothing_to_do(request: Request) -> bool:
    assert request.args is not None
    tensors, _ = request.spec.split(request.args)
    written = [
        t for t, role in zip(tensors, request.spec.roles, strict=True) if role in ("out", "inout") and t is not None
    ]
    return bool(written) and not any(tensor.numel() for tensor in written)


__all__ = ["choose", "trial", "tuner"]
