"""Reshapes: the same elements, in row-major order, under other sizes.

Source and target are compared in the finest groups of dimensions with equal numbers of elements. Within a group strides either
carry over or do not, and an index is flattened and unflattened only within its group.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import sympy
import torch

from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.layouts import traced_argument, traced_strides
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.value import Point, Tensor, stored
from polytile.frontend.lower.views import has_static_zero, reindexed
from polytile.ir import divisions, sizes
from polytile.ir.buffer import View
from polytile.ir.sizes import ONE, ZERO, Size

aten = torch.ops.aten

Shape = tuple[Size, ...]


def dim_groups(source: Shape, target: Shape) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The finest pairing of runs of source dimensions with runs of target dimensions that have the same number of elements.

    Dimensions of size 1 belong to no group. Tracing has checked that the shapes have the same number of elements. A boundary is
    where the number of elements before it, or after it, is provably equal.
    """
    ins = [d for d, n in enumerate(source) if n != 1]
    outs = [d for d, n in enumerate(target) if n != 1]
    in_sizes, out_sizes = ([divisions.simplify(shape[d], {}) for d in dims] for shape, dims in ((source, ins), (target, outs)))
    marks = _equal_prefixes(in_sizes, out_sizes)
    marks |= {(len(ins) - i, len(outs) - j) for i, j in _equal_prefixes(in_sizes[::-1], out_sizes[::-1])}
    at = (0, 0)
    for i, j in sorted(marks) + [(len(ins), len(outs))]:
        if i > at[0] and j > at[1]:
            yield tuple(ins[at[0] : i]), tuple(outs[at[1] : j])
            at = (i, j)


def _equal_prefixes(a: Sequence[Size], b: Sequence[Size]) -> set[tuple[int, int]]:
    """(i, j), both inside, where a[:i] and b[:j] have equal products."""
    b_products = {product: j for j, product in enumerate(_prefix_products(b), 1) if j < len(b)}
    pairs = ((i, b_products.get(product)) for i, product in enumerate(_prefix_products(a), 1) if i < len(a))
    return {(i, j) for i, j in pairs if j is not None}


def _prefix_products(shape: Sequence[Size]) -> Iterator[Size]:
    running: Size = ONE
    for n in shape:
        running = sympy.expand(running * n)
        yield running


def reshape_strides(source: Tensor, target: Shape, traced: Shape) -> Shape | None:
    """Strides under which the elements of the stored `source` have sizes `target`; None if there are none.

    Dimensions of size 1 get the stride in `traced`; so do all of them if there are no elements.
    """
    if source.view is None or has_static_zero(source.sizes):
        return traced
    result, strides = list(traced), source.view.strides
    for ins, outs in dim_groups(source.sizes, target):
        if not all(sizes.equal(strides[a], strides[b] * source.sizes[b]) for a, b in itertools.pairwise(ins)):
            return None
        for d, stride in zip(outs, sizes.contiguous_strides([target[d] for d in outs]), strict=True):
            result[d] = stride * strides[ins[-1]]
    return tuple(result)


def reshape_point(shape: Shape, target: Shape) -> Callable[[Point], Point]:
    """Maps a point of `target` to the point of `shape` with the same row-major index."""
    groups = [] if has_static_zero(shape) else list(dim_groups(shape, target))

    def where(point: Point) -> Point:
        ranges = {s: n for s, n in zip(point, target, strict=True) if isinstance(s, sympy.Symbol)}
        source = [ZERO] * len(shape)
        for ins, outs in groups:
            strides = sizes.contiguous_strides([target[d] for d in outs])
            flat = sum((point[d] * stride for d, stride in zip(outs, strides, strict=True)), ZERO)
            for d, index in zip(ins, unflatten(flat, [shape[d] for d in ins], ranges), strict=True):
                source[d] = index
        return tuple(source)

    return where


def unflatten(flat: Size, shape: Sequence[Size], ranges: divisions.Ranges) -> list[Size]:
    """The indices, one per dimension of `shape`, of the element with row-major index `flat`."""
    indices: list[Size] = []
    for n in reversed(shape[1:]):
        indices.append(divisions.modulo(flat, n, ranges))
        flat = divisions.floor_div(flat, n, ranges)
    return [flat, *reversed(indices)]


@lowers(aten.view.default, aten._unsafe_view.default, aten.reshape.default)
def view(builder: Builder, source: Tensor, size: Sequence[Size]) -> Tensor:
    """`source` with other sizes: a view if strides can express it, else index algebra."""
    target = builder.result_sizes()
    strides = _traced_view(builder, source) or reshape_strides(source, target, traced_strides(builder.result()))
    if strides is None or source.view is None:
        return reindexed(source, target, reshape_point(source.sizes, target))
    return stored(View(source.view.buffer, source.view.dtype, target, strides, source.view.offset), source.device)


def _traced_view(builder: Builder, source: Tensor) -> Shape | None:
    """The traced strides of the result; they apply if `source` has its traced layout. A reshape stands for a view whose source
    has been replaced since it was traced (attention/views.py): they do not apply there."""
    traced = traced_argument(builder)
    if source.view is None or traced is None or (builder.node is not None and builder.node.target == aten.reshape.default):
        return None
    layouts = zip(source.sizes, source.view.strides, traced_strides(traced), strict=True)
    return traced_strides(builder.result()) if all(n == 1 or sizes.equal(a, b) for n, a, b in layouts) else None
