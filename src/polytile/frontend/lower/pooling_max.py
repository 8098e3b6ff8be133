"""The largest element of each window with its number in its plane, and the gradient, which goes to that element."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from polytile.errors import LoweringError
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.joins import all_of, compare
from polytile.frontend.lower.pooling_average import cells, longest
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.scattering import duplicate
from polytile.frontend.lower.value import Point, Tensor, computed, convert, stored, widen
from polytile.frontend.lower.views import require_loop_dtype
from polytile.frontend.lower.windows import UNROLL_LIMIT, Windows, chosen, flat_number, windows
from polytile.ir import expr, sizes
from polytile.ir.expr import Node
from polytile.ir.program import Store
from polytile.ir.reductions import smallest
from polytile.ir.sizes import ZERO, Size, as_size
from polytile.runtime.target import Target

aten = torch.ops.aten

NOWHERE = 2**62
"""The number of what is not in a window: larger than any element's, so that it loses every tie."""


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
    """The number of the window's first element that is not padding: the answer where all are the smallest value."""
    index: Node | None = None
    for step in reversed(over.steps):
        inside, number = over.inside(point, step), over.number(point, step)
        index = number if index is None or inside is None else expr.op("where", torch.int64, inside, number, index)
    assert index is not None
    return index


# adaptive maxima ------------------------------------------------------------------------------------------------------


def _lower_adaptive(rank: int) -> Callable[..., tuple[Tensor, ...]]:
    def lowering(builder: Builder, source: Tensor, output_size: Sequence[Size | int]) -> tuple[Tensor, ...]:
        """The largest element of each cell, the first of several, and its number."""
        require_loop_dtype(source.dtype)
        if source.dtype == torch.bool:
            raise LoweringError("the largest of truth values is left to the library.")
        base, result, extents = builder.realize(source), builder.result_sizes(0), source.sizes[-rank:]
        reduced, dtype = longest(extents, result[-rank:]), source.compute_dtype

        def parts(point: Point) -> tuple[Point, Node | None]:
            """The place of an element of a cell, and whether it is one."""
            here, steps = point[: len(result)], point[len(result) :]
            cell = cells(here[-rank:], extents, result[-rank:])
            place = tuple(first + step for (first, _), step in zip(cell, steps, strict=True))
            return (*here[:-rank], *place), all_of([compare("lt", k, n) for k, (_, n) in zip(steps, cell, strict=True)])

        def element(point: Point) -> Node:
            place, inside = parts(point)
            return chosen(inside, base.at(place), smallest(source.dtype))

        def best(value: Node, point: Point) -> Node:
            place, inside = parts(point)
            number = chosen(inside, expr.index_value(flat_number(place[-rank:], extents)), NOWHERE)
            return expr.reduce("argmax", dtype, value, number)

        points = computed((*result, *reduced), source.dtype, source.device, element)
        dims = list(range(len(result), len(result) + rank))
        outputs: list[tuple[Callable[..., Node], torch.dtype]] = [
            (lambda value, point: widen(expr.part(best(value, point), 0, dtype), source.dtype), source.dtype),
            (lambda value, point: expr.part(best(value, point), 1, torch.int64), torch.int64),
        ]
        return tuple(builder.reduction(points, dims, False, outputs))

    return lowering


lowers(aten.adaptive_max_pool2d.default)(_lower_adaptive(2))
lowers(aten.adaptive_max_pool3d.default)(_lower_adaptive(3))


# gradients ------------------------------------------------------------------------------------------------------------


def _to_the_largest(builder: Builder, grad: Tensor, source: Tensor, indices: Tensor, rank: int) -> Tensor:
    """Each gradient added to the element that was the largest of its window; windows overlap."""
    require_loop_dtype(grad.dtype)
    zeros = computed(source.sizes, grad.dtype, grad.device, lambda point: expr.const(0, grad.compute_dtype))
    target = duplicate(builder, zeros)
    plane = target.strides[-rank:]
    dense = sizes.contiguous_strides(source.sizes[-rank:])
    if not all(sizes.equal(have, want * plane[-1]) for have, want in zip(plane, dense, strict=True)):
        raise LoweringError("planes whose rows are not one after the other are left to the library.")
    axes = builder.axes(grad.sizes)
    point = tuple(a.symbol for a in axes)
    at = target.index((*point[:-rank], *(ZERO,) * rank)) + plane[-1] * expr.indirect_symbol(0)
    value = convert(grad.at(point), grad.dtype)
    builder.loop(axes, (), (Store(target.buffer, at, value, "add", (indices.at(point),)),), "scatter")
    return stored(target, grad.device)


