"""Attention as model code spells it. Each has the arguments of its first call, of which the lengths are symbolic."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEADS, WIDTH = 4, 16
normal = torch.randn


@dataclass(frozen=True)
class Spelling:
    """`function(*arguments())`; `calls`: how many attentions are in it."""

    name: str
    function: Callable[..., Any]
    arguments: Callable[[], tuple[Any, ...]]
    calls: int = 1


def heads(batch: int = 2, length: int = 24, count: int = HEADS) -> Tensor:
    return normal(batch, count, length, WIDTH)


def rows(batch: int = 2, length: int = 24) -> Tensor:
    return normal(batch, length, HEADS * WIDTH)


def repeat_kv(x: Tensor, times: int) -> Tensor:
    """As in transformers."""
    batch, count, length, width = x.shape
    return x[:, :, None, :, :].expand(batch, count, times, length, width).reshape(batch, count * times, length, width)


def hf_eager(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """eager_attention_forward of transformers."""
    k, v = (repeat_kv(x, q.shape[1] // x.shape[1]) if x.shape[1] != q.shape[1] else x for x in (k, v))
    weights = torch.matmul(q, k.transpose(2, 3)) * WIDTH**-0.5
    if mask is not None:
        weights = weights + mask[:, :, :, : k.shape[-2]]
    weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
    weights = F.dropout(weights, p=0.1, training=False)
    return torch.matmul(weights, v).transpose(1, 2).contiguous()


def hf_sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """sdpa_attention_forward of transformers, before it knew enable_gqa."""
    k, v = repeat_kv(k, 2), repeat_kv(v, 2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.2).transpose(1, 2).contiguous()


def nanogpt(qkv: Tensor, bias: Tensor) -> Tensor:
    batch, length, width = qkv.shape[0], qkv.shape[1], HEADS * WIDTH
    q, k, v = qkv.split(width, dim=2)
    q, k, v = (x.view(batch, length, HEADS, width // HEADS).transpose(1, 2) for x in (q, k, v))
    att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
    att = att.masked_fill(bias[:, :, :length, :length] == 0, float("-inf"))
    return (F.softmax(att, dim=-1) @ v).transpose(1, 2).contiguous().view(batch, length, width)


def nanogpt_flash(qkv: Tensor) -> Tensor:
    batch, length, width = qkv.shape[0], qkv.shape[1], HEADS * WIDTH
    q, k, v = (x.view(batch, length, HEADS, width // HEADS).transpose(1, 2) for x in qkv.split(width, dim=2))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0, is_causal=True)
    return y.transpose(1, 2).contiguous().view(batch, length, width)


def timm(qkv: Tensor) -> Tensor:
    batch, length, _ = qkv.shape
    q, k, v = qkv.reshape(batch, length, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4).unbind(0)
    attention = ((q * WIDTH**-0.5) @ k.transpose(-2, -1)).softmax(dim=-1)
    return (attention @ v).transpose(1, 2).reshape(batch, length, HEADS * WIDTH)


def timm_fused(qkv: Tensor) -> Tensor:
    batch, length, _ = qkv.shape
    q, k, v = qkv.reshape(batch, length, 3, HEADS, WIDTH).permute(2, 0, 3, 1, 4).unbind(0)
    q, k = F.layer_norm(q, (WIDTH,)), F.layer_norm(k, (WIDTH,))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, HEADS * WIDTH)


def t5(q: Tensor, k: Tensor, v: Tensor, position_bias: Tensor, mask: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(3, 2))
    scores = scores + (position_bias + mask)
    return torch.matmul(F.softmax(scores.float(), dim=-1).type_as(scores), v)


def alibi(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
    places = torch.arange(k.shape[2])
    bias = slopes.view(-1, 1, 1) * (places[None, :] - places[:, None])
    causal = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.masked_fill(~causal, float("-inf"))[None])


def bloom(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor, mask: Tensor) -> Tensor:
    """baddbmm on (batch · heads, ...), the mask on (batch, heads, ...)."""
    batch, length = mask.shape[0], k.shape[1]
    scores = torch.baddbmm(slopes * torch.arange(length), q, k.transpose(1, 2), beta=1.0, alpha=WIDTH**-0.5)
    scores = scores.view(batch, HEADS, -1, length) + mask
    return torch.bmm(F.softmax(scores, dim=-1, dtype=torch.float32).view(batch * HEADS, -1, length), v)


def sliding_window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rows, keys = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None, :]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=(keys <= rows) & (rows - keys < 7))


def swin(q: Tensor, k: Tensor, v: Tensor, relative: Tensor, mask: Tensor) -> Tensor:
    """Windows with a bias of relative positions, and a mask for each window of an image."""
    count, windows, length = q.shape[0], mask.shape[0], q.shape[2]
    scores = (q * WIDTH**-0.5) @ k.transpose(-2, -1) + relative.unsqueeze(0)
    scores = scores.view(count // windows, windows, HEADS, length, length) + mask.unsqueeze(1).unsqueeze(0)
    return (scores.view(-1, HEADS, length, length).softmax(-1) @ v).transpose(1, 2).reshape(count, length, HEADS * WIDTH)


def swin_v2(q: Tensor, k: Tensor, v: Tensor, scale: Tensor, relative: Tensor) -> Tensor:
    """Cosines, with a factor for each head."""
    scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
    scores = scores * torch.clamp(scale, max=4.6).exp() + relative.unsqueeze(0)
    return scores.softmax(dim=-1) @ v


def gpt2(q: Tensor, k: Tensor, v: Tensor, causal: Tensor, padding: Tensor) -> Tensor:
    weights = torch.matmul(q, k.transpose(-1, -2)) / torch.full([], WIDTH**0.5)
    lowest = torch.full([], torch.finfo(weights.dtype).min, dtype=weights.dtype)
    weights = torch.where(causal[:, :, : q.shape[2], : k.shape[2]], weights, lowest) + padding
    return torch.matmul(F.softmax(weights, dim=-1).type(v.dtype), v)


def cross(x: Tensor, memory: Tensor, wq: Tensor, wkv: Tensor) -> Tensor:
    batch, length, width = x.shape
    q = (x @ wq).view(batch, length, HEADS, WIDTH).transpose(1, 2)
    k, v = (memory @ wkv).view(batch, memory.shape[1], 2, HEADS, WIDTH).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)


def static_cache(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, place: Tensor) -> Tensor:
    """Decoding into memory for the longest length; a mask hides what is not written yet."""
    keys, values = keys.index_copy(2, place, k), values.index_copy(2, place, v)
    seen = torch.arange(keys.shape[2])[None, :] <= place[:, None]
    return F.scaled_dot_product_attention(q, repeat_kv(keys, 2), repeat_kv(values, 2), attn_mask=seen[None, None])


def growing_cache(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
    return F.scaled_dot_product_attention(q, keys, values, enable_gqa=True), keys, values


def by_hand(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return torch.softmax(q @ k.T * 0.3 + mask, -1) @ v


def in_three(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.bmm(F.softmax(torch.bmm(q, k.transpose(1, 2)) / math.sqrt(WIDTH), dim=-1), v)


def einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * WIDTH**-0.5
    return torch.einsum("bhij,bhjd->bhid", scores.softmax(-1), v)


def einsum_rows(q: Tensor, k: Tensor, v: Tensor, kept: Tensor) -> Tensor:
    """Heads behind lengths, as JAX has them."""
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * WIDTH**-0.5
    scores = torch.where(kept[:, None, None, :], scores, -1e9)
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)


def unscaled_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Whisper: half of the scale on either side."""
    q, k = q * WIDTH**-0.25, k * WIDTH**-0.25
    return F.softmax((q @ k.transpose(-1, -2)).float(), dim=-1).to(q.dtype) @ v


