# mypy: ignore-errors
"""Sums along time that begin anew at each chunk, of one number a head, as gates need them."""

import torch
import triton
import triton.language as tl
from triton import autotune


@autotune(configs=[triton.Config({}, num_warps=warps) for warps in (1, 2, 4, 8)], key=["H", "CHUNK"])
@triton.jit
def kernel(x, y, T, H: tl.constexpr, CHUNK: tl.constexpr, BLOCK_H: tl.constexpr):
    t = tl.program_id(0) * CHUNK + tl.arange(0, CHUNK)
    heads = tl.arange(0, BLOCK_H)
    at = (tl.program_id(1) * T + t)[:, None] * H + heads
    inside = (t < T)[:, None] & (heads < H)
    tl.store(y + at, tl.cumsum(tl.load(x + at, inside, 0.0).to(tl.float32), axis=0), inside)


def make(size, device, dtype):
    batch, t, heads = ((2, 40, 3), (4, 1000, 8), (16, 4096, 16))[size]
    x = torch.randn(batch, t, heads, device=device, dtype=dtype)
    chunk = 16 if size == 0 else 64

    def run():
        y = torch.empty(batch, t, heads, device=device)
        grid = triton.cdiv(t, chunk), batch
        kernel[grid](x, y, t, H=heads, CHUNK=chunk, BLOCK_H=triton.next_power_of_2(heads))
        return [y]

    return run, lambda: [torch.cat([part.float().cumsum(1) for part in x.split(chunk, 1)], 1)]
