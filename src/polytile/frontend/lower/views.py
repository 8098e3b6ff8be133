"""Views: operators that look at the same elements under other sizes, strides or order.

A view of a stored tensor stays a view of the same buffer wherever strides can say it, so an output that aliases an
input in eager aliases it here too. A view of an unstored tensor, or one that strides cannot say, is index algebra:
element `point` of the result is element `f(point)` of the source.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols, statically_known_true

from polytile.errors import LoweringError, PolytileError
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.value import Point, Tensor, computed, fresh_axes, stored
from polytile.ir import expr, sizes
from polytile.ir.program import View
from polytile.ir.sizes import ONE, ZERO, Size, as_size, as_stride

aten = torch.ops.aten

Shape = tuple[Size, ...]
LOOP_DTYPES = frozenset(
    {
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
        torch.bfloat16, torch.float16, torch.float32, torch.float64,
    }
)  # fmt: skip
_NO_END = 2**62  # an int at least this large as the end of a slice means "to the end"


# the two ways to look at a tensor -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dim:
    """One dimension of a strided view: its size, and (source dimension, distance) for each source dimension that one
    step along it moves in. No steps: every index reads the same element, as a broadcast does."""

    size: Size
    steps: tuple[tuple[int, Size], ...] = ()


def kept(source: Tensor, d: int) -> Dim:
    """Dimension `d` of `source`, unchanged."""
    return Dim(source.sizes[d], ((d, ONE),))


def strided(
    builder: Builder, source: Tensor, dims: Sequence[Dim], origin: dict[int, Size] | None = None, k: int | None = None
) -> Tensor:
    """The elements of `source` that start at `origin` (source dimension → index, 0 where absent) and go on along
    `dims`.

    `k` is the number of the result, for operators with several.
    """
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
    """The unstored tensor whose element at `point` is element `where(point)` of `source`, its indices simplified."""
    require_loop_dtype(source.dtype)
    if has_static_zero(out_sizes):  # reads nothing, so that no load can be moved out of a loop that never runs
        zero = expr.const(0, source.compute_dtype)
        return computed(out_sizes, source.dtype, source.device, lambda point: zero)
    axes = fresh_axes(out_sizes)
    ranges = dict(zip(axes, out_sizes, strict=True))
    node = source.at(where(axes))
    node = expr.map_indices((node,), lambda index: sizes.simplify(index, ranges))[0]
    return Tensor(tuple(out_sizes), source.dtype, source.device, axes=axes, node=node)


def copied(source: Tensor) -> Tensor:
    """The same elements as an unstored tensor: for operators whose result never aliases their argument."""
    return computed(source.sizes, source.dtype, source.device, source.at) if source.view is not None else source


def require_loop_dtype(dtype: torch.dtype) -> None:
    """Raises LoweringError for types that loops do not compute with (complex, quantized, 8-bit floats)."""
    if dtype not in LOOP_DTYPES:
        raise LoweringError(f"generated loops do not move elements of type {dtype}.")


def wrap_dim(dim: int, rank: int) -> int:
    """A dimension counted from the front; a tensor of no dimensions counts as having one."""
    return dim % max(rank, 1)


def has_static_zero(shape: Sequence[Size]) -> bool:
    return any(n == 0 for n in shape)


# reshape --------------------------------------------------------------------------------------------------------------


def dim_groups(source: Shape, target: Shape) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The finest pairing of runs of source dimensions with runs of target dimensions that hold equally many elements.

    Dimensions of size 1 belong to no group. The two shapes hold equally many elements (the operator was traced, so it
    was checked); a boundary is where the elements before it, or those after it, are equally many by algebra.
    """
    ins = [d for d, n in enumerate(source) if n != 1]
    outs = [d for d, n in enumerate(target) if n != 1]
    in_sizes, out_sizes = (
        [sizes.simplify(shape[d], {}) for d in dims] for shape, dims in ((source, ins), (target, outs))
    )
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
    found = ((i, b_products.get(product)) for i, product in enumerate(_prefix_products(a), 1) if i < len(a))
    return {(i, j) for i, j in found if j is not None}


def _prefix_products(shape: Sequence[Size]) -> Iterator[Size]:
    running: Size = ONE
    for n in shape:
        running = sympy.expand(running * n)
        yield running


