"""Lowers attention of packed and paged sequences: polytile::varlen_attention and its backward pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from polytile.errors import LoweringError
from polytile.frontend.attention.varlen import VARLEN, VARLEN_BACKWARD
from polytile.frontend.lower.attention import DTYPES, used_results, with_empty_rows
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.value import Tensor, stored
from polytile.frontend.lower.views import has_static_zero
from polytile.ir import sizes
from polytile.ir.attention import EMPTY, Attention, Gradients, Sequences
from polytile.ir.buffer import View, whole

INDEX_TYPES = (torch.int32, torch.int64)

Masks = dict[str, Any]
"""The arguments of an Attention for a window."""


def _masks(before: Any, after: Any) -> Masks:
    if not isinstance(before, int) or not isinstance(after, int):
        raise LoweringError("a window whose size is known only in a call is left to the library.")
    if before < 0:
        return {} if after < 0 else {"causal": "bottom right"} if after == 0 else {"window": (-1, after)}
    return {"window": (before, after)}


def _heads_first(view: View) -> View:
    """(…, rows, heads, d) as (…, heads, rows, d)."""
    (*lead, rows, heads, d), (*steps, along, across, dense) = view.sizes, view.strides
    return replace(view, sizes=(*lead, heads, rows, d), strides=(*steps, across, along, dense))


def _sequences(
    builder: Builder, q_starts: Tensor, k_starts: Tensor | None, k_used: Tensor | None, table: Tensor | None, rows: Any,
    keys: Any,
) -> Sequences:  # fmt: skip
    given = {"q_starts": q_starts, "k_starts": k_starts if table is None else None, "table": table, "k_used": k_used}
    named = {name: tensor for name, tensor in given.items() if tensor is not None}
    if strange := [str(tensor.dtype) for tensor in named.values() if tensor.dtype not in INDEX_TYPES]:
        raise LoweringError(
            f"attention of sequences that {', '.join(strange)} says the places of is left to the library."
        )
    views = {name: builder.stored(tensor) for name, tensor in named.items()}
    count = views["q_starts"].sizes[0] - 1
    if "k_starts" in views:  # guards hold both lengths equal
        views["k_starts"] = replace(views["k_starts"], sizes=views["q_starts"].sizes)
    for name in ("table", "k_used"):
        if name in views:
            views[name] = replace(views[name], sizes=(count, *views[name].sizes[1:]))
    return Sequences(count, sizes.as_size(rows), sizes.as_size(keys), **views)


def _operands(builder: Builder, q: Tensor, k: Tensor, v: Tensor) -> tuple[View, View, View]:
    if q.dtype not in DTYPES or k.dtype != q.dtype or v.dtype != q.dtype:
        raise LoweringError(f"attention of {q.dtype}, {k.dtype} and {v.dtype} is left to the library.")
    q_view, k_view, v_view = (_heads_first(builder.stored(tensor)) for tensor in (q, k, v))
    if any(has_static_zero(view.sizes) for view in (q_view, k_view, v_view)):
        raise LoweringError("attention of nothing is left to the library.")
    length = next((n for n in (q_view.sizes[-1], k_view.sizes[-1]) if n.is_Integer), q_view.sizes[-1])
    return (
        replace(q_view, sizes=(*q_view.sizes[:-1], length)),
        replace(k_view, sizes=(*k_view.sizes[:-1], length)),
        replace(v_view, sizes=(*k_view.sizes[:-1], v_view.sizes[-1])),
    )


@lowers(VARLEN)
def varlen(
    builder: Builder, q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor | None, k_used: Tensor | None,
    table: Tensor | None, max_q: Any, max_k: Any, scale: float | None, before: Any, after: Any,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    masks, views = _masks(before, after), _operands(builder, q, k, v)
    placed = _sequences(builder, q_starts, k_starts, k_used, table, max_q, max_k)
    heads, rows, _ = views[0].sizes
    out = builder.new_buffer((rows, heads, views[2].sizes[-1]), q.dtype, q.device)
    lse = builder.new_buffer((heads, rows), torch.float32, q.device) if 1 in used_results(builder) else None
    builder.emit(
        Attention(
            builder.name("attention"), *views, _heads_first(whole(out)), None if scale is None else float(scale),
            lse=whole(lse) if lse is not None else None, origins=(builder.origin,), sequences=placed, **masks,
        )
    )  # fmt: skip
    if lse is None:
        return stored(whole(out), q.device), None
    return stored(whole(out), q.device), with_empty_rows(stored(whole(lse), q.device), -EMPTY)


@lowers(VARLEN_BACKWARD)
def varlen_backward(
    builder: Builder, grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, q_starts: Tensor, k_starts: Tensor,
    max_q: Any, max_k: Any, scale: float | None, before: Any, after: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    masks, views = _masks(before, after), _operands(builder, q, k, v)
    placed = _sequences(builder, q_starts, k_starts, None, None, max_q, max_k)
    saved, change = (_heads_first(builder.stored(builder.contiguous(tensor))) for tensor in (out, grad))
    made = [builder.new_buffer(builder.stored(tensor).sizes, q.dtype, q.device) for tensor in (q, k, v)]
    gradients = Gradients(change, *[_heads_first(whole(buffer)) for buffer in made])
    builder.emit(
        Attention(
            builder.name("attention_backward"), *views, saved, None if scale is None else float(scale),
            lse=builder.stored(lse), origins=(builder.origin,), gradients=gradients, sequences=placed, **masks,
        )
    )  # fmt: skip
    return tuple(stored(whole(buffer), q.device) for buffer in made)


@lowers(torch.ops.aten._flash_attention_forward.default)
def packed_flash(
    builder: Builder, q: Tensor, k: Tensor, v: Tensor, cum_seq_q: Tensor | None, cum_seq_k: Tensor | None, max_q: Any, max_k: Any,
    dropout_p: float, is_causal: bool, return_debug_mask: bool, *, scale: float | None = None,
    window_size_left: Any = None, window_size_right: Any = None, seqused_k: Tensor | None = None, **more: Any,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """The form of scaled_dot_product_attention of nested tensors on a GPU."""
    if cum_seq_q is None or cum_seq_k is None or any(given is not None for given in more.values()):
        raise LoweringError("FlashAttention's own operator is left to the library, but for packed sequences.")
    if dropout_p != 0 or used_results(builder) - {0, 1}:
        raise LoweringError("attention whose saved state is used, as by its gradient, is left to the library.")
    before, after = (-1 if given is None else given for given in (window_size_left, window_size_right))
    out, lse = varlen(
        builder, q, k, v, cum_seq_q, cum_seq_k, seqused_k, None, max_q, max_k, scale, before, 0 if is_causal else after
    )
    return out, lse, None, None, None
