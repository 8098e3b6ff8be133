"""Places of values in sorted sequences, by a binary search of a fixed number of steps.

The answer is how many elements stand before the value. It is found from its highest bit down: a bit is set if the
sequence reaches that far and the element there still stands before the value. All values take the same steps, so that a
vector of them searches at once. A sequence of known length takes one step for each bit of it. One of symbolic length takes
LONGEST_BITS: those beyond its length read nothing.
"""

from __future__ import annotations

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Promotion

from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.value import Point, Tensor, computed, convert, widen
from polytile.frontend.lower.views import require_loop_dtype
from polytile.ir import expr
from polytile.ir.expr import Node

aten = torch.ops.aten

LONGEST_BITS = 36
"""Steps of a search in a sequence of symbolic length: 2³⁶ elements of one byte are 64 GiB, of float32 256 GiB."""


@lowers(aten.searchsorted.Tensor, aten.searchsorted.Scalar)
def searchsorted(
    builder: Builder, sequence: Tensor, values: Tensor | float, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Rows of `values` [..., m] in rows of `sequence` [..., n], or all in one row; `sorter` [..., n] says in what order a
    row is sorted."""
    return _found(builder, sequence, values, right or side == "right", sorter)


@lowers(aten.bucketize.Tensor, aten.bucketize.Scalar)
def bucketize(
    builder: Builder, values: Tensor | float, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    return _found(builder, boundaries, values, right)


def _found(
    builder: Builder, sequence: Tensor, values: Tensor | float, after_equals: bool, sorter: Tensor | None = None
) -> Tensor:
    """The number of elements of the sequence before each value, those that equal it too if `after_equals`."""
    require_loop_dtype(sequence.dtype)
    common, _ = builder.promote(Promotion.DEFAULT, sequence, values)
    base, n, result = builder.realize(sequence), sequence.sizes[-1], builder.result()
    asked = builder.realize(values) if isinstance(values, Tensor) else values
    order = builder.realize(sorter) if sorter is not None else None
    shape, compare = builder.result_sizes(), "gt" if after_equals else "ge"
    bits = int(n).bit_length() if n.is_Integer else LONGEST_BITS

    def at(point: Point) -> Node:
        value, count = widen(builder.element(asked, shape, point), common), _number(0)
        for step in reversed(range(bits)):
            reached = expr.op("add", torch.int64, count, _number(2**step))
            there = expr.op("le", torch.bool, reached, expr.index_value(n))
            element = _element(base, order, point[: base.rank - 1], reached, there)
            beyond = expr.op(compare, torch.bool, widen(element, common), value)
            before = expr.op("logical_and", torch.bool, there, expr.op("logical_not", torch.bool, beyond))
            count = expr.op("where", torch.int64, before, reached, count)
        return convert(count, result.dtype)

    return computed(shape, result.dtype, base.device, at)


def _element(base: Tensor, order: Tensor | None, row: Point, reached: Node, there: Node) -> Node:
    """Element number `reached` - 1 of a row in its order, loaded only where `there` holds."""
    stored, place = base.view, (*row, expr.indirect_symbol(0) - 1)
    assert stored is not None
    if order is not None:
        assert order.view is not None
        reached = expr.load(torch.int64, order.view.buffer, order.view.index(place), (reached,), there)
        place = (*row, expr.indirect_symbol(0))
    return expr.load(base.compute_dtype, stored.buffer, stored.index(place), (reached,), there)


def _number(value: int) -> Node:
    return expr.const(value, torch.int64)
