"""The largest element of windows whose places are drawn: fractional max pooling. Its gradient is in pooling_max.py.

Along a dimension of n elements, m windows of k elements begin, for a number u that is drawn for each plane, at

    ⌊(o + u)·α⌋ - ⌊u·α⌋  for o < m - 1,  n - k for the last one,  α = (n - k) / (m - 1)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch

from polytile.errors import LoweringError
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.positions import Place
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.value import Point, Tensor, computed, widen
from polytile.frontend.lower.windows import UNROLL_LIMIT
from polytile.ir import expr
from polytile.ir.expr import Node
from polytile.ir.reductions import smallest
from polytile.ir.sizes import ZERO, Size, as_size

aten = torch.ops.aten

DRAWN: dict[int, tuple[int, ...]] = {2: (1, 0), 3: (0, 1, 2)}
"""Which of a plane's numbers is whose, by the rank of windows: of two dimensions the last one has the first."""


def _lower(rank: int) -> Callable[..., tuple[Tensor, Tensor]]:
    def lowering(
        builder: Builder,
        source: Tensor,
        kernel_size: Sequence[Size | int],
        output_size: Sequence[Size | int],
        samples: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The largest element of each window (the last NaN, if there is one) and its number."""
        if source.dtype not in (torch.float32, torch.float64):
            raise LoweringError(f"windows drawn for values of type {source.dtype} are left to the library.")
        kernel = [as_size(k) for k in kernel_size]
        if not all(k.is_Integer for k in kernel) or math.prod(map(int, kernel)) > UNROLL_LIMIT:
            raise LoweringError(f"the maximum over drawn windows of {kernel} points is left to the library.")
        base, drawn, result = builder.realize(source), builder.realize(samples), builder.result_sizes(0)

        def starts(point: Point) -> list[Node]:
            plane = (ZERO, *point[:-rank])[-2:]
            begun = []
            for d in range(rank):
                u = drawn.at((*plane, as_size(DRAWN[rank][d])))
                begun.append(_start(point[d - rank], u, source.sizes[d - rank], result[d - rank], kernel[d]))
            return begun

        def largest(point: Point) -> tuple[Node, Node]:
            begun, dtype = starts(point), source.compute_dtype
            best: Node = expr.const(smallest(source.dtype), dtype)
            index = _number(begun, (ZERO,) * rank, source.sizes[-rank:])
            for step in itertools.product(*[range(int(k)) for k in kernel]):
                node = _element(base, point, begun, step)
                better = expr.op(
                    "logical_or", torch.bool, expr.op("gt", torch.bool, node, best), expr.op("isnan", torch.bool, node)
                )
                best = expr.op("where", dtype, better, node, best)
                number = _number(begun, [as_size(k) for k in step], source.sizes[-rank:])
                index = expr.op("where", torch.int64, better, number, index)
            return best, index

        value = computed(result, source.dtype, source.device, lambda point: largest(point)[0])
        return value, computed(result, torch.int64, source.device, lambda point: largest(point)[1])

    return lowering


lowers(aten.fractional_max_pool2d.default)(_lower(2))
lowers(aten.fractional_max_pool3d.default)(_lower(3))


def _start(o: Size, u: Node, n: Size, m: Size, k: Size) -> Node:
    """Where window `o` of `m` windows begins; within the dimension whatever was drawn."""
    whole = expr.op("maximum", torch.int64, expr.index_value(m - 1), expr.const(1, torch.int64))
    slope = expr.op("div", u.dtype, expr.index_value(n - k, u.dtype), widen(whole, u.dtype))

    def floor(x: Node) -> Node:
        return expr.op("cast", torch.int64, expr.op("mul", u.dtype, x, slope))

    drawn = expr.op("sub", torch.int64, floor(expr.op("add", u.dtype, expr.index_value(o, u.dtype), u)), floor(u))
    last = expr.index_value(n - k)
    inside = expr.op("maximum", torch.int64, expr.op("minimum", torch.int64, drawn, last), expr.const(0, torch.int64))
    at_end = expr.op("eq", torch.bool, expr.index_value(o), expr.index_value(m - 1))
    return expr.op("where", torch.int64, at_end, last, inside)


def _element(base: Tensor, point: Point, begun: Sequence[Node], step: Sequence[int]) -> Node:
    place = Place(list(point))
    for d, (start, k) in enumerate(zip(begun, step, strict=True)):
        at = len(point) - len(begun) + d
        place.put(at, start)
        place.point[at] = place.point[at] + k
    return place.load(base)


def _number(begun: Sequence[Node], step: Sequence[Size], extents: Sequence[Size]) -> Node:
    """The row-major number, in its plane, of element `step` of the window that begins there."""
    number: Node | None = None
    for start, k, n in zip(begun, step, extents, strict=True):
        at = expr.op("add", torch.int64, start, expr.index_value(k))
        if number is not None:
            at = expr.op("add", torch.int64, expr.op("mul", torch.int64, number, expr.index_value(n)), at)
        number = at
    assert number is not None
    return number
