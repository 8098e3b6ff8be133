"""The operators that represent attention in an ATen graph.

    attention(q, k, v, bias, scale, causal, fill, empty_is_0, heads_inside=False)

    products(q, k, scale, dtype) → elementwise operators → attention_of(q, k, v, scores, scale, empty_is_0)
                                                         → attention_with_lse(q, k, v, scores, scale, empty_is_0, …) -> (out, lse)
        → attention_of_backward(q, k, v, scores, slopes, out, lse, grad, grad_lse, scale, …) -> (dq, dk, dv, changes)

q is (batch, heads, m, d), k (batch, heads of k, n, d), v (batch, heads of k, n, dv), where heads is a multiple of the heads of k;
bias is None or (batch, heads, m, n). Without a scale it is d ** -0.5. See ir.attention.Attention for the rest. `products` returns
the scaled products, (batch, heads, m, n) in `dtype`; `attention_of` weights v by the scores computed from them. `slopes` are the
derivatives of the scores by the products; `lse`, (batch, heads, m) in float32, is the natural logarithm, and -inf in a row that
attends to no key, whose result is 0 or, without `empty_is_0`, NaN. `changes`, (batch, heads, m, n) in q's dtype, are the
derivatives by the scores. The last two operators may end with the `random`, p, vector and threads of dropout (ir/dropout.py).
With `heads_inside` the heads of a row of the result are contiguous, whatever the layout of q, as in results of PyTorch's
memory-efficient kernels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._higher_order_ops.flex_attention import _permute_strides
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn.functional import scaled_dot_product_attention

from polytile.ir.attention import EMPTY, attend, attend_backward, factors_of
from polytile.ir.dropout import Dropout

_library = torch.library.Library("polytile", "FRAGMENT")
_library.define(
    "attention(Tensor q, Tensor k, Tensor v, Tensor? bias, float? scale, str causal, float fill, bool empty_is_0, "
    "bool heads_inside=False) -> Tensor"
)


def new_result(q: torch.Tensor, v: torch.Tensor, heads_inside: bool = False) -> torch.Tensor:
    """Memory for the result: row-major if the heads of q are outside its rows, else with the heads of a row contiguous."""
    (batch, heads, rows, _), length = q.shape, v.shape[3]
    if not heads_inside and statically_known_true(q.stride(1) >= q.stride(2)):
        return q.new_empty((batch, heads, rows, length))
    return q.new_empty((batch, rows, heads, length)).transpose(1, 2)


@torch.library.register_fake("polytile::attention", lib=_library)
def _fake(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
    scale: float | None, causal: str, fill: float, empty_is_0: bool, heads_inside: bool = False,
) -> torch.Tensor:  # fmt: skip
    return new_result(q, v, heads_inside)


def _run(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
    scale: float | None, causal: str, fill: float, empty_is_0: bool, heads_inside: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Runs the operator before a program exists: by PyTorch's own call if that is equivalent."""
    square = causal == "top left" and bias is None
    if empty_is_0 and fill == EMPTY and (not causal or square):
        grouped = q.shape[1] != k.shape[1]
        out = scaled_dot_product_attention(q, k, v, bias, 0.0, bool(causal), scale=scale, enable_gqa=grouped)
    else:
        out, _ = attend(q, k, v, bias, scale=scale, causal=causal, fill=fill, empty_is_0=empty_is_0)
    result = new_result(q, v, heads_inside)
    return out if out.stride() == result.stride() and out.dtype == q.dtype else result.copy_(out)


_library.impl("attention", _run, "CompositeExplicitAutograd")

ATTENTION = torch.ops.polytile.attention.default

_library.define("products(Tensor q, Tensor k, float scale, ScalarType dtype) -> Tensor")
_library.define("attention_of(Tensor q, Tensor k, Tensor v, Tensor scores, float scale, bool empty_is_0) -> Tensor")


