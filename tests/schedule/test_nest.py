"""Which axis of a loop becomes the vector."""

from __future__ import annotations

from polytile.ir import expr
from polytile.schedule.nest import Form, nest_of
from tests.codegen.helpers import F32, P0, P1, R0, R1, S0, S1, load, loop, op, store


def test_what_every_point_reads_decides_and_not_what_is_read_again_and_again() -> None:
    """The mean of scaled channels: the image lies along pixels, two small tensors along channels."""
    scaled = op("add", op("mul", load("x", (P0 * 16 + R0) * S1 + R1), load("w", R0)), load("b", R0))
    mean = loop([store("o", P0, expr.reduce("sum", F32, scaled))], {P0: S0}, {R0: 16, R1: S1})
    nest = nest_of(mean)
    assert (nest.form, nest.vec.symbol) == (Form.ROW, R1)


def test_operands_of_a_sum_of_products_decide_together() -> None:
    """Where none is read at every point, those that are read most count: o[p0, p1] = sum over r0 of a[p0, r0] b[r0, p1]."""
    product = op("mul", load("a", P0 * 8 + R0), load("b", R0 * S1 + P1))
    nest = nest_of(loop([store("o", P0 * S1 + P1, expr.reduce("sum", F32, product))], {P0: S0, P1: S1}, {R0: 8}))
    assert (nest.form, nest.vec.symbol) == (Form.COLUMN, P1)