def reshape_strides(source: Tensor, target: Shape, traced: Shape) -> Shape | None:
    """Strides under which the elements of the stored `source` have sizes `target`, or None if no strides do.

    Dimensions of size 1 get the stride in `traced`; so do all of them where there are no elements.
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
    """Where the element at a point of `target` stands in `shape`, row-major order on both sides."""
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


def unflatten(flat: Size, shape: Sequence[Size], ranges: sizes.Ranges) -> list[Size]:
    """The indices, one a dimension of `shape`, of element number `flat` in row-major order."""
    indices: list[Size] = []
    for n in reversed(shape[1:]):
        indices.append(sizes.modulo(flat, n, ranges))
        flat = sizes.floor_div(flat, n, ranges)
    return [flat, *reversed(indices)]


@lowers(aten.view.default, aten._unsafe_view.default, aten.reshape.default)
def view(builder: Builder, source: Tensor, size: Sequence[Size]) -> Tensor:
    """`source` with other sizes: a view where strides can say it, else index algebra."""
    target = builder.result_sizes()
    strides = _traced_view(builder, source) or reshape_strides(source, target, traced_strides(builder.result()))
    if strides is None or source.view is None:
        return reindexed(source, target, reshape_point(source.sizes, target))
    return stored(View(source.view.buffer, source.view.dtype, target, strides, source.view.offset), source.device)


def _traced_view(builder: Builder, source: Tensor) -> Shape | None:
    """The strides that tracing found for the result; they hold if `source` is laid out as it was in tracing."""
    traced = traced_argument(builder)
    if source.view is None or traced is None:
        return None
    layouts = zip(source.sizes, source.view.strides, traced_strides(traced), strict=True)
    return traced_strides(builder.result()) if all(n == 1 or sizes.equal(a, b) for n, a, b in layouts) else None


def traced_strides(traced: torch.Tensor) -> Shape:
    return tuple(as_stride(stride) for stride in traced.stride())


def traced_argument(builder: Builder, k: int = 0) -> torch.Tensor | None:
    """The fake tensor of argument `k` of the current node."""
    argument = builder.node.args[k] if builder.node is not None else None
    value = argument.meta.get("val") if isinstance(argument, torch.fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


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
    return strided(
        builder, source, [kept(source, d) for d in range(source.rank) if d not in dropped or source.sizes[d] != 1]
    )


@lowers(aten.diagonal.default)
def diagonal(builder: Builder, source: Tensor, offset: Size | int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    a, b = wrap_dim(dim1, source.rank), wrap_dim(dim2, source.rank)
    shift = as_size(offset)
    dims = [kept(source, d) for d in range(source.rank) if d not in (a, b)]
    return strided(
        builder, source, [*dims, Dim(builder.result_sizes()[-1], ((a, ONE), (b, ONE)))], diagonal_origin(shift, a, b)
    )


def diagonal_origin(shift: Size, a: int, b: int) -> dict[int, Size]:
    """Where diagonal number `shift` of dimensions (a, b) starts."""
    if sizes.is_nonnegative(shift):
        return {b: shift}
    if sizes.is_nonnegative(-shift):
        return {a: -shift}
    raise LoweringError(f"it is not known whether the diagonal's offset {shift} is above or below the main diagonal.")


# pieces ---------------------------------------------------------------------------------------------------------------


@lowers(aten.slice.Tensor)
def slice_(
    builder: Builder,
    source: Tensor,
    dim: int = 0,
    start: Size | int | None = None,
    end: Size | int | None = None,
    step: Size | int = 1,
) -> Tensor:
    require_known_sizes(builder)
    d = wrap_dim(dim, source.rank)
    stride, length = as_size(step), builder.result_sizes()[d]
    origin = slice_start(builder, source.sizes[d], start, end, stride, length, d)
    dims = [kept(source, i) for i in range(source.rank)]
    dims[d] = Dim(length, ((d, stride),))
    return strided(builder, source, dims, {d: origin})


def require_known_sizes(builder: Builder) -> None:
    """Raises LoweringError if the current node brings sizes that only its own run can tell."""
    if builder.node is not None and builder.node.meta.get("unbacked_bindings"):
        raise LoweringError("the size or place of the result is known only when the operator has run.")


def slice_start(
    builder: Builder, n: Size, start: Size | int | None, end: Size | int | None, step: Size, length: Size, dim: int
) -> Size:
    """Index of the first element of `[start:end:step]` in a dimension of size `n`, given that the slice is `length`
    long.

    Tracing decided how negative and too large bounds clamp; `length` tells which way it went. Raises LoweringError
    where it does not.
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
        if any(sizes.equal(_slice_length(a, b, step), sizes.simplify(length, {})) for b in ends)
    ]
    if len(set(fitting)) == 1:
        return fitting[0]
    return _traced_start(builder, dim)


def _bounds(builder: Builder, bound: Size, n: Size) -> list[Size]:
    """What a slice bound may have become: itself, counted from the end, or clamped to 0 or `n`."""
    if bound.is_Integer and bound >= _NO_END:
        return [n]
    from_front, from_end = [bound, n], [sizes.simplify(bound + n, {}), ZERO]
    known = counts_from_front(builder, bound)
    return from_front + from_end if known is None else from_front if known else from_end


def counts_from_front(builder: Builder, index: Size) -> bool | None:
    """Whether an index or bound of the current node is ≥ 0, by algebra or by the guards of tracing; None if neither says."""
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
    return sizes.simplify(sizes.floor_div(sympy.expand(end - start + step - 1), step, {}), {})


