"""Gradients of losses for which torch's own rules would make the mean's factor a symbolic float: here the count divides as an
integer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import get_computation_dtype

MEAN = 1  # the reduction code that ATen passes: 0 none, 1 mean, 2 sum


def _gradient(
    grad_output: Tensor, input: Tensor, target: Tensor, reduction: int, derivative: Callable[[Tensor], Tensor]
) -> Tensor:
    """derivative(input - target)·grad_output, over the number of elements for a mean; computed in float32 for the
    16-bit types."""
    grad, x, t = (v.to(get_computation_dtype(v.dtype)) for v in (grad_output, input, target))
    result = derivative(x - t) * grad
    return (result / input.numel() if reduction == MEAN else result).to(input.dtype)


def mse_loss_backward(grad_output: Tensor, input: Tensor, target: Tensor, reduction: int) -> Tensor:
    return _gradient(grad_output, input, target, reduction, lambda d: d * 2)


def smooth_l1_loss_backward(grad_output: Tensor, input: Tensor, target: Tensor, reduction: int, beta: float) -> Tensor:
    """d / beta where |d| < beta, else the sign of d."""
    if beta == 0:
        return _gradient(grad_output, input, target, reduction, torch.sign)
    return _gradient(grad_output, input, target, reduction, lambda d: torch.where(d.abs() < beta, d / beta, torch.sign(d)))


def huber_loss_backward(grad_output: Tensor, input: Tensor, target: Tensor, reduction: int, delta: float) -> Tensor:
    """d between -delta and delta, else the nearer of them."""
    return _gradient(grad_output, input, target, reduction, lambda d: torch.clamp(d, -delta, delta))


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    "mse_loss_backward.default": mse_loss_backward,
    "smooth_l1_loss_backward.default": smooth_l1_loss_backward,
    "huber_loss_backward.default": huber_loss_backward,
}
