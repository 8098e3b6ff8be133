# mypy: ignore-errors
"""Pairs of each head's numbers turned by an angle that grows with the position, in place."""

import torch
import triton
import triton.language as tl
from triton import autotune

CONFIGS = [triton.Config({"BH": bh}, num_warps=warps) for bh, warps in ((1, 1), (4, 2), (8, 4), (16, 4))]


@autotune(configs=CONFIGS, key=["H", "D"], restore_value=["q"])
@triton.jit
def kernel(q, cosines, sines, positions, H, D: tl.constexpr, BH: tl.constexpr):
    token, heads, pair = tl.program_id(0).to(tl.int64), tl.program_id(1) * BH + tl.arange(0, BH), tl.arange(0, D // 2)
    place = tl.load(positions + token) * (D // 2) + pair
    cosine, sine = tl.load(cosines + place), tl.load(sines + place)
    at = (token * H + heads)[:, None] * D + pair
    inside = (heads < H)[:, None]
    first, second = tl.load(q + at, inside).to(tl.float32), tl.load(q + at + D // 2, inside).to(tl.float32)
    tl.store(q + at, (first * cosine - second * sine).to(q.dtype.element_ty), inside)
    tl.store(q + at + D // 2, (second * cosine + first * sine).to(q.dtype.element_ty), inside)


def make(size, device, dtype):
    tokens, heads, d = ((5, 3, 16), (200, 12, 64), (8192, 32, 128))[size]
    given = torch.randn(tokens, heads, d, device=device, dtype=dtype)
    angles = torch.arange(tokens, device=device)[:, None] * 10_000.0 ** (-torch.arange(0, d, 2, device=device) / d)
    cosines, sines = angles.cos(), angles.sin()
    positions = torch.randperm(tokens, device=device)

    def run():
        q = given.clone()
        kernel[lambda meta: (tokens, triton.cdiv(heads, meta["BH"]))](q, cosines, sines, positions, heads, D=d)
        return [q]

    def right():
        first, second = given.float().chunk(2, -1)
        cosine, sine = cosines[positions][:, None], sines[positions][:, None]
        return [torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)]

    return run, right
