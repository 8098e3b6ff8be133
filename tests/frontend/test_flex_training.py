"""flex_attention with gradients or its log-sum-exp: one operation forward and backward, against autograd in float64.

flex_attention refuses gradients on a CPU, so the tests call the operator that it calls on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.flex_attention import flex_attention as operator
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from polytile.compiler.programs import compiled_programs
from polytile.ir.attention import Attention
from tests.behaviour.helpers import compiled, graphs, multikernels

LN2, SCALE = 0.6931471805599453, 0.25
SHAPES = ((3, 33, 17), (2, 24, 40), (2, 7, 9))
"""Batch, rows and keys; the first has rows that see no key under `window`."""
TRITON = {"interpret": True, "sources": "triton"}

Function = Callable[..., Tensor]


def soft_cap(score: Tensor, b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
    return 3 * torch.tanh(score / 3) + (n - m) * 0.1


def leaky(score: Tensor, b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
    return torch.where(score > 0, score, score * 0.5)


def unchanged(score: Tensor, b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
    return score


def window(b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
    return (m >= n) & (m - n < 6)


def chunks(b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
    return m // 8 == n // 8


def everything(b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
    return m >= 0


def attend(score_mod: Function, mask_mod: Function, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    mask = create_block_mask(mask_mod, None, None, q.shape[2], k.shape[2], device="cpu")
    out, lse, _ = operator(q, k, v, score_mod, mask.as_tuple(), SCALE, {})
    return out, lse * LN2


def right(score_mod: Function, mask_mod: Function, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(2, 3) * SCALE
    places = torch.meshgrid(*[torch.arange(n) for n in scores.shape], indexing="ij")
    scores = torch.where(mask_mod(*places), score_mod(scores, *places), -float("inf"))
    return torch._safe_softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


def inputs(batch: int, rows: int, keys: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Four heads of q for two of k and v, which lie as a projection leaves them."""
    q = torch.randn(batch, rows, 4, 16, dtype=dtype).transpose(1, 2)
    return [q, *(torch.randn(batch, keys, 2, 16, dtype=dtype).transpose(1, 2) for _ in range(2))]


