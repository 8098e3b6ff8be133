"""The chain of links that answers which candidate runs at given sizes; the first link that knows decides.

    forced → plan → exact → nearby → model → prior → measure → default

Each link is one file in links/ with one function, `choose(request) -> Answer | None`. None: it has nothing to say. An
Answer without a candidate: it has nothing to say, and why is worth telling. Links hold no state of their own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from polytile import options
from polytile.kernels.candidate import Candidate
from polytile.multikernel.decision import Decision, Standing
from polytile.multikernel.spec import KernelSpec
from polytile.problem import Outcome, Problem
from polytile.store import Store, identity
from polytile.store.records import Environment, Identity
from polytile.tuning.budget import Budget
from polytile.tuning.decide import UNKNOWN, Entrant, Score, doubtful, noise_band, pick
from polytile.tuning.tune import Tuner


@dataclass(frozen=True)
class Request:
    """A question to the selector.

    `candidates` can run at these sizes, in canonical order. `words` are those of the regime, or of the part of one, that
    is decided for. `args` are flat arguments to try them on, or None. A link
    that finds that a candidate fails here puts it into `rejected` with the reason; `outcomes` gets how it ended.
    `tuner` tries them in place of this machine, if it is given. `budget` is the program's for measuring. `last_chance`: where
    there is no memory for measuring now, no later call will look for some.
    """

    spec: KernelSpec
    problem: Problem
    candidates: tuple[Candidate, ...]
    sizes: Mapping[str, int]
    ints: tuple[int, ...]
    words: tuple[int, ...]
    args: tuple[Any, ...] | None
    environment: Environment
    store: Store
    rejected: MutableMapping[str, str] = field(default_factory=dict)
    outcomes: MutableMapping[str, Outcome] = field(default_factory=dict)
    tuner: Tuner | None = None
    budget: Budget | None = None
    last_chance: bool = True

    @property
    def regime(self) -> str:
        return self.spec.regime(self.words)

    @property
    def alive(self) -> tuple[Candidate, ...]:
        """The candidates that no link has rejected so far."""
        return tuple(candidate for candidate in self.candidates if candidate.name not in self.rejected)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(candidate.name for candidate in self.candidates)

    def named(self, name: str) -> Candidate:
        """The candidate of that name."""
        return next(candidate for candidate in self.candidates if candidate.name == name)

    def scores(self, known: Mapping[Identity, Score]) -> list[Score | None]:
        """The scores of `candidates`, in their order. The source of one whose name no score bears is not generated."""
        names = {name for name, _, _ in known}
        return [known.get(identity(candidate)) if candidate.name in names else None for candidate in self.candidates]

    def usable(self, scores: Sequence[Score | None]) -> list[Score | None]:
        """`scores` without those of rejected candidates."""
        pairs = zip(self.candidates, scores, strict=True)
        return [None if candidate.name in self.rejected else score for candidate, score in pairs]

    def pick(
        self, scores: Sequence[Score | None], sizes: Mapping[str, int] | None = None, preferred: str = ""
    ) -> Candidate | None:
        """The candidate to choose by `scores`, one for each of `candidates`, taken at `sizes` (None: at the request's). Of equals
        the one named `preferred`, if it is among them."""
        entrants = [
            dataclasses.replace(entrant, predicted=-math.inf) if candidate.name == preferred else entrant
            for candidate, entrant in zip(self.candidates, self._entrants(scores, sizes), strict=True)
        ]
        index = pick(scores, noise_band(self.spec.target.type), entrants)
        return None if index is None else self.candidates[index]

    def doubtful(self, scores: Sequence[Score | None]) -> bool:
        """Whether measuring once more may well choose differently."""
        return doubtful(scores, noise_band(self.spec.target.type), self._entrants(scores, None))

    def _entrants(self, scores: Sequence[Score | None], sizes: Mapping[str, int] | None) -> list[Entrant]:
        """What was known of each candidate beforehand; nothing is asked of those without a score."""
        at = {**self.sizes, **(sizes or {})}
        pairs = zip(self.candidates, scores, strict=True)
        return [UNKNOWN if score is None else Entrant.of(candidate, at) for candidate, score in pairs]

    def reject(self, candidate: str, outcome: Outcome, reason: str) -> None:
        self.rejected[candidate] = reason
        self.outcomes[candidate] = outcome


@dataclass(frozen=True)
class Answer:
    """What a link says: the candidate (None: it abstains), on what grounds, and the scores it went by, if any, one for
    each of the request's candidates, taken at the sizes `measured_at` (None: at the request's). `from_store`: it rests on
    measurements taken earlier; `tried`: the candidate has just run on the request's arguments; `postponed`: a later
    call may have the memory or the time for measuring what has not been."""

    candidate: Candidate | None
    provenance: str
    scores: tuple[Score | None, ...] = ()
    from_store: bool = False
    tried: bool = False
    measured_at: Mapping[str, int] | None = None
    postponed: bool = False


Link = Callable[[Request], "Answer | None"]


def chain() -> tuple[tuple[str, Link], ...]:
    """(name, link) pairs, strongest first, as the options and torch's settings have them now.

    Under torch.use_deterministic_algorithms no link may answer from a clock, or from what happens to have been measured
    close by: the same program then chooses the same kernels on every run, unless this very problem has been measured. With
    the option `tune` at "all", nothing may answer in place of measuring.
    """
    from polytile.multikernel.links import default, exact, forced, measured, model, nearby, plan, prior

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


def measuring() -> bool:
    """Whether the options and torch's settings let candidates be timed at all."""
    return options.get("tune") != "off" and not torch.are_deterministic_algorithms_enabled()


