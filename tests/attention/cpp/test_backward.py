"""Generated C++ kernels for the derivative of attention against the definition in float64, which autograd agrees with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from polytile.attention.arguments import Operands, make_args, operands, reference
from polytile.attention.problem import AttentionProblem, Bias, Causal
from polytile.runtime.launcher import time_burst
from tests.attention.cpp.test_forward import BF16, EDGES, F16, F32, SIZE, kernel, misaligned
from tests.attention.layouts import SETTINGS, arguments
from tests.attention.scored import SLOPES_OF, VALUES, scored

INF, NAN = float("inf"), float("nan")
TOLERANCE = {F32: 3e-5, F16: 4e-3, BF16: 3e-2}


def results(problem: AttentionProblem, given: list[Any], threads: int, **more: int) -> Operands:
    """The kernel's gradients, written over NaN."""
    mine = misaligned([a.clone() if isinstance(a, torch.Tensor) else a for a in given])
    for tensor, place in zip(problem.tensors, mine, strict=False):
        if tensor.role == "out":
            place.fill_(NAN)
    time_burst(kernel(problem, "backward", threads, **more).entry(), mine, 1)
    return operands(problem, mine)


def check(problem: AttentionProblem, size: Mapping[str, int], args: list[Any] | None = None, **more: int) -> Operands:
    """Compares the gradients with the definition's, and those of one thread with those of two, bit by bit."""
    given = misaligned(make_args(problem, {**SIZE, **size}) if args is None else args)
    wide = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in given]
    reference(problem)(*wide)
    one, two = (results(problem, given, threads, **more) for threads in (1, 2))
    tolerance = TOLERANCE[problem.dtype]
    for got, again, right in zip(one.gradients, two.gradients, operands(problem, wide).gradients, strict=True):
        torch.testing.assert_close(got.double(), right, rtol=tolerance, atol=tolerance)
        assert torch.equal(got, again)
    return one


@pytest.mark.parametrize("causal", Causal)
def test_sizes_and_strides_at_the_edge(causal: Causal) -> None:
    for size in EDGES:
        check(AttentionProblem(F32, None, causal, lse=causal is Causal.NO, backward=True), size)


def test_rows_that_no_cache_holds_are_taken_in_chunks() -> None:
    """Of an item with one unit, and of one with several."""
    size = {"Hkv": 1, "Mq": 200, "D": 500, "Dv": 512}
    for dtype in (F32, BF16):
        for batch in (1, 32):
            check(AttentionProblem(dtype, None, Causal.TOP_LEFT, backward=True), {**size, "B": batch, "Mkv": 80})


def test_half_types_and_narrower_vectors() -> None:
    for dtype in (BF16, F16):
        for size in (SIZE, {"Mq": 1, "Mkv": 1}, {"D": 65, "Dv": 33}):
            check(AttentionProblem(dtype, None, Causal.TOP_LEFT, backward=True), size)
    check(AttentionProblem(BF16, None, backward=True), SIZE, lanes=4)


@pytest.mark.parametrize("bias", [Bias(F32, "hmn"), Bias(torch.bool, "bn"), Bias(F32, "bmn", along_rows=False)], ids=str)
def test_biases_are_added_or_hide_keys(bias: Bias) -> None:
    check(AttentionProblem(F32, -0.3, bias=bias, backward=True), SIZE)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_the_gradient_of_scores_is_kept_if_a_bias_wants_it(dtype: torch.dtype) -> None:
    """Zeros where a mask hides a key, in tiles that are left out too."""
    for causal in Causal:
        kept = check(AttentionProblem(dtype, 0.3, causal, backward=True, changes=True), {"Mq": 150, "Mkv": 90})
        assert kept.dscores is not None and kept.dscores[0, 0, -1].any()
    check(AttentionProblem(dtype, None, bias=Bias(torch.float32, "hmn"), backward=True, changes=True), {"Mq": 33, "Mkv": 300})


def test_columns_that_lie_apart() -> None:
    strides = {"q_stride_d": 37, "q_stride_m": 1, "k_stride_d": 150, "k_stride_n": 1, "v_stride_d": 150, "v_stride_n": 1}
    for dtype in (F32, BF16):
        check(AttentionProblem(dtype, None, dense=(False, False, False), backward=True), strides)


def test_rows_that_see_no_key_have_no_gradient() -> None:
    """Whatever lse eager's or another kernel has left for them."""
    problem, size = AttentionProblem(F32, 0.3, Causal.BOTTOM_RIGHT, backward=True), {**SIZE, "Mq": 70, "Mkv": 39}
    args = make_args(problem, size)
    wanted = check(problem, size, args)
    for saved in (0.0, INF, -INF):
        operands(problem, args).left[1][:, :, :31] = saved
        got = results(problem, args, 1)
        assert not got.gradients[0][:, :, :31].any()
        assert all(map(torch.equal, got.gradients, wanted.gradients))


@pytest.mark.parametrize("name", ["soft capped", *(pytest.param(n, marks=pytest.mark.slow) for n in list(VALUES)[:-1])])
def test_scores_and_slopes_of_positions(name: str) -> None:
    """Blocks that are skipped, that need no mask, and others; sequences without keys."""
    slope = SLOPES_OF[name]() if name in SLOPES_OF else None
    for size in (SIZE, {"Mq": 150, "Mkv": 37}, {"Mq": 1, "Mkv": 1}, {"Mkv": 0}, {"B": 1, "Hq": 1, "Hkv": 1, "Mkv": 300}):
        full = {**SIZE, **size}
        problem = scored(F32, VALUES[name](), slope, backward=True)
        args = make_args(problem, {**full, "n0": full["Mq"] + full["Mkv"]})
        check(problem, full, args)


@pytest.mark.parametrize("name", ["packed", "causal", "window"])
def test_every_sequence_has_its_own_gradients(name: str) -> None:
    settings = {**SETTINGS[name], "lse": False}
    problem = AttentionProblem(F32, None, **settings, backward=True)
    for lengths in ((), (((0, 0), (3, 0))), (((2, 1), (0, 0))), (((3, 1), (300, 2)))):
        size, args = arguments(problem, *lengths)
        check(problem, size, args)
