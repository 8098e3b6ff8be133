"""PyTorch's memory-efficient kernels for attention and its derivative, on tensors as polytile lays them out.

They take any additive mask, and assume three things: the row stride of a mask is a multiple of BIAS_ALIGNMENT elements, k has
as many heads as q, and in the backward pass all heads of a row of the result are adjacent in memory. Otherwise they read wrong
addresses.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

aten = torch.ops.aten

BIAS_ALIGNMENT = 16
"""The library requires the row stride of a bias to be a multiple of this many elements."""
ROWS = 32
"""In the log-sum-exp, the rows of each head are padded to a multiple of this number."""
CAUSAL_TYPES = {"": 0, "top left": 1, "bottom right": 2}
"""What the operators call causal masks."""


def efficient(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float | None, causal: str, with_lse: bool
) -> tuple[Tensor, Tensor | None]:
    """The result, and its log-sum-exp, (batch, heads, m) in float32, if wanted. See ir.attention.Attention for the arguments;
    a boolean bias is added as 0 or -inf."""
    k, v = (_for_each_head(each, q) for each in (k, v))
    bias = aligned(bias, q, k)
    rows = (each.transpose(1, 2) for each in (q, k, v))
    how = None, None, None, None, 0.0, CAUSAL_TYPES[causal], with_lse
    out, lse, *_ = aten._efficient_attention_forward(*rows, bias, *how, scale=scale)
    return out.transpose(1, 2), lse.narrow(2, 0, q.shape[2]) if with_lse else None


def efficient_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, out: Tensor, lse: Tensor, scale: float | None,
    causal: bool, with_bias: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients of q, k and v, and of the bias, (batch, heads, m, n), if wanted. A row that sees no key has an lse of -inf. A
    causal mask counts from the top left."""
    heads, bias = k.shape[1], aligned(bias, q, k)
    k, v = (_for_each_head(each, q) for each in (k, v))
    if not out.transpose(1, 2).is_contiguous():
        out = out.transpose(1, 2).clone(memory_format=torch.contiguous_format).transpose(1, 2)
    lse = pad(hidden(lse), (0, -lse.shape[2] % ROWS), value=float("inf"))
    dq, dk, dv, dbias = aten._scaled_dot_product_efficient_attention_backward(
        grad, q, k, v, bias, out, lse, *no_state(grad), 0.0, [True, True, True, with_bias], causal, scale=scale
    )
    if dk.shape[1] > heads:
        dk, dv = (each.unflatten(1, (heads, -1)).sum(2) for each in (dk, dv))
    return (dq, dk, dv, dbias) if with_bias else (dq, dk, dv)


def _for_each_head(keys: Tensor, q: Tensor) -> Tensor:
    group = q.shape[1] // keys.shape[1]
    return keys.repeat_interleave(group, 1) if group > 1 else keys


def added(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """A bias (batch, heads, m, n) in another dtype, of size 1 where its stride is 0; 0 or -inf for one of booleans."""
    bias = once(bias)
    if bias.dtype == torch.bool:
        bias = torch.zeros(bias.shape, dtype=dtype, device=bias.device).masked_fill_(bias.logical_not(), -float("inf"))
    return bias.to(dtype)


def aligned(bias: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """The bias as (batch, heads, m, n) in q's dtype, with dense rows whose stride is a multiple of BIAS_ALIGNMENT: kernels load
    several neighbouring elements at a time."""
    if bias is None:
        return None
    bias, shape = added(bias, q.dtype), (*q.shape[:3], k.shape[2])
    if bias.shape[3] != shape[3]:
        bias = bias.expand(*bias.shape[:3], shape[3])
    over = -shape[3] % BIAS_ALIGNMENT
    apart = all(n == 1 or s % BIAS_ALIGNMENT == 0 for n, s in zip(bias.shape[:3], bias.stride()[:3], strict=True))
    if bias.stride(3) != 1 or over or not apart or bias.data_ptr() % BIAS_ALIGNMENT:
        bias = pad(bias, (0, over or BIAS_ALIGNMENT)).narrow(3, 0, shape[3])
    return bias.expand(shape)


def once(bias: Tensor) -> Tensor:
    """A bias without its repetitions: of size 1 where its stride is 0."""
    for dim, (size, stride) in enumerate(zip(bias.shape, bias.stride(), strict=True)):
        bias = bias.narrow(dim, 0, 1) if stride == 0 and size > 1 else bias
    return bias


def hidden(lse: Tensor) -> Tensor:
    """The log-sum-exp as the library's kernels want it, row-major: infinite in rows that see no key, whose weights are 0 then."""
    return torch.where(lse == -float("inf"), float("inf"), lse).contiguous()


def no_state(near: Tensor) -> tuple[Tensor, Tensor]:
    """Seed and offset of random numbers that are not drawn."""
    return torch.empty((), dtype=torch.int64, device=near.device), torch.empty((), dtype=torch.int64, device=near.device)
