"""Joins: operators that put tensors beside, around or into one another.

Each result is a choice by position, `where(here, piece[point - start], rest)`. A piece's loads are masked by `here`, so that
nothing is read out of bounds. If there are many pieces, each is stored to its part of one buffer by a loop of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy
import torch
import torch.fx
from torch.utils._sympy.functions import FloorDiv, PythonMod

from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.growing_joins import beginning_of_longest
from polytile.frontend.lower.layouts import traced_strides
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.reshapes import reshape_point
from polytile.frontend.lower.scattering import duplicate
from polytile.frontend.lower.slices import require_known_sizes, selected_index, slice_start
from polytile.frontend.lower.value import Point, Tensor, computed, convert, converted, stored
from polytile.frontend.lower.views import copied, diagonal_origin, reindexed, require_loop_dtype, wrap_dim
from polytile.ir import divisions, expr, sizes
from polytile.ir.buffer import View, whole
from polytile.ir.dtypes import compute_dtype
from polytile.ir.expr import Node
from polytile.ir.sizes import ONE, ZERO, Size, as_size

aten = torch.ops.aten

CHAIN_LIMIT = 8
"""Maximum number of pieces in a chain of choices. Every element pays for the whole chain (a compare, a masked load and a select
per piece), whereas separate stores pay only for memory, once. Known wrong: few pieces that are expensive to compute."""


# conditions on a point ------------------------------------------------------------------------------------------------


def compare(name: str, a: Size, b: Size) -> Node:
    """`a name b` as a boolean, where name is lt, le, gt, ge or eq."""
    return expr.op(name, torch.bool, expr.index_value(a), expr.index_value(b))


def all_of(conditions: Sequence[Node]) -> Node | None:
    """The conjunction; None if there are no conditions."""
    result = None
    for condition in conditions:
        result = condition if result is None else expr.op("logical_and", torch.bool, result, condition)
    return result


def choose(condition: Node | None, inside: Node, outside: Node) -> Node:
    """`inside`, with its loads masked by `condition`, else `outside`."""
    if condition is None:
        return inside
    return expr.op("where", inside.dtype, condition, expr.mask_loads(inside, condition), outside)


def between(index: Size, start: Size, end: Size, size: Size) -> list[Node]:
    """The conditions for start ≤ index < end, given that 0 ≤ index < size."""
    asked = []
    if not sizes.is_nonnegative(-start):
        asked.append(compare("ge", index, start))
    if not sizes.is_nonnegative(end - size):
        asked.append(compare("lt", index, end))
    return asked


def moved(point: Point, dim: int, index: Size) -> Point:
    """`point` with another index in dimension `dim`."""
    return tuple(index if d == dim else i for d, i in enumerate(point))


# cat, stack, roll -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Piece:
    """A tensor that covers [start, end) of the joined dimension."""

    tensor: Tensor
    start: Size
    end: Size


def pieces_of(tensors: Sequence[Tensor], dim: int) -> list[Piece]:
    """`tensors` concatenated along `dim`, without those of size 0 there."""
    pieces, start = [], ZERO
    for tensor in tensors:
        end = sympy.expand(start + tensor.sizes[dim])
        if tensor.sizes[dim] != 0:
            pieces.append(Piece(tensor, start, end))
        start = end
    return pieces


@lowers(aten.cat.default)
def cat(builder: Builder, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    result = builder.result()
    tensors = [t for t in tensors if not (t.rank == 1 and t.sizes[0] == 0)] if result.dim() != 1 else tensors
    d = wrap_dim(dim, result.dim())
    for tensor in tensors:
        require_loop_dtype(tensor.dtype)
    grown = beginning_of_longest(builder, tensors, d)
    return joined(builder, tensors, d) if grown is None else grown


@lowers(aten.stack.default)
def stack(builder: Builder, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    d = dim % (tensors[0].rank + 1)
    return joined(builder, [_with_unit_dim(t, d) for t in tensors], d)


def _with_unit_dim(tensor: Tensor, dim: int) -> Tensor:
    shape = (*tensor.sizes[:dim], ONE, *tensor.sizes[dim:])
    return computed(shape, tensor.dtype, tensor.device, lambda p: tensor.at(p[:dim] + p[dim + 1 :]))


def joined(builder: Builder, tensors: Sequence[Tensor], dim: int) -> Tensor:
    """`tensors` concatenated along `dim`, as the current node's result."""
    result, shape = builder.result(), builder.result_sizes()
    for tensor in tensors:
        require_loop_dtype(tensor.dtype)
    pieces = pieces_of(tensors, dim)
    if len(pieces) > CHAIN_LIMIT:
        return _side_by_side(builder, pieces, dim)

    def element_at(point: Point) -> Node:
        index, value = point[dim], None
        for piece in reversed(pieces):
            there = moved(point, dim, sympy.expand(index - piece.start))
            here = convert(piece.tensor.at(there), result.dtype)
            inside = all_of(between(index, piece.start, piece.end, shape[dim]))
            here = expr.mask_loads(here, inside) if inside is not None else here
            value = here if value is None else expr.op("where", here.dtype, compare("lt", index, piece.end), here, value)
        return value if value is not None else expr.const(0, compute_dtype(result.dtype))

    return computed(shape, result.dtype, result.device, element_at)


