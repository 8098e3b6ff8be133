"""Puts two Triton kernels for RMSNorm behind one call: a program has one row in the first, and sixteen short rows in the second.

At each size polytile checks and measures both and the library, and runs the fastest. Without a GPU, Triton interprets the
kernels: they are checked all the same, and the library wins. The program prints what was chosen at each size, and all times.
docs/kernels.md says what `polytile.kernel` asks of its functions.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor

import polytile

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is imported
try:
    import triton
    import triton.language as tl
except ImportError:
    raise SystemExit("This example needs Triton: pip install 'polytile[gpu]'.") from None


@triton.jit
def one_row(x, weight, y, N, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    at = tl.program_id(0) * N + column
    row = tl.load(x + at, column < N, 0.0)
    scale = tl.rsqrt(tl.sum(row * row) / N + 1e-6)
    tl.store(y + at, row * scale * tl.load(weight + column, column < N), column < N)


@triton.jit
def sixteen_rows(x, weight, y, M, N, BLOCK: tl.constexpr):
    row = tl.program_id(0) * 16 + tl.arange(0, 16)
    column = tl.arange(0, BLOCK)
    at = row[:, None] * N + column
    inside = (row < M)[:, None] & (column < N)
    rows = tl.load(x + at, inside, 0.0)
    scale = tl.rsqrt(tl.sum(rows * rows, 1) / N + 1e-6)
    tl.store(y + at, rows * scale[:, None] * tl.load(weight + column, column < N), inside)


@polytile.kernel("x[M, N], weight[N] -> y[M, N]", reduction=["N"])
def rms_norm(x: Tensor, weight: Tensor, y: Tensor, M: int, N: int) -> None:
    """The reference: right, and as slow as it likes."""
    y.copy_(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight)


@rms_norm.implementation(valid=lambda sizes: sizes["N"] <= 8192)
def long(x: Tensor, weight: Tensor, y: Tensor, M: int, N: int) -> None:
    one_row[(M,)](x, weight, y, N, BLOCK=triton.next_power_of_2(N))


@rms_norm.implementation(valid=lambda sizes: sizes["N"] <= 256)
def short(x: Tensor, weight: Tensor, y: Tensor, M: int, N: int) -> None:
    sixteen_rows[(triton.cdiv(M, 16),)](x, weight, y, M, N, BLOCK=triton.next_power_of_2(N))


@rms_norm.implementation
def library(x: Tensor, weight: Tensor, y: Tensor, M: int, N: int) -> None:
    y.copy_(torch.nn.functional.rms_norm(x, (N,), weight, 1e-6))


if __name__ == "__main__":
    torch.manual_seed(0)
    for M, N in ((20, 60), (4, 500), (2, 3000)):
        x, weight = torch.randn(M, N, device=DEVICE), torch.randn(N, device=DEVICE)
        y = torch.empty_like(x)
        rms_norm(x, weight, y)
        torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (N,), weight, 1e-6))
    for decision in rms_norm.decisions:
        times = ", ".join(f"{one.candidate} {one.seconds * 1e6:.1f} µs" for one in decision.standings if one.seconds > 0)
        print(f"{dict(decision.sizes)} -> {decision.candidate} ({times})")
