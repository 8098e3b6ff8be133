"""Sliding windows over the last dimensions of a tensor, as in pooling operators.

A small window is unrolled: a chain of masked loads per result, which vectorises along the row. A large one is a reduction over
the window's points.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import sympy

from polytile.errors import LoweringError
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.joins import all_of, compare
from polytile.frontend.lower.value import Point, Tensor
from polytile.frontend.lower.views import require_loop_dtype
from polytile.ir import expr, sizes
from polytile.ir.expr import Node
from polytile.ir.sizes import ZERO, Size, as_size

Numbers = tuple[int, ...]
Step = tuple[Size, ...]

UNROLL_LIMIT = 32
"""Maximum number of points of an unrolled window: 5×5 is unrolled, 6×6 is not. Beyond it, code grows faster than what it saves.
Known wrong: few outputs from huge inputs, where even a small window is better reduced in parallel."""


@dataclass(frozen=True)
class Windows:
    """The windows over the last dimensions of a stored tensor, one per point of a result.

    Tuples have a number for each of these dimensions, the last one for the rows. With `ceil`, the last windows may reach beyond
    the padding.
    """

    source: Tensor
    result: tuple[Size, ...]
    kernel: Numbers
    stride: Numbers
    padding: Numbers
    dilation: Numbers
    ceil: bool

    @property
    def rank(self) -> int:
        """Number of dimensions of a window."""
        return len(self.kernel)

    @property
    def extents(self) -> tuple[Size, ...]:
        return self.source.sizes[-self.rank :]

    @property
    def count(self) -> int:
        """Number of points of a window."""
        return int(sympy.prod(self.kernel))

    @property
    def unrolled(self) -> bool:
        return self.count <= UNROLL_LIMIT

    @property
    def steps(self) -> list[Step]:
        """All elements of a window in row-major order."""
        return [tuple(map(as_size, step)) for step in itertools.product(*map(range, self.kernel))]

    def position(self, point: Point, step: Step) -> Step:
        """The position of element `step` of the window of `point`; outside the source for padding."""
        numbers = zip(point[-self.rank :], self.stride, self.padding, step, self.dilation, strict=True)
        return tuple(sympy.expand(o * s - p + k * d) for o, s, p, k, d in numbers)

    def inside(self, point: Point, step: Step) -> Node | None:
        """Whether element `step` of the window of `point` is inside the source; None if it always is.

        The last window ends at or before the end of the padding, or with `ceil` up to stride - 1 elements later. Its element k is
        (kernel - 1 - k)·dilation before its end. With `ceil` every window begins inside the source or in the padding before it.
        """
        asked = []
        for d, at in enumerate(self.position(point, step)):
            if (self.kernel[d], self.stride[d], self.padding[d]) == (1, 1, 0):
                continue
            before, after = step[d] * self.dilation[d], (self.kernel[d] - 1 - step[d]) * self.dilation[d]
            beyond = self.padding[d] + (self.stride[d] - 1 if self.ceil else 0)
            if not sizes.is_nonnegative(sympy.expand(before - self.padding[d])):
                asked.append(compare("ge", at, ZERO))
            if beyond and not (self.ceil and step[d] == 0) and not sizes.is_nonnegative(sympy.expand(after - beyond)):
                asked.append(compare("lt", at, self.extents[d]))
        return all_of(asked)

    def element(self, point: Point, step: Step, outside: bool | int | float) -> Node:
        """Element `step` of the window of `point`, or `outside` in the padding."""
        node = self.source.at((*point[: -self.rank], *self.position(point, step)))
        return chosen(self.inside(point, step), node, outside)

    def along(self, dims: slice, source: Tensor, result: tuple[Size, ...]) -> Windows:
        """Windows over `source` that slide like these over some of the dimensions, and are single elements in the others."""

        def only(numbers: Numbers, other: int) -> Numbers:
            kept = range(self.rank)[dims]
            return tuple(n if d in kept else other for d, n in enumerate(numbers))

        spans = only(self.kernel, 1), only(self.stride, 1), only(self.padding, 0), only(self.dilation, 1)
        return Windows(source, result, *spans, self.ceil)

    def number(self, point: Point, step: Step) -> Node:
        """The row-major index of element `step` of the window of `point` among the elements over which windows slide."""
        return expr.index_value(flat_number(self.position(point, step), self.extents))


def flat_number(position: Step, extents: Sequence[Size]) -> Size:
    """The row-major index of the element at `position`."""
    number: Size = ZERO
    for at, n in zip(position, extents, strict=True):
        number = number * n + at
    return sympy.expand(number)


def chosen(condition: Node | None, node: Node, outside: bool | int | float) -> Node:
    """`node`, with its loads masked by `condition`, else the constant `outside`."""
    if condition is None:
        return node
    return expr.op("where", node.dtype, condition, expr.mask_loads(node, condition), expr.const(outside, node.dtype))


def windows(
    builder: Builder, source: Tensor, rank: int, kernel: Sequence[Size | int], stride: Sequence[Size | int],
    padding: Sequence[Size | int], dilation: Sequence[Size | int], ceil: bool, result: tuple[Size, ...],
) -> Windows:  # fmt: skip
    """Windows over the last `rank` dimensions of `source`, one per point of `result`."""
    require_loop_dtype(source.dtype)
    spans = [_numbers(values, rank) for values in (kernel, stride or kernel, padding, dilation)]
    return Windows(builder.realize(source), result, spans[0], spans[1], spans[2], spans[3], ceil)


def _numbers(values: Sequence[Size | int], rank: int) -> Numbers:
    """The numbers per dimension; a single number applies to all."""
    numbers = [as_size(v) for v in values]
    if not all(n.is_Integer for n in numbers):
        raise LoweringError(f"windows of symbolic shape {numbers} are left to the library.")
    return tuple(int(n) for n in (numbers * rank if len(numbers) == 1 else numbers))