def _side_by_side(builder: Builder, pieces: Sequence[Piece], dim: int) -> Tensor:
    """Store each piece to its part of one buffer."""
    result, shape = builder.result(), builder.result_sizes()
    buffer = builder.new_buffer(shape, result.dtype, result.device, traced_strides(result))
    for piece in pieces:
        place = View(
            buffer.name, buffer.dtype, piece.tensor.sizes, buffer.strides, sympy.expand(piece.start * buffer.strides[dim])
        )
        builder.store(place, converted(piece.tensor, result.dtype))
    return stored(whole(buffer), result.device)


@lowers(aten.roll.default)
def roll(builder: Builder, source: Tensor, shifts: Sequence[Size | int], dims: Sequence[int] = ()) -> Tensor:
    if not dims:
        flat, shape = (source.numel,), source.sizes
        line = _rolled(reindexed(source, flat, reshape_point(shape, flat)), as_size(shifts[0]), 0)
        return reindexed(line, shape, reshape_point(flat, shape))
    for shift, dim in zip(shifts, dims, strict=True):
        source = _rolled(source, as_size(shift), wrap_dim(dim, source.rank)) if source.rank else copied(source)
    return source


def _rolled(source: Tensor, shift: Size, dim: int) -> Tensor:
    """Element i is element (i - shift) mod n: the last `shift` elements, then the others."""
    require_loop_dtype(source.dtype)
    n = source.sizes[dim]
    if n == 0:
        return copied(source)
    head = divisions.simplify(PythonMod(shift, n), {})

    def element_at(point: Point) -> Node:
        index = point[dim]
        first = compare("lt", index, head)
        late = source.at(moved(point, dim, sympy.expand(index - head + n)))
        early = source.at(moved(point, dim, sympy.expand(index - head)))
        return choose(first, late, expr.mask_loads(early, expr.op("logical_not", torch.bool, first)))

    return computed(source.sizes, source.dtype, source.device, element_at)


# padding --------------------------------------------------------------------------------------------------------------


