"""Generated Triton attention kernels that compute scores from positions, against float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

from polytile.attention.arguments import Operands, make_args, operands, reference, run_attention
from polytile.attention.problem import AttentionProblem
from polytile.attention.triton.schedules import generate
from polytile.codegen.triton import interpret
from polytile.problem import Config
from polytile.schedule.facts import Facts
from tests.attention.scored import SLOPES_OF, VALUES, scored
from tests.attention.triton.interpreted import CHIP, config

CONFIGS = {"flash": config("flash"), "packed": config("flash", packed=1), "split": config("split", packed=1, waves=1)}
SIZE = {"B": 2, "Hq": 4, "Hkv": 2, "Mq": 21, "Mkv": 70, "D": 16, "Dv": 16}


def run(problem: AttentionProblem, how: Config, size: Mapping[str, int]) -> tuple[Operands, Operands]:
    """What the kernel gives, and what the reference gives in float64. The first sequence has no keys, if they have lengths."""
    args = make_args(problem, size)
    named = dict(zip([tensor.name for tensor in problem.tensors], args, strict=False))
    if "a0" in named:
        named["a0"][0] = 0
    if problem.backward:
        given = operands(problem, args)
        run_attention(replace(problem, backward=False, lse=True), replace(given, lse=given.saved))
    wide = [each.double() if isinstance(each, torch.Tensor) and each.is_floating_point() else each for each in args]
    reference(problem)(*wide)
    values = dict(zip(problem.size_names, args[len(named) :], strict=True))
    exact = tuple((each, values[each]) for each in ("D", "Dv", "Hq", "Hkv"))
    facts = Facts(frozenset(n for n, v in values.items() if v % 16 == 0), frozenset(named), False, exact)
    assert interpret.run(generate(problem, how, facts, CHIP), named, values) == 0
    return operands(problem, args), operands(problem, wide)


@pytest.mark.parametrize("name", ["soft capped", *(pytest.param(n, marks=pytest.mark.slow) for n in list(VALUES)[:-1])])
@pytest.mark.parametrize("how", CONFIGS.values(), ids=CONFIGS)
def test_scores_of_positions(how: Config, name: str) -> None:
    """Blocks that are skipped, that need no mask, and others; a sequence without keys."""
    problem = scored(torch.float32, VALUES[name](), lse=True)
    for size in (SIZE, {**SIZE, "Mq": 1}, {**SIZE, "Mq": 70, "Mkv": 21}):
        got, wanted = run(problem, how, {**size, "n0": size["Mq"] + size["Mkv"]})
        torch.testing.assert_close(got.out.double(), wanted.out, atol=1e-5, rtol=1e-5)
        assert got.lse is not None and wanted.lse is not None
        torch.testing.assert_close(got.lse.double(), wanted.lse, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", VALUES)
def test_their_derivative(name: str) -> None:
    """With a gradient of the log-sum-exp, and without one; more rows than keys, so that some blocks see none."""
    slope = SLOPES_OF[name]() if name in SLOPES_OF else None
    for size, lse in ((SIZE, True), ({**SIZE, "Mq": 70, "Mkv": 21}, False), ({**SIZE, "Mq": 1, "Mkv": 1}, True)):
        problem = scored(torch.float32, VALUES[name](), slope, lse=lse, backward=True)
        got, wanted = run(problem, config("backward"), {**size, "n0": size["Mq"] + size["Mkv"]})
        for one, other in zip(got.gradients, wanted.gradients, strict=True):
            torch.testing.assert_close(one.double(), other, atol=2e-5, rtol=2e-5)
