"""Pooling: what a window that slides over the last two dimensions holds, averaged or its largest element.

A small window is unrolled: a chain of masked loads a result, which vectorises along the row. A large one is a reduction
over the window's points for averages, and the library's for maxima.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import sympy
import torch

from polytile.errors import LoweringError
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.indexing import duplicate
from polytile.frontend.lower.joins import all_of, compare
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.value import Point, Tensor, computed, convert, stored
from polytile.frontend.lower.views import require_loop_dtype
from polytile.ir import expr, sizes
from polytile.ir.expr import Node
from polytile.ir.program import Store
from polytile.ir.sizes import ZERO, Size, as_size

aten = torch.ops.aten

Pair = tuple[int, int]
Step = tuple[Size, Size]

UNROLL_LIMIT = 32
"""Most points of a window that is unrolled: 5×5 is, 6×6 is not. Beyond, code grows faster than what it saves; wrong for
sparse outputs of huge inputs, where even a small window would be better reduced in parallel."""


@dataclass(frozen=True)
class Windows:
    """The windows over the last two dimensions of a stored tensor, one for each point of a result. Pairs are (along
    rows, along columns); `ceil`: the last windows may reach beyond the padding."""

    source: Tensor
    result: tuple[Size, ...]
    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair
    ceil: bool

    @property
    def extents(self) -> tuple[Size, ...]:
        return self.source.sizes[-2:]

    @property
    def steps(self) -> list[Step]:
        """All elements of a window in row-major order."""
        return [(as_size(i), as_size(j)) for i, j in itertools.product(*map(range, self.kernel))]

    def position(self, point: Point, step: Step) -> Step:
        """Row and column of element `step` of the window of `point`; outside of the source for the padding's."""
        row, column = (
            sympy.expand(o * s - p + k * d)
            for o, s, p, k, d in zip(point[-2:], self.stride, self.padding, step, self.dilation, strict=True)
        )
        return row, column

    def inside(self, point: Point, step: Step) -> Node | None:
        """Whether element `step` of the window of `point` is one of the source; None where it always is.

        Without `ceil` the last window ends at or before the end of the padding, so element k of it stands at least
        (kernel - 1 - k)·dilation before that.
        """
        asked = []
        for d, at in enumerate(self.position(point, step)):
            before, after = step[d] * self.dilation[d], (self.kernel[d] - 1 - step[d]) * self.dilation[d]
            if not sizes.is_nonnegative(sympy.expand(before - self.padding[d])):
                asked.append(compare("ge", at, ZERO))
            if self.ceil or (self.padding[d] and not sizes.is_nonnegative(sympy.expand(after - self.padding[d]))):
                asked.append(compare("lt", at, self.extents[d]))
        return all_of(asked)

    def element(self, point: Point, step: Step, outside: bool | int | float) -> Node:
        """Element `step` of the window of `point`, `outside` where it stands in the padding."""
        node = self.source.at((*point[:-2], *self.position(point, step)))
        inside = self.inside(point, step)
        if inside is None:
            return node
        return expr.op("where", node.dtype, inside, expr.mask_loads(node, inside), expr.const(outside, node.dtype))


def windows(
    builder: Builder,
    source: Tensor,
    kernel: Sequence[Size | int],
    stride: Sequence[Size | int],
    padding: Sequence[Size | int],
    dilation: Sequence[Size | int],
    ceil: bool,
    k: int | None = None,
) -> Windows:
    """`k`: which of the current node's results the windows belong to."""
    require_loop_dtype(source.dtype)
    spans = _pair(kernel), _pair(stride or kernel), _pair(padding), _pair(dilation)
    return Windows(builder.realize(source), builder.result_sizes(k), *spans, ceil)


def _pair(values: Sequence[Size | int]) -> Pair:
    numbers = [as_size(v) for v in values]
    if not all(n.is_Integer for n in numbers):
        raise LoweringError(f"windows of symbolic shape {numbers} are left to the library.")
    return int(numbers[0]), int(numbers[-1])


# averages -------------------------------------------------------------------------------------------------------------