@lowers(aten.constant_pad_nd.default)
def constant_pad_nd(
    builder: Builder, source: Tensor, pad: Sequence[Size | int], value: bool | int | float | Size = 0
) -> Tensor:
    """`pad` holds (before, after), starting with the last dimension; a negative amount crops."""
    require_loop_dtype(source.dtype)
    before = [ZERO] * source.rank
    for k in range(len(pad) // 2):
        before[source.rank - 1 - k] = as_size(pad[2 * k])

    def element_at(point: Point) -> Node:
        there = tuple(sympy.expand(i - b) for i, b in zip(point, before, strict=True))
        inside = all_of(
            [c for i, b, n, out in zip(point, before, source.sizes, shape, strict=True) for c in between(i, b, b + n, out)]
        )
        return choose(inside, source.at(there), convert(builder.element(value, (), ()), source.dtype))

    shape = builder.result_sizes()
    return computed(shape, source.dtype, source.device, element_at)


# a piece written into a copy ------------------------------------------------------------------------------------------


@lowers(aten.slice_scatter.default)
def slice_scatter(
    builder: Builder, source: Tensor, src: Tensor, dim: int = 0, start: Size | int | None = None,
    end: Size | int | None = None, step: Size | int = 1,
) -> Tensor:  # fmt: skip
    """`source` with `src` in place of the slice start:end:step of dimension `dim`."""
    require_known_sizes(builder)
    require_loop_dtype(source.dtype)
    d, stride = wrap_dim(dim, source.rank), as_size(step)
    n, count = source.sizes[d], src.sizes[d]
    first = slice_start(builder, n, start, end, stride, count, d)
    if count != 0 and source.view is not None and _copied_back(builder.node):
        if sizes.equal(count, n):
            return src if src.dtype == source.dtype else converted(src, source.dtype)
        return _written(builder, source, src, d, first, stride)

    def element_at(point: Point) -> Node:
        index = point[d]
        asked = between(index, first, first + (count - 1) * stride + 1, n)
        past = sympy.expand(index - first)
        if stride != 1:
            remainder = expr.op("remainder", torch.int64, expr.index_value(past), expr.index_value(stride))
            asked.append(expr.op("eq", torch.bool, remainder, expr.const(0, torch.int64)))
        there = moved(point, d, past if stride == 1 else FloorDiv(past, stride))
        return choose(all_of(asked), convert(src.at(there), source.dtype), source.at(point))

    return copied(source) if count == 0 else computed(source.sizes, source.dtype, source.device, element_at)


@lowers(aten.select_scatter.default)
def select_scatter(builder: Builder, source: Tensor, src: Tensor, dim: int, index: Size | int) -> Tensor:
    """`source` with `src` in place of index `index` of dimension `dim`, which `src` lacks."""
    require_known_sizes(builder)
    require_loop_dtype(source.dtype)
    d = wrap_dim(dim, source.rank)
    place = selected_index(builder, as_size(index), source.sizes[d], d)
    if source.view is not None and _copied_back(builder.node):
        return _written(builder, source, src, d, place)

    def element_at(point: Point) -> Node:
        inside = convert(src.at(point[:d] + point[d + 1 :]), source.dtype)
        return choose(compare("eq", point[d], place), inside, source.at(point))

    return computed(source.sizes, source.dtype, source.device, element_at)


def _copied_back(node: torch.fx.Node | None) -> bool:
    """Whether an argument is overwritten with the result of `node`, possibly after further such writes.

    Then only the piece is stored: the copy to which it is stored disappears if the old values are not needed
    (passes/overwriting.py).
    """
    seen: set[torch.fx.Node] = set()
    left = [node] if node is not None else []
    while left:
        made = left.pop()
        if any(user.target is aten.copy_.default and user.args[1] is made for user in made.users):
            return True
        further = {user for user in made.users if user.target in _SCATTERS and made in user.args[:2]} - seen
        seen |= further
        left.extend(further)
    return False


_SCATTERS = (aten.slice_scatter.default, aten.select_scatter.default)


def _written(builder: Builder, source: Tensor, src: Tensor, d: int, start: Size, step: Size | None = None) -> Tensor:
    """A copy of `source` with `src` stored to dimension `d` from `start` on, at every `step`; without a step, `src` lacks that
    dimension."""
    changed = duplicate(builder, source)
    strides = list(changed.strides)
    offset = sympy.expand(changed.offset + start * strides[d])
    strides[d : d + 1] = [] if step is None else [sympy.expand(step * strides[d])]
    builder.store(View(changed.buffer, source.dtype, src.sizes, tuple(strides), offset), converted(src, source.dtype))
    return stored(changed, source.device)


@lowers(aten.diagonal_scatter.default)
def diagonal_scatter(
    builder: Builder, source: Tensor, src: Tensor, offset: Size | int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """`source` with `src` in place of a diagonal of two dimensions, which runs along the last dimension of `src`."""
    require_loop_dtype(source.dtype)
    a, b = wrap_dim(dim1, source.rank), wrap_dim(dim2, source.rank)
    origin = diagonal_origin(as_size(offset), a, b)
    row, column = origin.get(a, ZERO), origin.get(b, ZERO)

    def element_at(point: Point) -> Node:
        step = sympy.expand(point[a] - row)
        on_diagonal = compare("eq", step, sympy.expand(point[b] - column))
        there = (*(i for d, i in enumerate(point) if d not in (a, b)), step)
        return choose(on_diagonal, convert(src.at(there), source.dtype), source.at(point))

    return copied(source) if src.sizes[-1] == 0 else computed(source.sizes, source.dtype, source.device, element_at)
