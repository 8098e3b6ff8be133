"""Views: the same elements under other sizes, strides or order.

A view of a stored tensor stays a view of the same buffer if strides can express it, so that an output that aliases an input in
eager aliases it here too. A view of an unstored tensor, or one that strides cannot express, is index algebra: element `point` of
the result is element `f(point)` of the source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from polytile.errors import LoweringError
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.value import LOOP_DTYPES, Point, Tensor, computed, fresh_axes, stored
from polytile.frontend.placement import is_view
from polytile.ir import divisions, expr, sizes
from polytile.ir.buffer import View
from polytile.ir.sizes import ONE, ZERO, Size, as_size, as_stride

aten = torch.ops.aten


# the two ways to look at a tensor -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dim:
    """One dimension of a strided view: its size, and (source dimension, distance) for each source dimension in which one step
    along it moves. Without steps, every index reads the same element, as in a broadcast."""

    size: Size
    steps: tuple[tuple[int, Size], ...] = ()


def kept(source: Tensor, d: int) -> Dim:
    """Dimension `d` of `source`, unchanged."""
    return Dim(source.sizes[d], ((d, ONE),))


def strided(
    builder: Builder, source: Tensor, dims: Sequence[Dim], origin: dict[int, Size] | None = None, k: int | None = None
) -> Tensor:
    """The elements of `source` that start at `origin` (source dimension → index, 0 if absent) and continue along `dims`. `k` is
    the index of the result, for operators with several."""
    origin = origin or {}
    if source.view is None:
        return reindexed(source, [d.size for d in dims], lambda point: _source_point(source.rank, dims, origin, point))
    view = source.view
    traced = builder.result(k).stride()
    strides = tuple(
        as_stride(traced[i]) if dim.size == 1 else sum((step * view.strides[d] for d, step in dim.steps), ZERO)
        for i, dim in enumerate(dims)
    )
    offset = sum((at * view.strides[d] for d, at in origin.items()), view.offset)
    return stored(View(view.buffer, view.dtype, tuple(d.size for d in dims), strides, offset), source.device)


def _source_point(rank: int, dims: Sequence[Dim], origin: dict[int, Size], point: Point) -> Point:
    source = [origin.get(d, ZERO) for d in range(rank)]
    for dim, index in zip(dims, point, strict=True):
        for d, step in dim.steps:
            source[d] = source[d] + step * index
    return tuple(source)


def reindexed(source: Tensor, out_sizes: Sequence[Size], where: Callable[[Point], Point]) -> Tensor:
    """The unstored tensor whose element at `point` is element `where(point)` of `source`, with simplified indices."""
    require_loop_dtype(source.dtype)
    if has_static_zero(out_sizes):  # no loads, as one might be hoisted out of the empty loop
        zero = expr.const(0, source.compute_dtype)
        return computed(out_sizes, source.dtype, source.device, lambda point: zero)
    axes = fresh_axes(out_sizes)
    ranges = dict(zip(axes, out_sizes, strict=True))
    node = source.at(where(axes))
    node = expr.map_indices((node,), lambda index: divisions.simplify(index, ranges))[0]
    return Tensor(tuple(out_sizes), source.dtype, source.device, axes=axes, node=node)


def copied(source: Tensor) -> Tensor:
    """The same elements as an unstored tensor: for operators whose result never aliases their argument."""
    return computed(source.sizes, source.dtype, source.device, source.at) if source.view is not None else source


def require_loop_dtype(dtype: torch.dtype) -> None:
    """Raise LoweringError for dtypes that loops do not compute with (complex, quantized, 8-bit floats)."""
    if dtype not in LOOP_DTYPES:
        raise LoweringError(f"generated loops do not move elements of type {dtype}.")


def wrap_dim(dim: int, rank: int) -> int:
    """A dimension counted from the front; a zero-dimensional tensor counts as having one."""
    return dim % max(rank, 1)


def has_static_zero(shape: Sequence[Size]) -> bool:
    return any(n == 0 for n in shape)


# dimensions: order, presence, broadcast -------------------------------------------------------------------------------


@lowers(aten.alias.default, aten.detach.default)
def alias(builder: Builder, source: Tensor) -> Tensor:
    return source


@lowers(aten.permute.default)
def permute(builder: Builder, source: Tensor, dims: Sequence[int]) -> Tensor:
    return strided(builder, source, [kept(source, wrap_dim(d, source.rank)) for d in dims])


@lowers(aten.transpose.int)
def transpose(builder: Builder, source: Tensor, dim0: int, dim1: int) -> Tensor:
    order = list(range(source.rank))
    if order:
        a, b = wrap_dim(dim0, source.rank), wrap_dim(dim1, source.rank)
        order[a], order[b] = order[b], order[a]
    return permute(builder, source, order)


@lowers(aten.t.default)
def t(builder: Builder, source: Tensor) -> Tensor:
    return permute(builder, source, list(range(source.rank))[::-1])


@lowers(aten.expand.default)
def expand(builder: Builder, source: Tensor, size: Sequence[Size], *, implicit: bool = False) -> Tensor:
    target = builder.result_sizes()
    lead = len(target) - source.rank
    dims = [
        Dim(n) if i < lead or (source.sizes[i - lead] == 1 and n != 1) else Dim(n, ((i - lead, ONE),))
        for i, n in enumerate(target)
    ]
    return strided(builder, source, dims)


@lowers(aten.unsqueeze.default)
def unsqueeze(builder: Builder, source: Tensor, dim: int) -> Tensor:
    dims = [kept(source, d) for d in range(source.rank)]
    dims.insert(dim % (source.rank + 1), Dim(ONE))
    return strided(builder, source, dims)


@lowers(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def squeeze(builder: Builder, source: Tensor, dim: int | Sequence[int] | None = None) -> Tensor:
    chosen = range(source.rank) if dim is None else [dim] if isinstance(dim, int) else dim
    dropped = {wrap_dim(d, source.rank) for d in chosen}
    return strided(builder, source, [kept(source, d) for d in range(source.rank) if d not in dropped or source.sizes[d] != 1])


@lowers(aten.diagonal.default)
def diagonal(builder: Builder, source: Tensor, offset: Size | int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    a, b = wrap_dim(dim1, source.rank), wrap_dim(dim2, source.rank)
    shift = as_size(offset)
    dims = [kept(source, d) for d in range(source.rank) if d not in (a, b)]
    return strided(
        builder, source, [*dims, Dim(builder.result_sizes()[-1], ((a, ONE), (b, ONE)))], diagonal_origin(shift, a, b)
    )


def diagonal_origin(shift: Size, a: int, b: int) -> dict[int, Size]:
    """The start of diagonal number `shift` of dimensions (a, b). Raises LoweringError if the sign of `shift` is
    unknown."""
    if sizes.is_nonnegative(shift):
        return {b: shift}
    if sizes.is_nonnegative(-shift):
        return {a: -shift}
    raise LoweringError(f"it is not known whether the diagonal's offset {shift} is above or below the main diagonal.")


@lowers(aten.unfold.default)
def unfold(builder: Builder, source: Tensor, dimension: int, size: Size | int, step: Size | int) -> Tensor:
    target = builder.result_sizes()
    if source.rank == 0:
        return strided(builder, source, [Dim(target[0])])
    d = wrap_dim(dimension, source.rank)
    dims = [kept(source, i) for i in range(source.rank)]
    dims[d] = Dim(target[d], ((d, as_size(step)),))
    return strided(builder, source, [*dims, Dim(target[-1], ((d, ONE),))])


# order of elements (always copies in eager) ---------------------------------------------------------------------------


@lowers(aten.flip.default)
def flip(builder: Builder, source: Tensor, dims: Sequence[int]) -> Tensor:
    flipped = {wrap_dim(d, source.rank) for d in dims} if source.rank else set()
    return reindexed(
        source, source.sizes, lambda p: tuple(source.sizes[d] - 1 - i if d in flipped else i for d, i in enumerate(p))
    )


@lowers(aten.repeat.default)
def repeat(builder: Builder, source: Tensor, repeats: Sequence[Size | int]) -> Tensor:
    target = builder.result_sizes()
    lead = len(target) - source.rank

    def where(point: Point) -> Point:
        ranges = dict(zip(point, target, strict=True))
        return tuple(divisions.modulo(point[lead + d], n, ranges) for d, n in enumerate(source.sizes))

    return reindexed(source, target, where)


# other types ----------------------------------------------------------------------------------------------------------

BITS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64})
"""Dtypes whose values are computed with as they are in memory, unlike booleans and 16-bit floats."""


@lowers(aten.view.dtype)
def of_type(builder: Builder, source: Tensor, dtype: torch.dtype) -> Tensor:
    """The bits of each element as another dtype of the same width; a view that is returned shares memory with `source`, so it is
    a library call."""
    if dtype == source.dtype:
        return source
    if builder.node is not None and _returned(builder.node):
        raise LoweringError(f"a view as {dtype} that is returned is made by the library.")
    if not {dtype, source.dtype} <= BITS or dtype.itemsize != source.dtype.itemsize:
        raise LoweringError(f"elements of {source.dtype} are reinterpreted as those of {dtype} by the library.")
    return computed(source.sizes, dtype, source.device, lambda p: expr.op("bitcast", dtype, source.at(p)))


def _returned(node: torch.fx.Node) -> bool:
    """Whether the graph returns this value or a view of it."""
    return any(user.op == "output" or (is_view(user.target) and _returned(user)) for user in node.users)


@lowers(aten.view_as_complex.default, aten.view_as_real.default)
def complex_or_pairs(builder: Builder, source: Tensor) -> Any:
    raise LoweringError("generated code has no complex numbers.")
