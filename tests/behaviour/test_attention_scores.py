"""Masks and scores that a program computes from positions are computed inside attention kernels: no mask is in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import polytile
from polytile.compiler.programs import compiled_programs
from polytile.ir.attention import Attention
from tests.behaviour.helpers import compiled, graphs

LENGTHS = ((3, 7, 40), (2, 12, 12), (2, 70, 120), (2, 19, 5))
HEADS, GROUPS, WIDTH = 4, 2, 16
INF = float("inf")


def heads(batch: int, length: int, count: int = HEADS) -> Tensor:
    return torch.randn(batch, count, length, WIDTH)


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def of_a_graph(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, documents: Tensor, slopes: Tensor) -> tuple[Tensor, ...]:
    """Causal with the padding of each sequence; a window; another triangle over scores; a prefix; documents; ALiBi."""
    rows, keys = torch.arange(q.shape[2], device=q.device)[:, None], torch.arange(k.shape[2], device=q.device)[None]
    padded = (keys < lengths[:, None])[:, None, None, :] & (keys <= rows)
    window = (keys <= rows) & (rows - keys < 5)
    triangle = torch.tril(torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device), diagonal=2)
    repeated = k.repeat_interleave(HEADS // GROUPS, 1), v.repeat_interleave(HEADS // GROUPS, 1)
    filled = (q @ repeated[0].transpose(-1, -2) * 0.25).masked_fill(~triangle, -INF).softmax(-1) @ repeated[1]
    prefix = (keys <= rows) | (keys < 4)
    packed = documents[: q.shape[2], None] == documents[None, : k.shape[2]]
    bias = (slopes[:, None, None] * (keys - rows)).masked_fill(keys > rows + 3, -INF)
    masks = padded, window[None, None], prefix[None, None], packed[None, None], bias[None].to(q.dtype)
    return (*(sdpa(q, k, v, mask) for mask in masks), filled)


def soft_capped(score: Tensor, b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
    return 3 * torch.tanh(score / 3)


def of_flex(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, documents: Tensor, slopes: Tensor) -> tuple[Tensor, ...]:
    """Soft cap and padding; relative positions from a table and documents; ALiBi alone."""

    def padding(b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
        return (n < lengths[b]) & (m >= n)

    def same_document(b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
        return documents[m] == documents[n]

    def relative(score: Tensor, b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
        return score + slopes[(h + m + n) % HEADS]

    def alibi(score: Tensor, b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
        return score + slopes[h] * (n - m)

    def attend(score: Any, mask: Any) -> Tensor:
        if not torch.compiler.is_compiling():
            return by_definition(score, mask, q, k, v)
        block = create_block_mask(mask, None, None, q.shape[2], k.shape[2], device=q.device) if mask is not None else None
        return flex_attention(q, k, v, score_mod=score, block_mask=block, enable_gqa=True)

    return attend(soft_capped, padding), attend(relative, same_document), attend(alibi, None)


def by_definition(score_mod: Any, mask_mod: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5
    places = torch.meshgrid(*[torch.arange(n) for n in scores.shape], indexing="ij")
    changed = score_mod(scores, *places) if score_mod is not None else scores
    seen = mask_mod(*places) if mask_mod is not None else torch.ones_like(scores, dtype=torch.bool)
    return torch._safe_softmax(torch.where(seen, changed, -INF), -1) @ v


def arguments(batch: int, rows: int, keys: int) -> tuple[Tensor, ...]:
    """q, k, v; keys of each sequence, of the first none; documents; slopes."""
    lengths = torch.randint(1, keys + 1, (batch,))
    lengths[0] = 0
    documents = torch.arange(512) // 9
    return heads(batch, rows), heads(batch, keys, GROUPS), heads(batch, keys, GROUPS), lengths, documents, torch.rand(HEADS)


def attentions() -> list[Attention]:
    program = compiled_programs()[-1].program
    assert program is not None
    temporaries = [buffer for buffer in program.buffers.values() if buffer.role == "temp"]
    found = [operation for operation in program.operations if isinstance(operation, Attention)]
    assert len(temporaries) == len(found), "there is more in memory than the results"
    return found


@pytest.mark.parametrize("program", [of_a_graph, of_flex])
def test_masks_and_scores_of_positions_are_in_no_memory(program: Callable[..., tuple[Tensor, ...]]) -> None:
    """One compile for all lengths, also where rows see no key; explain() says so."""
    call, before = compiled(program, tune="off"), graphs()
    with torch.no_grad():
        for sizes in LENGTHS:
            given = arguments(*sizes)
            for _ in range(2):
                wide = [each.double() if each.is_floating_point() else each for each in given]
                for mine, wanted in zip(call(*given), program(*wide), strict=True):
                    torch.testing.assert_close(mine.double(), wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
                polytile.wait()
        assert graphs() == tuple(count + 1 for count in before)
        found = attentions()
        assert all(each.scores is not None and each.bias is None for each in found)
        assert "no mask or bias is made in memory" in str(polytile.explain(call, *given))


@pytest.mark.parametrize("sizes", [(2, 1, 1), (1, 1, 30), (2, 6, 0), (2, 0, 6)], ids=str)
def test_lengths_of_0_and_1_are_as_eager(sizes: tuple[int, int, int]) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        rows, keys = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None]
        return sdpa(q, k, v, (keys < rows + 1) & (keys > rows - 4))

    q, k, v = heads(sizes[0], sizes[1]), heads(sizes[0], sizes[2], GROUPS), heads(sizes[0], sizes[2], GROUPS)
    with torch.no_grad():
        torch.testing.assert_close(compiled(function, tune="off")(q, k, v), function(q, k, v))


def test_what_hidden_keys_score_does_not_count() -> None:
    """Infinite and undefined scores behind a mask, in blocks that are skipped and in others."""

    def program(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        def padding(b: Tensor, h: Tensor, m: Tensor, n: Tensor) -> Tensor:
            return n < lengths[b]

        if not torch.compiler.is_compiling():
            return by_definition(None, padding, q, k, v)
        mask = create_block_mask(padding, None, None, q.shape[2], k.shape[2], device="cpu")
        return flex_attention(q, k, v, block_mask=mask)

    call = compiled(program, tune="off")
    with torch.no_grad():
        for rows, keys in ((40, 500), (2, 900)):
            q, k, v, lengths = heads(2, rows), heads(2, keys), heads(2, keys), torch.tensor([30, 301])
            k[0, :, 30:40], k[1, :, 301:], k[0, :, 400:] = float("nan"), INF, -INF
            for _ in range(2):
                torch.testing.assert_close(call(q, k, v, lengths), program(q, k, v, lengths), rtol=1e-5, atol=1e-5)
                polytile.wait()


@pytest.mark.parametrize("program", [of_a_graph, pytest.param(of_flex, marks=pytest.mark.slow)])
def test_triton_kernels_compute_them_too(program: Callable[..., tuple[Tensor, ...]]) -> None:
    call = compiled(program, tune="off", interpret=True, sources="triton")
    with torch.no_grad():
        for sizes in ((2, 20, 37), (2, 2, 70)):
            given = arguments(*sizes)
            wide = [each.double() if each.is_floating_point() else each for each in given]
            for mine, wanted in zip(call(*given), program(*wide), strict=True):
                torch.testing.assert_close(mine.double(), wanted, rtol=1e-5, atol=1e-5, equal_nan=True)
            polytile.wait()
    assert all(each.scores is not None for each in attentions())
