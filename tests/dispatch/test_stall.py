"""With the option stall="never" a call waits neither for compilers nor, for longer than a slice, for measuring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from polytile.dispatch import MultiKernel
from polytile.tuning import budget, tune
from tests.dispatch.helpers import Fake, arguments, double, new_process, spec

RUN_SECONDS = 2 * budget.SLICE_SECONDS
"""What a run of a candidate takes on the clock of these tests: longer than a slice."""


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which passes when candidates run and when a test says so."""
    time = [0.0]
    monkeypatch.setattr(budget, "pace", budget.Pace())
    for module in (budget, tune):
        monkeypatch.setattr(module, "clock", lambda: time[0])
    return time


def three(now: list[float], **options: Any) -> MultiKernel:
    """Whose prediction has the fastest last."""

    def slow(x: torch.Tensor, y: torch.Tensor, m: int, n: int) -> None:
        now[0] += RUN_SECONDS
        double(x, y, m, n)

    speeds = {"first": 3e-5, "second": 2e-5, "third": 1e-5}
    made = [Fake(name, speed, 1e-4 * (1 + 0.1 * k), call=slow) for k, (name, speed) in enumerate(speeds.items())]
    return MultiKernel(spec(), made, {"stall": "never", "isolation": "never", **options})


def call(kernel: MultiKernel, rows: int = 32) -> None:
    x, y, m, n = arguments(rows)
    kernel(x, y, m, n)
    assert torch.equal(y, 2 * x)


def test_a_regimes_first_call_is_served_and_later_calls_measure_a_slice_each(
    now: list[float], fake_clock: list[str]
) -> None:
    kernel = three(now)
    call(kernel)
    assert not fake_clock and not kernel.decisions, "the best predicted has served"
    seen = []
    for _ in range(200):
        before = len(set(fake_clock))
        call(kernel)
        assert len(set(fake_clock)) <= before + 1, "a call measures one candidate, where that takes a slice"
        seen.append((kernel.decisions[0].candidate, kernel.decisions[0].postponed))
    assert list(dict.fromkeys(seen)) == [("first", True), ("second", True), ("third", False)]
    assert list(dict.fromkeys(fake_clock)) == ["first", "second", "third"]


def test_measuring_rests_for_all_kernels_after_a_slice(now: list[float], fake_clock: list[str]) -> None:
    kernel, other = three(now), MultiKernel(spec(), [Fake("a"), Fake("b")], {"stall": "never", "isolation": "never"})
    for _ in range(2):
        call(kernel)
    assert set(fake_clock) == {"first"}
    spent = now[0]
    for _ in range(5):
        call(other)
    assert set(fake_clock) == {"first"} and not other.decisions
    now[0] += budget.REST * spent
    call(other)
    assert other.decisions[0].link == "measured" and not other.decisions[0].postponed


def test_what_is_known_is_decided_by_the_first_call(now: list[float], fake_clock: list[str]) -> None:
    call(three(now, stall="wait"))
    new_process()
    fake_clock.clear()
    kernel = three(now)
    call(kernel)
    assert (kernel.decisions[0].candidate, kernel.decisions[0].link) == ("third", "exact") and not fake_clock


def test_where_nothing_is_measured_the_first_call_decides_and_only_its_choice_is_compiled(now: list[float]) -> None:
    kernel = three(now, tune="off")
    call(kernel)
    assert (kernel.decisions[0].candidate, kernel.decisions[0].link) == ("first", "prior")
    kernel.prepare((600, 64))
    assert [fake.prepared > 0 for fake in kernel.candidates] == [True, False, False]  # type: ignore[attr-defined]


@dataclass
class Compiling(Fake):
    """A candidate that is there once it `is_made`."""

    is_made: bool = False

    def ready(self) -> bool:
        return self.is_made


def test_what_is_at_hand_serves_until_candidates_are_compiled(now: list[float], fake_clock: list[str]) -> None:
    fast, library = Compiling("fast", 1e-5, 1e-5), Fake("library", 2e-5, 2e-5, origin="library")
    kernel = MultiKernel(spec(), [fast, library], {"stall": "never", "isolation": "never"})
    for _ in range(3):
        call(kernel)
    assert library.calls and not fast.calls and not kernel.decisions and not fast.entries
    fast.is_made = True
    call(kernel)
    assert kernel.decisions[0].candidate == "fast" and fast.calls


def test_hinted_sizes_are_decided_at_once(now: list[float]) -> None:
    kernel = three(now)
    (decision,) = kernel.warm([{"M": 32, "N": 64}])
    assert (decision.candidate, decision.postponed) == ("third", False)
