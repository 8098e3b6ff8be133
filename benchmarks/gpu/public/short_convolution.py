# mypy: ignore-errors
"""A channel's last W values weighted and added up, then x · sigmoid(x): the short convolution before linear attention."""

import torch
import triton
import triton.language as tl
from triton import autotune

CONFIGS = [
    triton.Config({"BT": bt, "BD": bd}, num_warps=warps)
    for bt, bd, warps in ((16, 32, 2), (32, 64, 4), (64, 64, 4), (64, 128, 8))
]


@autotune(CONFIGS, key=["D", "W"])
@triton.jit
def kernel(x, weight, bias, y, T, D, W: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr):
    t, d = tl.program_id(0) * BT + tl.arange(0, BT), tl.program_id(1) * BD + tl.arange(0, BD)
    start = tl.program_id(2).to(tl.int64) * T * D
    total = tl.zeros([BT, BD], tl.float32) + tl.load(bias + d, d < D, 0.0).to(tl.float32)
    for back in tl.static_range(W):
        before = t - (W - 1) + back
        inside = (before >= 0)[:, None] & (before < T)[:, None] & (d < D)
        value = tl.load(x + start + before[:, None] * D + d, inside, 0.0).to(tl.float32)
        total += value * tl.load(weight + d * W + back, d < D, 0.0).to(tl.float32)
    result = total / (1 + tl.exp(-total))
    tl.store(y + start + t[:, None] * D + d, result.to(y.dtype.element_ty), (t < T)[:, None] & (d < D))


def make(size, device, dtype):
    batch, t, d, w = ((2, 20, 40, 4), (4, 500, 768, 4), (8, 2048, 2048, 4))[size]
    x = torch.randn(batch, t, d, device=device, dtype=dtype)
    weight, bias = torch.randn(d, w, device=device, dtype=dtype), torch.randn(d, device=device, dtype=dtype)

    def run():
        y = torch.empty_like(x)
        grid = lambda meta: (triton.cdiv(t, meta["BT"]), triton.cdiv(d, meta["BD"]), batch)  # noqa: E731
        kernel[grid](x, weight, bias, y, t, d, W=w)
        return [y]

    def right():
        padded = torch.nn.functional.pad(x.float().mT, (w - 1, 0))
        return [torch.nn.functional.silu(torch.nn.functional.conv1d(padded, weight.float()[:, None], bias.float(), groups=d)).mT]

    return run, right
