"""Symbolic numbers that are not integers (the scale 1/√s0, a mean's factor) as expression nodes."""

from __future__ import annotations

from collections.abc import Callable

import sympy
import torch
from torch.utils._sympy import functions

from polytile.errors import LoweringError
from polytile.frontend.lower.value import Tensor
from polytile.ir import expr
from polytile.ir.expr import Node

DTYPE = torch.float64

# sympy function → IR operation of one or two float64 arguments
_FUNCTIONS: dict[str, str] = {
    "FloatTrueDiv": "div",
    "IntTrueDiv": "div",
    "FloatPow": "pow",
    "OpaqueUnaryFn_sqrt": "sqrt",
    "OpaqueUnaryFn_exp": "exp",
    "OpaqueUnaryFn_log": "log",
    "OpaqueUnaryFn_log2": "log2",
    "OpaqueUnaryFn_sin": "sin",
    "OpaqueUnaryFn_cos": "cos",
    "OpaqueUnaryFn_tanh": "tanh",
}
_FLOAT_FUNCTIONS: dict[type, str] = {
    getattr(functions, name): op for name, op in _FUNCTIONS.items() if hasattr(functions, name)
}


def scalar_tensor(value: sympy.Expr, device: torch.device) -> sympy.Expr | float | Tensor:
    """A symbolic number as an operand: integers unchanged, constants as Python numbers, others as a zero-dimensional tensor.

    Raises
    ------
    LoweringError
        If a function has no IR operation.
    """
    if value.is_integer:
        return value
    if value.is_number:
        return float(value)
    return Tensor((), DTYPE, device, node=float_node(value))


def float_node(value: sympy.Expr) -> Node:
    """A symbolic number as a float64 node. Raises LoweringError for an expression without such a form."""
    if value.is_integer and value.free_symbols:
        return expr.op("cast", DTYPE, expr.index_value(value))
    if value.is_number:
        return expr.const(float(value), DTYPE)
    if value.is_Add:
        return _chain("add", value.args)
    if value.is_Mul:
        return _chain("mul", value.args)
    if value.is_Pow:
        return _power(*value.args)
    if isinstance(value, functions.ToFloat):
        return float_node(value.args[0])
    operation = _FLOAT_FUNCTIONS.get(type(value))
    if operation is None:
        raise LoweringError(f"the symbolic number {value} has no expression in generated loops.")
    return expr.op(operation, DTYPE, *[float_node(a) for a in value.args])


def _chain(operation: str, terms: tuple[sympy.Expr, ...]) -> Node:
    first, *rest = [float_node(t) for t in terms]
    for term in rest:
        first = expr.op(operation, DTYPE, first, term)
    return first


def _power(base: sympy.Expr, exponent: sympy.Expr) -> Node:
    special: dict[sympy.Expr, Callable[[Node], Node]] = {
        sympy.Integer(-1): lambda x: expr.op("reciprocal", DTYPE, x),
        sympy.Rational(1, 2): lambda x: expr.op("sqrt", DTYPE, x),
    }
    if exponent in special:
        return special[exponent](float_node(base))
    return expr.op("pow", DTYPE, float_node(base), float_node(exponent))
