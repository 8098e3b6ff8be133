"""Samples of grouped products, where comparing all results would take more memory than there is: the weights of experts alone may
have several GB, and twice or four times as many in a reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from polytile.ir.products import ranges
from polytile.matmul.gemm_args import operands
from polytile.matmul.gemm_kernel import ENDS, GemmKernel
from polytile.tuning.sample import Sample, Sampler

ROWS, COLUMNS = 8, 64
"""Size of a box of results."""
SAMPLED_GROUPS = 16
"""Number of groups whose results are sampled, spread over all; the first and the last are among them."""

Span = tuple[int, int]


def sampler(kernel: GemmKernel) -> Sampler | None:
    """The boxes at the corners of groups' results, and what follows the last group. None for other products, and for those with
    an epilogue or a computed operand."""
    if not kernel.spec.grouped or kernel.epilogue is not None or kernel.scales is not None or any(kernel.prologues):
        return None
    position = [tensor.name for tensor in kernel.tensors].index("C")

    def draw(args: Sequence[Any], precision: torch.dtype | None) -> list[Sample]:
        named, _ = operands(kernel, args)
        a, b, c = (named[name] for name in "ABC")
        batch, down, across = c.stride()
        samples = []
        for item, rows, left, right in _pieces(kernel.spec.grouped, a, b, named[ENDS]):
            dtype = precision or (torch.float32 if right.dtype.itemsize == 1 else right.dtype)
            for first, end in _ends_of((0, right.shape[1]), COLUMNS):
                expected = left.to(dtype) @ right[:, first:end].to(dtype)
                samples.append(Sample(position, (down, across), item * batch + rows[0] * down + first * across, expected))
        return samples

    return draw


def _pieces(
    axis: str, a: torch.Tensor, b: torch.Tensor, ends: torch.Tensor
) -> Iterator[tuple[int, Span, torch.Tensor, torch.Tensor]]:
    """(matrix of the result, its rows, rows of A, matrix by which they are multiplied)."""
    m, spans = a.shape[1], list(ranges(ends, a.shape[1 if axis == "m" else 2]))
    step = max(1, -(-(len(spans) - 1) // (SAMPLED_GROUPS - 1)))
    for group in sorted({*range(0, len(spans), step), len(spans) - 1}):
        first, end = spans[group]
        if axis == "k":
            for rows in _ends_of((0, m), ROWS):
                yield group, rows, a[0, slice(*rows), first:end], b[0, first:end]
        else:
            for rows in _ends_of((first, end), ROWS):
                yield 0, rows, a[0, slice(*rows)], b[group]
    if axis == "m":
        for rows in _ends_of((spans[-1][1], m), ROWS):
            yield 0, rows, a.new_zeros(rows[1] - rows[0], a.shape[2]), b[-1].new_zeros(()).expand_as(b[-1])


def _ends_of(span: Span, size: int) -> list[Span]:
    """The first and the last `size` of the places in a span; none of an empty one."""
    first, end = span
    return list(dict.fromkeys(((first, min(first + size, end)), (max(first, end - size), end)))) if end > first else []
