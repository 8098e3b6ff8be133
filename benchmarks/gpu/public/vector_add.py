# mypy: ignore-errors
"""z = x + y."""

import torch
import triton
import triton.language as tl
from triton import autotune

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block, warps in ((256, 2), (1024, 4), (4096, 8))]


@autotune(configs=CONFIGS, key=["n"])
@triton.jit
def kernel(x, y, z, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(z + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)


def make(size, device, dtype):
    n = (3000, 98_432, 12_345_678)[size]
    x, y = torch.randn(2, n, device=device, dtype=dtype)

    def run():
        z = torch.empty_like(x)
        kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, z, n)
        return [z]

    return run, lambda: [x + y]
