"""What is decided while other programs have the cores is provisional, and is decided again when that pays."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from polytile.counters import counters
from polytile.dispatch import refining
from polytile.dispatch.multikernel import MultiKernel
from polytile.store.records import Summary
from polytile.tuning import racing
from polytile.tuning.decide import MOST_TIMES, Score, combine
from tests.dispatch.helpers import SPEC, Fake, arguments, new_process
from tests.dispatch.test_refining import ENOUGH, SECONDS
from tests.tuning.test_decide import summary


class Machine:
    """On which "parallel" is the faster one, unless another program has a core."""

    busy = True

    def parallel(self, sizes: object) -> float:
        return 8 * SECONDS if self.busy else SECONDS

    def candidates(self) -> list[Fake]:
        return [Fake("alone", 1.7 * SECONDS, SECONDS), Fake("parallel", self.parallel, SECONDS)]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, fake_clock: list[str]) -> Machine:
    made = Machine()
    monkeypatch.setattr(racing._Race, "disturbed", lambda race: 0.6 if made.busy else 0.0)
    monkeypatch.setattr(racing, "pause", lambda seconds: None)
    monkeypatch.setattr(refining, "clock", itertools.count(step=10**6).__next__)
    return made


def call(kernel: MultiKernel, times: int = 1, rows: int = 96) -> str:
    args = arguments(rows)
    for _ in range(times):
        kernel(*args)
    decision = kernel.decision_at(*args)
    assert decision is not None and torch.equal(args[1], 2 * args[0])
    return decision.candidate


def test_a_decision_of_a_busy_moment_is_made_again_when_it_is_quiet(machine: Machine) -> None:
    kernel = MultiKernel(SPEC, machine.candidates())
    assert call(kernel) == "alone" and kernel.decisions[0].provisional
    assert "to be measured again" in str(kernel.decisions[0])
    machine.busy = False
    assert call(kernel, ENOUGH - 1) == "alone" and counters["sizes_refined"] == 0
    assert call(kernel, 2) == "parallel" and counters["sizes_refined"] == 1
    (decision,) = kernel.decisions
    assert not decision.provisional and not decision.part_of, "the regime's own"
    assert call(kernel, rows=112) == "parallel" and counters["candidates_benchmarked"] == 4


def test_a_later_process_makes_it_again_too(machine: Machine) -> None:
    assert call(MultiKernel(SPEC, machine.candidates())) == "alone"
    new_process()
    machine.busy = False
    kernel = MultiKernel(SPEC, machine.candidates())
    assert call(kernel) == "alone" and kernel.decisions[0].provisional and kernel.decisions[0].from_store
    assert counters["candidates_benchmarked"] == 2, "nothing is measured at once"
    assert call(kernel, ENOUGH + 1) == "parallel"
    new_process()
    third = MultiKernel(SPEC, machine.candidates())
    assert call(third) == "parallel" and not third.decisions[0].provisional
    assert call(third, ENOUGH + 1) == "parallel" and counters["candidates_benchmarked"] == 4


def test_where_it_is_always_busy_there_is_an_end_of_measuring(machine: Machine) -> None:
    kernel = MultiKernel(SPEC, machine.candidates())
    assert call(kernel, 10 * ENOUGH) == "alone" and not kernel.decisions[0].provisional
    assert counters["candidates_benchmarked"] == 2 * MOST_TIMES
    new_process()
    assert call(MultiKernel(SPEC, machine.candidates()), 10 * ENOUGH) == "alone"
    assert counters["candidates_benchmarked"] == 2 * MOST_TIMES


def test_readings_under_load_count_only_where_there_are_no_others() -> None:
    def read(seconds: float, disturbed: float) -> Summary:
        return dataclasses.replace(summary("a", seconds), state=f'[["disturbed",{disturbed}]]')

    (score,) = combine([read(1.0, 0.6), read(3.0, 0.6)]).values()
    assert score == Score(1.0, 0.01, times=2, disturbed=0.6) and score.provisional
    (score,) = combine([read(1.0, 0.6), read(3.0, 0.02)]).values()
    assert score.seconds == 3.0 and not score.provisional
