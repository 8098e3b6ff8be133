"""Reference definitions of grouped and scaled products, with which every kernel must agree."""

from __future__ import annotations

from collections.abc import Iterator

import torch


def ranges(ends: torch.Tensor, length: int) -> Iterator[tuple[int, int]]:
    """(start, end) of each group on an axis of this length (see ir.template.Grouping)."""
    first = 0
    for end in ends.tolist():
        end = min(max(end, 0), length)
        yield min(first, end), end
        first = end


def grouped_product(
    a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor, axis: str, out: torch.Tensor | None = None
) -> torch.Tensor:
    """The grouped product of `a` (1, m, k) and `b`, which is (groups, k, n), or (1, k, n) with groups along k.

    The dtype of the computation is the operands', or float32 for 8-bit floats. The result is (1, m, n) or (groups, m, n), in
    `out` or in a new tensor.
    """
    m, k, n = a.shape[1], a.shape[2], b.shape[2]
    dtype = torch.float32 if a.dtype.itemsize == 1 else a.dtype
    if out is None:
        out = a.new_empty((1, m, n) if axis == "m" else (len(ends), m, n), dtype=dtype)
    last = 0
    for group, (first, end) in enumerate(ranges(ends, m if axis == "m" else k)):
        if axis == "m":
            torch.mm(a[0, first:end].to(dtype), b[group].to(dtype), out=out[0, first:end])
        else:
            torch.mm(a[0, :, first:end].to(dtype), b[0, first:end].to(dtype), out=out[group])
        last = end
    if axis == "m":
        out[0, last:].zero_()
    return out


def scaled_operand(
    x: torch.Tensor, blocks: tuple[int, int], scale: torch.Tensor, zeros: torch.Tensor | None = None
) -> torch.Tensor:
    """(x - `zeros`) · `scale` for `x` of (batch, rows, columns). Both have sizes (1, rows / blocks[0], columns / blocks[1]),
    rounded up."""
    down, across = (torch.arange(n, device=x.device) // by for n, by in zip(x.shape[-2:], blocks, strict=True))
    x = x if zeros is None else x - zeros[:, down][:, :, across]
    return x * scale[:, down][:, :, across]
