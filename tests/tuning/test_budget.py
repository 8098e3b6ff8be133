"""Budgets end measuring, what was found by then is used, and the next program makes up for what was left out."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import polytile
from polytile import counters, options, store
from polytile.dispatch.links import measured
from polytile.dispatch.multikernel import MultiKernel
from polytile.problem import Outcome
from polytile.tuning import budget
from polytile.tuning.budget import Budget, campaign, tightest
from polytile.tuning.tune import Interrupted, tune
from tests.dispatch.helpers import Fake, arguments, spec
from tests.tuning.planted import Function, double, task


@pytest.fixture(autouse=True)
def nothing_known(empty_cache: Path) -> Iterator[None]:
    yield
    store.forget()


@dataclasses.dataclass
class Slow(Function):
    """A kernel that takes its time when it is tried."""

    seconds: float = 0.05
    predicted: float = 1e-5

    def cost(self, sizes: Any) -> float:
        return self.predicted

    def entry(self) -> Any:
        time.sleep(self.seconds)
        return super().entry()


def three() -> list[Slow]:
    return [Slow("third", double, predicted=3e-5), Slow("first", double, predicted=1e-5), Slow("second", double)]


def test_a_budget_is_spent_by_charging_and_none_is_endless() -> None:
    limited, endless = Budget(1.0, "the program"), Budget(0.0, "the problem")
    limited.charge(0.75)
    endless.charge(1e9)
    assert limited.left() == 0.25 and endless.left() == float("inf")
    assert tightest(limited, endless, None) is limited and tightest(endless) is None


def test_a_campaign_runs_by_the_clock_and_is_tighter_than_a_budget_with_more_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(budget, "clock", lambda: now[0])
    program = Budget(5.0, "the program")
    with campaign(3.0) as all_of_it:
        assert tightest(program) is all_of_it
        now[0] += 4.0
        assert all_of_it.left() == -1.0
    assert tightest(program) is program
    with campaign(0.0):
        assert tightest() is None


def test_when_the_time_is_over_the_most_promising_has_been_tried_and_the_others_are_left_out() -> None:
    candidates = three()
    predicted = tuple(candidate.predicted for candidate in candidates)
    attempts = tune(task(*candidates, predicted=predicted, isolated=frozenset(), seconds=0.01))
    assert [attempt.untried for attempt in attempts] == [True, False, True]
    assert attempts[1].ok and "the 0.01 s for measuring were over" in attempts[0].detail


def test_with_time_enough_all_are_tried() -> None:
    assert all(attempt.ok for attempt in tune(task(*three(), isolated=frozenset(), seconds=6000.0)))


def slow(name: str, seconds: float = 0.05, **more: Any) -> Fake:
    """A candidate that takes so long to try."""

    def work(x: torch.Tensor, y: torch.Tensor, m: int, n: int) -> None:
        time.sleep(seconds)
        y.copy_(x * 2)

    return Fake(name, call=work, **more)


def decided(*candidates: Fake, m: int = 512) -> Any:
    store.forget()
    kernel = MultiKernel(spec(), candidates)
    kernel(*arguments(m))
    return kernel.decisions[-1]


def test_a_problem_with_little_time_uses_the_best_so_far_and_the_next_program_goes_on() -> None:
    candidates = slow("a", predicted=1.4e-5), slow("b", predicted=1e-5), slow("c", predicted=1.2e-5)
    with options.override(problem_seconds=0.01):
        decision = decided(*candidates)
    assert (decision.candidate, decision.link) == ("b", "measured")
    assert decision.provenance == "measured now, 2 of 3 left out"
    with options.override(problem_seconds=6000.0):
        again = decided(*candidates)
    assert again.link == "measured" and again.provenance == "measured now"
    assert len({m.candidate for m in store.current().measurements()}) == 3


def test_a_candidate_left_out_for_want_of_time_is_not_rejected() -> None:
    a, b = slow("a", predicted=1.4e-5), slow("b")
    kernel = MultiKernel(spec(), (a, b))
    with options.override(problem_seconds=0.01):
        kernel(*arguments(512))
    kernel(*arguments(2048))
    assert {standing.candidate for standing in kernel.decisions[1].standings if standing.seconds > 0} == {"a", "b"}


def test_a_program_whose_time_is_spent_goes_by_what_is_known_and_says_so() -> None:
    kernel = MultiKernel(spec(), (slow("a", predicted=2e-5), slow("b", predicted=1.5e-5)))
    kernel.budget = Budget(0.01, "the program")
    kernel(*arguments(512))
    kernel(*arguments(2048))
    first, second = kernel.decisions
    assert first.link == "measured" and kernel.budget.left() <= 0
    assert second.candidate == "b"
    assert second.provenance == "predicted; the time of the program for measuring (0.01 s) is spent"
    again = MultiKernel(spec(), (slow("a", predicted=1e-5), slow("b", predicted=1.5e-5)))
    again.budget = kernel.budget
    again(*arguments(512))
    assert again.decisions[0].candidate == "b", "the one that was measured"
    assert again.decisions[0].provenance.startswith("best measured so far; ")


def test_all_kernels_of_a_program_share_its_budget() -> None:
    torch._dynamo.reset()
    polytile.reset()

    def two(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.softmax(x, -1), x.t().contiguous().cumsum(-1)

    with torch.no_grad():
        polytile.compile(two, options={"program_seconds": 1e-4})(torch.randn(60, 700))
    from polytile.compiler.programs import compiled_programs

    decisions = [d for program in compiled_programs() for kernel in program.multikernels for d in kernel.decisions]
    assert len(decisions) >= 2
    assert sum(d.provenance.startswith("measured now") for d in decisions) == 1
    assert any("the time of the program for measuring" in d.provenance for d in decisions)


def test_an_interrupt_keeps_what_is_known_of_the_problem_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(x: torch.Tensor, y: torch.Tensor, n: int) -> None:
        raise KeyboardInterrupt

    def wrong(x: torch.Tensor, y: torch.Tensor, n: int) -> None:
        y.copy_(x * 3)

    candidates = Function("wrong", wrong), Function("right", double), Function("interrupted", interrupt)
    with pytest.raises(Interrupted) as stopped:
        tune(task(*candidates, isolated=frozenset()))
    known = {a.candidate.name: a.measurement and a.measurement.outcome for a in stopped.value.attempts}
    assert known == {"wrong": Outcome.WRONG}, "the right one was not timed yet"


def test_an_interrupt_during_a_race_keeps_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    from polytile.tuning import measure

    plain, bursts = measure.time_burst, [0]

    def interrupted(contender: Any, repeats: int) -> float:
        bursts[0] += repeats > 1
        if bursts[0] > 8:
            raise KeyboardInterrupt
        return plain(contender, repeats)

    monkeypatch.setattr(measure, "time_burst", interrupted)
    monkeypatch.setattr(measure, "_own_time_burst", interrupted)
    kernel = MultiKernel(spec(), (Fake("a"), Fake("b")))
    with pytest.raises(KeyboardInterrupt):
        kernel(*arguments(512))
    kept = store.current().measurements()
    assert {m.candidate for m in kept} == {"a", "b"} and all(m.samples for m in kept)
    assert counters["candidates_benchmarked"] == 2
    assert measured.tuner is not None