def _from_its_windows(builder: Builder, grad: Tensor, over: Windows, indices: Tensor) -> Tensor:
    """The same, element by element: the gradients of those windows over an element whose largest it was. Along a dimension these
    are at most ⌈kernel / stride⌉ windows. For GPUs, where it gives the same bits in every run, which additions in any order do
    not; a pooling network of 4×17×33×35 took as long by either on an H200 (156 µs with its forward pass)."""
    rank, extents = over.rank, over.extents
    stored_grad, stored_indices = builder.realize(grad), builder.realize(indices)
    most = [range(-(-k // s)) for k, s in zip(over.kernel, over.stride, strict=True)]

    def term(point: Point, back: tuple[int, ...]) -> Node:
        """What the element at `point` gets from the window so many windows before the last one over it."""
        numbers = zip(point[-rank:], over.padding, over.stride, back, strict=True)
        window = tuple(FloorDiv(at + p, as_size(s)) - b if s > 1 else sympy.expand(at + p - b) for at, p, s, b in numbers)
        here = (*point[:-rank], *window)
        asked = [compare("lt", at, n) for at, n in zip(window, grad.sizes[-rank:], strict=True)]
        asked += [compare("ge", at, ZERO) for at, b in zip(window, back, strict=True) if b]
        inside = all_of(asked)
        number = expr.index_value(flat_number(point[-rank:], extents))
        largest = expr.op("eq", torch.bool, chosen(inside, stored_indices.at(here), -1), number)
        value = chosen(inside, stored_grad.at(here), 0)
        return expr.op("where", value.dtype, largest, value, expr.const(0, value.dtype))

    def total(point: Point) -> Node:
        terms = [term(point, back) for back in itertools.product(*most)]
        return convert(functools.reduce(lambda a, b: expr.op("add", a.dtype, a, b), terms), grad.dtype)

    return computed(over.source.sizes, grad.dtype, grad.device, total)


def _lower_backward(rank: int) -> Callable[..., Tensor]:
    def lowering(builder: Builder, grad: Tensor, source: Tensor, *windows_and_indices: object) -> Tensor:
        indices = windows_and_indices[-1]
        assert isinstance(indices, Tensor)
        return _to_the_largest(builder, grad, source, indices, rank)

    return lowering


def _lower_sliding_backward(rank: int) -> Callable[..., Tensor]:
    scattered = _lower_backward(rank)

    def lowering(
        builder: Builder, grad: Tensor, source: Tensor, kernel_size: Sequence[Size | int],
        stride: Sequence[Size | int], padding: Sequence[Size | int], dilation: Sequence[Size | int], ceil_mode: bool,
        indices: Tensor,
    ) -> Tensor:  # fmt: skip
        over = windows(builder, source, rank, kernel_size, stride, padding, dilation, ceil_mode, grad.sizes)
        terms = math.prod(-(-k // s) for k, s in zip(over.kernel, over.stride, strict=True))
        if Target.of(grad.device).native or terms > UNROLL_LIMIT or any(d > 1 for d in over.dilation):
            return scattered(builder, grad, source, indices)
        require_loop_dtype(grad.dtype)
        return _from_its_windows(builder, grad, over, indices)

    return lowering


for _rank, _sliding, _operators in (
    (2, aten.max_pool2d_with_indices_backward, (aten.adaptive_max_pool2d_backward, aten.fractional_max_pool2d_backward)),
    (3, aten.max_pool3d_with_indices_backward, (aten.adaptive_max_pool3d_backward, aten.fractional_max_pool3d_backward)),
):
    lowers(_sliding.default)(_lower_sliding_backward(_rank))
    lowers(*(operator.default for operator in _operators))(_lower_backward(_rank))
