"""What a learned model changes in the selector: it decides where it is sure, and ranks what is measured where it is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest
import torch

from polytile import options
from polytile.dispatch.decision import Decision
from polytile.dispatch.links import model
from polytile.dispatch.multikernel import MultiKernel
from polytile.learn.offer import Offer
from polytile.problem import Problem
from tests.dispatch.helpers import SPEC, Fake, arguments


class Expects:
    """Expects the reverse of what is predicted; sure or not."""

    name = "a test's model"
    sure = False
    asked: Sequence[Offer] = ()

    def choose(self, problem: Problem, offers: Sequence[Offer]) -> str | None:
        self.asked = offers
        return offers[-1].name if self.sure else None

    def expect(self, problem: Problem, offers: Sequence[Offer]) -> Mapping[str, float] | None:
        return {offer.name: 1.0 / offer.predicted for offer in offers}


@pytest.fixture
def learned() -> Iterator[Expects]:
    found = Expects()
    model.register(found)
    yield found
    model.unregister(found)


def five() -> tuple[Fake, ...]:
    """The prior's order is a to e; e is the fastest."""
    return tuple(Fake(name, (9 - k) * 1e-5, (10 + k) * 1e-6, parts={"k": float(k)}) for k, name in enumerate("abcde"))


def decided(*candidates: Fake) -> Decision:
    kernel = MultiKernel(SPEC, candidates)
    kernel(*arguments(32))
    return kernel.decisions[0]


def test_one_that_is_unsure_ranks_the_three_that_are_measured(learned: Expects, fake_clock: list[str]) -> None:
    with options.override(shortlist=5):
        decision = decided(*five())
    assert (decision.candidate, decision.link) == ("e", "measured") and set(fake_clock) == {"c", "d", "e"}


def test_one_that_is_sure_decides_and_nothing_is_timed(learned: Expects, fake_clock: list[str]) -> None:
    learned.sure = True
    decision = decided(*five())
    assert (decision.candidate, decision.link, decision.provenance) == ("e", "model", "predicted by a test's model")
    assert not fake_clock and [(offer.name, dict(offer.terms)) for offer in learned.asked] == [
        (name, {"k": float(k)}) for k, name in enumerate("abcde")
    ]


def test_what_eager_calls_is_timed_though_a_model_is_sure_of_another(learned: Expects, fake_clock: list[str]) -> None:
    learned.sure = True
    eagers = Fake("aten", 5e-6, 1.0, origin="library", operators=("aten.adaptive_max_pool2d.default",))
    with options.override(stall="compile"):
        assert decided(eagers, *five()).candidate == "e", "nothing may be timed"
    decision = decided(eagers, *five())
    assert (decision.candidate, decision.link) == ("aten", "measured") and "e" in fake_clock


def test_where_nothing_may_be_measured_the_first_of_its_ranking_runs(learned: Expects) -> None:
    with options.override(tune="off"):
        decision = decided(*five())
    assert (decision.candidate, decision.link) == ("e", "prior") and decision.provenance == "predicted 10 µs"


def test_thorough_tuning_measures_though_it_is_sure(learned: Expects, fake_clock: list[str]) -> None:
    learned.sure = True
    with options.override(tune="thorough"):
        assert decided(*five()).link == "measured" and fake_clock


def test_deterministic_algorithms_ask_no_model(learned: Expects) -> None:
    learned.sure = True
    torch.use_deterministic_algorithms(True)
    try:
        assert decided(*five()).candidate == "a"
    finally:
        torch.use_deterministic_algorithms(False)
