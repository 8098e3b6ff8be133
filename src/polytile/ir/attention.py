"""What attention computes, by torch's operators with all scores in memory: the definition that every kernel is held to."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from polytile.ir.program import Attention, compute_dtype

EMPTY = -float("inf")
"""The score of a key that is not seen."""


def causal_mask(kind: str, rows: int, keys: int, device: torch.device) -> torch.Tensor:
    """Whether row m sees key n, (rows, keys): n ≤ m for "top left", n - keys ≤ m - rows for "bottom right"."""
    shift = keys - rows if kind == "bottom right" else 0
    return torch.ones(rows, keys, dtype=torch.bool, device=device).tril(shift)


def masked(
    scores: torch.Tensor, bias: torch.Tensor | None, causal: str = "", fill: float = EMPTY, added: bool = False
) -> torch.Tensor:
    """Scores (..., rows, keys) after mask and bias. `added`: where a mask of booleans is false, -inf is added and NaN stays."""
    if bias is not None and bias.dtype == torch.bool:
        scores = scores + torch.where(bias, 0.0, EMPTY).to(scores.dtype) if added else torch.where(bias, scores, fill)
    elif bias is not None:
        scores = scores + bias.to(scores.dtype)
    if causal:
        rows, keys = scores.shape[-2:]
        scores = torch.where(causal_mask(causal, rows, keys, scores.device), scores, EMPTY)
    return scores


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    scale: float | None,
    causal: str = "",
    fill: float = EMPTY,
    empty_is_0: bool = True,
    precision: torch.dtype | None = None,
    scores: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of an ir.program.Attention in `precision` (None: the type in which `q` is computed). q is (batch, heads, m, d),
    k (batch, heads of k, n, d), v (batch, heads of k, n, dv); the heads of k divide those of q. `scores` makes scores of the
    scaled products (batch, heads, m, n), in place of bias and causal."""
    dtype = precision or compute_dtype(q.dtype)
    scale = math.sqrt(1 / max(1, q.shape[3])) if scale is None else scale
    group = q.shape[1] // max(1, k.shape[1])
    if group != 1:
        k, v = (each.repeat_interleave(group, 1) for each in (k, v))
    products = q.to(dtype) @ k.to(dtype).transpose(-1, -2) * scale
    changed = masked(products, bias, causal, fill, empty_is_0 and fill == EMPTY) if scores is None else scores(products)
    shares = torch.softmax(changed, -1)
    if empty_is_0:
        shares = torch.where((changed == EMPTY).all(-1, keepdim=True), 0.0, shares)
    return shares @ v.to(dtype), torch.logsumexp(changed, -1)


def attend_backward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, grad: torch.Tensor,
    bias: torch.Tensor | None = None, *, scale: float | None, causal: str = "", fill: float = EMPTY, empty_is_0: bool = True,
    precision: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """The gradients of q, k and v of `attend`, from its results and the gradient of `out`. A row that sees no key, whose lse is
    -inf, has none."""
    dtype = precision or compute_dtype(q.dtype)
    scale = math.sqrt(1 / max(1, q.shape[3])) if scale is None else scale
    heads = k.shape[1]
    group = q.shape[1] // max(1, heads)
    q, k, v, out, grad = (each.to(dtype) for each in (q, k, v, out, grad))
    if group != 1:
        k, v = (each.repeat_interleave(group, 1) for each in (k, v))
    scores = masked(q @ k.transpose(-1, -2) * scale, bias, causal, fill, empty_is_0 and fill == EMPTY)
    shares = torch.exp(scores - torch.where(lse == EMPTY, 0.0, lse).to(dtype).unsqueeze(-1))
    changes = shares * (grad @ v.transpose(-1, -2) - (grad * out).sum(-1, keepdim=True)) * scale
    if bias is not None and bias.dtype == torch.bool:  # a score that is replaced does not depend on q and k
        changes = torch.where(bias, changes, 0.0)
    dk, dv = changes.transpose(-1, -2) @ q, shares.transpose(-1, -2) @ grad
    if group != 1:
        dk, dv = (each.unflatten(1, (heads, group)).sum(2) for each in (dk, dv))
    return changes @ k, dk, dv


def settings_of(attention: Attention) -> dict[str, Any]:
    """The keyword arguments of `attend` that do what `attention` does."""
    return {name: getattr(attention, name) for name in ("scale", "causal", "fill", "empty_is_0")}
