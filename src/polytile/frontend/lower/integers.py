"""Differences of integers that floats hold exactly."""

from __future__ import annotations

import torch

from polytile.frontend.lower.value import convert
from polytile.ir import expr
from polytile.ir.expr import Const, Node
from polytile.ir.ranges import integer_range

EXACT = -256, 256
"""Integers that every floating type of 16 bits or more holds."""


def difference(number: Node, less: Node) -> Node | None:
    """number - less in int32, of an integer expression and a constant: what floating types make of it too, where neither operand
    needs rounding in any of them. None where one might, or is something else."""
    limits = integer_range(number)
    if limits is None or not isinstance(less, Const) or not float(less.value).is_integer():
        return None
    if not all(EXACT[0] <= each <= EXACT[1] for each in (*limits, less.value)):
        return None
    return expr.op("sub", torch.int32, convert(number, torch.int32), expr.const(int(less.value), torch.int32))
