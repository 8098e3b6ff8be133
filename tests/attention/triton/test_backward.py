"""Generated kernels for the derivative of attention against autograd in float64."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from polytile.attention.problem import AttentionProblem, Bias, Causal
from tests.attention.triton.interpreted import attended, config, run, tensors

F32, BF16 = torch.float32, torch.bfloat16
HOW = config("backward")
SIZE = {"B": 1, "Hq": 4, "Hkv": 2, "Mq": 21, "Mkv": 37, "D": 24, "Dv": 16}


def check(problem: AttentionProblem, size: Mapping[str, int], wide: bool = False) -> dict[str, torch.Tensor]:
    made = tensors(problem, size)
    run(problem, HOW, made, size, wide)
    leaves = [made[name].double().requires_grad_() for name in "qkv"]
    out, _ = attended(problem, *leaves, made.get("bias"), size, made.get("random"))
    tolerance = {F32: 2e-5, BF16: 3e-2}[problem.dtype]
    for name, right in zip(("dq", "dk", "dv"), torch.autograd.grad(out, leaves, made["grad"].double()), strict=True):
        torch.testing.assert_close(made[name].double(), right.nan_to_num(0.0), atol=tolerance, rtol=tolerance)
    return made


@pytest.mark.parametrize("causal", Causal)
def test_causal_masks_at_both_corners(causal: Causal) -> None:
    problem = AttentionProblem(F32, 0.3, causal, backward=True)
    check(problem, SIZE)
    check(problem, SIZE | {"Mq": 37, "Mkv": 21})


@pytest.mark.parametrize("bias", [Bias(F32, "hmn"), Bias(torch.bool, "bn")], ids=str)
def test_biases_are_added_or_hide_keys(bias: Bias) -> None:
    check(AttentionProblem(F32, 0.3, Causal.TOP_LEFT, bias, backward=True), SIZE)


@pytest.mark.parametrize("bias", [Bias(F32, "hmn"), Bias(F32, "bn")], ids=str)
def test_a_bias_has_a_gradient_for_each_row_and_key(bias: Bias) -> None:
    problem = AttentionProblem(F32, 0.3, bias=bias, backward=True, changes=True)
    made = check(problem, SIZE)
    given = made["bias"].expand(1, 4, 21, 37).double().requires_grad_()
    out, _ = attended(problem, *[made[name].double() for name in "qkv"], given, SIZE)
    (right,) = torch.autograd.grad(out, given, made["grad"].double())
    torch.testing.assert_close(made["dscores"].double(), right, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("rows", [40, 9])
def test_windows_that_end_before_the_first_row_or_key(rows: int) -> None:
    check(AttentionProblem(F32, 0.3, window=(5, 0), backward=True), SIZE | {"Mq": rows, "Mkv": 49 - rows})
@pytest.mark.parametrize("causal", Causal)
def test_the_gradient_of_scores_is_kept_if_a_bias_wants_it(causal: Causal) -> None:
    problem = AttentionProblem(F32, 0.3, causal, Bias(F32, "bhmn"), backward=True, changes=True)
    made = check(problem, SIZE)
    bias = made["bias"].double().requires_grad_()
    q, k, v = (made[name].double() for name in "qkv")
    (right,) = torch.autograd.grad(attended(problem, q, k, v, bias, SIZE)[0], bias, made["grad"].double())
    torch.testing.assert_close(made["dscores"].double(), right.nan_to_num(0.0), atol=2e-5, rtol=2e-5)


def test_half_types_and_wide_positions() -> None:
    check(AttentionProblem(BF16, None, Causal.BOTTOM_RIGHT, backward=True), SIZE)
    check(AttentionProblem(F32, None, backward=True), SIZE | {"Mq": 3, "Hkv": 4, "D": 16}, wide=True)


@pytest.mark.parametrize("size", [{"Mq": 0}, {"Mkv": 0}, {"Mq": 1, "Mkv": 1}, {"D": 1, "Dv": 1}], ids=str)
def test_edges(size: Mapping[str, int]) -> None:
    check(AttentionProblem(F32, 0.3, Causal.TOP_LEFT, backward=True), SIZE | size)


def test_rows_that_see_no_key_have_no_gradient() -> None:
    problem = AttentionProblem(F32, 0.3, Causal.BOTTOM_RIGHT, backward=True)
    made = check(problem, SIZE | {"Mq": 40, "Mkv": 9})
    assert not made["dq"][:, :, :31].any()
    for saved in (float("inf"), -float("inf")):  # as the library's kernels and as generated ones leave it
        again = {name: tensor.clone() for name, tensor in made.items()}
        again["saved"][:, :, :31] = saved
        run(problem, HOW, again, SIZE | {"Mq": 40, "Mkv": 9})
        assert all(torch.equal(made[name], again[name]) for name in ("dq", "dk", "dv"))
