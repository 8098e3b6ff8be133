"""Generated Triton attention kernels that compute scores from positions, against float64."""

from __future__ import annotations

import pytest
import torch

from polytile.attention.arguments import make_args, operands, reference
from polytile.attention.triton.schedules import generate
from polytile.codegen.triton import interpret
from polytile.problem import Config
from polytile.schedule.facts import Facts
from tests.attention.scored import VALUES, scored
from tests.attention.triton.interpreted import CHIP, config

CONFIGS = {"flash": config("flash"), "packed": config("flash", packed=1), "split": config("split", packed=1, waves=1)}
SIZE = {"B": 2, "Hq": 4, "Hkv": 2, "Mq": 21, "Mkv": 70, "D": 16, "Dv": 16}


@pytest.mark.parametrize("name", ["soft capped", *(pytest.param(n, marks=pytest.mark.slow) for n in list(VALUES)[:-1])])
@pytest.mark.parametrize("how", CONFIGS.values(), ids=CONFIGS)
def test_scores_of_positions(how: Config, name: str) -> None:
    """Blocks that are skipped, that need no mask, and others; a sequence without keys."""
    problem = scored(torch.float32, VALUES[name](), lse=True)
    for size in (SIZE, {**SIZE, "Mq": 1}, {**SIZE, "Mq": 70, "Mkv": 21}):
        args = make_args(problem, {**size, "n0": size["Mq"] + size["Mkv"]})
        named = dict(zip([tensor.name for tensor in problem.tensors], args, strict=False))
        if "a0" in named:
            named["a0"][0] = 0
        wide = [each.double() if isinstance(each, torch.Tensor) and each.is_floating_point() else each for each in args]
        reference(problem)(*wide)
        values = dict(zip(problem.size_names, args[len(named) :], strict=True))
        exact = tuple((each, values[each]) for each in ("D", "Dv", "Hq", "Hkv"))
        facts = Facts(frozenset(n for n, v in values.items() if v % 16 == 0), frozenset(named), False, exact)
        assert interpret.run(generate(problem, how, facts, CHIP), named, values) == 0
        got, wanted = operands(problem, args), operands(problem, wide)
        torch.testing.assert_close(got.out.double(), wanted.out, atol=1e-5, rtol=1e-5)
        assert got.lse is not None and wanted.lse is not None
        torch.testing.assert_close(got.lse.double(), wanted.lse, atol=1e-4, rtol=1e-4)
