"""The maximum of each window, with its index in its plane. The gradient is ATen's: loops that add to elements by index, or gather
from the windows over an element, took 3 to 30 times as long on a CPU and 8 times on an H200. So are adaptive maxima, which took
loops as long as ATen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from polytile.errors import LoweringError
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.value import Point, Tensor, computed
from polytile.frontend.lower.windows import Windows, windows
from polytile.ir import expr
from polytile.ir.expr import Node
from polytile.ir.reductions import smallest
from polytile.ir.sizes import Size

aten = torch.ops.aten


def _lower_max(rank: int) -> Callable[..., tuple[Tensor, Tensor]]:
    def lowering(
        builder: Builder, source: Tensor, kernel_size: Sequence[Size | int], stride: Sequence[Size | int] = (),
        padding: Sequence[Size | int] = (0,), dilation: Sequence[Size | int] = (1,), ceil_mode: bool = False,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The largest element of each window (the last NaN, if there is one) and its number."""
        result = builder.result_sizes(0)
        over = windows(builder, source, rank, kernel_size, stride, padding, dilation, ceil_mode, result)
        if not over.unrolled:
            raise LoweringError(f"the maximum over windows of {over.count} points is left to the library.")
        value = computed(result, source.dtype, source.device, lambda point: _largest(over, point)[0])
        index = computed(result, torch.int64, source.device, lambda point: _largest(over, point)[1])
        return value, index

    return lowering


lowers(aten.max_pool2d_with_indices.default)(_lower_max(2))
lowers(aten.max_pool3d_with_indices.default)(_lower_max(3))


def _largest(over: Windows, point: Point) -> tuple[Node, Node]:
    dtype = over.source.compute_dtype
    lowest = smallest(over.source.dtype)
    first, *others = over.steps
    best, index = over.element(point, first, outside=lowest), _first_inside(over, point)
    for step in others:
        node = over.element(point, step, outside=lowest)
        better = expr.op("gt", torch.bool, node, best)
        if dtype.is_floating_point:
            better = expr.op("logical_or", torch.bool, better, expr.op("isnan", torch.bool, node))
        best = expr.op("where", dtype, better, node, best)
        index = expr.op("where", torch.int64, better, over.number(point, step), index)
    return best, index


def _first_inside(over: Windows, point: Point) -> Node:
    """The index of the window's first element that is not padding: the answer if all are the smallest value."""
    index: Node | None = None
    for step in reversed(over.steps):
        inside, number = over.inside(point, step), over.number(point, step)
        index = number if index is None or inside is None else expr.op("where", torch.int64, inside, number, index)
    assert index is not None
    return index