def _traced_start(builder: Builder, dim: int) -> Size:
    """The start of a slice or select along `dim`, from the storage offsets that tracing found."""
    traced, result = traced_argument(builder), builder.result()
    takes_part = builder.node is not None and builder.node.target in (aten.slice.Tensor, aten.select.int)
    if traced is not None and takes_part and dim < traced.dim():
        moved = sympy.expand(as_size(result.storage_offset()) - as_size(traced.storage_offset()))
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
    """`index` counted from the front of a dimension of size `n`."""
    known = counts_from_front(builder, index)
    if known is not None:
        return index if known else sympy.expand(index + n)
    if free_unbacked_symbols(index):
        raise LoweringError(f"index {index} is known only when the program runs.")
    return _traced_start(builder, dim)


@lowers(aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default)
def split_with_sizes(
    builder: Builder, source: Tensor, split_sizes: Sequence[Size | int], dim: int = 0
) -> tuple[Tensor, ...]:
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
        start = sympy.expand(start + n)
    return tuple(results)


@lowers(aten.unbind.int)
def unbind(builder: Builder, source: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    d = wrap_dim(dim, source.rank)
    count = len(builder.node.meta["val"]) if builder.node is not None else 0
    dims = [kept(source, i) for i in range(source.rank) if i != d]
    return tuple(strided(builder, source, dims, {d: as_size(k)}, k) for k in range(count))


@lowers(aten.unfold.default)
def unfold(builder: Builder, source: Tensor, dimension: int, size: Size | int, step: Size | int) -> Tensor:
    target = builder.result_sizes()
    if source.rank == 0:
        return strided(builder, source, [Dim(target[0])])
    d = wrap_dim(dimension, source.rank)
    dims = [kept(source, i) for i in range(source.rank)]
    dims[d] = Dim(target[d], ((d, as_size(step)),))
    return strided(builder, source, [*dims, Dim(target[-1], ((d, ONE),))])


@lowers(aten.as_strided.default)
def as_strided(
    builder: Builder,
    source: Tensor,
    size: Sequence[Size | int],
    stride: Sequence[Size | int],
    storage_offset: Size | int | None = None,
) -> Tensor:
    traced = traced_argument(builder)
    if traced is None:
        raise LoweringError("as_strided needs to know how its argument was laid out in tracing.")
    base = _laid_out_as_traced(builder, source, traced).view
    assert base is not None
    origin = as_size(traced.storage_offset())
    moved = ZERO if storage_offset is None else sympy.expand(as_size(storage_offset) - origin)
    strides = tuple(as_size(s) for s in stride)
    view = View(base.buffer, base.dtype, builder.result_sizes(), strides, sympy.expand(base.offset + moved))
    return stored(view, source.device)


def _laid_out_as_traced(builder: Builder, source: Tensor, traced: torch.Tensor) -> Tensor:
    """`source` stored with the strides that `traced` has, so that offsets into its memory mean the same."""
    strides = traced_strides(traced)
    if source.view is not None and source.view.strides == strides:
        return source
    if not is_dense(source.sizes, strides):
        raise PolytileError(
            "as_strided of a temporary that is a part of a larger one, which is not stored: "
            "call clone() on the part, or as_strided on the whole."
        )
    require_loop_dtype(source.dtype)
    return builder.realize(source, strides)


def is_dense(shape: Sequence[Size], strides: Sequence[Size]) -> bool:
    """Whether these strides lay the elements of `shape` out without holes or overlap, as some order of dimensions
    does."""
    left = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    running: Size = ONE
    while left:
        inner = next((pair for pair in left if sizes.equal(pair[1], running)), None)
        if inner is None:
            return has_static_zero(shape)
        left.remove(inner)
        running = sympy.expand(running * inner[0])
    return True


# order of elements (always copies in eager) ---------------------------------------------------------------------------


@lowers(aten.flip.default)
def flip(builder: Builder, source: Tensor, dims: Sequence[int]) -> Tensor:
    turned = {wrap_dim(d, source.rank) for d in dims} if source.rank else set()
    return reindexed(
        source, source.sizes, lambda p: tuple(source.sizes[d] - 1 - i if d in turned else i for d, i in enumerate(p))
    )


@lowers(aten.repeat.default)
def repeat(builder: Builder, source: Tensor, repeats: Sequence[Size | int]) -> Tensor:
    target = builder.result_sizes()
    lead = len(target) - source.rank

    def where(point: Point) -> Point:
        ranges = dict(zip(point, target, strict=True))
        return tuple(sizes.modulo(point[lead + d], n, ranges) for d, n in enumerate(source.sizes))

    return reindexed(source, target, where)


# what stays with the library ------------------------------------------------------------------------------------------


@lowers(aten.view.dtype, aten.view_as_complex.default, aten.view_as_real.default)
def reinterpreted(builder: Builder, source: Tensor, dtype: torch.dtype | None = None) -> Any:
    raise LoweringError("elements are not reinterpreted as another type by generated code.")
