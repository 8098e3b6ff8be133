"""Attention with its scores in memory, by generated products and a generated softmax, is attention."""

from __future__ import annotations

import pytest
import torch

from polytile.attention.problem import AttentionProblem, Bias
from polytile.dispatch.define import _unfused_attention
from tests.candidates.test_attention import CPU, PROBLEMS, TOLERANCE, arguments, full, integers, outputs, wanted

KINDS = (
    "plain", "default scale", "bfloat16", "groups", "causal, bottom right", "bias of heads", "mask with a fill", "bias by hand",
    "heads side by side", "expanded",
)  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_scores_in_memory_agree_with_the_definition(name: str) -> None:
    problem, sizes = PROBLEMS[name]
    candidate = _unfused_attention(problem, CPU, {})
    assert candidate is not None and candidate.valid(integers(problem, sizes))
    assert 0 < candidate.cost(full(sizes)) < 1
    for empty in (False, True):
        args = arguments(problem, sizes, empty)
        mine = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        candidate.entry().call(*mine)
        for one, other in zip(outputs(problem, mine), wanted(problem, args), strict=True):
            tolerance = {key: 2 * bound for key, bound in TOLERANCE[problem.dtype].items()}
            torch.testing.assert_close(one.double(), other, **tolerance, equal_nan=True)


def test_it_takes_no_part_where_there_is_no_product_or_too_much_memory() -> None:
    assert _unfused_attention(AttentionProblem(torch.float16, 1.0), CPU, {}) is None
    candidate = _unfused_attention(AttentionProblem(torch.float32, 1.0, bias=Bias(torch.float32, "hmn")), CPU, {})
    assert candidate is not None
    assert not candidate.valid(full({"Mq": 1 << 16, "Mkv": 1 << 16}))
    assert not candidate.valid(full({"Mkv": 0}))
