"""flex_attention with gradients on a GPU: one dynamic compile, against autograd in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from polytile.compiler.programs import compiled_programs
from tests.gpu.comparing import compiled, rejected

pytestmark = pytest.mark.gpu

Function = Callable[..., Tensor]
SHAPES = ((2, 300, 300), (1, 1024, 1024), (3, 70, 129), (1, 129, 70))
GRAPHS = 4
"""Dynamo traces a batch of 1 apart from others, and equal numbers of rows and keys apart from unequal ones."""


def soft_cap(score: Tensor, b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
    return 3 * torch.tanh(score / 3)


def tilted(score: Tensor, b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
    return score + (n - m) * 0.01


def unchanged(score: Tensor, b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
    return score


def causal(b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
    return m >= n


def window(b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
    return (m >= n) & (m - n < 64)


def documents(b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
    return m // 50 == n // 50


def exactly(score_mod: Function, mask_mod: Function, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], 1) for each in (k, v))
    scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5
    places = torch.meshgrid(*[torch.arange(n, device="cuda") for n in scores.shape], indexing="ij")
    scores = torch.where(mask_mod(*places), score_mod(scores, *places), -float("inf"))
    return torch._safe_softmax(scores, -1) @ v


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("score_mod", "mask_mod"), [(soft_cap, causal), (tilted, window), (unchanged, documents)])
def test_results_and_gradients(score_mod: Function, mask_mod: Function, dtype: torch.dtype) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = create_block_mask(mask_mod, None, None, q.shape[2], k.shape[2], device="cuda")
        return flex_attention(q, k, v, score_mod=score_mod, block_mask=mask, enable_gqa=True)

    call, tolerance = compiled(attend), 2e-4 if dtype == torch.float32 else 3e-2
    for batch, rows, keys in SHAPES:
        shapes = (batch, 8, rows, 64), (batch, 2, keys, 64), (batch, 2, keys, 64)
        given = [torch.randn(shape, device="cuda", dtype=dtype) for shape in shapes]
        leaves, exact = [each.clone().requires_grad_() for each in given], [each.double().requires_grad_() for each in given]
        out, wanted = call(*leaves), exactly(score_mod, mask_mod, *exact)
        direction = torch.randn_like(out)
        torch.testing.assert_close(out.double(), wanted, rtol=tolerance, atol=tolerance)
        found = torch.autograd.grad(out, leaves, direction)
        for one, other in zip(found, torch.autograd.grad(wanted, exact, direction.double()), strict=True):
            torch.testing.assert_close(one.double(), other.nan_to_num(0.0), rtol=4 * tolerance, atol=4 * tolerance)
    families = [[kernel.spec.family for kernel, _ in each.calls] for each in compiled_programs()]
    attentions = [[family for family in each if family.startswith("attention")] for each in families]
    assert attentions.count(["attention"]) == attentions.count(["attention_backward"]) == GRAPHS == len(attentions) // 2
    assert not [target for each in compiled_programs() for target in each.targets] and not rejected()


def test_long_sequences_fit_in_memory() -> None:
    """Scores of 32768 rows would take 32 GiB in float32."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = create_block_mask(window, None, None, q.shape[2], k.shape[2], device="cuda")
        return flex_attention(q, k, v, score_mod=soft_cap, block_mask=mask)

    call = compiled(attend, tune="off")
    given = [torch.randn(1, 8, 32768, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    torch.cuda.reset_peak_memory_stats()
    call(*given).sum().backward()
    assert torch.cuda.max_memory_allocated() < 2 << 30
