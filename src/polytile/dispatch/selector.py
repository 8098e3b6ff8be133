"""The chain of links that chooses the candidate for given sizes. The first link that knows decides.

    forced → plan → exact → nearby → model → prior → measure → default

Each link is a file in links/ with a function `choose(request) -> Answer | None`. None means that it has nothing to say; an
Answer without a candidate says why the link abstains. Links hold no state of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch

from polytile import options
from polytile.candidates.candidate import Candidate
from polytile.dispatch.decision import Decision, Standing
from polytile.dispatch.links import default, exact, forced, measured, model, nearby, plan, prior
from polytile.dispatch.request import Answer, Request
from polytile.problem import Outcome
from polytile.tuning.decide import Score

Link = Callable[[Request], "Answer | None"]

UNMEASURED, ON_RECORD = ("prior", "default"), ("exact", "nearby")
"""The links whose decisions a measurement may improve, and the links that answer from the store."""


def chain() -> tuple[tuple[str, Link], ...]:
    """(name, link) pairs, strongest first, as the options and torch's settings have them now.

    Under torch.use_deterministic_algorithms no link may answer from a clock, or from what happens to have been measured
    close by: the same program then chooses the same kernels on every run, unless this very problem has been measured. With
    the option `tune` at "all", nothing may answer in place of measuring.
    """
    links: tuple[tuple[str, Link], ...] = (
        ("forced", forced.choose),
        ("plan", plan.choose),
        ("exact", exact.choose),
        ("nearby", nearby.choose),
        ("model", model.choose),
        ("prior", prior.choose),
        ("measured", measured.choose),
        ("default", default.choose),
    )
    silent: tuple[str, ...] = ()
    if torch.are_deterministic_algorithms_enabled():
        silent = ("nearby", "model", "measured")
    elif options.get("tune") == "all":
        silent = ("nearby", "model")
    return tuple(link for link in links if link[0] not in silent)


def choose(request: Request, among: Collection[str] | None = None) -> Decision | None:
    """The decision of the first link that has one, of those named `among` if names are given; None if no candidate can run
    (`request.rejected` says why)."""
    if len(request.candidates) == 1:
        return decision_from(request, "only", Answer(request.candidates[0], "the only one that can run"))
    notes: list[str] = []
    for name, link in chain():
        answer = link(request) if among is None or name in among else None
        if answer is not None and answer.candidate is not None:
            return decision_from(request, name, answer, tuple(notes))
        if answer is not None:
            notes.append(answer.provenance)
    return None


def eagers_own(request: Request) -> Decision | None:
    """The library's candidate, for a kernel whose candidates all failed the comparison with the reference, the library's
    included. Eager runs that candidate, so either the comparison is at fault or these numbers cannot be compared."""
    wrong = [c for c in request.candidates if c.origin == "library" and request.outcomes.get(c.name) is Outcome.WRONG]
    grounds = "eager's own: the results of all candidates differ from the reference"
    return decision_from(request, "default", Answer(wrong[0], grounds)) if wrong else None


def decision_from(request: Request, link: str, answer: Answer, notes: tuple[str, ...] = ()) -> Decision:
    assert answer.candidate is not None
    spec, fields, keys = request.spec, request.key_fields, request.spec.keys
    scores = answer.scores or (None,) * len(request.candidates)
    return Decision(
        kernel=spec.name,
        problem=request.problem,
        sizes=keys.deciding(request.ints),
        regime=request.regime,
        candidate=answer.candidate.name,
        link=link,
        provenance=answer.provenance,
        standings=tuple(_standing(request, c, score) for c, score in zip(request.candidates, scores, strict=True)),
        notes=notes,
        from_store=answer.from_store,
        tried=answer.tried,
        measured_at=tuple((answer.measured_at or {}).items()),
        part_of=keys.regime(keys.bucket(fields)) if keys.is_sub_bucket(fields) or keys.is_exact_size(fields) else None,
        postponed=answer.postponed,
        provisional=request.provisional(answer.candidate.name, scores),
        ints=request.ints,
        evidence=len(request.store.exact(request.problem, request.environment)),
    )


def _standing(request: Request, candidate: Candidate, score: Score | None) -> Standing:
    reason = request.rejected.get(candidate.name, "")
    if score is None:
        return Standing(candidate.name, note=reason)
    return Standing(candidate.name, score.seconds, reason or ("" if score.ok else score.outcome.value))
