"""Averages over windows and over cells. The gradient over cells is a sum over cells too; that over windows is ATen's, which a
loop that searches for the windows over each element did not beat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from polytile.errors import LoweringError
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.joins import all_of, compare
from polytile.frontend.lower.layouts import as_they_lie
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.value import Point, Tensor, computed, convert
from polytile.frontend.lower.views import permute
from polytile.frontend.lower.windows import Step, Windows, chosen, windows
from polytile.ir import expr, sizes
from polytile.ir.expr import Node
from polytile.ir.sizes import ONE, ZERO, Size, as_size

aten = torch.ops.aten

Element = Callable[[Point, Step], Node]  # (point of the result, element of the window) → its term


def _lower_average(rank: int) -> Callable[..., Tensor]:
    def lowering(
        builder: Builder, source: Tensor, kernel_size: Sequence[Size | int], stride: Sequence[Size | int] = (),
        padding: Sequence[Size | int] = (0,), ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: Size | int | None = None,
    ) -> Tensor:  # fmt: skip
        if source.dtype != torch.int64:  # the only integer dtype that eager averages; it rounds towards 0
            _require_float(source)
        result = builder.result_sizes()
        over = windows(builder, source, rank, kernel_size, stride, padding, (1,), ceil_mode, result)
        total = _summed_elements(builder, over)

        def at(point: Point) -> Node:
            value = total.at(point)
            count = _divisor(over, point, count_include_pad, divisor_override, value.dtype)
            divide = "div" if value.dtype.is_floating_point else "truncdiv"
            return convert(expr.op(divide, value.dtype, value, count), source.dtype)

        return computed(result, source.dtype, source.device, at)

    return lowering


lowers(aten.avg_pool2d.default)(_lower_average(2))
lowers(aten.avg_pool3d.default)(_lower_average(3))


def _require_float(tensor: Tensor) -> None:
    if not tensor.dtype.is_floating_point:
        raise LoweringError(f"averages of type {tensor.dtype} are left to the library.")


def summed(builder: Builder, over: Windows, result: tuple[Size, ...], term: Element) -> Tensor:
    """The sum of `term` over each window's elements at every point of `result`, in the compute dtype."""
    dtype, device = over.source.compute_dtype, over.source.device
    if not over.unrolled:
        kernel = tuple(as_size(n) for n in over.kernel)
        points = computed((*result, *kernel), dtype, device, lambda p: term(p[: -over.rank], p[-over.rank :]))
        dims = range(len(result), len(result) + over.rank)
        return builder.reduction(points, list(dims), False, [(lambda value, point: expr.reduce("sum", dtype, value), dtype)])[0]

    def at(point: Point) -> Node:
        first, *others = (term(point, step) for step in over.steps)
        for node in others:
            first = expr.op("add", dtype, first, node)
        return first

    return computed(result, dtype, device, at)


def _summed_elements(builder: Builder, over: Windows) -> Tensor:
    """The sums of the windows' elements: along rows last, if that saves enough."""
    if not _separable(builder.result(), over):
        return summed(builder, over, over.result, lambda point, step: over.element(point, step, outside=0))
    columns = over.along(slice(None, -1), over.source, (*over.result[:-1], over.extents[-1]))
    sums = summed(builder, columns, columns.result, lambda point, step: columns.element(point, step, outside=0))
    rows = over.along(slice(-1, None), builder.realize(sums), over.result)
    return summed(builder, rows, over.result, lambda point, step: rows.element(point, step, outside=0))


STRIDED, STORED = 12, 4
"""Costs of a strided load, and of a store with a later load, in units of a contiguous load."""


