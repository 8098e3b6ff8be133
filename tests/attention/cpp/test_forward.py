"""Generated C++ attention kernels against float64."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from polytile.attention import cpp
from polytile.attention.arguments import make_args, operands, reference
from polytile.attention.cpp.configs import multiplies_pairs
from polytile.attention.problem import AttentionProblem, Bias, Causal
from polytile.candidates.cpp import Prediction
from polytile.candidates.cpp_attention import FEWEST_LANES, CppAttention
from polytile.candidates.library.attention import once
from polytile.codegen.function_names import ENTRY
from polytile.problem import Config
from polytile.runtime import toolchain
from polytile.runtime.launcher import time_burst

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
INF = float("inf")
TOLERANCE = {F32: {"rtol": 2e-5, "atol": 2e-5}, F16: {"rtol": 3e-3, "atol": 3e-3}, BF16: {"rtol": 2e-2, "atol": 2e-2}}
SIZE = {"B": 2, "Hq": 4, "Hkv": 2, "Mq": 37, "Mkv": 150, "D": 24, "Dv": 40}
FEW = {**SIZE, "Mq": 3, "Mkv": 700}
SMALL_BLOCKS = {
    "flash": Config.of(variant="flash", rows=12, keys=64, mr=6, nv=2),
    "split": Config.of(variant="split", keys=64, mr=2, nv=2, columns=4),
}
"""Blocks so small that loops turn more than once at the tests' sizes."""
BACKWARD = Config.of(variant="backward", rows=12, keys=64, mr=6, nv=2)
EDGES: tuple[dict[str, int], ...] = (
    SIZE, FEW, {"Mq": 0}, {"Mkv": 0}, {"B": 0}, {"Mq": 1, "Mkv": 1}, {"Mq": 150, "Mkv": 37}, {"D": 1, "Dv": 1},
    {"D": 65, "Dv": 33}, {"D": 0}, {"Dv": 0},
    {"D": 512, "Dv": 512, "Hkv": 1}, {"B": 1, "Hq": 1, "Hkv": 1, "Mq": 1, "Mkv": 900}, {"Hkv": 4},
    {"k_stride_h": 0, "v_stride_n": 0, "q_stride_b": 0},
    {"q_stride_m": 96, "q_stride_h": 24, "k_stride_n": 48, "k_stride_h": 24, "out_stride_m": 160, "out_stride_h": 40},
)  # fmt: skip


@functools.cache
def kernel(problem: AttentionProblem, variant: str, threads: int, lanes: int = 0) -> CppAttention:
    """The candidate with small blocks."""
    lanes = lanes or max(toolchain.find().lanes, FEWEST_LANES)
    pairs = {"pairs": 1} if problem.dtype == BF16 and multiplies_pairs() else {}
    plain = BACKWARD if problem.backward else SMALL_BLOCKS[variant]
    config = Config(tuple(sorted([*plain.values, *pairs.items(), ("threads", threads)])))
    make = functools.partial(cpp.generate, problem, config, ENTRY, lanes)
    recipe = f"{problem.text} {config} {lanes}"
    return CppAttention("test", config, "attention", Prediction(lambda size: True, lambda size: 0.0), recipe, make)


def misaligned(args: list[Any]) -> list[Any]:
    """The same tensors, each one element away from where memory begins."""

    def moved(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape).copy_(x)

    return [moved(x) for x in args]


def check(problem: AttentionProblem, variant: str, size: Mapping[str, int], args: list[Any] | None = None, **more: int) -> None:
    """Compares a kernel with the definition in float64, on one thread and on two."""
    given = misaligned(make_args(problem, {**SIZE, **size}) if args is None else args)
    wide = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in given]
    reference(problem)(*wide)
    right = operands(problem, wide)
    for threads in (1, 2):
        mine = [a.clone() if isinstance(a, torch.Tensor) else a for a in given]
        mine = misaligned(mine)
        time_burst(kernel(problem, variant, threads, **more).entry(), mine, 1)
        got = operands(problem, mine)
        torch.testing.assert_close(got.out.double(), right.out, **TOLERANCE[problem.dtype], equal_nan=True)
        if right.lse is not None and got.lse is not None:
            torch.testing.assert_close(got.lse.double(), right.lse, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("variant", SMALL_BLOCKS)
def test_sizes_and_strides_at_the_edge(variant: str) -> None:
    for size in EDGES:
        check(AttentionProblem(F32, None, Causal.BOTTOM_RIGHT, empty_is_0=False, lse=True), variant, size)


@pytest.mark.parametrize("variant", SMALL_BLOCKS)
def test_a_bias_is_added_and_rows_without_keys_are_zero(variant: str) -> None:
    problem = AttentionProblem(F32, 0.3, bias=Bias(F32, "bhmn"), lse=True)
    for size in (SIZE, FEW):
        args = make_args(problem, size)
        bias = operands(problem, args).bias
        assert bias is not None
        bias[0, :, :2], bias[1, :, :, 5:] = -INF, -INF
        check(problem, variant, size, args)


@pytest.mark.parametrize("variant", SMALL_BLOCKS)
@pytest.mark.parametrize("zeros", [True, False])
def test_nan_of_hidden_keys_stays_where_a_mask_is_added(variant: str, zeros: bool) -> None:
    problem = AttentionProblem(BF16, 0.3, Causal.TOP_LEFT, Bias(torch.bool, "bn"), empty_is_0=zeros)
    args = make_args(problem, SIZE)
    given = operands(problem, args)
    assert given.bias is not None
    once(given.bias)[...], once(given.bias)[0, ..., 3:6] = True, False
    check(problem, variant, SIZE, args)
    given.k[:, :, 4] = float("nan")
    check(problem, variant, SIZE, args)


@pytest.mark.parametrize("variant", SMALL_BLOCKS)
def test_a_mask_may_fill_in_the_least_number(variant: str) -> None:
    problem = AttentionProblem(F32, -0.3, bias=Bias(torch.bool, "mn", fill=torch.finfo(F32).min), empty_is_0=False)
    for size in (SIZE, FEW):
        args = make_args(problem, size)
        bias = operands(problem, args).bias
        assert bias is not None
        once(bias)[..., 1, :] = False  # every key of the row counts the same
        check(problem, variant, size, args)


def test_columns_that_lie_apart() -> None:
    strides = {"q_stride_d": 37, "q_stride_m": 1, "k_stride_d": 150, "k_stride_n": 1, "v_stride_d": 150, "v_stride_n": 1}
    check(AttentionProblem(F16, None, bias=Bias(F16, "m", False), dense=(False, False, False)), "flash", strides)


@pytest.mark.parametrize("variant", SMALL_BLOCKS)
def test_narrower_vectors(variant: str) -> None:
    check(AttentionProblem(BF16, None), variant, SIZE, lanes=4)


def test_equal_calls_give_equal_bits() -> None:
    problem = AttentionProblem(F32, None, Causal.BOTTOM_RIGHT, empty_is_0=False, lse=True)
    for variant in SMALL_BLOCKS:
        args = make_args(problem, {**FEW, "B": 1})
        results = []
        for _ in range(3):
            time_burst(kernel(problem, variant, 2).entry(), args, 1)
            results.append(operands(problem, args).out.clone())
        assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
