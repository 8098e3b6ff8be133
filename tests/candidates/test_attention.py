"""Every candidate for an attention gives what the definition gives, wherever it says that it can."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from polytile.attention.arguments import make_args, operands, reference, settings
from polytile.attention.problem import AXES, EXTENTS, AttentionProblem, Bias, Causal
from polytile.candidates.library import attention as library
from polytile.candidates.library.attention import CudnnLibrary, EfficientLibrary, FlashLibrary, once
from polytile.ir.attention import attend

CPU = torch.device("cpu")
SIZES = {"B": 2, "Hq": 4, "Hkv": 4, "Mq": 9, "Mkv": 13, "D": 8, "Dv": 8}
F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
INF = float("inf")
TOLERANCE = {F32: {"rtol": 2e-5, "atol": 2e-5}, F16: {"rtol": 3e-3, "atol": 3e-3}, BF16: {"rtol": 2e-2, "atol": 2e-2}}

PROBLEMS: dict[str, tuple[AttentionProblem, dict[str, int]]] = {
    "plain": (AttentionProblem(F32, 0.3), {}),
    "default scale": (AttentionProblem(F32, None), {"D": 24}),
    "bfloat16": (AttentionProblem(BF16, 0.3), {"D": 64, "Dv": 64}),
    "float16": (AttentionProblem(F16, 0.3), {}),
    "groups": (AttentionProblem(F32, 0.3), {"Hq": 6, "Hkv": 2}),
    "one group": (AttentionProblem(F32, 0.3), {"Hkv": 1}),
    "causal": (AttentionProblem(F32, 0.3, Causal.TOP_LEFT), {}),
    "causal, bottom right": (AttentionProblem(F32, 0.3, Causal.BOTTOM_RIGHT), {"Mq": 13, "Mkv": 9}),
    "square causal": (AttentionProblem(F32, 0.3, Causal.BOTTOM_RIGHT), {"Mq": 13}),
    "bias": (AttentionProblem(F32, 0.3, bias=Bias(F32, "bhmn")), {}),
    "bias of heads": (AttentionProblem(F32, 0.3, bias=Bias(F32, "hmn")), {}),
    "bias of keys": (AttentionProblem(BF16, 0.3, bias=Bias(BF16, "bn")), {}),
    "bias of rows": (AttentionProblem(F32, 0.3, bias=Bias(F32, "m", False)), {}),
    "mask": (AttentionProblem(F32, 0.3, bias=Bias(torch.bool, "bmn")), {}),
    "mask by hand": (AttentionProblem(F32, 0.3, bias=Bias(torch.bool, "bmn"), empty_is_0=False), {}),
    "mask with a fill": (AttentionProblem(F32, 0.3, bias=Bias(torch.bool, "mn", fill=-1e4), empty_is_0=False), {}),
    "bias by hand": (AttentionProblem(F32, 0.3, bias=Bias(F32, "bhmn"), empty_is_0=False), {}),
    "one row": (AttentionProblem(F32, 0.3), {"Mq": 1}),
    "one key": (AttentionProblem(F32, 0.3, Causal.TOP_LEFT), {"Mkv": 1}),
    "no key": (AttentionProblem(F32, 0.3), {"Mkv": 0}),
    "no key by hand": (AttentionProblem(F32, 0.3, empty_is_0=False), {"Mkv": 0}),
    "no row": (AttentionProblem(F32, 0.3), {"Mq": 0}),
    "no batch": (AttentionProblem(F32, 0.3), {"B": 0}),
    "head of 1": (AttentionProblem(F32, 0.3), {"D": 1, "Dv": 1}),
    "head of 3": (AttentionProblem(F32, 0.3), {"D": 3, "Dv": 3}),
    "head of 80": (AttentionProblem(F32, 0.1), {"D": 80, "Dv": 80}),
    "head of 512": (AttentionProblem(F32, 0.04), {"D": 512, "Dv": 512}),
    "other values": (AttentionProblem(F32, 0.3), {"D": 8, "Dv": 24}),
    "heads side by side": (AttentionProblem(F32, 0.3), {
        "q_stride_m": 32, "q_stride_h": 8, "out_stride_m": 32, "out_stride_h": 8}),
    "expanded": (AttentionProblem(F32, 0.3), {"q_stride_b": 0, "k_stride_h": 0, "v_stride_n": 0}),
    "columns apart": (AttentionProblem(F32, 0.3, dense=(False, True, False)), {"q_stride_d": 2, "q_stride_m": 16,
                      "q_stride_h": 144, "v_stride_d": 13, "v_stride_n": 1}),
    "log-sum-exp": (AttentionProblem(F32, 0.3, Causal.TOP_LEFT, lse=True), {}),
    "log-sum-exp of a mask": (AttentionProblem(F32, 0.3, bias=Bias(torch.bool, "bmn"), lse=True), {}),
}  # fmt: skip


def full(sizes: Mapping[str, int]) -> dict[str, int]:
    return {**SIZES, **sizes}


def arguments(problem: AttentionProblem, sizes: Mapping[str, int], empty: bool) -> list[Any]:
    """Random ones; with `empty` the first row of q sees no key, as far as a bias can say so."""
    args = make_args(problem, full(sizes))
    given = operands(problem, args)
    if empty and given.bias is not None and given.bias.numel():
        once(given.bias)[:1, :, :1] = False if given.bias.dtype == torch.bool else -INF
    return args


def wanted(problem: AttentionProblem, args: list[Any]) -> list[torch.Tensor]:
    """The outputs by the definition, in float64."""
    wide = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    reference(problem)(*wide)
    return outputs(problem, wide)


def outputs(problem: AttentionProblem, args: list[Any]) -> list[torch.Tensor]:
    given = operands(problem, args)
    return [given.out] if given.lse is None else [given.out, given.lse]


@pytest.mark.parametrize("name", PROBLEMS)
def test_candidates_of_a_cpu_agree_with_the_definition(name: str) -> None:
    problem, sizes = PROBLEMS[name]
    candidates = [candidate for candidate in library.candidates(problem, CPU) if candidate.valid(integers(problem, sizes))]
    assert "math" in {candidate.name for candidate in candidates}
    for empty in (False, True):
        args = arguments(problem, sizes, empty)
        expected = wanted(problem, args)
        for candidate in candidates:
            mine = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
            candidate.entry().call(*mine)
            for one, other in zip(outputs(problem, mine), expected, strict=True):
                torch.testing.assert_close(one.double(), other, **TOLERANCE[problem.dtype], equal_nan=True)


def integers(problem: AttentionProblem, sizes: Mapping[str, int]) -> dict[str, int]:
    """Every integer argument by name."""
    return dict(zip(problem.size_names, make_args(problem, full(sizes))[len(problem.tensors) :], strict=True))


def test_a_cpus_own_kernel_runs_what_it_can() -> None:
    able = {n for n, (problem, sizes) in PROBLEMS.items() if library.candidates(problem, CPU)[0].valid(
        integers(problem, sizes))}  # fmt: skip
    assert {"plain", "groups", "causal", "bias of keys", "mask", "bias by hand", "expanded", "log-sum-exp"} <= able
    assert not able & {"mask by hand", "mask with a fill", "no key", "other values", "columns apart", "causal, bottom right"}


@pytest.mark.parametrize("kind", [FlashLibrary, EfficientLibrary, CudnnLibrary])
@pytest.mark.parametrize("name", ["bfloat16", "bias of keys", "mask", "square causal", "groups"])
def test_calls_of_a_gpus_kernels_fit_their_operators(kind: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On fake tensors: no GPU is needed to see what an operator takes and gives."""
    problem, sizes = PROBLEMS[name]
    problem = AttentionProblem(BF16, 0.3, problem.causal, problem.bias, problem.empty_is_0, lse=True)
    at = full({**sizes, "D": 64, "Dv": 64, "Mq": 13})
    target = torch.device("cuda")
    if problem.bias is not None and kind is FlashLibrary:
        pytest.skip("it takes no mask")
    made = kind(problem, target)
    monkeypatch.setattr(library, "once", lambda bias: bias)
    with FakeTensorMode():
        out, lse = made.run(operands(problem, _fake_args(problem, at)))
    assert out.shape == (2, at["Hq"], 13, 64) and lse is not None and lse.shape == (2, at["Hq"], 13)


