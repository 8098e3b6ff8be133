"""What a candidate on trial decides in other kernels is no decision of the program's, unless the program uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from polytile import options
from polytile.compiler.plans import save_plan
from polytile.dispatch.multikernel import MultiKernel
from polytile.dispatch.planfile import Plan
from tests.dispatch.helpers import Fake, arguments, spec


def nested() -> MultiKernel:
    return MultiKernel(spec(name="epilogue", kernel="of another"), [Fake("slow", 3e-5), Fake("quick", 1e-5)])


def product(inner: MultiKernel, seconds: float) -> MultiKernel:
    """A kernel of which one candidate calls another kernel."""
    return MultiKernel(spec(name="product"), [Fake("fused", 2e-5), Fake("library", seconds, call=inner)])


def test_a_losers_kernels_keep_no_decision_and_a_winners_do() -> None:
    inner = nested()
    lost = product(inner, 5e-5)
    lost(*arguments(32))
    assert lost.decisions[0].candidate == "fused" and not inner.decisions
    won = product(inner, 1e-5)
    won(*arguments(300))
    assert won.decisions[0].candidate == "library" and [d.candidate for d in inner.decisions] == ["quick"]


def test_a_trial_measures_nothing_in_other_kernels_and_their_first_call_does(fake_clock: list[str]) -> None:
    inner = nested()
    product(inner, 5e-5)(*arguments(32))
    assert "quick" not in fake_clock
    x, y, m, n = arguments(32)
    inner(x, y, m, n)
    assert torch.equal(y, 2 * x) and "quick" in fake_clock
    (decision,) = inner.decisions
    assert (decision.candidate, decision.link) == ("quick", "measured")


def test_a_product_within_a_candidate_is_measured_so_that_the_candidate_stands_for_its_best(fake_clock: list[str]) -> None:
    inner = MultiKernel(
        spec(name="plain", family="mm", kernel="of a product"), [Fake("slow", 3e-5), Fake("quick", 1e-5, predicted=9e-5)]
    )
    with options.override(shortlist=2, tune="all"):
        product(inner, 5e-5)(*arguments(32))
    timed = fake_clock.count("quick")
    assert timed and not inner.decisions
    inner(*arguments(32))
    (decision,) = inner.decisions
    assert (decision.candidate, decision.link) == ("quick", "exact") and fake_clock.count("quick") == timed


def test_a_second_trial_leaves_no_more_than_the_first() -> None:
    inner = nested()
    product(inner, 5e-5)(*arguments(32))
    product(inner, 6e-5)(*arguments(32))
    assert not inner.decisions


def test_a_decision_of_before_the_trial_stays() -> None:
    inner = nested()
    inner(*arguments(32))
    product(inner, 5e-5)(*arguments(32))
    assert [decision.candidate for decision in inner.decisions] == ["quick"]


def test_kernels_of_a_trial_within_a_trial_are_taken_back_too() -> None:
    inner = nested()
    middle = MultiKernel(spec(name="middle", kernel="of a third"), [Fake("own", 1e-5), Fake("calls", 2e-5, call=inner)])
    product(middle, 5e-5)(*arguments(32))
    assert not inner.decisions and not middle.decisions


def test_a_plan_has_the_decisions_that_the_program_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = nested()
    outer = product(inner, 5e-5)

    def oldest_first() -> list[Any]:
        return [inner, outer]

    monkeypatch.setattr("polytile.compiler.plans._oldest_first", oldest_first)
    outer(*arguments(32))
    assert save_plan(tmp_path / "p") == 1
    assert [pinned.kernel for pinned in Plan.read(tmp_path / "p").decisions] == ["product"]
