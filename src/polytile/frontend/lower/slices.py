"""Slices: parts of a tensor along one dimension, and where they start.

Bounds may count from either end and be clamped. Tracing has decided that for the traced sizes; the traced length shows which case
applies.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true

from polytile.errors import LoweringError
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.layouts import traced_argument
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.value import Tensor
from polytile.frontend.lower.views import Dim, kept, strided, wrap_dim
from polytile.ir import divisions, sizes
from polytile.ir.sizes import ONE, ZERO, Size, as_size, as_stride

aten = torch.ops.aten

_NO_END = 2**62  # a slice end of at least this means "to the end"


@lowers(aten.slice.Tensor)
def slice_(
    builder: Builder, source: Tensor, dim: int = 0, start: Size | int | None = None, end: Size | int | None = None,
    step: Size | int = 1,
) -> Tensor:  # fmt: skip
    require_known_sizes(builder)
    d = wrap_dim(dim, source.rank)
    stride, length = as_size(step), builder.result_sizes()[d]
    origin = slice_start(builder, source.sizes[d], start, end, stride, length, d)
    dims = [kept(source, i) for i in range(source.rank)]
    dims[d] = Dim(length, ((d, stride),))
    return strided(builder, source, dims, {d: origin})


def require_known_sizes(builder: Builder) -> None:
    """Raise LoweringError if the current node introduces sizes that only its own execution determines."""
    if builder.node is not None and builder.node.meta.get("unbacked_bindings"):
        raise LoweringError("the size or place of the result is known only when the operator has run.")


def slice_start(
    builder: Builder, n: Size, start: Size | int | None, end: Size | int | None, step: Size, length: Size, dim: int
) -> Size:
    """Index of the first element of `[start:end:step]` in a dimension of size `n`, given the slice's `length`.

    Tracing decided how negative and too large bounds clamp; `length` shows which case applies. Raises LoweringError if it does
    not.
    """
    first = ZERO if start is None else as_size(start)
    if first == 0 or length == 0 or (step == 1 and length == n):
        return ZERO
    if first.is_Integer and n.is_Integer:
        return sizes.as_size(min(max(int(first) + (int(n) if first < 0 else 0), 0), int(n)))
    ends = [n] if end is None else _bounds(builder, as_size(end), n)
    fitting = [
        a
        for a in _bounds(builder, first, n)
        if any(sizes.equal(_slice_length(a, b, step), divisions.simplify(length, {})) for b in ends)
    ]
    if len(set(fitting)) == 1:
        return fitting[0]
    return _traced_start(builder, dim)


def _bounds(builder: Builder, bound: Size, n: Size) -> list[Size]:
    """The possible meanings of a slice bound: itself, counted from the end, or clamped to 0 or `n`."""
    if bound.is_Integer and bound >= _NO_END:
        return [n]
    from_front, from_end = [bound, n], [divisions.simplify(bound + n, {}), ZERO]
    known = counts_from_front(builder, bound)
    return from_front + from_end if known is None else from_front if known else from_end


def counts_from_front(builder: Builder, index: Size) -> bool | None:
    """Whether an index or bound of the current node is ≥ 0, by algebra or by the guards of tracing; None if neither decides."""
    if sizes.is_nonnegative(index):
        return True
    if sizes.is_nonnegative(-index - 1):
        return False
    for node in builder.node.all_input_nodes if builder.node is not None else ():
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) and value.node.expr == index:
            if statically_known_true(value >= 0):
                return True
            if statically_known_true(value < 0):
                return False
    return None


def _slice_length(start: Size, end: Size, step: Size) -> Size:
    return divisions.simplify(divisions.floor_div(sizes.expand(end - start + step - 1), step, {}), {})


def _traced_start(builder: Builder, dim: int) -> Size:
    """The start of a slice or select along `dim`, from the traced storage offsets."""
    traced, result = traced_argument(builder), builder.result()
    takes_part = builder.node is not None and builder.node.target in (aten.slice.Tensor, aten.select.int)
    if traced is not None and takes_part and dim < traced.dim():
        moved = sizes.expand(as_size(result.storage_offset()) - as_size(traced.storage_offset()))
        start = sizes.divide(moved, as_stride(traced.stride(dim)))
        if start is not None:
            return start
    raise LoweringError("it is not known where the slice starts: its bounds may count from either end.")


@lowers(aten.select.int)
def select(builder: Builder, source: Tensor, dim: int, index: Size | int) -> Tensor:
    require_known_sizes(builder)
    d = wrap_dim(dim, source.rank)
    dims = [kept(source, i) for i in range(source.rank) if i != d]
    return strided(builder, source, dims, {d: selected_index(builder, as_size(index), source.sizes[d], d)})


def selected_index(builder: Builder, index: Size, n: Size, dim: int) -> Size:
    """`index` counted from the front of a dimension of size `n`. Raises LoweringError for an index that only the
    running program knows."""
    known = counts_from_front(builder, index)
    if known is not None:
        return index if known else sizes.expand(index + n)
    if free_unbacked_symbols(index):
        raise LoweringError(f"index {index} is known only when the program runs.")
    return _traced_start(builder, dim)


@lowers(aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default)
def split_with_sizes(builder: Builder, source: Tensor, split_sizes: Sequence[Size | int], dim: int = 0) -> tuple[Tensor, ...]:
    return _pieces(builder, source, [as_size(n) for n in split_sizes], dim)


@lowers(aten.split.Tensor, aten.unsafe_split.Tensor)
def split(builder: Builder, source: Tensor, split_size: Size | int, dim: int = 0) -> tuple[Tensor, ...]:
    d = wrap_dim(dim, source.rank)
    count = len(builder.node.meta["val"]) if builder.node is not None else 0
    return _pieces(builder, source, [as_size(builder.result(k).shape[d]) for k in range(count)], dim)


def _pieces(builder: Builder, source: Tensor, lengths: Sequence[Size], dim: int) -> tuple[Tensor, ...]:
    """Consecutive slices of these lengths."""
    d = wrap_dim(dim, source.rank)
    results, start = [], ZERO
    for k, n in enumerate(lengths):
        dims = [kept(source, i) for i in range(source.rank)]
        dims[d] = Dim(n, ((d, ONE),))
        results.append(strided(builder, source, dims, {d: start}, k))
        start = sizes.expand(start + n)
    return tuple(results)


@lowers(aten.unbind.int)
def unbind(builder: Builder, source: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    d = wrap_dim(dim, source.rank)
    count = len(builder.node.meta["val"]) if builder.node is not None else 0
    dims = [kept(source, i) for i in range(source.rank) if i != d]
    return tuple(strided(builder, source, dims, {d: as_size(k)}, k) for k in range(count))
