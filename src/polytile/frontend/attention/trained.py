"""scaled_dot_product_attention of a training graph as an operator of polytile's, with its gradient as another.

    attention_trained(q, k, v, bias, scale, causal, heads_inside=False) -> (out, lse)
        → attention_trained_backward(grad, q, k, v, bias, out, lse, scale, causal, with_bias) -> (dq, dk, dv, dscores)

q is (batch, heads, m, d), k and v (batch, heads of k, n, d); lse, (batch, heads, m) in float32, is the natural logarithm, and
-inf in a row that sees no key. bias is None or (batch, heads, m, n), and so is dscores, which has no elements unless `with_bias`;
see ir.attention.Attention for it and for `causal`.
PyTorch's own operators each save what the backward pass of the same library needs. These two save what every kernel gives and
takes, so that each pass may run whichever kernel is fastest.

Before a program exists both run FlashAttention's kernels, or the memory-efficient ones where those do not serve; the definition
on a CPU, which only tests use, and under a causal mask that neither knows. Dropout is left to PyTorch's operators, as each draws
random numbers in an order of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true

from polytile.frontend.attention.operator import new_result
from polytile.ir.attention import EMPTY, attend, attend_backward
from polytile.runtime.efficient_attention import efficient, efficient_backward, hidden, no_state

aten = torch.ops.aten

NAME = "polytile::attention_trained"
LONGEST, MULTIPLE = 256, 8
"""Sizes of heads that the library's kernels take: up to the first number of elements, and a multiple of the second."""

_library = torch.library.Library("polytile", "FRAGMENT")
_library.define(
    "attention_trained(Tensor q, Tensor k, Tensor v, Tensor? bias, float? scale, str causal, bool heads_inside=False) "
    "-> (Tensor, Tensor)"
)
_library.define(
    "attention_trained_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor out, Tensor lse, float? scale, "
    "str causal, bool with_bias) -> (Tensor, Tensor, Tensor, Tensor)"
)


def is_trained(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> bool:
    """Whether the operator takes these arguments, which are alike in dtype, device and batch."""
    head = q.shape[-1]
    square = not causal or statically_known_true(q.shape[-2] == k.shape[-2])
    able = q.device.type == "cuda" and q.ndim == 4
    fits = able and square and head <= LONGEST and head % MULTIPLE == 0 and v.shape[-1] == head
    return fits and all(tensor.stride(-1) == 1 for tensor in (q, k, v))


@torch.library.register_fake(NAME, lib=_library)
def _fake(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float | None, causal: str, heads_inside: bool = False
) -> tuple[Tensor, Tensor]:
    return new_result(q, v, heads_inside), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.register_fake(f"{NAME}_backward", lib=_library)
def _fake_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    scores = q.new_empty((*q.shape[:3], k.shape[2]) if rest[-1] else (0,))
    return new_result(q, q), new_result(k, k), new_result(v, v), scores


def _run(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float | None, causal: str, heads_inside: bool = False
) -> tuple[Tensor, Tensor]:
    results = _fake(q, k, v, bias, scale, causal, heads_inside)
    values: Sequence[Tensor | None]
    if _has_flash(q, k, bias, causal):
        values = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, bool(causal), False, scale=scale)[:2]
    elif _has_efficient(q, k, causal):
        values = efficient(q, k, v, bias, scale, causal, with_lse=True)
    else:
        values = attend(q, k, v, bias, scale=scale, causal=causal)
    for result, value in zip(results, values, strict=True):
        assert value is not None
        result.copy_(value)
    results[1].masked_fill_(results[1] == float("inf"), EMPTY)  # the library's mark of a row that sees no key
    return results


def _run_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor, lse: Tensor, scale: float | None,
    causal: str, with_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    results = _fake_backward(grad, q, k, v, with_bias)
    gradients: Sequence[Tensor]
    if _has_flash(q, k, bias, causal):
        rest = None, None, q.shape[2], k.shape[2], 0.0, bool(causal), *no_state(q)
        gradients = aten._scaled_dot_product_flash_attention_backward(grad, q, k, v, out, hidden(lse), *rest, scale=scale)[:3]
    elif _has_efficient(q, k, causal):
        gradients = efficient_backward(grad, q, k, v, bias, out, lse, scale, bool(causal), with_bias)
    else:
        gradients = attend_backward(q, k, v, out, lse, grad, bias, scale=scale, causal=causal, with_changes=with_bias)
    for result, value in zip(results[: 3 + with_bias], gradients, strict=True):
        result.copy_(value)
    return results


def _has_flash(q: Tensor, k: Tensor, bias: Tensor | None, causal: str) -> bool:
    """Whether FlashAttention has a kernel, whose causal mask counts from the bottom right."""
    same = causal != "top left" or q.shape[2] == k.shape[2]
    return q.is_cuda and q.dtype.itemsize == 2 and bias is None and same


def _has_efficient(q: Tensor, k: Tensor, causal: str) -> bool:
    """Whether the memory-efficient kernels serve both passes, whose causal mask counts from the top left."""
    return q.is_cuda and (causal != "bottom right" or q.shape[2] == k.shape[2])


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, bias, *rest = inputs
    ctx.rest = rest[:2]
    ctx.save_for_backward(q, k, v, bias, *output)


def _differentiate(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Any, ...]:
    """No call uses the log-sum-exp, so it has no gradient."""
    dq, dk, dv, dscores = BACKWARD(grad, *ctx.saved_tensors, *ctx.rest, ctx.needs_input_grad[3])
    return dq, dk, dv, dscores if ctx.needs_input_grad[3] else None, None, None, None


_library.impl("attention_trained", _run, "CompositeExplicitAutograd")
_library.impl("attention_trained_backward", _run_backward, "CompositeExplicitAutograd")
torch.library.register_autograd(NAME, _differentiate, setup_context=_keep, lib=_library)

TRAINED, BACKWARD = torch.ops.polytile.attention_trained.default, torch.ops.polytile.attention_trained_backward.default
