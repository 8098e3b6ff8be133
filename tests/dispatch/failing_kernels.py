"""Kernels written by hand whose implementations fail, in a module that worker processes can import."""

from __future__ import annotations

import os

import torch
from torch import Tensor

import polytile


@polytile.kernel("x[N] -> y[N]", options={"trial_seconds": 0.4})
def add_one(x: Tensor, y: Tensor, n: int) -> None:
    y.copy_(x + 1)


@add_one.implementation
def right(x: Tensor, y: Tensor, n: int) -> None:
    torch.add(x, 1, out=y)


@add_one.implementation
def raising(x: Tensor, y: Tensor, n: int) -> None:
    raise ValueError(f"{n} is not to its liking")


@add_one.implementation
def crashing(x: Tensor, y: Tensor, n: int) -> None:
    os.abort()


@add_one.implementation(valid=lambda sizes: sizes["N"] != 3000)
def endless(x: Tensor, y: Tensor, n: int) -> None:
    while True:
        pass
