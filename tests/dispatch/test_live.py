"""Candidates that are tried on a program's own calls."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from polytile import store
from polytile.dispatch import live
from polytile.dispatch.multikernel import MultiKernel
from polytile.runtime import background, openmp
from polytile.store.records import LIVE
from tests.dispatch.helpers import Fake, arguments, double
from tests.dispatch.test_stall import PATIENCE, call, never, threads_that_ran


@pytest.fixture(autouse=True)
def calls_go_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For the background it is as if some program always ran."""
    monkeypatch.setattr(background.background, "last_call", math.inf)
    yield
    background.drop()
    assert background.wait(PATIENCE)


def lasting(seconds: float) -> Any:
    def run(x: torch.Tensor, y: torch.Tensor, m: int, n: int) -> None:
        time.sleep(seconds)
        double(x, y, m, n)

    return run


def called_until_measured(kernel: MultiKernel, calls: int = 5000) -> None:
    for _ in range(calls):
        call(kernel)
        if kernel.learning and not kernel.learning.trials and any(d.link == "measured" for d in kernel.decisions):
            return
        time.sleep(1e-4)
    raise AssertionError("no trial was settled")


def test_what_is_faster_in_the_programs_own_calls_takes_over() -> None:
    slow, fast = Fake("slow", predicted=1e-5, call=lasting(2e-3)), Fake("fast", predicted=1.1e-5)
    kernel = never(slow, fast, explore=1.0)
    called_until_measured(kernel)
    (decision,) = kernel.decisions
    assert decision.candidate == "fast" and "own calls" in decision.provenance
    rows = store.current().measurements()
    assert {row.candidate for row in rows if dict(row.state).get(LIVE)} == {"slow", "fast"}


def test_on_a_cpu_calls_try_candidates_as_long_as_the_threads_of_their_loops_are_there(
    monkeypatch: pytest.MonkeyPatch, fake_clock: list[str]
) -> None:
    """Though no call comes: beside those threads, loops of several threads start slowly."""
    monkeypatch.setattr(background.background, "last_call", 0.0)
    monkeypatch.setattr(openmp, "is_crowded", lambda threads: True)
    slow, fast = Fake("slow", predicted=1e-5, call=lasting(2e-3)), Fake("fast", predicted=1.1e-5)
    kernel = never(slow, fast, explore=1.0)
    called_until_measured(kernel)
    assert kernel.decisions[0].candidate == "fast" and not fake_clock


def test_a_trial_that_calls_bring_on_no_more_is_no_reason_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes may come once and never again. Races of whole calls do not wait for them (compiler/races.py)."""
    slow, fast = Fake("slow", predicted=1e-5, call=lasting(2e-3)), Fake("fast", predicted=1.1e-5)
    kernel = never(slow, fast, explore=1.0)
    call(kernel)
    assert kernel.learning
    end = time.monotonic() + PATIENCE
    while not kernel.learning.trials and time.monotonic() < end:  # who waits for the background has candidates measured at once
        time.sleep(1e-3)
    (trial,) = kernel.learning.trials.values()
    assert trial.is_under_way
    monkeypatch.setattr(live, "IDLE_SECONDS", 0.0)
    assert not trial.is_under_way


def test_a_candidate_that_fails_in_a_call_is_given_up_and_the_call_goes_on() -> None:
    def only_behind(x: torch.Tensor, y: torch.Tensor, m: int, n: int) -> None:
        if threading.current_thread() is threading.main_thread():
            raise RuntimeError("not here")
        double(x, y, m, n)

    steady, broken = Fake("steady", predicted=1e-5), Fake("broken", predicted=1.1e-5, call=only_behind)
    kernel = never(steady, broken, explore=1.0)
    called_until_measured(kernel)
    assert kernel.decisions[0].candidate == "steady" and all(decision.candidate != "broken" for decision in kernel.decisions)
    tried = len(broken.calls)
    for _ in range(100):
        call(kernel)
    assert len(broken.calls) == tried


def test_where_nothing_is_at_hand_a_call_compiles_the_best_predicted_and_measures_nothing(fake_clock: list[str]) -> None:
    class Unmade(Fake):
        def ready(self) -> bool:
            return self.entries > 0

    first, second = Unmade("first", 3e-5, 1e-5), Unmade("second", 1e-5, 1.1e-5)
    threads = threads_that_ran(second)
    kernel = never(first, second, explore=0.0)
    call(kernel)
    assert first.calls and threading.current_thread().name not in threads
    assert background.wait(PATIENCE)
    assert set(fake_clock) == {"first", "second"} and kernel.decisions[0].candidate == "second"
    x, y, m, n = arguments(32)
    kernel(x, y, m, n)
    assert torch.equal(y, 2 * x)
