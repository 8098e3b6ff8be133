# mypy: ignore-errors
"""softmax(Q Kᵀ · scale) V with a causal mask, without the scores in memory: a running maximum and sum rescale what is there."""

import torch
import triton
import triton.language as tl
from triton import autotune

CONFIGS = [
    triton.Config({"BM": bm, "BN": bn}, num_warps=warps, num_stages=stages)
    for bm, bn, warps, stages in ((32, 32, 4, 2), (64, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2))
]


@autotune(CONFIGS, key=["T", "D"])
@triton.jit
def kernel(q, k, v, out, T, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    first, head = tl.program_id(0) * BM, tl.program_id(1).to(tl.int64) * T * D
    rows, d = first + tl.arange(0, BM), tl.arange(0, D)
    query = tl.load(q + head + rows[:, None] * D + d, rows[:, None] < T, 0.0)
    highest = tl.full([BM], -float("inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    result = tl.zeros([BM, D], tl.float32)
    for start in range(0, tl.minimum(first + BM, T), BN):
        columns = start + tl.arange(0, BN)
        key = tl.load(k + head + columns * D + d[:, None], columns < T, 0.0)
        score = tl.dot(query, key) * scale
        score = tl.where((rows[:, None] >= columns) & (columns < T), score, -float("inf"))
        above = tl.maximum(highest, tl.max(score, 1))
        power = tl.exp(score - above[:, None])
        factor = tl.exp(highest - above)
        total = total * factor + tl.sum(power, 1)
        value = tl.load(v + head + columns[:, None] * D + d, columns[:, None] < T, 0.0)
        result = tl.dot(power.to(value.dtype), value, result * factor[:, None])
        highest = above
    tl.store(out + head + rows[:, None] * D + d, (result / total[:, None]).to(out.dtype.element_ty), rows[:, None] < T)


def make(size, device, dtype):
    heads, t, d = ((1, 70, 16), (16, 500, 64), (32, 2048, 64))[size]
    q, k, v = torch.randn(3, heads, t, d, device=device, dtype=dtype)

    def run():
        out = torch.empty_like(q)
        kernel[lambda meta: (triton.cdiv(t, meta["BM"]), heads)](q, k, v, out, t, d**-0.5, D=d)
        return [out]

    return run, lambda: [torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)]
