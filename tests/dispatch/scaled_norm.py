"""A kernel written by hand with everything that a signature may have, in a module that worker processes can import."""

from __future__ import annotations

import torch
from torch import Tensor

import polytile


@polytile.kernel("x[..., N], weight[N] -> y[..., N]", reduction=["N"])
def scaled_norm(
    x: Tensor, weight: Tensor, y: Tensor, batch: int, n: int, *, eps: float = 1e-6, centred: bool = False
) -> None:
    """RMSNorm, or LayerNorm."""
    x = x - x.mean(-1, keepdim=True) if centred else x
    y.copy_(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight)


@scaled_norm.implementation
def apart(x: Tensor, weight: Tensor, y: Tensor, batch: int, n: int, *, eps: float, centred: bool) -> None:
    rows = x.reshape(batch, n)
    rows = rows - rows.mean(-1, keepdim=True) if centred else rows
    y.copy_((rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps) * weight).view_as(y))


@scaled_norm.implementation(valid=lambda sizes: not sizes["centred"])
def uncentred(x: Tensor, weight: Tensor, y: Tensor, batch: int, n: int, *, eps: float, centred: bool) -> None:
    y.copy_(torch.nn.functional.rms_norm(x, (n,), weight, eps))


@scaled_norm.gradient
def _(
    x: Tensor, weight: Tensor, grad_y: Tensor, eps: float, centred: bool
) -> tuple[Tensor, Tensor]:
    mean = x.mean(-1, keepdim=True) if centred else 0
    scale = torch.rsqrt((x - mean).square().mean(-1, keepdim=True) + eps)
    normed = (x - mean) * scale
    wanted = grad_y * weight
    grad_x = scale * (wanted - normed * (wanted * normed).mean(-1, keepdim=True))
    grad_x = grad_x - grad_x.mean(-1, keepdim=True) if centred else grad_x
    return grad_x, (grad_y * normed).reshape(-1, weight.numel()).sum(0)
