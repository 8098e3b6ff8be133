"""Upsampling: each element of the result is the nearest element, or a weighted sum of the 2, 4 or 8 around it.

Positions along a dimension of n elements, with m in the result, are s·o or s·(o + ½), where s is the reciprocal of the given
scale, or n / m. For interpolation they are s·(o + ½) - ½, or o·(n - 1) / (m - 1) with aligned corners. All are computed as in
ATen.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from polytile.errors import LoweringError
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.layouts import as_they_lie
from polytile.frontend.lower.positions import Place
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.value import Call, Point, Tensor, computed, convert
from polytile.frontend.resizing import EXACT, LINEAR, UPSAMPLE, UPSAMPLE_BACKWARD, arguments
from polytile.ir import expr, sizes
from polytile.ir.buffer import View
from polytile.ir.expr import Node
from polytile.ir.library_call import Ref
from polytile.ir.sizes import Size

Term = tuple[Size | Node, Node | None]
"""A position along a dimension and its weight; None means weight 1."""


@lowers(UPSAMPLE)
def upsample(
    builder: Builder, source: Tensor, name: str, size: Sequence[Size | int], align_corners: bool, scales: Sequence[float]
) -> Tensor:
    """Images [batch, channels, ...] resized to `size`: each point is a weighted sum of the source at one position per dimension
    (nearest) or two (linear). `name` is the operator, one of resizing.py."""
    if not source.dtype.is_floating_point:
        raise LoweringError("images of bytes, which eager interpolates in integers, are left to the library.")
    base, result = builder.realize(source), builder.result_sizes()
    along = dict(zip(range(2, source.rank), scales, strict=True))
    if name in LINEAR and len(along) > 1 and as_they_lie(builder.result())[-1] == source.rank - 1:
        return _one_by_one(builder, base, result, align_corners, along)

    def terms(d: int, o: Size) -> list[Term]:
        if name in LINEAR:
            return _between(o, base.sizes[d], result[d], along[d], align_corners, source.compute_dtype)
        return _nearest(o, base.sizes[d], result[d], along[d], 0.5 if name in EXACT else 0.0)

    def element_at(point: Point) -> Node:
        return convert(_weighted(base, point, {d: terms(d, point[d]) for d in along}), source.dtype)

    made = computed(result, source.dtype, source.device, element_at)
    return made if base.view is None else replace(made, call=_call(builder, base.view, name, size, align_corners, scales, result))


def _weighted(base: Tensor, point: Point, along: Mapping[int, Sequence[Term]]) -> Node:
    """The sum of `base` at all combinations of one term for each dimension in `along`, and at the point in the others."""
    wide, total = base.compute_dtype, None
    for chosen in itertools.product(*along.values()):
        place = Place([sizes.ZERO if d in along else i for d, i in enumerate(point)])
        for d, (where, _) in zip(along, chosen, strict=True):
            place.put(d, where)
        term: Node = place.load(base)
        for _, weight in chosen:
            term = term if weight is None else expr.op("mul", wide, term, weight)
        total = term if total is None else expr.op("add", wide, total, term)
    assert total is not None
    return total


def _one_by_one(
    builder: Builder, source: Tensor, result: tuple[Size, ...], align_corners: bool, along: Mapping[int, float]
) -> Tensor:
    """Interpolate along one dimension after the other, for images whose vectors run along rows.

    Other dimensions are read contiguously, but rows are gathered lane by lane. So rows come last, or first if that makes rows
    longer and others more: 256 images of 32 × 32 at twice the size take 0.87 ms instead of 1.67 in ATen (two threads).
    """
    larger = all(scale >= 1 or sizes.is_nonnegative(sympy.expand(result[d] - source.sizes[d])) for d, scale in along.items())
    images, order = source, list(along)
    for d in order[::-1] if larger else order:
        if images.sizes[d] != result[d]:
            images = _interpolated(builder.realize(images), d, result[d], along[d], align_corners)
    return computed(result, source.dtype, source.device, lambda point: convert(images.at(point), source.dtype))


def _interpolated(base: Tensor, d: int, m: Size, scale: float, align_corners: bool) -> Tensor:
    """`base` with `m` elements along dimension `d`, each interpolated from the two around its position."""
    n, wide = base.sizes[d], base.compute_dtype

    def element_at(point: Point) -> Node:
        return _weighted(base, point, {d: _between(point[d], n, m, scale, align_corners, wide)})

    return computed((*base.sizes[:d], m, *base.sizes[d + 1 :]), wide, base.device, element_at)


def _call(
    builder: Builder, view: View, name: str, size: Sequence[Size | int], align_corners: bool, scales: Sequence[float],
    result: tuple[Size, ...],
) -> Call:  # fmt: skip
    given = (Ref(view), builder.argument(list(size)), *arguments(name, align_corners, scales))
    return Call(getattr(torch.ops.aten, name).default, given, (), result)


def _nearest(o: Size, n: Size, m: Size, scale: float, half: float) -> list[Term]:
    """The element nearest to position `o` of the result."""
    times = sizes.divide(sympy.expand(m), n)
    if times is not None and times.is_Integer and _is_power(int(times)) and scale in (0.0, float(times)):
        return [(FloorDiv(o, times), None)]
    wide = torch.float32
    there = _number(o, wide)
    if half:
        there = expr.op("add", wide, there, expr.const(half, wide))
    return [(_whole(expr.op("mul", wide, there, _ratio(n, m, scale, wide)), n), None)]


def _is_power(times: int) -> bool:
    """Whether dividing by `times` is exact in floating point."""
    return times & (times - 1) == 0


def _between(o: Size, n: Size, m: Size, scale: float, align_corners: bool, wide: torch.dtype) -> list[Term]:
    """The elements before and after position `o` of the result, with their weights."""
    there = _there(o, n, m, scale, align_corners, wide)
    before, one = _whole(there, n), expr.const(1, torch.int64)
    behind = expr.op("minimum", torch.int64, expr.op("add", torch.int64, before, one), _last(n))
    weight = expr.op("sub", wide, there, expr.op("cast", wide, before))
    weight = expr.op("minimum", wide, weight, expr.const(1.0, wide))
    return [(before, expr.op("sub", wide, expr.const(1.0, wide), weight)), (behind, weight)]


def _there(o: Size, n: Size, m: Size, scale: float, align_corners: bool, wide: torch.dtype) -> Node:
    if align_corners:
        steps = expr.op("maximum", torch.int64, _last(m), expr.const(1, torch.int64))
        step = expr.op("div", wide, expr.op("cast", wide, _last(n)), expr.op("cast", wide, steps))
        return expr.op("mul", wide, _number(o, wide), step)
    half = expr.const(0.5, wide)
    centre = expr.op("mul", wide, expr.op("add", wide, _number(o, wide), half), _ratio(n, m, scale, wide))
    return expr.op("maximum", wide, expr.op("sub", wide, centre, half), expr.const(0.0, wide))


def _ratio(n: Size, m: Size, scale: float, dtype: torch.dtype) -> Node:
    """The distance between positions of neighbours in the result."""
    if scale > 0:
        return expr.const(float(torch.tensor(1.0 / scale, dtype=dtype, device="cpu")), dtype)
    return expr.op("div", dtype, _number(n, dtype), _number(m, dtype))


def _number(o: Size, dtype: torch.dtype) -> Node:
    return expr.op("cast", dtype, expr.index_value(o))


def _last(n: Size) -> Node:
    return expr.index_value(sympy.expand(n - 1))


def _whole(there: Node, n: Size) -> Node:
    """The element at or before the nonnegative position `there`, among n."""
    return expr.op("minimum", torch.int64, expr.op("cast", torch.int64, there), _last(n))


@lowers(UPSAMPLE_BACKWARD)
def upsample_backward(
    builder: Builder, grad: Tensor, name: str, size: Sequence[Size | int], input_size: Sequence[Size | int],
    align_corners: bool, scales: Sequence[float],
) -> Tensor:  # fmt: skip
    """Sums of few, unevenly many elements each: the library traverses them faster than loops of masked windows."""
    operator = getattr(torch.ops.aten, f"{name}_backward").default
    given = (grad, list(size), list(input_size), *arguments(name, align_corners, scales))
    result: Tensor = builder.library(operator, given, {}, "gradients of upsampling are left to the library")
    return result
