"""Scattering: operators that write elements at positions that are data.

A functional write copies the argument to a buffer of its own, and a second loop sets the elements or adds to them. If the program
copies the result back to an input, passes/overwriting.py writes to the input itself. Positions are checked as in indexing.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from polytile import options
from polytile.errors import LoweringError
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.indexing import pattern_of, require_elements
from polytile.frontend.lower.layouts import is_dense, traced_strides
from polytile.frontend.lower.pointwise_table import node
from polytile.frontend.lower.positions import Place, extent, place_at, position, ranges_of, require_index
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.reshapes import reshape_point
from polytile.frontend.lower.value import Point, Tensor, broadcast_point, check_broadcast, computed, convert, stored
from polytile.frontend.lower.views import require_loop_dtype, wrap_dim
from polytile.ir import expr, sizes
from polytile.ir.buffer import View, whole
from polytile.ir.dtypes import compute_dtype
from polytile.ir.expr import Node
from polytile.ir.loop import SEGMENT_SUM, Store
from polytile.ir.sizes import ONE, ZERO, Size, as_size

aten = torch.ops.aten


def duplicate(builder: Builder, source: Tensor) -> View:
    """A copy of `source` in a buffer of its own, in the layout of the current node's result."""
    strides = traced_strides(builder.result())
    copy = builder.realize(source, strides if is_dense(source.sizes, strides) else sizes.contiguous_strides(source.sizes))
    assert copy.view is not None
    return copy.view


def accumulator(source: Tensor, mode: str) -> Tensor:
    """`source` in the dtype to which stores of `mode` accumulate.

    Elements narrower than 32 bits accumulate in 32 bits, so that a sum of many rounds once (`narrowed`) instead of at every step,
    and because GPUs have atomics for that width. For booleans it counts the true values.
    """
    if mode == "set" or source.dtype.itemsize >= 4:
        return source
    wide = torch.float32 if source.dtype.is_floating_point else torch.int32
    return computed(source.sizes, wide, source.device, lambda point: convert(source.at(point), wide))


def narrowed(total: Tensor, dtype: torch.dtype) -> Tensor:
    """An accumulated tensor in the dtype of the result."""
    if total.dtype == dtype:
        return total
    return computed(total.sizes, dtype, total.device, lambda point: convert(total.at(point), dtype))


def _write(builder: Builder, shape: Sequence[Size], store: Callable[[Point], Store]) -> None:
    """Emit a loop over the points of `shape` that runs `store(point)`."""
    axes = builder.axes(shape)
    builder.loop(axes, (), (store(tuple(a.symbol for a in axes)),), "scatter")


def _scattered(
    builder: Builder, source: Tensor, dim: int, index: Tensor, value: Tensor | bool | int | float | Size,
    modes: Sequence[str],
) -> Tensor:  # fmt: skip
    """A copy of `source` in which, for every point of `index`, the element at `point` with coordinate `dim` replaced by
    `index[point]` is written.

    `modes` are the modes of stores of `value[point]`, and "clear", which sets zeros.
    """
    require_loop_dtype(source.dtype)
    require_index(index)
    d = wrap_dim(dim, source.rank)
    stand_in = builder.realize(index) if index.view is None and len(modes) > 1 else index
    target = duplicate(builder, accumulator(source, modes[-1]))

    def store(point: Point, mode: str) -> Store:
        place = place_at(source.rank, point)
        place.put(d, position(stand_in.at(point), extent(source, d), ranges_of(point, index.sizes), wraps=False))
        if mode == "clear":
            return place.store(target, expr.const(0, compute_dtype(target.dtype)))
        at = (*point, ZERO)[: value.rank] if isinstance(value, Tensor) else ()
        new = value.at(at) if isinstance(value, Tensor) else builder.element(value, (), ())
        return place.store(target, convert(convert(new, source.dtype), target.dtype), mode)

    for mode in modes:
        _write(builder, index.sizes, functools.partial(store, mode=mode))
    return narrowed(stored(target, source.device), source.dtype)


