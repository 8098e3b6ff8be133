"""Attention kernels on CPU tensors under Triton's interpreter, and what they should give, in float64."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from polytile.attention.problem import AXES, EXTENTS, SIZES, AttentionProblem
from polytile.attention.triton.schedules import generate
from polytile.codegen.triton import interpret
from polytile.ir.attention import EMPTY, masked
from polytile.ir.dropout import kept
from polytile.matmul.triton.unit import Chip
from polytile.problem import Config
from polytile.schedule.facts import Facts

CHIP = Chip(5)


def config(variant: str, **more: int) -> Config:
    """Blocks so small that loops turn more than once at the tests' sizes."""
    return Config.of(variant=variant, **{"m": 16, "n": 16, "stages": 2, "warps": 4, **more})


def tensors(problem: AttentionProblem, size: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """Random tensors, full of NaN where they are written. A derivative's `out` and `saved` are what attention gives."""
    made = {}
    for tensor in problem.tensors:
        if tensor.name == "random":
            made[tensor.name] = torch.tensor([-7 << 40, (1 << 34) - 8])  # the counter's low word overflows
            continue
        shape = [size[name] for name in EXTENTS[tensor.name]]
        if tensor.name == "bias":
            assert problem.bias is not None
            shape = [n if axis in problem.bias.varies else 1 for n, axis in zip(shape, AXES["bias"], strict=True)]
        if tensor.role == "out":
            made[tensor.name] = torch.full(shape, float("nan"), dtype=tensor.dtype)
        elif tensor.dtype == torch.bool:
            made[tensor.name] = torch.rand(shape) < 0.6
        else:
            made[tensor.name] = torch.randn(shape).to(tensor.dtype)
    if problem.backward:
        for name, value in zip(("out", "saved"), expected(problem, made, size), strict=True):
            made[name] = value.to(made[name].dtype)
    return made


def integers(problem: AttentionProblem, made: Mapping[str, torch.Tensor], size: Mapping[str, int]) -> dict[str, int]:
    """The integer arguments of a call; strides of broadcast axes are 0."""
    values = {name: size[name] for name in SIZES}
    for name, letters in AXES.items():
        if name in made:
            for axis, stride in zip(letters, made[name].stride(), strict=True):
                whole = name != "bias" or (problem.bias is not None and axis in problem.bias.varies)
                values[f"{name}_stride_{axis}"] = stride if whole else 0
    return values


def run(
    problem: AttentionProblem,
    how: Config,
    made: Mapping[str, torch.Tensor],
    size: Mapping[str, int],
    wide: bool = False,
    chip: Chip = CHIP,
) -> None:
    """Runs the kernel of `how` on the tensors."""
    values = integers(problem, made, size)
    exact = tuple((name, values[name]) for name in ("D", "Dv", "Hq", "Hkv"))
    facts = Facts(frozenset(n for n, v in values.items() if v % 16 == 0), frozenset(made), wide, exact)
    assert interpret.run(generate(problem, how, facts, chip), made, values) == 0


def expected(
    problem: AttentionProblem, made: Mapping[str, torch.Tensor], size: Mapping[str, int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """out and lse in float64."""
    return attended(problem, *(made[name].double() for name in "qkv"), made.get("bias"), size, made.get("random"))


def attended(
    problem: AttentionProblem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
    size: Mapping[str, int], random: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    group = size["Hq"] // max(1, size["Hkv"])
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(2, 3) * (size["D"] ** -0.5 if problem.scale is None else problem.scale)
    if problem.bias is not None:
        added = problem.empty_is_0 and problem.bias.fill == EMPTY
        scores = masked(scores, bias, fill=problem.bias.fill, added=added)
    scores = masked(scores, None, problem.causal.value, window=problem.window)
    weights = torch.softmax(scores, -1)
    if problem.empty_is_0 or not size["Mkv"]:
        weights = torch.where((scores == -float("inf")).all(-1, keepdim=True), 0.0, weights)
    if problem.dropout is not None and random is not None:
        weights = torch.where(kept(problem.dropout, random, weights.shape), weights * problem.dropout.factor, 0.0)
    return weights @ v, torch.logsumexp(scores, -1)


def check(
    problem: AttentionProblem, how: Config, size: Mapping[str, int], wide: bool = False, chip: Chip = CHIP
) -> dict[str, torch.Tensor]:
    """Runs the kernel on random tensors and compares. Returns them."""
    made = tensors(problem, size)
    run(problem, how, made, size, wide, chip)
    out, lse = expected(problem, made, size)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}[problem.dtype]
    torch.testing.assert_close(made["out"].double(), out, atol=tolerance, rtol=tolerance, equal_nan=True)
    if problem.lse:
        torch.testing.assert_close(made["lse"].double(), lse, atol=1e-4, rtol=1e-4)
    return made