def _separable(traced: torch.Tensor, over: Windows) -> bool:
    """Whether summing each window's columns first, along whole rows, takes at most half the work.

    Vectors on a CPU then read neighbours, whereas windows with a stride along rows load each lane separately (5×5 windows of
    4×33×63×71 elements). On a GPU such loads hit the cache.
    """
    if traced.device.type != "cpu" or as_they_lie(traced)[-1] != traced.ndim - 1:
        return False
    along, step = over.kernel[-1], over.stride[-1]
    each = STRIDED if step > 1 else 1
    return over.count * each >= 2 * ((over.count // along + STORED) * step + along * each)


def _divisor(over: Windows, point: Point, padding_counts: bool, override: Size | int | None, dtype: torch.dtype) -> Node:
    """The divisor of the sum over the window of `point`."""
    if override is not None:
        return expr.index_value(as_size(override), dtype)
    return expr.op("cast", dtype, _count(over, point, padding_counts))


def _count(over: Windows, point: Point, padding_counts: bool) -> Node:
    """The number of elements over which the window of `point` is averaged, as int64."""
    counts = []
    for d, start in enumerate(over.position(point, (ZERO,) * over.rank)):
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
        return expr.const(over.count, torch.int64)
    product = counts[0]
    for count in counts[1:]:
        product = expr.op("mul", torch.int64, product, count)
    return product


# adaptive averages ----------------------------------------------------------------------------------------------------


def cells(point: Point, extents: Sequence[Size], result: Sequence[Size]) -> list[tuple[Size, Size]]:
    """For each dimension (first element, number of elements) of the cell of `point` when `extents` are divided into `result`
    cells: from ⌊o·n / m⌋ to ⌈(o + 1)·n / m⌉."""
    bounds = []
    for o, n, m in zip(point, extents, result, strict=True):
        first = FloorDiv(o * n, m)
        bounds.append((first, FloorDiv((o + 1) * n + m - 1, m) - first))
    return bounds


def longest(extents: Sequence[Size], result: Sequence[Size]) -> tuple[Size, ...]:
    """An upper bound of the cells' sizes: ⌈n / m⌉ + 1, or 1 if a cell is an element."""
    return tuple(ONE if n == m else n if m == 1 else FloorDiv(n + m - 1, m) + 1 for n, m in zip(extents, result, strict=True))


def _lower_adaptive(rank: int) -> Callable[..., Tensor]:
    def lowering(builder: Builder, source: Tensor, output_size: Sequence[Size | int]) -> Tensor:
        _require_float(source)
        result, means = builder.result_sizes(), source
        for dims in _stages(builder.result(), rank):
            means = _over_cells(builder, means, {d: result[d] for d in dims}, mean=True)
        return computed(result, source.dtype, source.device, lambda point: convert(means.at(point), source.dtype))

    return lowering


def _lower_adaptive_backward(rank: int) -> Callable[..., Tensor]:
    def lowering(builder: Builder, grad: Tensor, source: Tensor) -> Tensor:
        """Element i belongs to the cells from ⌊i·m / n⌋ to ⌈(i + 1)·m / n⌉: the same rule the other way round."""
        _require_float(grad)

        def share(point: Point) -> Node:
            value = grad.at(point)
            for _, count in cells(point[-rank:], source.sizes[-rank:], grad.sizes[-rank:]):
                value = _divided(value, count)
            return value

        total = computed(grad.sizes, grad.compute_dtype, grad.device, share)
        for dims in _stages(builder.result(), rank, backward=True):
            total = _over_cells(builder, total, {d: source.sizes[d] for d in dims})
        return computed(source.sizes, grad.dtype, grad.device, lambda point: convert(total.at(point), grad.dtype))

    return lowering


def _stages(traced: torch.Tensor, rank: int, backward: bool = False) -> list[list[int]]:
    """The dimensions of successive sums over cells, one loop each.

    On a CPU, vectors run along the contiguous dimension. If that is rows, which cells cut into short and uneven pieces, the other
    dimensions come first, along whole rows, so that few pieces remain: 256 × 32 × 32 elements in 7 × 7 cells take 82 µs this way,
    and 194 in ATen (two threads). Backward, the pieces come first, and most of the work is one loop along rows, including
    channels in channels-last layout.
    """
    spatial = list(range(traced.ndim - rank, traced.ndim))
    if traced.device.type != "cpu" or not (backward or as_they_lie(traced)[-1] in spatial):
        return [spatial]
    return [[d] for d in (reversed(spatial) if backward else spatial)]


def _over_cells(builder: Builder, source: Tensor, cut: Mapping[int, Size], mean: bool = False) -> Tensor:
    """`source` with each dimension in `cut` divided into this many cells, each the sum of its elements, or their mean."""
    cut = {d: m for d, m in cut.items() if source.sizes[d] != m}
    if not cut:
        return source
    order, dtype, rank = as_they_lie(builder.result()), source.compute_dtype, source.rank
    base = source if source.view is not None else builder.realize(source, _laid_out(source.sizes, order))
    extents, result = [source.sizes[d] for d in cut], list(cut.values())

    def cells_at(point: Point) -> list[tuple[Size, Size]]:
        return cells(tuple(point[order.index(d)] for d in cut), extents, result)

    def at(point: Point) -> Node:
        place, ends, steps = [point[order.index(k)] for k in range(rank)], cells_at(point), point[rank:]
        for d, step, (first, _) in zip(cut, steps, ends, strict=True):
            place[d] = first + step
        asked = [compare("lt", k, n) for k, (_, n), m in zip(steps, ends, result, strict=True) if m != 1]
        return chosen(all_of(asked), base.at(place), outside=0)

    def row(value: Node, point: Point) -> Node:
        total = expr.reduce("sum", dtype, value)
        return _divided(total, sympy.prod([n for _, n in cells_at(point)])) if mean else total

    shape = [cut.get(k, source.sizes[k]) for k in order]
    points = computed((*shape, *longest(extents, result)), dtype, source.device, at)
    (sums,) = builder.reduction(points, list(range(rank, rank + len(cut))), False, [(row, dtype)])
    return permute(builder, sums, [order.index(k) for k in range(rank)])


def _divided(value: Node, count: Size) -> Node:
    return value if count == 1 else expr.op("div", value.dtype, value, expr.index_value(count, value.dtype))


def _laid_out(shape: Sequence[Size], order: Sequence[int]) -> tuple[Size, ...]:
    """The strides of a dense tensor with its dimensions in this order."""
    strides = dict(zip(order, sizes.contiguous_strides([shape[k] for k in order]), strict=True))
    return tuple(strides[k] for k in range(len(shape)))


lowers(aten._adaptive_avg_pool2d.default)(_lower_adaptive(2))
lowers(aten._adaptive_avg_pool3d.default)(_lower_adaptive(3))
lowers(aten._adaptive_avg_pool2d_backward.default)(_lower_adaptive_backward(2))
lowers(aten._adaptive_avg_pool3d_backward.default)(_lower_adaptive_backward(3))