@torch.library.register_fake("polytile::products", lib=_library)
def _fake_products(q: torch.Tensor, k: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    return q.new_empty((*q.shape[:3], k.shape[2]), dtype=dtype)


@torch.library.register_fake("polytile::attention_of", lib=_library)
def _fake_of(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scores: torch.Tensor, scale: float, empty_is_0: bool
) -> torch.Tensor:
    return new_result(q, v)


def _products(q: torch.Tensor, k: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    group = q.shape[1] // max(1, k.shape[1])
    k = k.repeat_interleave(group, 1) if group != 1 else k
    wide = torch.promote_types(q.dtype, dtype)
    return (q.to(wide) @ k.to(wide).transpose(-1, -2) * scale).to(dtype)


def _attention_of(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scores: torch.Tensor, scale: float, empty_is_0: bool
) -> torch.Tensor:
    group = q.shape[1] // max(1, v.shape[1])
    v = v.repeat_interleave(group, 1) if group != 1 else v
    shares = torch._safe_softmax(scores, -1) if empty_is_0 else torch.softmax(scores, -1)
    return new_result(q, v).copy_(shares.to(v.dtype) @ v)


_library.impl("products", _products, "CompositeExplicitAutograd")
_library.impl("attention_of", _attention_of, "CompositeExplicitAutograd")

PRODUCTS, ATTENTION_OF = torch.ops.polytile.products.default, torch.ops.polytile.attention_of.default

_library.define(
    "attention_with_lse(Tensor q, Tensor k, Tensor v, Tensor scores, float scale, bool empty_is_0=True, "
    "Tensor? random=None, float p=0.0, int vector=1, int threads=1) -> (Tensor, Tensor)"
)
_library.define(
    "attention_of_backward(Tensor q, Tensor k, Tensor v, Tensor scores, Tensor slopes, Tensor out, Tensor lse, Tensor grad, "
    "Tensor? grad_lse, float scale, Tensor? random=None, float p=0.0, int vector=1, int threads=1) "
    "-> (Tensor, Tensor, Tensor, Tensor)"
)


@torch.library.register_fake("polytile::attention_with_lse", lib=_library)
def _fake_with_lse(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scores: torch.Tensor, scale: float, empty_is_0: bool = True, *rest: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    out = q.new_empty((*q.shape[:3], v.shape[3]))
    return _permute_strides(out, q.stride()), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.register_fake("polytile::attention_of_backward", lib=_library)
def _fake_of_backward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    dq, dk, dv = (_permute_strides(each.new_empty(each.shape), each.stride()) for each in (q, k, v))
    return dq, dk, dv, q.new_empty((*q.shape[:3], k.shape[2]))


def dropout_of(random: Any, *how: Any) -> Dropout | None:
    """The dropout that an operator's last arguments describe."""
    return None if random is None else Dropout(*how)


def _with_lse(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scores: torch.Tensor, scale: float, empty_is_0: bool = True,
    random: torch.Tensor | None = None, *dropout: Any,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    factors = factors_of(dropout_of(random, *dropout), random, scores.shape)
    out, lse = attend(q, k, v, scale=scale, empty_is_0=empty_is_0, scores=lambda products: (scores,), factors=factors)
    return _permute_strides(out.to(q.dtype), q.stride()), lse


def _of_backward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scores: torch.Tensor, slopes: torch.Tensor, out: torch.Tensor,
    lse: torch.Tensor, grad: torch.Tensor, grad_lse: torch.Tensor | None, scale: float, random: torch.Tensor | None = None,
    *dropout: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    *gradients, changes = attend_backward(
        q, k, v, out, lse, grad, scale=scale, scores=lambda products: (scores, slopes), grad_lse=grad_lse, with_changes=True,
        factors=factors_of(dropout_of(random, *dropout), random, scores.shape),
    )  # fmt: skip
    dq, dk, dv = (_permute_strides(one.to(q.dtype), of.stride()) for one, of in zip(gradients, (q, k, v), strict=True))
    return dq, dk, dv, changes.to(q.dtype)


_library.impl("attention_with_lse", _with_lse, "CompositeExplicitAutograd")
_library.impl("attention_of_backward", _of_backward, "CompositeExplicitAutograd")

WITH_LSE, OF_BACKWARD = torch.ops.polytile.attention_with_lse.default, torch.ops.polytile.attention_of_backward.default

COMPUTED = "polytile_in_attention"
"""The key in a node's `meta` that marks values needed only by scores inside kernels, which are not stored."""