DERIVED = ("plain", "default scale", "bfloat16", "causal", "square causal", "bias of heads", "bias of keys", "mask", "groups")


@pytest.mark.parametrize("name", DERIVED)
def test_derivatives_of_a_cpu_agree_with_autograd(name: str) -> None:
    problem, sizes = PROBLEMS[name]
    backward, at = replace(problem, backward=True), full(sizes)
    candidates = [each for each in library.candidates(backward, CPU) if each.valid({**backward.dense_strides(at), **at})]
    alone = name == "default scale"
    assert [candidate.name for candidate in candidates] == (["math"] if alone else ["flash", "math"])
    args = make_args(backward, at)
    given = operands(backward, args)
    leaves = [each.double().requires_grad_() for each in (given.q, given.k, given.v)]
    bias = given.bias.double() if given.bias is not None and given.bias.dtype != torch.bool else given.bias
    out, _ = attend(*leaves, bias, **settings(backward), precision=torch.float64)
    right = torch.autograd.grad(out, leaves, given.left[2].double())
    for run in (reference(backward), *(candidate.entry().call for candidate in candidates)):
        run(*args)
        for mine, wanted in zip(given.gradients, right, strict=True):
            torch.testing.assert_close(mine.double(), wanted, **{k: 3 * v for k, v in TOLERANCE[problem.dtype].items()})


@pytest.mark.parametrize("kind", [FlashLibrary, EfficientLibrary, CudnnLibrary])
@pytest.mark.parametrize("name", ["bfloat16", "bias of keys", "square causal", "groups"])
def test_calls_of_a_gpus_derivatives_fit_their_operators(kind: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, sizes = PROBLEMS[name]
    problem = AttentionProblem(BF16, 0.3, problem.causal, problem.bias, backward=True)
    at = full({**sizes, "D": 64, "Dv": 64, "Mq": 13})
    if problem.bias is not None and kind is FlashLibrary:
        pytest.skip("it takes no mask")
    monkeypatch.setattr(library, "once", lambda bias: bias)
    with FakeTensorMode():
        given = operands(problem, _fake_args(problem, at))
        found = kind(problem, torch.device("cuda")).gradients(given)
    assert [each.shape for each in found] == [each.shape for each in given.gradients]


def _fake_args(problem: AttentionProblem, sizes: Mapping[str, int]) -> list[Any]:
    whole = {**problem.dense_strides(sizes), **sizes}
    tensors = []
    for tensor in problem.tensors:
        shape = [whole[n] for n in EXTENTS[tensor.name]]
        if tensor.name in AXES:
            strides = [whole[f"{tensor.name}_stride_{a}"] for a in AXES[tensor.name]]
            tensors.append(torch.empty_strided(shape, strides, dtype=tensor.dtype, device="cuda"))
        else:
            tensors.append(torch.empty(shape, dtype=tensor.dtype, device="cuda"))
    return [*tensors, *[whole[name] for name in problem.size_names]]
