# mypy: ignore-errors
"""S(t) = exp(g(t)) S(t-1) + k(t)ᵀ v(t), o(t) = q(t) S(t), step by step; a program holds a block of the state's columns."""

import torch
import triton
import triton.language as tl
from triton import autotune

CONFIGS = [triton.Config({"BV": bv}, num_warps=warps) for bv, warps in ((16, 1), (32, 1), (32, 4), (64, 4))]


@autotune(configs=CONFIGS, key=["K", "V"])
@triton.jit
def kernel(q, k, v, g, o, T, scale, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr):
    head, columns, rows = tl.program_id(1).to(tl.int64) * T, tl.program_id(0) * BV + tl.arange(0, BV), tl.arange(0, K)
    inside = columns < V
    state = tl.zeros([K, BV], tl.float32)
    for t in range(T):
        along, across = (head + t) * K + rows, (head + t) * V + columns
        gate = tl.exp(tl.load(g + along).to(tl.float32))
        key, value = tl.load(k + along).to(tl.float32), tl.load(v + across, inside, 0.0).to(tl.float32)
        state = state * gate[:, None] + key[:, None] * value[None, :]
        query = tl.load(q + along).to(tl.float32) * scale
        tl.store(o + across, tl.sum(state * query[:, None], 0).to(o.dtype.element_ty), inside)


def make(size, device, dtype):
    heads, t, key, value = ((2, 9, 16, 24), (16, 128, 64, 128), (64, 512, 64, 128))[size]
    q, k = torch.randn(2, heads, t, key, device=device, dtype=dtype)
    v = torch.randn(heads, t, value, device=device, dtype=dtype)
    g = torch.nn.functional.logsigmoid(torch.randn(heads, t, key, device=device)).to(dtype)

    def run():
        o = torch.empty_like(v)
        kernel[lambda meta: (triton.cdiv(value, meta["BV"]), heads)](q, k, v, g, o, t, key**-0.5, K=key, V=value)
        return [o]

    def right():
        state, out = torch.zeros(heads, key, value, device=device), []
        for step in range(t):
            state = state * g[:, step].float().exp()[:, :, None] + k[:, step, :, None].float() * v[:, step, None].float()
            out.append((q[:, step, None].float() * key**-0.5 @ state).squeeze(1))
        return [torch.stack(out, 1)]

    return run, right
