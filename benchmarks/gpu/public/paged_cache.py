# mypy: ignore-errors
"""New keys and values to their slots of a cache in pages; what is not written keeps what it holds."""

import torch
import triton
import triton.language as tl
from triton import autotune

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block, warps in ((128, 1), (512, 4), (1024, 4), (1024, 8))]


@autotune(CONFIGS, key=["width"])
@triton.jit
def kernel(keys, values, key_cache, value_cache, slots, width, PAGE: tl.constexpr, BLOCK: tl.constexpr):
    token, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots + token)
    place = (slot // PAGE * PAGE + slot % PAGE) * width + at
    inside = tl.where(slot >= 0, at < width, False)
    tl.store(key_cache + place, tl.load(keys + token * width + at, inside), inside)
    tl.store(value_cache + place, tl.load(values + token * width + at, inside), inside)


def make(size, device, dtype):
    tokens, pages, page, heads, d = ((7, 3, 4, 2, 16), (200, 40, 16, 8, 64), (8192, 1024, 16, 8, 128))[size]
    keys, values = torch.randn(2, tokens, heads, d, device=device, dtype=dtype)
    before = torch.randn(2, pages, page, heads, d, device=device, dtype=dtype)
    slots = torch.randperm(pages * page, device=device)[:tokens]
    slots[0] = -1  # padding

    def run():
        key_cache, value_cache = before.clone()
        kernel[lambda meta: (tokens, triton.cdiv(heads * d, meta["BLOCK"]))](
            keys, values, key_cache, value_cache, slots, heads * d, PAGE=page
        )
        return [key_cache, value_cache]

    def right():
        caches = before.clone()
        for cache, new in zip(caches, (keys, values), strict=True):
            cache.view(pages * page, heads, d)[slots[1:]] = new[1:]
        return list(caches)

    return run, right
