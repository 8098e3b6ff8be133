"""The question that the selector puts to its links, and their answer (selector.py)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from polytile import options
from polytile.candidates.candidate import Candidate
from polytile.dispatch.keys import KeyFields
from polytile.dispatch.spec import KernelSpec
from polytile.facts import Regime
from polytile.problem import Measurement, Outcome, Problem, sizes_text
from polytile.store import Store, identity
from polytile.store.records import Environment, Identity
from polytile.tuning.budget import Budget
from polytile.tuning.decide import UNKNOWN, Entrant, Score, doubtful, noise_band, pick
from polytile.tuning.isolation import policy
from polytile.tuning.tune import Tuner


@dataclass(frozen=True)
class Request:
    """A question to the selector: which candidate should run at these sizes?

    `candidates` can run at these sizes and are in canonical order. `key_fields` are those of the regime, the sub-buckets or the
    exact sizes to decide for. Candidates may be tried on `args`, a call's flat arguments, unless it is None. A link that finds
    that a candidate fails here adds it to `rejected` with the reason, and to `outcomes` with how it ended. `tuner`, if given,
    tries candidates in place of this machine. `budget` is what the program may spend on measuring. `last_chance` says that no
    later call will measure if memory is short now.
    """

    spec: KernelSpec
    problem: Problem
    candidates: tuple[Candidate, ...]
    sizes: Mapping[str, int]
    ints: tuple[int, ...]
    key_fields: KeyFields
    args: tuple[Any, ...] | None
    environment: Environment
    store: Store
    rejected: MutableMapping[str, str] = field(default_factory=dict)
    outcomes: MutableMapping[str, Outcome] = field(default_factory=dict)
    tuner: Tuner | None = None
    budget: Budget | None = None
    last_chance: bool = True
    compile_first: Callable[[Iterable[Candidate]], None] = lambda candidates: None
    """Has candidates compiled that are about to be tried, where that disturbs calls least (ahead.py)."""

    @property
    def regime(self) -> Regime:
        return self.spec.keys.regime(self.key_fields)

    @property
    def alive(self) -> tuple[Candidate, ...]:
        """The candidates that no link has rejected so far."""
        return tuple(candidate for candidate in self.candidates if candidate.name not in self.rejected)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(candidate.name for candidate in self.candidates)

    def named(self, name: str) -> Candidate:
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
        self, scores: Sequence[Score | None], sizes: Mapping[str, int] | None = None, preferred: str = "", alone: bool = False
    ) -> Candidate | None:
        """The candidate to choose by `scores`, one for each of `candidates`, taken at `sizes` (None: at the request's). Of equals
        the one named `preferred`, if it is among them. One that builds something for each size is chosen for exact sizes only,
        those of the request or, if `alone`, those of the scores; or where there is no other."""
        if not alone and not self.spec.keys.is_exact_size(self.key_fields):
            lasting = [None if c.per_size else score for c, score in zip(self.candidates, scores, strict=True)]
            scores = lasting if any(lasting) else scores
        entrants = [
            dataclasses.replace(entrant, predicted=-math.inf, place=-1) if candidate.name == preferred else entrant
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
        family, kind = self.problem.family, self.spec.target.type
        return [UNKNOWN if score is None else Entrant.from_candidate(candidate, family, kind, at) for candidate, score in pairs]

    def provisional(self, candidate: str, scores: Sequence[Score | None]) -> bool:
        """Whether the time of this candidate among `scores`, one for each of `candidates`, was taken under load and is to be
        taken again."""
        pairs = zip(self.candidates, scores, strict=True)
        return any(score is not None and score.provisional for known, score in pairs if known.name == candidate)

    def without_deadly(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """`candidates` without those that took their process down before (isolation/policy.py), which are rejected."""
        asked = list(candidates)
        died = self.store.died(self.problem.device, self.environment)
        for candidate, outcome, reason in policy.deadly(asked, self.sizes, died):
            self.reject(candidate.name, outcome, reason)
        return [candidate for candidate in asked if candidate.name not in self.rejected]

    def reject(self, candidate: str, outcome: Outcome, reason: str) -> None:
        self.rejected[candidate] = reason
        self.outcomes[candidate] = outcome

    def record_failure(self, candidate: Candidate, outcome: Outcome, error: Exception) -> None:
        """Appends to the store how the candidate ended."""
        self.store.append(
            Measurement(
                self.problem, candidate.name, candidate.config, candidate.source_hash, outcome,
                detail=f"{type(error).__name__}: {error}", environment=self.environment,
            )
        )  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """The answer of a link: the candidate (None: the link abstains), the grounds, and the scores behind it, one for each
    candidate of the request.

    The scores were taken at the sizes `measured_at` (None: the request's). `from_store` says that the answer rests on earlier
    measurements, `tried` that the candidate has just run on the request's arguments, and `postponed` that a later call may have
    memory or time for what was not measured.
    """

    candidate: Candidate | None
    provenance: str
    scores: tuple[Score | None, ...] = ()
    from_store: bool = False
    tried: bool = False
    measured_at: Mapping[str, int] | None = None
    postponed: bool = False


def measuring() -> bool:
    """Whether the options and torch's settings let candidates be timed at all."""
    return options.get("tune") != "off" and options.get("stall") != "compile" and not torch.are_deterministic_algorithms_enabled()


def may_measure(request: Request) -> bool:
    """Whether candidates may be timed to answer the request."""
    return measuring() and request.args is not None and not _recording(request)


def _recording(request: Request) -> bool:
    """Whether this thread is recording a CUDA graph. Then it must not wait for anything."""
    on_gpu = request.spec.target.type == "cuda" and torch.cuda.is_initialized()  # a replay of a GPU's times needs no GPU
    return on_gpu and torch.cuda.is_current_stream_capturing()


def eagers_call(request: Request) -> Candidate | None:
    """The library's candidate for a loop on a CPU that came from one operator, which is what eager calls; None if there is none.

    Neither its prediction, by the bytes that it moves, nor a model of such predictions knows how ATen goes through them. Of
    adaptive max pooling of (4, 33, 31, 37) to 3 × 3, where a model was sure of a generated loop, ATen's took a third of the time.
    Only a measurement decides between the two, and it compiles nothing.
    """
    of_a_loop = request.spec.family == "loop" and request.spec.target.type == "cpu"
    calls = (c for c in request.alive if c.origin == "library" and len(c.operators) == 1)
    return next(calls, None) if of_a_loop else None


def must_measure(request: Request) -> bool:
    """Whether measuring has to be thorough: only measurements at exactly these sizes count."""
    return options.get("tune") == "thorough" and may_measure(request)


def nothing_left(request: Request, names: Iterable[str], known: Mapping[str, str]) -> str:
    """A sentence for a kernel whose candidates, called `names`, can all not run; `known` are the reasons from before."""
    sizes, spec = sizes_text(request.sizes.items()), request.spec
    why = {**known, **request.rejected}
    reasons = "; ".join(f"{name!r}: {why.get(name, 'not made for such sizes')}" for name in names)
    own = "Correct the call or the kernel, or add a config or implementation that can run there."
    others = "Add one that can: products get more by the option sources, of which 'library' can run everything."
    return (
        f"kernel {spec.name!r} has no candidate that can run at {sizes or 'any size'} ({reasons}). "
        f"{own if spec.family == 'user' else others}"
    )
