"""Trying a problem's candidates: each is made, checked, timed, and what became of it is a Measurement."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import Entry, PythonEntry
from polytile.errors import CompileFailed, CompilerMissing, ResourcesExceeded
from polytile.problem import Config, Outcome, Problem
from polytile.tuning.environment import environment
from polytile.tuning.limits import Limits
from polytile.tuning.tune import Task, tune

FEW = Limits(rounds=3, seconds=0.001)


@dataclass
class Fake(Candidate):
    name: str
    call: Callable[..., None]
    failure: Exception | None = None
    origin: str = "cpp"
    config: Config = field(default_factory=Config)
    source_hash: str = "h"
    compile_seconds: float = 0.25
    prepared: int = 0

    def cost(self, sizes: Mapping[str, int]) -> float:
        return 1e-5

    def prepare(self) -> None:
        self.prepared += 1

    def entry(self) -> Entry:
        if self.failure is not None:
            raise self.failure
        return PythonEntry(self.call)


def double(x: torch.Tensor, y: torch.Tensor, n: int) -> None:
    y.copy_(x * 2)


def task(*candidates: Fake, **more: Any) -> Task:
    x, y = torch.randn(100), torch.full((100,), 5.0)
    problem = Problem("loop", "k", (("n", 100),), ("float32",))
    return dataclasses.replace(
        Task(problem, candidates, (x, y, 100), ("x", "y"), ("in", "out"), double, limits=FEW), **more
    )


def test_each_candidate_becomes_a_measurement(empty_cache: object) -> None:
    def raises(*_: Any) -> None:
        raise RuntimeError("no kernel for such strides")

    asked = task(
        right_one := Fake("right", double),
        Fake("wrong", lambda x, y, n: y.copy_(x * 3)),
        Fake("does not compile", double, CompileFailed("error: expected ';'")),
        Fake("spills", double, ResourcesExceeded("its threads spill 120 bytes each")),
        Fake("raises", raises),
        Fake("no compiler", double, CompilerMissing("no g++")),
    )
    attempts = tune(asked)
    outcomes = [attempt.measurement and attempt.measurement.outcome for attempt in attempts]
    assert outcomes == [Outcome.OK, Outcome.WRONG, Outcome.COMPILE_ERROR, Outcome.RESOURCES, Outcome.RAISED, None]
    right = attempts[0].measurement
    assert right is not None and right.samples and right.max_error == 0.0 and right.compile_seconds == 0.25
    assert right.environment == environment()
    assert "'y' is off by" in attempts[1].detail
    assert "such strides" in attempts[4].detail
    assert right_one.prepared == 1
    assert bool((asked.args[1] == 5.0).all())


def test_candidates_that_change_what_they_read_are_timed_on_the_same_values() -> None:
    seen = []

    def accumulate(x: torch.Tensor, y: torch.Tensor, n: int) -> None:
        seen.append(float(y[0]))
        y.add_(x)

    asked = task(Fake("a", accumulate), Fake("b", accumulate), roles=("in", "inout"), reference=accumulate)
    tune(asked)
    limit = 5.0 + 2000 * float(asked.args[0][0])
    assert 5.0 in seen and all(abs(value) <= abs(limit) + 10 for value in seen)
    assert bool((asked.args[1] == 5.0).all())


def test_dispatch_modes_see_nothing_of_it() -> None:
    """AOTAutograd has one around the first call of a program: operators of a library's candidate would be timed with it."""
    seen = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    asked = task(Fake("a", double), Fake("b", double))
    with Watching():
        attempts = tune(asked)
        assert not seen and all(attempt.ok for attempt in attempts)
        torch.ones(1)
    assert len(seen) == 1


def test_the_random_state_is_as_before() -> None:
    def noisy(x: torch.Tensor, y: torch.Tensor, n: int) -> None:
        y.copy_(x + torch.rand(100, dtype=torch.float32))

    torch.manual_seed(7)
    expected = torch.rand(3)
    asked = task(Fake("a", noisy), Fake("b", noisy), reference=noisy)
    torch.manual_seed(7)
    attempts = tune(asked)
    assert torch.equal(torch.rand(3), expected)
    assert all(attempt.ok for attempt in attempts)


def test_an_index_error_is_the_callers_unless_the_reference_disagrees() -> None:
    def out_of_range(*_: Any) -> None:
        raise IndexError("check 1 failed")

    with pytest.raises(IndexError):
        tune(task(Fake("a", out_of_range), reference=None))
    (attempt,) = tune(task(Fake("a", out_of_range)))
    assert attempt.measurement is not None and attempt.measurement.outcome is Outcome.RAISED


def test_without_the_accuracy_check_a_wrong_candidate_is_timed() -> None:
    (attempt,) = tune(task(Fake("wrong", lambda x, y, n: y.zero_()), check_accuracy=False))
    assert attempt.ok


def test_an_interrupt_leaves_the_callers_tensors_and_random_state_alone() -> None:
    def interrupted(x: torch.Tensor, y: torch.Tensor, n: int) -> None:
        y.fill_(float(torch.rand(())))
        raise KeyboardInterrupt

    asked = task(Fake("a", interrupted))
    state = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        tune(asked)
    assert torch.equal(torch.get_rng_state(), state)
    assert bool((asked.args[1] == 5.0).all())


def test_tensors_that_require_grad_are_tuned_on() -> None:
    x = torch.randn(100, requires_grad=True)
    asked = task(Fake("a", double))
    (attempt,) = tune(dataclasses.replace(asked, args=(x, *asked.args[1:])))
    assert attempt.ok


def test_the_environment_names_torch_and_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    facts = dict(environment())
    assert facts["torch"] == torch.__version__ and "compiler" in facts
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")
    assert environment() != tuple(facts.items())
