"""Kernels written by hand, in a module that worker processes can import."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

import polytile
from polytile.dispatch.handwritten import Kernel


def normed(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


@polytile.kernel("x[M, N], weight[N] -> y[M, N]", reduction=["N"])
def rms_norm(x: Tensor, weight: Tensor, y: Tensor, m: int, n: int) -> None:
    y.copy_(normed(x, weight))


@rms_norm.implementation
def whole(x: Tensor, weight: Tensor, y: Tensor, m: int, n: int) -> None:
    y.copy_(normed(x, weight))


@rms_norm.implementation(valid=lambda sizes: sizes["M"] <= 16)
def by_rows(x: Tensor, weight: Tensor, y: Tensor, m: int, n: int) -> None:
    for row in range(m):
        y[row].copy_(normed(x[row], weight))


@rms_norm.implementation
def unscaled(x: Tensor, weight: Tensor, y: Tensor, m: int, n: int) -> None:
    y.copy_(x)


@rms_norm.implementation(valid=lambda sizes: sizes["M"] == 4)
def crashing(x: Tensor, weight: Tensor, y: Tensor, m: int, n: int) -> None:
    ctypes.string_at(0)


def scaled_by(factor: float) -> Kernel:
    @polytile.kernel("y[N] -> y[N]")
    def scale(y: Tensor, n: int) -> None:
        y.mul_(factor)

    scale.implementation(lambda y, n: y.mul_(factor), name="at once")
    return scale