def may_measure(request: Request) -> bool:
    """Whether candidates may be timed to answer `request`."""
    return measuring() and request.args is not None and not _recording(request)


def _recording(request: Request) -> bool:
    """Whether this thread is recording a CUDA graph: nothing may be waited for then."""
    return request.spec.target.type == "cuda" and torch.cuda.is_current_stream_capturing()


def must_measure(request: Request) -> bool:
    """Whether measuring has to be thorough: only measurements at these very sizes will do."""
    return options.get("tune") == "thorough" and may_measure(request)


def choose(request: Request) -> Decision | None:
    """The decision of the first link that has one; None if no candidate can run (`request.rejected` says why)."""
    if len(request.candidates) == 1:
        return decided(request, "only", Answer(request.candidates[0], "the only one that can run"))
    notes: list[str] = []
    for name, link in chain():
        answer = link(request)
        if answer is not None and answer.candidate is not None:
            return decided(request, name, answer, tuple(notes))
        if answer is not None:
            notes.append(answer.provenance)
    return None


def eagers_own(request: Request) -> Decision | None:
    """The library's candidate, where every candidate's results were found to differ from the reference, its own among them: it is
    what eager runs, so that the comparison is at fault, or the numbers are past comparing."""
    wrong = [c for c in request.candidates if c.origin == "library" and request.outcomes.get(c.name) is Outcome.WRONG]
    grounds = "eager's own: the results of all candidates differ from the reference"
    return decided(request, "default", Answer(wrong[0], grounds)) if wrong else None


def decided(request: Request, link: str, answer: Answer, notes: tuple[str, ...] = ()) -> Decision:
    """The Decision of an answer that has a candidate."""
    assert answer.candidate is not None
    spec, words = request.spec, request.words
    scores = answer.scores or (None,) * len(request.candidates)
    return Decision(
        kernel=spec.name,
        problem=request.problem,
        sizes=spec.deciding(request.ints),
        regime=request.regime,
        candidate=answer.candidate.name,
        link=link,
        provenance=answer.provenance,
        standings=tuple(_standing(request, c, score) for c, score in zip(request.candidates, scores, strict=True)),
        notes=notes,
        from_store=answer.from_store,
        tried=answer.tried,
        measured_at=tuple((answer.measured_at or {}).items()),
        part_of=spec.regime(spec.whole(words)) if spec.is_part(words) or spec.is_single(words) else "",
        postponed=answer.postponed,
    )


def _standing(request: Request, candidate: Candidate, score: Score | None) -> Standing:
    reason = request.rejected.get(candidate.name, "")
    if score is None:
        return Standing(candidate.name, note=reason)
    return Standing(candidate.name, score.seconds, reason or ("" if score.ok else score.outcome.value))


__all__ = ["Answer", "Link", "Request", "chain", "choose", "decided", "eagers_own", "may_measure", "measuring", "must_measure"]