@lowers(aten.scatter.src, aten.scatter.value)
def scatter(builder: Builder, source: Tensor, dim: int, index: Tensor, value: Tensor | bool | int | float | Size) -> Tensor:
    return _scattered(builder, source, dim, index, value, ["set"])


@lowers(aten.scatter_add.default)
def scatter_add(builder: Builder, source: Tensor, dim: int, index: Tensor, src: Tensor) -> Tensor:
    return _scattered(builder, source, dim, index, src, ["add"])


@lowers(aten.scatter.reduce, aten.scatter.value_reduce)
def scatter_with(
    builder: Builder, source: Tensor, dim: int, index: Tensor, value: Tensor | int | float | Size, *, reduce: str
) -> Tensor:
    return scatter_reduce(builder, source, dim, index, value, reduce)


@lowers(aten.scatter_reduce.two)
def scatter_reduce(
    builder: Builder, source: Tensor, dim: int, index: Tensor, src: Tensor | int | float | Size, reduce: str, *,
    include_self: bool = True,
) -> Tensor:  # fmt: skip
    """Sums and means only. For other reductions ATen's kernels were faster than compare-and-swap loops: the maximum of 129×300 by
    index took 27 µs there and 62 here on an H200."""
    if reduce not in ("sum", "add", "mean") or (reduce == "mean" and source.dtype == torch.bool):
        raise LoweringError(f"a scatter by {reduce!r} of {source.dtype} is left to the library.")
    modes = ["add"] if include_self else ["clear", "add"]
    total = _scattered(builder, source, dim, index, src, modes)
    if reduce != "mean":
        return total
    ones = computed(source.sizes, torch.int64, source.device, lambda point: expr.const(1, torch.int64))
    return averaged(total, _scattered(builder, ones, dim, index, 1, modes))


def averaged(total: Tensor, count: Tensor) -> Tensor:
    """total / count, rounded down for integers. The count is 1 where nothing was written."""
    name = "div" if total.dtype.is_floating_point else "floordiv"

    def element_at(point: Point) -> Node:
        value = total.at(point)
        return convert(expr.op(name, value.dtype, value, expr.op("cast", value.dtype, count.at(point))), total.dtype)

    return computed(total.sizes, total.dtype, total.device, element_at)


