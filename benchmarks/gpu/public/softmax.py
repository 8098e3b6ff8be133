# mypy: ignore-errors
"""Rows of a matrix to exp(x - max) / sum, each row read once; a program goes from row to row."""

import torch
import triton
import triton.language as tl
from triton import autotune

CONFIGS = [triton.Config({"PROGRAMS": programs}, num_warps=w) for w, programs in ((2, 512), (4, 512), (8, 512), (8, 4096))]


@autotune(CONFIGS, ["columns"])
@triton.jit
def kernel(x, y, rows, columns, x_stride, y_stride, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for row in tl.range(tl.program_id(0), rows, PROGRAMS):
        value = tl.load(x + row * x_stride + at, at < columns, -float("inf")).to(tl.float32)
        power = tl.exp(value - tl.max(value, axis=0))
        tl.store(y + row * y_stride + at, (power / tl.sum(power, axis=0)).to(y.dtype.element_ty), at < columns)


def make(size, device, dtype):
    rows, columns = ((5, 100), (4096, 781), (8192, 4096))[size]
    x = torch.randn(rows, columns, device=device, dtype=dtype)

    def run():
        y = torch.empty_like(x)
        grid = lambda meta: (min(rows, meta["PROGRAMS"]),)  # noqa: E731
        kernel[grid](x, y, rows, columns, x.stride(0), y.stride(0), BLOCK=triton.next_power_of_2(columns))
        return [y]

    return run, lambda: [x.float().softmax(-1)]
