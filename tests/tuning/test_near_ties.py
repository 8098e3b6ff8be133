"""Decisions that rounding may take either way: right kernels pass, planted faults do not, wherever they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from polytile.candidates import products as templates
from polytile.ir.leaning import Leaning, leaning
from polytile.tuning.gate import Gate, Verdict
from polytile.tuning.near_ties import ErrorCount
from tests.codegen.test_triton_gemm_prologue import lowered
from tests.codegen.test_triton_gemm_rows import flat

T = torch.Tensor
M, N, K = 300, 290, 64


def positive(x: T, y: T) -> T:
    return y > 0


def whole(x: T, y: T) -> T:
    return y.floor().to(torch.int32)


def shifted(x: T, y: T) -> T:
    """As quantised numbers are: the conversion is of whole numbers, and decides nothing."""
    return (y.floor() + 1.0).to(torch.int8)


def gradient(x: T, y: T) -> T:
    """Of a rectifier: a float that jumps."""
    return torch.where(torch.relu(y) > 0, x[:, :1] + 1, 0.0)


def near(x: T, y: T) -> T:
    return (x[:, :1] > 0) & (y.abs() < 3.0)


FUNCTIONS = (positive, whole, shifted, gradient, near)
Change = Callable[[T, T], None]


class Trial:
    """A function of x and x @ w whose products often are as good as zero, and a gate for it. Candidates add up in float32, from
    the other end."""

    def __init__(self, function: Callable[[T, T], T], dtype: torch.dtype = torch.float32) -> None:
        torch.manual_seed(1)
        x, w = torch.randn(M, K), torch.randn(K, N)
        x[1::3, K // 2 :], w[K // 2 :] = -x[1::3, : K // 2], w[: K // 2] * (1 + 1e-7 * torch.randn(K // 2, N))
        x, w = x.to(dtype), w.to(dtype)
        program, template = lowered(lambda x, w: function(x, x @ w), (x, w))
        kernel, args, _ = flat(program, template, (x, w))
        roles, names = [t.role for t in kernel.tensors], [t.name for t in kernel.tensors]
        self.gate = Gate(args, roles, names, templates.reference(kernel), K)
        self.product = sum(torch.outer(x[:, k].float(), w[k].float()) for k in reversed(range(K))).to(dtype)
        self.exact = x.double() @ w.double()
        self.right, self.out = function(x, self.product), roles.index("out")

    def check(self, change: Change = lambda right, product: None) -> Verdict:
        """Of a candidate that writes what is right after `change`, which is also given the product in float64."""
        written = self.right.clone()
        change(written, self.exact)

        def run(args: tuple[Any, ...]) -> None:
            args[self.out].copy_(written)

        return self.gate.check(run)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_right_kernels_pass_that_decide_otherwise_where_rounding_decides(
    function: Callable[[T, T], T], dtype: torch.dtype
) -> None:
    assert Trial(function, dtype).check().ok


def flipped(right: T, where: T) -> None:
    right[where] = ~right[where] if right.dtype == torch.bool else right[where] + 1


def one_firm(right: T, product: T) -> None:
    firm = (product - 0.5).abs().flatten().argmin()
    flipped(right.view(-1), firm)


def a_block(right: T, product: T) -> None:
    right[-16:, -32:] = right[:16, :32].clone()


def last_column(right: T, product: T) -> None:
    right[:, -1] = right[:, 0]


def unwritten(right: T, product: T) -> None:
    right.view(torch.uint8)[0, :4] = 0xFF if right.dtype.is_floating_point else 0xA5


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("change", [one_firm, a_block, last_column, unwritten])
def test_planted_faults_do_not_pass(function: Callable[[T, T], T], change: Change) -> None:
    assert not Trial(function).check(change).ok


def test_a_kernel_that_decides_at_random_where_rounding_may_does_not_pass() -> None:
    def random(right: T, product: T) -> None:
        tiny = product.abs() < 1e-6
        assert tiny.sum() > 1000
        flipped(right, tiny & (torch.rand(M, N) < 0.6))

    assert not Trial(positive).check(random).ok


def test_comparisons_of_inputs_are_exact() -> None:
    """Nothing was computed, so rounding decides nothing, however near the values are."""
    trial = Trial(lambda x, y: (x[:, :1] > 0) | (y > 1e9))
    assert trial.check().ok
    row = int(trial.gate._args[0][:, 0].abs().argmin())
    assert not trial.check(lambda right, product: flipped(right, torch.arange(M) == row)).ok


def test_a_leaning_decision_sees_other_values_and_results_do_not() -> None:
    def above(x: T, w: T) -> T:
        y = x @ w
        return torch.where(y > 1.0, y, 0.0)

    ones = torch.ones(2, 2), torch.full((2, 3), 0.5)
    program, template = lowered(above, ones)
    kernel, args, (result,) = flat(program, template, ones)
    for side, value in ((1, 1.0), (-1, 0.0)):
        with leaning(Leaning(side, 1e-3)):
            templates.reference(kernel)(*args)
        assert result.eq(value).all()


def test_few_differing_elements_need_no_share() -> None:
    assert ErrorCount(0, 4, 4).right and ErrorCount(0, 50, 100).right and ErrorCount().right
    assert not ErrorCount(0, 51, 100).right and not ErrorCount(1, 1, 100).right