@lowers(aten.index_reduce.default)
def index_reduce(
    builder: Builder, source: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """`scatter_reduce` with one index per slice of `src` along `dim`."""
    d = wrap_dim(dim, source.rank)
    everywhere = computed(
        src.sizes,
        index.dtype,
        index.device,
        lambda point: index.at((point[d],) if index.rank and point else (ZERO,) * index.rank),
    )
    return scatter_reduce(builder, source, dim, everywhere, src, reduce, include_self=include_self)


@lowers(aten.index_put.default)
def index_put(
    builder: Builder, source: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    return _put(builder, source, indices, values, accumulate, checked=True)


@lowers(aten._unsafe_index_put.default)
def unsafe_index_put(
    builder: Builder, source: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    return _put(builder, source, indices, values, accumulate, checked=False)


def _put(
    builder: Builder, source: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool,
    checked: bool, mask: Tensor | None = None,
) -> Tensor:  # fmt: skip
    mode = "add" if accumulate else "set"
    require_loop_dtype(source.dtype)
    if [index.dtype for index in indices if index is not None] == [torch.bool]:
        return _put_where(source, indices, values, accumulate)
    pattern = pattern_of(source, indices)
    check_broadcast(values.sizes, pattern.result)
    if checked:
        require_elements(builder, pattern)
    target = duplicate(builder, accumulator(source, mode))

    def store(point: Point) -> Store:
        value = convert(values.at(broadcast_point(values.sizes, pattern.result, point)), target.dtype)
        plain = pattern.place(point, checked).store(target, value, mode)
        return replace(plain, mask=mask.at(broadcast_point(mask.sizes, pattern.result, point))) if mask is not None else plain

    _write(builder, pattern.result, store)
    return narrowed(stored(target, source.device), source.dtype)


def _put_where(source: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool) -> Tensor:
    """`x[mask] = values` for values that do not depend on how many elements the mask selects: a choice by the mask."""
    dim, mask = next((d, index) for d, index in enumerate(indices) if index is not None)
    after = source.rank - dim - mask.rank
    picked = values.rank - 1 - after  # the dimension of `values` that runs over the picked elements
    if picked >= 0 and values.sizes[picked] != 1:
        raise LoweringError("as many values as a mask picks are left to the library.")
    around = (*source.sizes[:dim], ONE, *source.sizes[dim + mask.rank :])
    check_broadcast(values.sizes, around)

    def element_at(point: Point) -> Node:
        here, old = mask.at(point[dim : dim + mask.rank]), source.at(point)
        there = (*point[:dim], ZERO, *point[dim + mask.rank :])
        new = convert(values.at(broadcast_point(values.sizes, around, there)), source.dtype)
        if accumulate:
            new = convert(node("add", old, new), source.dtype)
        return expr.op("where", old.dtype, here, new, old)

    return computed(source.sizes, source.dtype, source.device, element_at)


@lowers(aten._unsafe_masked_index_put_accumulate.default)
def unsafe_masked_index_put_accumulate(
    builder: Builder, source: Tensor, mask: Tensor, indices: Sequence[Tensor | None], values: Tensor
) -> Tensor:
    return _put(builder, source, indices, values, accumulate=True, checked=False, mask=mask)


@lowers(aten.put.default)
def put(builder: Builder, source: Tensor, index: Tensor, values: Tensor, accumulate: bool = False) -> Tensor:
    mode = "add" if accumulate else "set"
    require_loop_dtype(source.dtype)
    require_index(index)
    copy = builder.realize(accumulator(source, mode), sizes.contiguous_strides(source.sizes))
    assert copy.view is not None
    flat = replace(copy.view, sizes=(source.numel,), strides=(ONE,))
    where = reshape_point(values.sizes, index.sizes)

    def store(point: Point) -> Store:
        place = Place([ZERO])
        place.put(0, position(index.at(point), source.numel, ranges_of(point, index.sizes)))
        return place.store(flat, convert(values.at(where(point)), flat.dtype), mode)

    _write(builder, index.sizes, store)
    return narrowed(copy, source.dtype)


def summed_by_kernel(source: Tensor) -> bool:
    """Whether one kernel does the whole segment sum of rows of `source`, including zeros and rounding: on a GPU, where it may
    avoid atomics."""
    return (source.device.type == "cuda" or bool(options.get("interpret"))) and source.dtype.is_floating_point


@lowers(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    builder: Builder, grad: Tensor, indices: Tensor, num_weights: Size | int, padding_idx: Size | int,
    scale_grad_by_freq: bool,
) -> Tensor:  # fmt: skip
    """Rows of `grad` summed by index. The row of `padding_idx` (−1: none) stays zero."""
    require_loop_dtype(grad.dtype)
    require_index(indices)
    if scale_grad_by_freq:
        raise LoweringError("gradients scaled by the frequency of their index are left to the library.")
    shape, padding = builder.result_sizes(), as_size(padding_idx)
    by_kernel = summed_by_kernel(grad)
    if by_kernel:
        target, mode = whole(builder.new_buffer(shape, grad.dtype, grad.device)), SEGMENT_SUM
    else:
        zeros = computed(shape, grad.dtype, grad.device, lambda point: expr.const(0, grad.compute_dtype))
        target, mode = duplicate(builder, accumulator(zeros, "add")), "add"

    def store(point: Point) -> Store:
        row = indices.at(point[: indices.rank])
        place = Place([ZERO, *point[indices.rank :]])
        place.put(0, position(row, shape[0], ranges_of(point, grad.sizes), wraps=False))
        value = grad.at(point) if by_kernel else convert(grad.at(point), target.dtype)
        plain = place.store(target, value, mode)
        return (
            plain
            if padding == -1
            else replace(plain, mask=expr.op("ne", torch.bool, row, expr.index_value(padding, row.dtype)))
        )

    _write(builder, grad.sizes, store)
    return narrowed(stored(target, grad.device), grad.dtype)
