# mypy: ignore-errors
"""Each token by the matrices of its experts: rows are sorted by expert, each expert's padded to whole blocks, and gathered."""

import torch
import triton
import triton.language as tl
from triton import autotune

ROWS = 16
CONFIGS = [
    triton.Config({"BN": bn, "BK": bk}, num_warps=warps, num_stages=stages)
    for bn, bk, warps, stages in ((32, 32, 2, 2), (64, 64, 4, 3), (128, 64, 4, 3), (128, 128, 8, 3))
]


@autotune(configs=CONFIGS, key=["slots", "N", "K"])
@triton.jit
def kernel(
    x, w, out, order, experts, scores, slots, N, K,
    TOP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    block, columns, depth = tl.program_id(0), tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    slot = tl.load(order + block * BM + tl.arange(0, BM))
    there = slot < slots
    expert = tl.load(experts + block).to(tl.int64)
    total = tl.zeros([BM, BN], tl.float32)
    for start in range(0, K, BK):
        k = start + depth
        token = tl.load(x + (slot // TOP)[:, None] * K + k, there[:, None] & (k < K), 0.0)
        weight = tl.load(w + expert * N * K + columns * K + k[:, None], (columns < N) & (k < K)[:, None], 0.0)
        total = tl.dot(token, weight, total)
    total *= tl.load(scores + slot, there, 0.0)[:, None]
    tl.store(out + slot[:, None] * N + columns, total.to(out.dtype.element_ty), there[:, None] & (columns < N))


def sorted_by_expert(chosen, experts):
    """Slots in the order of their experts, each expert's padded by a slot past the end to whole blocks; the expert of a block."""
    order, owners = [], []
    for expert in range(experts):
        slots = (chosen.flatten() == expert).nonzero().flatten().tolist()
        slots += [chosen.numel()] * (-len(slots) % ROWS)
        order += slots
        owners += [expert] * (len(slots) // ROWS)
    return (torch.tensor(values, dtype=torch.int32, device=chosen.device) for values in (order, owners))


def make(size, device, dtype):
    tokens, experts, top, n, k = ((12, 3, 2, 40, 24), (100, 8, 2, 512, 256), (2048, 8, 2, 2048, 1024))[size]
    x = torch.randn(tokens, k, device=device, dtype=dtype)
    w = torch.randn(experts, n, k, device=device, dtype=dtype)
    scores, chosen = torch.rand(tokens, experts, device=device).topk(top)
    order, owners = sorted_by_expert(chosen, experts)
    flat = scores.flatten().contiguous()

    def run():
        out = torch.empty(tokens * top, n, device=device, dtype=dtype)
        grid = lambda meta: (len(owners), triton.cdiv(n, meta["BN"]))  # noqa: E731
        kernel[grid](x, w, out, order, owners, flat, chosen.numel(), n, k, TOP=top, BM=ROWS)
        return [out]

    def right():
        rows, by = x.repeat_interleave(top, 0).float(), chosen.flatten()
        out = torch.empty(tokens * top, n, device=device)
        for expert in range(experts):
            out[by == expert] = rows[by == expert] @ w[expert].float().T
        return [out * flat[:, None]]

    return run, right
