"""Indexing: operators that read elements at positions that are data.

A read is a load whose index has a placeholder for the position's value. The source is stored first, except for a `gather` of no
more elements than it has, which computes only the selected ones: for a cross entropy's log-softmax, one per row. Positions are
checked at run time: one out of range is an IndexError, as in eager.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy
import torch

from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.positions import Place, computable, extent, place_at, position, ranges_of, require_index
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.value import Point, Tensor, broadcast_point, computed, convert
from polytile.frontend.lower.views import require_loop_dtype, wrap_dim
from polytile.ir import expr, sizes
from polytile.ir.expr import Node
from polytile.ir.sizes import ONE, ZERO, Size

aten = torch.ops.aten


@lowers(aten.gather.default)
def gather(builder: Builder, source: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:
    require_loop_dtype(source.dtype)
    require_index(index)
    few = all(n == 1 or sizes.equal(n, whole) for n, whole in zip(index.sizes, source.sizes, strict=False))
    base = source if few and index.rank == source.rank and computable(source) else builder.realize(source)
    d = wrap_dim(dim, source.rank)

    def element_at(point: Point) -> Node:
        place = place_at(source.rank, point)
        place.put(d, position(index.at(point), extent(source, d), ranges_of(point, index.sizes), wraps=False))
        return place.load(base)

    return computed(index.sizes, source.dtype, source.device, element_at)


@lowers(aten.index_select.default)
def index_select(builder: Builder, source: Tensor, dim: int, index: Tensor) -> Tensor:
    require_loop_dtype(source.dtype)
    require_index(index)
    shape = builder.result_sizes()
    d, base = wrap_dim(dim, source.rank), builder.realize(source)

    def element_at(point: Point) -> Node:
        place = place_at(source.rank, point)
        value = index.at((point[d] if point else ZERO,) * index.rank)
        place.put(d, position(value, extent(source, d), ranges_of(point, shape), wraps=False))
        return place.load(base)

    return computed(shape, source.dtype, source.device, element_at)


@lowers(aten.embedding.default)
def embedding(
    builder: Builder, weight: Tensor, indices: Tensor, padding_idx: Size | int = -1, scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:  # fmt: skip
    require_loop_dtype(weight.dtype)
    require_index(indices)
    shape = builder.result_sizes()
    base = builder.realize(weight)

    def element_at(point: Point) -> Node:
        place = Place([ZERO, *point[indices.rank :]])
        row = indices.at(point[: indices.rank])
        place.put(0, position(row, weight.sizes[0], ranges_of(point, shape), wraps=False))
        return place.load(base)

    return computed(shape, weight.dtype, weight.device, element_at)


# x[indices] -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pattern:
    """The layout of `x[indices]`.

    The index tensors, broadcast to `shape`, take the place of the dimensions that they index if those are adjacent, else they
    come first. The other dimensions of `x` keep their order.
    """

    source: tuple[Size, ...]
    indices: dict[int, Tensor]
    shape: tuple[Size, ...]

    @property
    def rest(self) -> list[int]:
        """The dimensions of `x` that are not indexed."""
        return [d for d in range(len(self.source)) if d not in self.indices]

    @property
    def lead(self) -> int:
        """Number of dimensions of the result before those of the index tensors."""
        dims = sorted(self.indices)
        return dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0

    @property
    def result(self) -> tuple[Size, ...]:
        others = [self.source[d] for d in self.rest]
        return (*others[: self.lead], *self.shape, *others[self.lead :])

    def place(self, point: Point, checked: bool = True) -> Place:
        """The place in `x` of the result's element at `point`."""
        lead, width, ranges = self.lead, len(self.shape), ranges_of(point, self.result)
        place = Place([ZERO] * len(self.source))
        for d, index in zip(self.rest, point[:lead] + point[lead + width :], strict=True):
            place.put(d, index)
        for d, tensor in self.indices.items():
            value = tensor.at(broadcast_point(tensor.sizes, self.shape, point[lead : lead + width]))
            place.put(d, position(value, self.source[d], ranges, checked=checked))
        return place


def pattern_of(source: Tensor, indices: Sequence[Tensor | None]) -> Pattern:
    """Raises LoweringError for masks, whose number of selected elements is known only after they are computed."""
    require_loop_dtype(source.dtype)
    given = {d: index for d, index in enumerate(indices) if index is not None}
    for index in given.values():
        require_index(index)
    return Pattern(source.sizes, given, broadcast([index.sizes for index in given.values()]))


def broadcast(shapes: Sequence[Sequence[Size]]) -> tuple[Size, ...]:
    """The sizes to which `shapes` broadcast."""
    rank = max((len(shape) for shape in shapes), default=0)
    result = [ONE] * rank
    for shape in shapes:
        for i, n in enumerate(shape, rank - len(shape)):
            result[i] = n if result[i] == 1 else result[i]
    return tuple(result)


@lowers(aten.index.Tensor)
def index_tensor(builder: Builder, source: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    return _indexed(builder, source, indices, checked=True)


@lowers(aten._unsafe_index.Tensor)
def unsafe_index(builder: Builder, source: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    return _indexed(builder, source, indices, checked=False)


def require_elements(builder: Builder, pattern: Pattern) -> None:
    """Require elements in the indexed dimensions: as in eager, an index into an empty dimension is an error even if it has no
    elements to select."""
    for d in pattern.indices:
        n = pattern.source[d]
        if not sizes.is_nonnegative(n - 1):
            some = sympy.Or(sympy.Ne(n, 0), sympy.Eq(sizes.product(pattern.shape), 0))
            builder.require(some, f"index is out of bounds for dimension {d}, which has no elements", IndexError)


def _indexed(builder: Builder, source: Tensor, indices: Sequence[Tensor | None], checked: bool) -> Tensor:
    pattern = pattern_of(source, indices)
    if checked:
        require_elements(builder, pattern)
    base = builder.realize(source)
    return computed(pattern.result, source.dtype, source.device, lambda point: pattern.place(point, checked).load(base))


@lowers(aten._unsafe_masked_index.default)
def unsafe_masked_index(
    builder: Builder, source: Tensor, mask: Tensor, indices: Sequence[Tensor | None], fill: bool | int | float | Size
) -> Tensor:
    """`fill` where `mask` is false; the indices may be out of range there."""
    pattern = pattern_of(source, indices)
    base = builder.realize(source)

    def element_at(point: Point) -> Node:
        here = mask.at(broadcast_point(mask.sizes, pattern.result, point))
        inside = expr.mask_loads(pattern.place(point, checked=False).load(base), here)
        return expr.op("where", inside.dtype, here, inside, convert(builder.element(fill, (), ()), source.dtype))

    return computed(pattern.result, source.dtype, source.device, element_at)
