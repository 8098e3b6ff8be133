"""How a MultiKernel decides with the option stall="never": callers find something that runs, the rest is done behind them.

    a call meets a regime without an entry    what is at hand serves it from this call on            on the caller's thread
    Predict    the candidate that is known or predicted to be fastest is compiled and serves next    in the background
    Measure    the shortlist is compiled, checked and measured, on arguments made up for it          in the background
    Refine     the same at sizes that come often, in a regime that was measured at others            in the background

What is at hand is right at these sizes: a form that was compiled for a regime with fewer facts, or the library's candidate.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from polytile.candidates.entries import Entry
from polytile.errors import DivisionByZero, HintError
from polytile.runtime import background, programs

if TYPE_CHECKING:
    from polytile.dispatch.multikernel import MultiKernel

UNMEASURED = ("prior", "default")
"""Links of the selector whose decisions measuring may better."""


class Learning:
    """The jobs of one MultiKernel in the background, one of a kind for each regime at a time."""

    def __init__(self, owner: MultiKernel) -> None:
        self._owner = weakref.ref(owner)
        self._asked: set[tuple[type[_Job], int]] = set()

    def at_hand(self, args: tuple[Any, ...]) -> Entry | None:
        """The best entry for these arguments of those that are made; None where there is none."""
        owner = self._owner()
        assert owner is not None
        ints, pointers = owner.spec.ints_of(args), owner.pointers(args)
        sizes, facts = owner.spec.sizes(ints), owner.keys.facts_for_code(ints, pointers)
        excluded = owner.excluded(owner.dispatcher.key_of(*args), sizes)
        made = [
            form
            for candidate in owner.candidates
            if candidate.name not in excluded
            for form in candidate.compiled_forms(facts)
            if not form.failed() and owner.can_run(candidate, sizes, ints)
        ]
        best = min(made, key=lambda form: form.cost(sizes), default=None)
        return None if best is None else best.entry()

    def predict(self, key: int, ints: tuple[int, ...], pointers: Sequence[int]) -> None:
        self._ask(Predict, key, ints, pointers)

    def measure(self, key: int, ints: tuple[int, ...]) -> None:
        self._ask(Measure, key, ints, ())

    def refine(self, key: int, ints: tuple[int, ...]) -> None:
        self._ask(Refine, key, ints, ())

    def _ask(self, kind: type[_Job], key: int, ints: tuple[int, ...], pointers: Sequence[int]) -> None:
        if (kind, key) not in self._asked:
            self._asked.add((kind, key))
            background.submit(kind(self, self._owner, key, ints, tuple(pointers), programs.running()))

    def done(self, job: _Job) -> None:
        self._asked.discard((type(job), job.key))


@dataclass(frozen=True, eq=False)
class _Job:
    """Something to do for the regime `key` of `owner`, at these integers, on behalf of the programs that met it. Dropped where
    nobody holds the kernel any more."""

    learning: Learning
    owner: weakref.ref[MultiKernel]
    key: int
    ints: tuple[int, ...]
    pointers: tuple[int, ...]
    programs: frozenset[str]

    disturbs = True
    rank = 0.0

    def urgency(self) -> tuple[float, ...]:
        owner = self.owner()
        return self.rank, float("inf") if owner is None else owner.dispatcher.calls(self.key)

    def run(self) -> None:
        owner = self.owner()
        self.learning.done(self)
        if owner is not None:
            with torch.no_grad(), programs.on_behalf(*self.programs):
                self.work(owner)

    def work(self, owner: MultiKernel) -> None:
        raise NotImplementedError


class Predict(_Job):
    """Puts what is known or predicted to be fastest into the table."""

    disturbs = False
    rank = 1.0

    def work(self, owner: MultiKernel) -> None:
        owner.decide_unmeasured(self.ints, self.pointers)


class Measure(_Job):
    """Puts what was measured to be fastest into the table."""

    def work(self, owner: MultiKernel) -> None:
        if (args := _made_up(owner, self.ints, self.key)) is not None:
            owner.decide_measured(args)


class Refine(_Job):
    """Measures at the sizes themselves, if they come often enough, and puts what is better there into the table."""

    def work(self, owner: MultiKernel) -> None:
        if (args := _made_up(owner, self.ints, self.key)) is not None:
            owner.refine(args)


def _made_up(owner: MultiKernel, ints: Sequence[int], key: int) -> tuple[Any, ...] | None:
    """Arguments of these sizes in the regime `key`; None where there are none: tensors that are made are aligned, and some
    numbers cannot be divided by."""
    try:
        args = owner.arguments_for(owner.spec.sizes(ints))
        return args if owner.dispatcher.key_of(*args) == key else None
    except (HintError, DivisionByZero):
        return None


__all__ = ["UNMEASURED", "Learning"]
