"""Places of values in sorted sequences of known length, by a binary search of a fixed number of steps.

The answer is how many elements stand before the value. It is found from its highest bit down: a bit is set if the
sequence reaches that far and the element there still stands before the value. All values take the same steps, so that a
vector of them searches at once.
"""

from __future__ import annotations

import torch

from polytile.errors import LoweringError
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.value import Point, Tensor, computed, convert
from polytile.frontend.lower.views import require_loop_dtype
from polytile.ir import expr
from polytile.ir.expr import Node

aten = torch.ops.aten


@lowers(aten.searchsorted.Tensor)
def searchsorted(
    builder: Builder,
    sequence: Tensor,
    values: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """Rows of `values` [..., m] in rows of `sequence` [..., n], or all in one row."""
    if sorter is not None:
        raise LoweringError("a sequence that another tensor sorts is left to the library.")
    return _found(builder, sequence, values, after_equals=right or side == "right")


@lowers(aten.bucketize.Tensor)
def bucketize(
    builder: Builder, values: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    return _found(builder, boundaries, values, after_equals=right)


def _found(builder: Builder, sequence: Tensor, values: Tensor, after_equals: bool) -> Tensor:
    """The number of elements of the sequence before each value, those that equal it too if `after_equals`."""
    require_loop_dtype(sequence.dtype)
    if sequence.dtype != values.dtype:
        raise LoweringError(f"values of type {values.dtype} among those of {sequence.dtype} are left to the library.")
    if not sequence.sizes[-1].is_Integer:
        raise LoweringError(
            "a search in a sequence of symbolic length is left to the library: its steps cannot be counted."
        )
    base, n, result = builder.realize(sequence), sequence.sizes[-1], builder.result()
    asked, row = builder.realize(values), base.view
    assert row is not None
    compare = "gt" if after_equals else "ge"

    def at(point: Point) -> Node:
        value, count = asked.at(point), _number(0)
        for step in reversed(range(int(n).bit_length())):
            reached = expr.op("add", torch.int64, count, _number(2**step))
            there = expr.op("le", torch.bool, reached, expr.index_value(n))
            place = row.index((*point[: base.rank - 1], expr.indirect_symbol(0) - 1))
            beyond = expr.op(compare, torch.bool, expr.load(value.dtype, row.buffer, place, (reached,), there), value)
            before = expr.op("logical_and", torch.bool, there, expr.op("logical_not", torch.bool, beyond))
            count = expr.op("where", torch.int64, before, reached, count)
        return convert(count, result.dtype)

    return computed(values.sizes, result.dtype, values.device, at)


def _number(value: int) -> Node:
    return expr.const(value, torch.int64)
