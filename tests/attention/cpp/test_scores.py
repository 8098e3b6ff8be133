"""Generated C++ attention kernels that compute scores from positions, against float64."""

from __future__ import annotations

import pytest
import torch

from polytile.attention.arguments import make_args
from tests.attention.cpp.test_forward import FEW, SIZE, SMALL_BLOCKS, check
from tests.attention.scored import VALUES, scored


@pytest.mark.parametrize("name", ["soft capped", *(pytest.param(n, marks=pytest.mark.slow) for n in list(VALUES)[:-1])])
@pytest.mark.parametrize("variant", SMALL_BLOCKS)
def test_scores_of_positions(variant: str, name: str) -> None:
    """Blocks that are skipped, that need no mask, and others; sequences without keys."""
    for size in (SIZE, FEW, {"Mq": 150, "Mkv": 37}, {"Mq": 1, "Mkv": 1}, {"Mkv": 0}, {"B": 1, "Hq": 1, "Hkv": 1, "Mkv": 300}):
        full = {**SIZE, **size}
        problem = scored(torch.float32, VALUES[name](), lse=True)
        args = make_args(problem, {**full, "n0": full["Mq"] + full["Mkv"]})
        for place, tensor in enumerate(problem.tensors):
            if tensor.name == "a0":
                args[place][0] = 0
        check(problem, variant, full, args)
