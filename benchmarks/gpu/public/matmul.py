# mypy: ignore-errors
"""C = A B, block by block; programs are ordered in groups of rows, so that the second-level cache is hit more often."""

import torch
import triton
import triton.language as tl
from triton import autotune

CONFIGS = [
    triton.Config({"BM": bm, "BN": bn, "BK": bk, "GROUP": 8}, num_warps=warps, num_stages=stages)
    for bm, bn, bk, warps, stages in ((32, 64, 64, 4, 4), (64, 64, 64, 4, 3), (128, 128, 32, 4, 3), (128, 256, 64, 8, 3))
]


@autotune(configs=CONFIGS, key=["M", "N", "K"])
@triton.jit
def kernel(
    a, b, c, M, N, K, a_m, a_k, b_k, b_n, c_m, c_n,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    number, down, across = tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN)
    group = number // (GROUP * across)
    height = tl.minimum(down - group * GROUP, GROUP)
    within = number % (GROUP * across)
    rows = (group * GROUP + within % height) * BM + tl.arange(0, BM)
    columns = within // height * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + depth
        x = tl.load(a + rows[:, None] * a_m + k * a_k, (rows[:, None] < M) & (k < K), 0.0)
        y = tl.load(b + k[:, None] * b_k + columns * b_n, (k[:, None] < K) & (columns < N), 0.0)
        total = tl.dot(x, y, total)
    at = c + rows[:, None] * c_m + columns * c_n
    tl.store(at, total.to(c.dtype.element_ty), (rows[:, None] < M) & (columns < N))


def make(size, device, dtype):
    m, n, k = ((40, 70, 50), (300, 1024, 768), (4096, 4096, 4096))[size]
    a, b = torch.randn(m, k, device=device, dtype=dtype), torch.randn(k, n, device=device, dtype=dtype)

    def run():
        c = torch.empty(m, n, device=device, dtype=dtype)
        grid = lambda meta: (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),)  # noqa: E731
        kernel[grid](a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride())
        return [c]

    return run, lambda: [a @ b]