def safe_softmax(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """scaled_dot_product_attention taken apart by its rule for scores in memory, which adds a mask as it is."""
    return torch.ops.aten._scaled_dot_product_attention_math(q, k, v, mask)[0]


_multihead = nn.MultiheadAttention(HEADS * WIDTH, HEADS, batch_first=True).eval()


def multihead(x: Tensor, padding: Tensor) -> Tensor:
    return _multihead(x, x, x, key_padding_mask=padding, need_weights=False)[0]


def soft_cap(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (torch.tanh(q @ k.transpose(-1, -2) / 30) * 30).softmax(-1) @ v


def scaled_bias(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return ((q @ k.transpose(-1, -2) + bias) * 0.5).softmax(-1) @ v


def _lowest(*shape: int) -> Tensor:
    """0 or the smallest number, as transformers' masks are."""
    return torch.where(torch.rand(shape) < 0.7, 0.0, torch.finfo(torch.float32).min)


SPELLINGS = (
    Spelling("transformers' eager", hf_eager, lambda: (heads(), heads(), heads(), _lowest(2, 1, 24, 24))),
    Spelling("transformers' eager, groups", hf_eager, lambda: (heads(), heads(count=2), heads(count=2), _lowest(2, 1, 24, 24))),
    Spelling("transformers' eager, no mask", hf_eager, lambda: (heads(3), heads(3), heads(3), None)),
    Spelling("transformers' sdpa", hf_sdpa, lambda: (heads(), heads(count=2), heads(count=2), torch.rand(2, 1, 24, 24) < 0.7)),
    Spelling("nanoGPT", nanogpt, lambda: (normal(2, 24, 3 * HEADS * WIDTH), torch.ones(1, 1, 64, 64).tril())),
    Spelling("nanoGPT, flash", nanogpt_flash, lambda: (normal(2, 24, 3 * HEADS * WIDTH),)),
    Spelling("timm", timm, lambda: (normal(2, 24, 3 * HEADS * WIDTH),)),
    Spelling("timm, fused", timm_fused, lambda: (normal(2, 24, 3 * HEADS * WIDTH),)),
    Spelling("T5", t5, lambda: (heads(), heads(length=30), heads(length=30), normal(1, HEADS, 24, 30), _lowest(2, 1, 1, 30))),
    Spelling("ALiBi", alibi, lambda: (heads(), heads(), heads(), torch.rand(HEADS))),
    Spelling("BLOOM", bloom, lambda: (*(normal(2 * HEADS, 24, WIDTH) for _ in range(3)), normal(8, 1, 1), _lowest(2, 1, 24, 24))),
    Spelling("sliding window", sliding_window, lambda: (heads(), heads(), heads())),
    Spelling("Swin", swin, lambda: (*(heads(6, 25) for _ in range(3)), normal(HEADS, 25, 25), normal(3, 25, 25))),
    Spelling("Swin v2", swin_v2, lambda: (*(heads(6, 25) for _ in range(3)), normal(HEADS, 1, 1), normal(HEADS, 25, 25))),
    Spelling("GPT-2", gpt2, lambda: (
        heads(), heads(), heads(), torch.ones(1, 1, 64, 64, dtype=torch.bool).tril(), _lowest(2, 1, 1, 24))),
    Spelling("cross attention", cross, lambda: (
        rows(), rows(length=30), normal(HEADS * WIDTH, HEADS * WIDTH) / 8, normal(HEADS * WIDTH, 2 * HEADS * WIDTH) / 8)),
    Spelling("decoding, static cache", static_cache, lambda: (
        heads(length=1), *(heads(length=1, count=2) for _ in range(2)), *(heads(length=40, count=2) for _ in range(2)),
        torch.tensor([17]))),
    Spelling("decoding, growing cache", growing_cache, lambda: (
        heads(length=1), *(heads(length=1, count=2) for _ in range(2)), *(heads(length=40, count=2) for _ in range(2)))),
    Spelling("matrices", by_hand, lambda: (normal(24, WIDTH), normal(30, WIDTH), normal(30, WIDTH), normal(24, 30))),
    Spelling("batches of matrices", in_three, lambda: (*(normal(8, 24, WIDTH) for _ in range(3)),)),
    Spelling("einsum", einsum, lambda: (heads(), heads(length=30), heads(length=30))),
    Spelling("einsum, heads behind lengths", einsum_rows, lambda: (
        *(normal(2, 24, HEADS, WIDTH) for _ in range(3)), torch.rand(2, 24) < 0.7)),
    Spelling("Whisper", unscaled_keys, lambda: (heads(), heads(length=30), heads(length=30))),
    Spelling("scores in memory", safe_softmax, lambda: (heads(), heads(), heads(), torch.rand(24, 24) < 0.9)),
    Spelling("soft cap", soft_cap, lambda: (heads(), heads(), heads())),
    Spelling("bias before the scale", scaled_bias, lambda: (heads(), heads(), heads(), normal(24, 24))),
    Spelling("nn.MultiheadAttention", multihead, lambda: (rows(), torch.rand(2, 24) < 0.2)),
)  # fmt: skip


def weights_wanted(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = (q @ k.transpose(-1, -2)).softmax(-1)
    return weights @ v, weights


def transposed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2)).softmax(-1).transpose(-1, -2) @ v


OTHERS = (
    ("the softmax has other uses", weights_wanted, lambda: (heads(), heads(), heads())),
    ("the softmax is transposed", transposed, lambda: (heads(), heads(), heads())),
    ("its operands are of torch.float64", in_three, lambda: (*(normal(8, 24, WIDTH).double() for _ in range(3)),)),
)
"""What is no attention that kernels do, and the reason."""
