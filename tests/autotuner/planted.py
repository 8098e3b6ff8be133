"""Autotuned kernels of a module, which a worker can import: y = factor · x, where one config ends its process, and one has no
end."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

import polytile

CONFIGS = [triton.Config({"BLOCK": block, "FAULT": ""}) for block in (32, 64, 128)]


def with_fault(fault: str) -> list[triton.Config]:
    return [*CONFIGS, triton.Config({"BLOCK": 256, "FAULT": fault})]


@triton.heuristics({"EVEN": lambda given: given["N"] % 2 == 0})
@polytile.autotune(with_fault("crash"), key=["N"])
@triton.jit
def crashing(src, dst, N, factor, EVEN: tl.constexpr, BLOCK: tl.constexpr, FAULT: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if FAULT == "crash":
        tl.store(dst + (N.to(tl.int64) << 40) + at, tl.load(src + at, at < N), at < N)
    tl.store(dst + at, tl.load(src + at, at < N) * factor, at < N)


@polytile.autotune(with_fault("hang"), key=["N"], options={"trial_seconds": 1.0})
@triton.jit
def hanging(src, dst, N, factor, BLOCK: tl.constexpr, FAULT: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if FAULT == "hang":
        before = tl.load(dst, volatile=True)
        while tl.load(dst, volatile=True) == before:
            pass
    tl.store(dst + at, tl.load(src + at, at < N) * factor, at < N)


def call(kernel: Any, n: int = 300, device: str = "cpu") -> None:
    """Launches it and compares."""
    src, dst = torch.randn(n, device=device), torch.zeros(n, device=device)
    kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](src, dst, n, 2.0)
    torch.testing.assert_close(dst, src * 2)
