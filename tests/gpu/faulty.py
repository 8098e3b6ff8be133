"""Kernels for y = 2 x on a GPU, as a user might write them, with what may be wrong with a kernel there."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _beyond(y, distance):
    tl.store(y + distance.to(tl.int64) * 4096, 1.0)


@triton.jit
def _until_it_changes(y):
    before = tl.load(y)
    while tl.load(y, volatile=True) == before:
        pass


def double(x: torch.Tensor, y: torch.Tensor, n: int) -> None:
    y.copy_(x * 2)


def illegal_address(x: torch.Tensor, y: torch.Tensor, n: int) -> None:
    y.zero_()
    _beyond[(1,)](y, 1 << 30)


def endless_loop(x: torch.Tensor, y: torch.Tensor, n: int) -> None:
    y.zero_()
    _until_it_changes[(1,)](y)


def out_of_memory(x: torch.Tensor, y: torch.Tensor, n: int) -> None:
    torch.empty(1 << 42, dtype=torch.uint8, device=x.device)