def check(call: Function, score_mod: Function, mask_mod: Function, given: list[Tensor], with_lse: bool, tolerance: float) -> None:
    """Results and gradients, through the log-sum-exp of rows that see a key too if it is used."""
    leaves, exact = [each.clone().requires_grad_() for each in given], [each.double().requires_grad_() for each in given]
    (out, lse), (wanted, wanted_lse) = call(*leaves), right(score_mod, mask_mod, *exact)
    seen = wanted_lse.detach() > -float("inf")
    torch.testing.assert_close(out.double(), wanted, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(lse.double(), wanted_lse, rtol=tolerance, atol=tolerance)
    direction, along = torch.randn_like(out), torch.randn_like(lse)
    pair = (out, lse), (wanted, wanted_lse)
    mine, other = ((one * direction).sum() + (log[seen] * along[seen]).sum() * with_lse for one, log in pair)
    for one, another in zip(torch.autograd.grad(mine, leaves), torch.autograd.grad(other, exact), strict=True):
        torch.testing.assert_close(one.double(), another.nan_to_num(0.0), rtol=4 * tolerance, atol=4 * tolerance)


def pairs_in_memory() -> list[str]:
    """Buffers of the programs so far with an element for each query and key."""
    found = []
    for compiled_program in compiled_programs():
        program = compiled_program.program
        assert program is not None
        rows, keys = next(op for op in program.operations if isinstance(op, Attention)).extents[3:5]
        for buffer in program.buffers.values():
            long = [size for size in buffer.sizes if size.free_symbols & (rows.free_symbols | keys.free_symbols)]
            found += [buffer.name] if len(long) > 1 else []
    return found


@pytest.mark.parametrize(
    ("score_mod", "mask_mod"),
    [
        (soft_cap, window),
        (unchanged, chunks),
        pytest.param(leaky, chunks, marks=pytest.mark.slow),
        pytest.param(unchanged, everything, marks=pytest.mark.slow),
    ],
)
def test_one_compile_serves_all_lengths_without_scores_in_memory(score_mod: Function, mask_mod: Function) -> None:
    call, before = compiled(lambda q, k, v: attend(score_mod, mask_mod, q, k, v), tune="off"), graphs()
    for shape in SHAPES:
        check(call, score_mod, mask_mod, inputs(*shape), True, 2e-5)
    assert graphs() == (before[0] + 2, before[1] + 1)
    assert not pairs_in_memory()


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 0, 5), (2, 5, 0), (2, 1, 40)], ids=str)
def test_lengths_of_0_and_1(shape: tuple[int, int, int]) -> None:
    """Without a BlockMask, which PyTorch does not make of nothing."""

    def short(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        out, lse, _ = operator(q, k, v, soft_cap, (*[1] * 16, window), SCALE, {})
        return out, lse * LN2

    check(compiled(short, tune="off"), soft_cap, window, inputs(*shape), False, 2e-5)


@pytest.mark.parametrize("how", [{"sources": "cpp"}, TRITON], ids=("cpp", "triton"))
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)], ids=str)
def test_generated_kernels_serve_both_passes(dtype: torch.dtype, how: dict[str, Any]) -> None:
    """C++, and Triton under its interpreter, by prediction alone; equal calls give equal bits."""
    call = compiled(lambda q, k, v: attend(soft_cap, window, q, k, v), tune="off", **how)
    check(call, soft_cap, window, inputs(2, 33, 17, dtype), True, 2e-5 if dtype == torch.float32 else 2e-2)
    kernels = {kernel.spec.family: kernel for kernel in multikernels() if "attention" in kernel.spec.family}
    names = {decision.candidate.split()[0] for decision in kernels["attention_backward"].decisions}
    assert set(kernels) == {"attention", "attention_backward"} and names == {"backward"}
    given = [each.requires_grad_() for each in inputs(2, 33, 17, dtype)]
    first, second = (torch.autograd.grad(call(*given)[0].sum(), given) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_captured_tensors_and_the_logarithm_alone() -> None:
    """Slopes for each head and documents. Only the log-sum-exp has a gradient."""

    def logarithm(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, documents: Tensor) -> Tensor:
        def alibi(score: Tensor, b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
            return score + slopes[h] * (n - m)

        def same(b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
            return documents[b, m] == documents[b, n]

        return (attend if torch.compiler.is_compiling() else right)(alibi, same, q, k, v)[1]

    call = compiled(logarithm, tune="off")
    for length in (24, 37):
        given, beside = inputs(2, length, length), (torch.rand(4), (torch.arange(length) // 9).expand(2, -1))
        leaves, exact = [each.clone().requires_grad_() for each in given], [each.double().requires_grad_() for each in given]
        mine, wanted = call(*leaves, *beside), logarithm(*exact, beside[0].double(), beside[1])
        torch.testing.assert_close(mine.double(), wanted, rtol=2e-5, atol=2e-5)
        found = torch.autograd.grad(mine.sum(), leaves[:2]), torch.autograd.grad(wanted.sum(), exact[:2])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=5e-5, atol=5e-5)
    assert not pairs_in_memory()


def test_the_logarithm_without_gradients() -> None:
    def both(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        mask = create_block_mask(window, None, None, q.shape[2], k.shape[2], device="cpu")
        out, aux = flex_attention(
            q, k, v, soft_cap, mask, scale=SCALE, enable_gqa=True, return_aux=AuxRequest(lse=True)
        )  # fmt: skip
        return out, aux.lse

    with torch.no_grad():
        given = inputs(3, 33, 17)
        for mine, wanted in zip(compiled(both, tune="off")(*given), right(soft_cap, window, *given), strict=True):
            torch.testing.assert_close(mine, wanted, rtol=2e-5, atol=2e-5)
    assert not pairs_in_memory()
    assert any("in the kernel" in operator.reason for each in compiled_programs() for operator in each.operators)
