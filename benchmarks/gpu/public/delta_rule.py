# mypy: ignore-errors
"""S(t) = S(t-1) + beta(t) k(t)ᵀ (v(t) - k(t) S(t-1)), o(t) = q(t) S(t), step by step."""

import torch
import triton
import triton.language as tl
from triton import autotune

CONFIGS = [triton.Config({"BV": bv}, num_warps=warps) for bv, warps in ((8, 1), (16, 1), (32, 2), (64, 4))]


@autotune(configs=CONFIGS, key=["K", "V"])
@triton.jit
def kernel(q, k, v, beta, o, T, K: tl.constexpr, V: tl.constexpr, BV: tl.constexpr):
    head, columns, rows = tl.program_id(1).to(tl.int64) * T, tl.program_id(0) * BV + tl.arange(0, BV), tl.arange(0, K)
    state = tl.zeros([K, BV], tl.float32)
    for t in range(T):
        step = head + t
        key = tl.load(k + step * K + rows).to(tl.float32)
        value = tl.load(v + step * V + columns, columns < V, 0.0).to(tl.float32)
        wanted = (value - tl.sum(state * key[:, None], 0)) * tl.load(beta + step).to(tl.float32)
        state += key[:, None] * wanted[None, :]
        query = tl.load(q + step * K + rows).to(tl.float32)
        tl.store(o + step * V + columns, tl.sum(state * query[:, None], 0).to(o.dtype.element_ty), columns < V)


def make(size, device, dtype):
    heads, t, key, value = ((2, 9, 16, 24), (16, 128, 64, 64), (64, 512, 64, 128))[size]
    q, k = torch.nn.functional.normalize(torch.randn(2, heads, t, key, device=device), dim=-1).to(dtype)
    v = torch.randn(heads, t, value, device=device, dtype=dtype)
    beta = torch.rand(heads, t, device=device).to(dtype)

    def run():
        o = torch.empty_like(v)
        kernel[lambda meta: (triton.cdiv(value, meta["BV"]), heads)](q, k, v, beta, o, t, K=key, V=value)
        return [o]

    def right():
        state, out = torch.zeros(heads, key, value, device=device), []
        for step in range(t):
            row = k[:, step, None].float()
            off = (v[:, step, None].float() - row @ state) * beta[:, step, None, None].float()
            state = state + row.mT @ off
            out.append((q[:, step, None].float() @ state).squeeze(1))
        return [torch.stack(out, 1)]

    return run, right
