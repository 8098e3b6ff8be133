"""Attention with its scores in memory, by generated products and a generated softmax, is attention."""

from __future__ import annotations

import pytest
import torch

from polytile.attention.arguments import make_args
from polytile.attention.problem import AttentionProblem, Bias
from polytile.dispatch.define import _unfused_attention
from polytile.ir.attention import attend
from tests.attention.scored import VALUES, scored
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


@pytest.mark.parametrize("name", VALUES)
def test_scores_of_an_expression_are_kept_in_memory_too(name: str) -> None:
    problem = scored(torch.float32, VALUES[name]())
    sizes = {"B": 3, "Hq": 4, "Hkv": 2, "Mq": 70, "Mkv": 83, "D": 24, "Dv": 40, "n0": 153}
    candidate = _unfused_attention(problem, CPU, {})
    assert candidate is not None and _unfused_attention(problem, torch.device("cuda"), {}) is None
    args = make_args(problem, sizes)
    for place, tensor in enumerate(problem.tensors):
        if tensor.name == "a0":
            args[place][0] = 0  # a sequence without keys
    mine = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
    candidate.entry().call(*mine)
    for one, other in zip(outputs(problem, mine), wanted(problem, args), strict=True):
        torch.testing.assert_close(one.double(), other, atol=2e-5, rtol=2e-5)


def test_it_takes_no_part_where_there_is_no_product_or_too_much_memory() -> None:
    assert _unfused_attention(AttentionProblem(torch.float16, 1.0), CPU, {}) is None
    candidate = _unfused_attention(AttentionProblem(torch.float32, 1.0, bias=Bias(torch.float32, "hmn")), CPU, {})
    assert candidate is not None
    assert not candidate.valid(full({"Mq": 1 << 16, "Mkv": 1 << 16}))
    assert not candidate.valid(full({"Mkv": 0}))


def test_in_bfloat16_it_is_as_exact_as_atens_kernel() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 8, 150, 80).bfloat16() for _ in range(3))
    problem = AttentionProblem(torch.bfloat16, None)
    candidate = _unfused_attention(problem, CPU, {})
    assert candidate is not None
    sizes = {"B": 2, "Hq": 8, "Hkv": 8, "Mq": 150, "Mkv": 150, "D": 80, "Dv": 80}
    mine, wanted = torch.empty_like(q), attend(q, k, v, scale=None, precision=torch.float64)[0]
    integers_of_call = {**sizes, **problem.dense_strides(sizes)}
    candidate.entry().call(q, k, v, mine, *[integers_of_call[name] for name in problem.size_names])
    aten = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[0]
    assert float((mine.double() - wanted).abs().max()) <= 2 * float((aten.double() - wanted).abs().max())