@lowers(aten.avg_pool2d.default)
def avg_pool2d(
    builder: Builder,
    source: Tensor,
    kernel_size: Sequence[Size | int],
    stride: Sequence[Size | int] = (),
    padding: Sequence[Size | int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Size | int | None = None,
) -> Tensor:
    if not source.dtype.is_floating_point:
        raise LoweringError(f"averages of type {source.dtype} are left to the library.")
    over = windows(builder, source, kernel_size, stride, padding, (1,), ceil_mode)
    total = _sums(builder, over)

    def at(point: Point) -> Node:
        value = total.at(point)
        if divisor_override is not None:
            count: Node = expr.index_value(as_size(divisor_override), value.dtype)
        else:
            count = expr.op("cast", value.dtype, _count(over, point, count_include_pad))
        return convert(expr.op("div", value.dtype, value, count), source.dtype)

    return computed(over.result, source.dtype, source.device, at)


def _sums(builder: Builder, over: Windows) -> Tensor:
    """The sum over each window, in the compute type."""
    dtype, device = over.source.compute_dtype, over.source.device
    if len(over.steps) > UNROLL_LIMIT:
        kernel = tuple(as_size(n) for n in over.kernel)
        points = computed(
            (*over.result, *kernel), dtype, device, lambda p: over.element(p[:-2], (p[-2], p[-1]), outside=0)
        )
        build = lambda value, point: expr.reduce("sum", dtype, value)  # noqa: E731
        return builder.reduction(points, [len(over.result), len(over.result) + 1], False, [(build, dtype)])[0]

    def at(point: Point) -> Node:
        first, *others = (over.element(point, step, outside=0) for step in over.steps)
        for node in others:
            first = expr.op("add", dtype, first, node)
        return first

    return computed(over.result, dtype, device, at)


def _count(over: Windows, point: Point, padding_counts: bool) -> Node:
    """How many elements the average of the window of `point` is taken over, as int64."""
    counts = []
    for d, start in enumerate(over.position(point, (ZERO, ZERO))):
        kernel, padding, n = over.kernel[d], over.padding[d], over.extents[d]
        first, last = expr.index_value(start), expr.index_value(sympy.expand(start + kernel))
        limit = n + padding if padding_counts else n
        if over.ceil or (padding and not padding_counts):
            last = expr.op("minimum", torch.int64, last, expr.index_value(limit))
        if padding and not padding_counts:
            first = expr.op("maximum", torch.int64, first, expr.const(0, torch.int64))
        bounded = over.ceil or (padding and not padding_counts)
        counts.append(expr.op("sub", torch.int64, last, first) if bounded else expr.const(kernel, torch.int64))
    if all(isinstance(c, expr.Const) for c in counts):
        return expr.const(over.kernel[0] * over.kernel[1], torch.int64)
    return expr.op("mul", torch.int64, *counts)


# maxima ---------------------------------------------------------------------------------------------------------------


@lowers(aten.max_pool2d_with_indices.default)
def max_pool2d_with_indices(
    builder: Builder,
    source: Tensor,
    kernel_size: Sequence[Size | int],
    stride: Sequence[Size | int] = (),
    padding: Sequence[Size | int] = (0,),
    dilation: Sequence[Size | int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """The largest element of each window (the last NaN, if there is one) and its number in its plane."""
    over = windows(builder, source, kernel_size, stride, padding, dilation, ceil_mode, 0)
    if len(over.steps) > UNROLL_LIMIT:
        raise LoweringError(f"the maximum over windows of {len(over.steps)} points is left to the library.")
    value = computed(over.result, source.dtype, source.device, lambda point: _largest(over, point)[0])
    index = computed(over.result, torch.int64, source.device, lambda point: _largest(over, point)[1])
    return value, index


def _largest(over: Windows, point: Point) -> tuple[Node, Node]:
    dtype = over.source.compute_dtype
    smallest = _smallest(over.source.dtype)
    value, index = expr.const(smallest, dtype), _first_inside(over, point)
    best: Node = value
    for step in over.steps:
        node = over.element(point, step, outside=smallest)
        better = expr.op("gt", torch.bool, node, best)
        if dtype.is_floating_point:
            better = expr.op("logical_or", torch.bool, better, expr.op("isnan", torch.bool, node))
        best = expr.op("where", dtype, better, node, best)
        index = expr.op("where", torch.int64, better, _number(over, point, step), index)
    return best, index


def _first_inside(over: Windows, point: Point) -> Node:
    """The number of the window's first element that is not padding: the answer where all are the smallest value."""
    index: Node | None = None
    for step in reversed(over.steps):
        inside, number = over.inside(point, step), _number(over, point, step)
        index = number if index is None or inside is None else expr.op("where", torch.int64, inside, number, index)
    assert index is not None
    return index


def _number(over: Windows, point: Point, step: Step) -> Node:
    row, column = over.position(point, step)
    return expr.index_value(sympy.expand(row * over.extents[1] + column))


def _smallest(dtype: torch.dtype) -> bool | int | float:
    if dtype == torch.bool:
        return False
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


@lowers(aten.max_pool2d_with_indices_backward.default)
def max_pool2d_with_indices_backward(
    builder: Builder,
    grad: Tensor,
    source: Tensor,
    kernel_size: Sequence[Size | int],
    stride: Sequence[Size | int],
    padding: Sequence[Size | int],
    dilation: Sequence[Size | int],
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    """Each gradient added to the element that was the largest of its window; windows overlap."""
    require_loop_dtype(grad.dtype)
    zeros = computed(source.sizes, grad.dtype, grad.device, lambda point: expr.const(0, grad.compute_dtype))
    target = duplicate(builder, zeros)
    row, column = target.strides[-2:]
    if not sizes.equal(row, column * source.sizes[-1]):
        raise LoweringError("planes whose rows are not one after the other are left to the library.")
    axes = builder.axes(grad.sizes)
    point = tuple(a.symbol for a in axes)
    at = target.index((*point[:-2], ZERO, ZERO)) + column * expr.indirect_symbol(0)
    builder.loop(axes, (), (Store(target.buffer, at, grad.at(point), "add", (indices.at(point),)),), "scatter")
    return stored(target, grad.device)
