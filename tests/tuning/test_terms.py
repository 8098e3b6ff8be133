"""Errors are measured against the size of the terms: sums that cancel are right however they are added up, and faults in them are
found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import polytile
from polytile import store
from polytile.problem import Outcome
from polytile.tuning import terms
from polytile.tuning.gate import Gate, Verdict

T = torch.Tensor
ROWS, LENGTH, PARTS = 6, 600, 16


def group_mean(x: T, w: T) -> T:
    """The mean of what a group norm gives: mathematically 0."""
    return functional.group_norm(x.reshape(1, ROWS, LENGTH) + 3, 2).reshape(2, -1).mean(1)


def bias_gradient(x: T, w: T) -> T:
    """What reaches a bias through a normalisation: mathematically 0."""
    y = x - x.mean(1, keepdim=True)
    return (w - w.mean(1, keepdim=True) - y * (w * y).mean(1, keepdim=True) / (y * y).mean(1, keepdim=True)).sum(1)


def one_scalar(x: T, w: T) -> T:
    return (x - x.mean()).sum().reshape(1)


def product_and_back(x: T, w: T) -> T:
    """A product of which all columns sum to 0."""
    return (x @ (w - w.mean(0, keepdim=True)).t()).sum(1)


CANCELLING = (group_mean, bias_gradient, one_scalar, product_and_back)


class Trial:
    """A function of x and w, and a gate for it."""

    def __init__(self, function: Callable[[T, T], T], **more: Any) -> None:
        torch.manual_seed(3)
        self.function = function
        self.x, self.w = torch.randn(ROWS, LENGTH), torch.randn(ROWS, LENGTH)
        out = torch.zeros(function(self.x, self.w).shape)

        def reference(x: T, w: T, y: T) -> None:
            y.copy_(function(x, w))

        self.gate = Gate((self.x, self.w, out), ("in", "in", "out"), ("x", "w", "y"), reference, LENGTH, **more)

    def check(self, x: T | None = None, off: float = 0.0, function: Callable[[T, T], T] | None = None) -> Verdict:
        """Of a candidate that is given `x` for x, computes in float32, and writes what is `off` by so much."""
        x = self.x if x is None else x
        written = (function or self.function)(x, self.w) + off
        return self.gate.check(lambda args: args[2].copy_(written))


def reordered(x: T, w: T) -> T:
    """The bias gradient with its terms added up in other parts."""
    y = x - x.mean(1, keepdim=True)
    each = w - w.mean(1, keepdim=True) - y * ((w * y).mean(1, keepdim=True) / (y * y).mean(1, keepdim=True))
    return torch.stack([part.sum(1) for part in each.chunk(PARTS, 1)]).flip(0).cumsum(0)[-1]


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("function", CANCELLING)
def test_a_sum_that_cancels_is_right_however_small_the_references_own_error_is(
    function: Callable[[T, T], T], wide: bool
) -> None:
    trial = Trial(function, wide=wide)
    assert trial.check().ok
    off, term = (2e-7, 1 / 1800) if function is group_mean else (3e-6, 1.0)
    assert trial.check(off=off).ok, "sums of 600 numbers near 1 are no closer in float32"
    assert not trial.check(off=term / 10).ok
    if function is bias_gradient:
        assert trial.check(function=reordered).ok


def a_term_dropped(x: T) -> None:
    x[2, 17] = 0


def a_term_twice(x: T) -> None:
    x[4, 100] *= 2


def a_wrong_index(x: T) -> None:
    x[1, 5] = x[1, 6]


def no_mask(x: T) -> None:
    x[:, -1] = 0.5


@pytest.mark.parametrize("fault", [a_term_dropped, a_term_twice, a_wrong_index, no_mask])
@pytest.mark.parametrize("wide", [True, False])
def test_faults_in_sums_that_cancel_are_found(fault: Callable[[T], None], wide: bool) -> None:
    """Of the terms that are added up, not of what they are computed from, which would cancel all the same."""

    def total(x: T, w: T) -> T:
        return (x * w).sum(1)

    trial = Trial(total, wide=wide)
    trial.x -= (trial.x * trial.w).sum(1, keepdim=True) / trial.w.square().sum(1, keepdim=True) * trial.w
    trial = _again(trial, wide)
    assert trial.check().ok
    damaged = trial.x.clone()
    fault(damaged)
    verdict = trial.check(damaged)
    assert not verdict.ok and "off by" in verdict.detail


def _again(trial: Trial, wide: bool) -> Trial:
    """A gate for the arguments as they are now."""
    kept = trial.x.clone()
    made = Trial(trial.function, wide=wide)
    made.x.copy_(kept)

    def reference(x: T, w: T, y: T) -> None:
        y.copy_(trial.function(x, w))

    made.gate = Gate((made.x, made.w, torch.zeros(ROWS)), ("in", "in", "out"), ("x", "w", "y"), reference, LENGTH, wide=wide)
    return made


def test_what_an_earlier_run_left_is_found_where_the_sum_is_near_0() -> None:
    trial = Trial(bias_gradient)
    assert not trial.gate.check(lambda args: args[2][1:].copy_(bias_gradient(trial.x, trial.w)[1:])).ok
    assert not trial.check(off=1e-2).ok


def test_a_mask_that_is_missing_is_found_beside_sums_that_cancel() -> None:
    """The program decides by positions, which are integers, and exact."""

    def causal(x: T, w: T) -> T:
        position = torch.arange(LENGTH, dtype=x.dtype)
        kept = torch.where(position * 2 == position + position.flip(0), 0.0, x)
        return torch.where(position + 1 < LENGTH, kept, 0.0).sum(1) - kept[:, :-1].sum(1)

    trial = Trial(causal)
    assert trial.check().ok and trial.check(off=1e-6).ok
    assert not trial.check(function=lambda x, w: causal(x, w) + x[:, -1]).ok


@pytest.mark.usefixtures("empty_cache")
def test_generated_kernels_of_sums_that_cancel_are_used() -> None:
    """Of these numbers the reference in float32 is right to the last digit by luck."""
    store.forget()
    torch.manual_seed(7)
    x = (torch.randn(7, 8, 75, 33) + 3).reshape(7, -1)
    made = polytile.compile(lambda x: (x - x.mean()).sum(), dynamic=True)
    assert float(made(x).abs()) < 1e-6 * x.numel()
    found = store.current().measurements()
    assert found and not [m.candidate for m in found if m.outcome is Outcome.WRONG]
    store.forget()


def test_views_and_writes_in_place_stay_what_they_are() -> None:
    x = torch.randn(60, 100, dtype=torch.float64)

    def through_views(x: T) -> T:
        out = torch.zeros(60, dtype=x.dtype)
        out.as_strided((60, 1), (1, 1)).copy_((x.view(-1).view(60, 100) * 2).sum(1, keepdim=True))
        out[:30].add_(out[30:])
        return out

    assert moved(through_views, x)[30:].min() > 20 and moved(through_views, x)[:30].mean() > moved(through_views, x)[30:].mean()


def moved(function: Callable[..., T], *args: T) -> T:
    """The size of the terms of a function of float64."""
    (size,) = terms.sizes_of_terms(lambda: [function(*(arg.clone() for arg in args))], 1e-9) or ()
    return size


def test_the_size_of_terms_is_the_root_of_the_sum_of_their_squares() -> None:
    x = torch.randn(40, 10_000, dtype=torch.float64)
    size = moved(lambda x: (x - x.mean(1, keepdim=True)).sum(1), x)
    assert 100 < size.min() and size.max() < 1000
    a, b = x[:, :500], x[:20, 500:1000]
    assert 0.5 < moved(lambda a, b: a @ b.t(), a, b).mean() / (2 * 2 * 500) ** 0.5 < 2


def test_decisions_roundings_and_integers_stay_as_they_are() -> None:
    x = torch.randn(1000, dtype=torch.float64) * 10
    near = x.round() + 0.5
    assert not moved(lambda x: (x * 1.0).floor(), near).any()
    assert not moved(lambda x: ((x * 3.0) > 1.5).double(), x).any()
    assert not moved(lambda x: x.round().sum(), x).any()
    assert moved(lambda x: (x * 1.0).bfloat16().double(), x).max() < 100, "a rounding is no jump"
    assert torch.isfinite(moved(lambda x: torch.where(x * 1.0 >= x, x, -1e30), x)).all()


def test_inner_modes_and_the_programs_own_do_not_see_it() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Counting.seen += 1
            return func(*args, **(kwargs or {}))

    x = torch.randn(100, dtype=torch.float64)
    with Counting(), torch._C._DisableTorchDispatch():
        assert moved(lambda x: x.sum(), x) > 1
    assert not Counting.seen


@pytest.mark.gpu
def test_on_a_gpu_sums_that_cancel_are_right_and_faults_are_found() -> None:
    torch.manual_seed(3)
    x, w = torch.randn(2, ROWS, LENGTH, device="cuda")
    gate = Gate(
        (x, w, torch.zeros(ROWS, device="cuda")), ("in", "in", "out"), ("x", "w", "y"),
        lambda x, w, y: y.copy_(bias_gradient(x, w)), LENGTH,
    )  # fmt: skip
    assert gate.check(lambda args: args[2].copy_(bias_gradient(x, w) + 3e-6)).ok
    assert not gate.check(lambda args: args[2].copy_(bias_gradient(x, w) + 1e-2)).ok
