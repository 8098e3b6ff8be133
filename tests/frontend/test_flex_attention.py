"""flex_attention is written out: one compile serves all lengths, and gradients reach what its functions have captured."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.flex_attention import flex_attention as operator
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from polytile.compiler.programs import compiled_programs
from polytile.frontend.attention.flex import is_elementwise
from polytile.ir.attention import Attention
from tests.behaviour.helpers import compiled, graphs

LENGTHS = ((3, 33, 17), (2, 24, 24), (5, 7, 40))
HEADS = 4


def heads(batch: int, length: int, count: int = HEADS) -> Tensor:
    return torch.randn(batch, count, length, 16)


def right(score_mod: Any, mask_mod: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The result and the log-sum-exp by the definition, in float64, one score at a time where functions are."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5
    places = torch.meshgrid(*[torch.arange(n) for n in scores.shape], indexing="ij")
    changed = score_mod(scores, *places) if score_mod is not None else scores
    seen = mask_mod(*places) if mask_mod is not None else torch.ones_like(scores, dtype=torch.bool)
    scores = torch.where(seen, changed, -float("inf"))
    return torch._safe_softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


def attentions() -> list[Attention]:
    program = compiled_programs()[-1].program
    assert program is not None
    return [operation for operation in program.operations if isinstance(operation, Attention)]


def soft_cap(score: Tensor, b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
    return 3 * torch.tanh(score / 3)


def window(b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
    return (m >= n) & (m - n < 6)


def causal(b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
    return m >= n


@pytest.mark.parametrize(
    ("score_mod", "mask_mod", "causal_as"),
    [
        (None, causal, "top left"),
        pytest.param(None, None, "", marks=pytest.mark.slow),
        pytest.param(soft_cap, window, "", marks=pytest.mark.slow),
    ],
)
def test_one_compile_serves_all_lengths(score_mod: Any, mask_mod: Any, causal_as: str) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mask = create_block_mask(mask_mod, None, None, q.shape[2], k.shape[2], device="cpu") if mask_mod is not None else None
        return flex_attention(q, k, v, score_mod=score_mod, block_mask=mask, enable_gqa=True)

    call, before = compiled(attend, tune="off"), graphs()
    with torch.no_grad():
        for batch, rows, keys in LENGTHS:
            q, k, v = heads(batch, rows), heads(batch, keys, 2), heads(batch, keys, 2)
            out = call(q, k, v)
            torch.testing.assert_close(out.double(), right(score_mod, mask_mod, q, k, v)[0], rtol=1e-5, atol=1e-5)
    assert graphs() == tuple(count + 1 for count in before)
    assert [operation.causal for operation in attentions()] == [causal_as]
    assert (attentions()[0].scores is not None) == (score_mod is not None)


def test_captured_tensors_and_what_is_returned_beside_the_result() -> None:
    """Slopes for each head, documents packed into one sequence, a threshold that is a number in memory."""

    def attend(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, documents: Tensor, reach: Tensor) -> Any:
        def alibi(score: Tensor, b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
            return score + slopes[h] * (n - m)

        def same_document(b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
            return (documents[m] == documents[n]) & (n - m < reach)

        if not torch.compiler.is_compiling():
            return right(alibi, same_document, q, k, v)
        mask = create_block_mask(same_document, None, None, q.shape[2], k.shape[2], device="cpu")
        out, aux = flex_attention(q, k, v, score_mod=alibi, block_mask=mask, return_aux=AuxRequest(lse=True))
        return out, aux.lse

    call = compiled(attend, tune="off")
    with torch.no_grad():
        for length in (24, 37):
            given = *(heads(2, length) for _ in range(3)), torch.rand(HEADS), torch.arange(length) // 9, torch.tensor(-2)
            for mine, wanted in zip(call(*given), attend(*given), strict=True):
                torch.testing.assert_close(mine.double(), wanted, rtol=1e-5, atol=1e-5)
    assert len(attentions()) == 1


def test_functions_by_elements_are_known_from_others() -> None:
    table, number = torch.zeros(3, 5), torch.tensor(2.0)

    def looked_up(score: Tensor, b: Tensor, h: Tensor, m: Tensor, n: Tensor, *captured: Tensor) -> Tensor:
        return torch.where(m > n, score * captured[1], captured[0][h, m])

    def row_summed(score: Tensor, b: Tensor, h: Tensor, m: Tensor, n: Tensor, *captured: Tensor) -> Tensor:
        return score + captured[0][h].sum()

    def whole(score: Tensor, b: Tensor, h: Tensor, m: Tensor, n: Tensor, *captured: Tensor) -> Tensor:
        return score + captured[0]

    def quotients(b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
        return m // 50 == n // 50

    assert is_elementwise(soft_cap, True, ()) and is_elementwise(window, False, ()) and is_elementwise(quotients, False, ())
    assert is_elementwise(looked_up, True, (table, number))
    assert not is_elementwise(row_summed, True, (table, number)) and not is_elementwise(whole, True, (table, number))


@pytest.mark.parametrize("summed", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["by elements", "mapped"])
def test_gradients_reach_captured_tensors(summed: bool) -> None:
    """By the operator itself, as flex_attention refuses gradients on a CPU."""

    def attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        def biased(score: Tensor, b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
            return torch.tanh(score) + (bias[h].sum() if summed else bias[h, n - m + 40])

        if not torch.compiler.is_compiling():
            shifted = (lambda s, b, h, m, n: torch.tanh(s) + bias.sum(1)[h]) if summed else biased
            return right(shifted, window, q, k, v)
        mask = create_block_mask(window, None, None, q.shape[2], k.shape[2], device="cpu")
        out, lse, _ = operator(q, k, v, biased, mask.as_tuple(), 0.25, {})
        return out, lse * 0.6931471805599453

    call = compiled(attend, tune="off")
    for batch, rows, keys in LENGTHS[:2]:
        given = heads(batch, rows), heads(batch, keys), heads(batch, keys), torch.randn(HEADS, 80)
        leaves = [each.clone().requires_grad_() for each in given]
        exact = [each.double().requires_grad_() for each in given]
        direction = torch.randn(batch, HEADS, rows, 16), torch.randn(batch, HEADS, rows)
        seen = right(None, window, *given[:3])[1] > -float("inf")
        mine, wanted = ((out * direction[0]).sum() + lse[seen].mul(direction[1][seen]).sum() for out, lse in (
            call(*leaves), attend(*exact)))  # fmt: skip
        for one, other in zip(torch.autograd.grad(mine, leaves), torch.autograd.grad(wanted, exact), strict=True):
            torch.testing.assert_close(one.double(), other.nan_to_num(0.0), rtol=2e-5, atol=2e-5)
