"""Of problems that are too large for a reference of all results some are compared: kernels that are wrong there are found out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import polytile
from polytile.compiler.programs import compiled_programs
from polytile.ir import evaluate
from polytile.problem import Outcome
from polytile.tuning import budget, headroom, tune
from polytile.tuning.sample import Sample
from polytile.tuning.tune import WIDE_LIMIT_SECONDS
from tests.tuning import planted
from tests.tuning.planted import Function

LONG = 2 * WIDE_LIMIT_SECONDS


def ends(args: Sequence[Any], precision: torch.dtype | None) -> list[Sample]:
    """The first and the last ten numbers of `planted.double`."""
    x, _, n = args
    wide = x if precision is None else x.to(precision)
    return [Sample(1, (1,), at, 2 * wide[at : at + 10]) for at in (0, n - 10)]


def spoilt(at: int) -> Callable[..., None]:
    def kernel(x: Tensor, y: Tensor, n: int) -> None:
        y.copy_(x * 2)
        y[at] += 1

    return kernel


def partly(x: Tensor, y: Tensor, n: int) -> None:
    y[:10], y[-10:] = 2 * x[:10], 2 * x[-10:]


@pytest.mark.parametrize(
    ("kernel", "detail"),
    [(spoilt(3), "is off by"), (spoilt(-1), "is off by"), (partly, "left elements")],
    ids=["beginning", "end", "unwritten"],
)
def test_a_long_kernel_that_is_wrong_is_found_out(kernel: Callable[..., None], detail: str) -> None:
    asked = planted.task(Function("right", planted.double), Function("wrong", kernel), sampler=ends)
    y = asked.args[1]
    where = []
    asked.candidates[0].call = lambda *args: (where.append(args[1].data_ptr()), planted.double(*args))
    right, wrong = tune.tune(dataclasses.replace(asked, predicted=(LONG, LONG), isolated=frozenset()))
    assert set(where) == {y.data_ptr()}, "an output that nobody reads is written where the call wants it"
    assert right.ok and wrong.measurement is not None and wrong.measurement.outcome is Outcome.WRONG
    assert detail in wrong.detail


def test_without_any_room_a_large_problem_is_measured_on_the_callers_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(headroom.HEADROOM, "cpu", lambda device: 0)
    predicted = 2 * headroom.HOST_SECONDS / headroom.HOST_SLOWER
    asked = planted.task(Function("right", planted.double), Function("wrong", spoilt(-1)), sampler=ends)
    x = asked.args[0]
    before = x.clone()
    right, wrong = tune.tune(dataclasses.replace(asked, predicted=(predicted, predicted), isolated=frozenset()))
    assert right.ok and right.measurement is not None and right.measurement.samples and not wrong.ok
    assert torch.equal(x, before)


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "transposed": lambda x: x.transpose(1, 2) + 1,
    "sums of columns": lambda x: x.sum(1),
    "several results": lambda x: (torch.softmax(x, -1), x.amax(1), x.mean()),
    "parts": lambda x: torch.cat([x, x * 2], 1).cumsum(1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_pieces_of_a_loop_are_what_all_of_it_stores_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "SAMPLED_POINTS", 60)
    seen = []
    plain = evaluate.pieces_of

    def noting(*args: Any) -> Any:
        seen.append(plain(*args))
        return seen[-1]

    monkeypatch.setattr(evaluate, "pieces_of", noting)
    monkeypatch.setattr(tune, "WIDE_LIMIT_SECONDS", -1.0)
    call = torch.compile(FUNCTIONS[name], backend="polytile", dynamic=True, options={"persist": False, "tune": "all"})
    x = torch.randn(5, 12, 7)
    torch.testing.assert_close(call(x), FUNCTIONS[name](x))
    assert any(seen), "samples were drawn"
    rejected = [kernel.faulty for program in compiled_programs() for kernel in program.multikernels if kernel.faulty]
    assert not rejected


def test_a_call_that_waits_tries_no_more_than_a_share_of_its_own_time_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(tune, "clock", lambda: now[0])

    def of(seconds: float) -> Callable[..., None]:
        def kernel(x: Tensor, y: Tensor, n: int) -> None:
            now[0] += seconds
            y.copy_(x * 2)

        return kernel

    def tried(first: float, patient: bool = False) -> list[bool]:
        functions = [Function(f"k{k}", of(first)) for k in range(8)]
        asked = planted.task(*functions, patient=patient)
        predicted = tuple(1e-5 * (k + 1) for k in range(8))
        return [not a.untried for a in tune.tune(dataclasses.replace(asked, predicted=predicted, isolated=frozenset()))]

    assert tried(budget.LEAST_SECONDS / 100) == [True] * 8
    long = tried(10 * budget.LEAST_SECONDS)
    assert 1 <= sum(long) <= budget.OWN_TIMES + 1 and long == sorted(long, reverse=True), "the best predicted come first"
    assert all(tried(10 * budget.LEAST_SECONDS, patient=True)), "where nobody waits all are"
    polytile.reset()


def test_no_call_of_uninitialised_memory_stands_beside_a_loop_that_fills_it() -> None:
    """As a mixture of experts brings its rows into their order again."""

    def reordered(x: Tensor, order: Tensor) -> Tensor:
        out = torch.empty_like(x)
        out[order] = x * 2
        return out

    call = torch.compile(reordered, backend="polytile", dynamic=True, options={"persist": False, "tune": "all"})
    x, order = torch.randn(64, 128), torch.randperm(64)
    torch.testing.assert_close(call(x, order), reordered(x, order))
    assert not [kernel.faulty for program in compiled_programs() for kernel in program.multikernels if kernel.faulty]
