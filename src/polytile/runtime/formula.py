"""Integer formulas over a call's integer arguments, as data that C (formula.c) and Python evaluate alike.

A formula is a program for a stack machine: pairs of 64-bit words (operation, operand), ended by (END, 0). Launch grids,
scratch sizes and key fields that depend on several arguments are formulas. They cost about 10 ns a call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, ModularIndexing, PythonMod

from polytile.errors import IRError

END, CONSTANT, ARGUMENT, ADD, MULTIPLY, FLOOR_DIVIDE, MODULUS, MINIMUM, MAXIMUM, COMMON = range(10)
"""COMMON: the largest power of two that divides both integers."""
DEPTH = 32
"""Capacity of the evaluation stack."""

Formula = tuple[int, ...]

_CHAINS: dict[type, int] = {
    sympy.Add: ADD,
    sympy.Mul: MULTIPLY,
    Min: MINIMUM,
    sympy.Min: MINIMUM,
    Max: MAXIMUM,
    sympy.Max: MAXIMUM,
}


def encode(expression: sympy.Expr, positions: Mapping[sympy.Symbol, int]) -> Formula:
    """Encodes `expression` as a formula. `positions` maps each symbol to its position among the integer arguments.

    Supports integers, +, ·, powers, floor division, modulus, minimum and maximum. Raises IRError for anything else, and
    for an expression that needs more than DEPTH stack slots.
    """
    code: list[int] = []
    if _emit(sympy.sympify(expression), positions, code) > DEPTH:
        raise IRError(f"the size expression {expression} is too deep for a formula; compute it in the program instead.")
    return (*code, END, 0)


def any_above(expressions: Sequence[sympy.Expr], limit: int, positions: Mapping[sympy.Symbol, int]) -> Formula:
    """A formula that is 1 if any of the expressions exceeds `limit`, else 0. Raises IRError as `encode` does."""
    code: list[int] = [CONSTANT, 0]
    depth = 1
    for expression in expressions:
        depth = max(depth, 1 + _emit(sympy.sympify(expression), positions, code))
        code += [MAXIMUM, 0]
    if depth > DEPTH:
        raise IRError("a size expression is too deep for a formula; compute it in the program instead.")
    return (*code, CONSTANT, limit + 1, FLOOR_DIVIDE, 0, CONSTANT, 1, MINIMUM, 0, END, 0)


LARGEST_POWER = 1 << 40
"""Largest power of two that `power_of_two` recognises."""


def power_of_two(e: sympy.Expr, positions: Mapping[sympy.Symbol, int]) -> Formula:
    """A formula that is 1 if the expression is a power of two up to LARGEST_POWER, else 0. Raises IRError as `encode` does."""
    return encode(1 - Min(1, Mod(sympy.Integer(LARGEST_POWER), Max(1, e))), positions)


def power_below_16(position: int, most: int) -> Formula:
    """A formula for the largest power of two up to `most` that divides the integer argument at `position`; 0 if that is
    1 or if 16 divides the argument."""
    power = (ARGUMENT, position, CONSTANT, 16, COMMON, 0, CONSTANT, 16, MODULUS, 0, CONSTANT, most, MINIMUM, 0)
    return (*power, CONSTANT, 2, FLOOR_DIVIDE, 0, CONSTANT, 2, MULTIPLY, 0, END, 0)


def _emit(e: sympy.Expr, positions: Mapping[sympy.Symbol, int], code: list[int]) -> int:
    """Appends code that pushes the value of `e`; returns the maximum stack depth."""
    if isinstance(e, sympy.Integer):
        code += [CONSTANT, int(e)]
        return 1
    if isinstance(e, sympy.Symbol) and e in positions:
        code += [ARGUMENT, positions[e]]
        return 1
    if type(e) in _CHAINS:
        return _chain([*e.args], _CHAINS[type(e)], positions, code)
    if isinstance(e, FloorDiv):
        return _chain([*e.args], FLOOR_DIVIDE, positions, code)
    if isinstance(e, Mod | PythonMod | sympy.Mod):
        return _chain([*e.args], MODULUS, positions, code)
    if isinstance(e, ModularIndexing):
        return _chain([FloorDiv(e.args[0], e.args[1]), e.args[2]], MODULUS, positions, code)
    if isinstance(e, sympy.floor):
        return _chain([*sympy.together(e.args[0]).as_numer_denom()], FLOOR_DIVIDE, positions, code)
    if isinstance(e, sympy.ceiling):
        return _emit(-sympy.floor(-e.args[0], evaluate=False), positions, code)
    if isinstance(e, sympy.Pow) and e.exp.is_Integer and e.exp > 0:
        return _chain([e.base] * int(e.exp), MULTIPLY, positions, code)
    raise IRError(f"the size expression {e} ({type(e).__name__}) has no formula; compute it in the program instead.")


def _chain(args: Sequence[sympy.Expr], operation: int, positions: Mapping[sympy.Symbol, int], code: list[int]) -> int:
    deepest = _emit(args[0], positions, code)
    for arg in args[1:]:
        deepest = max(deepest, 1 + _emit(arg, positions, code))
        code += [operation, 0]
    return deepest


def evaluate(formula: Formula, integers: Sequence[int]) -> int:
    """The formula's value for these integer arguments. Division by zero gives zero, as in C. Raises IRError for a
    formula without an end."""
    stack: list[int] = []
    for operation, operand in zip(formula[::2], formula[1::2], strict=True):
        if operation == END:
            return stack[-1]
        if operation == CONSTANT:
            stack.append(operand)
        elif operation == ARGUMENT:
            stack.append(integers[operand])
        else:
            b, a = stack.pop(), stack.pop()
            stack.append(_apply(operation, a, b))
    raise IRError("a formula has no end.")


def _apply(operation: int, a: int, b: int) -> int:
    if operation in (FLOOR_DIVIDE, MODULUS):
        return 0 if b == 0 else a // b if operation == FLOOR_DIVIDE else a % b
    if operation == COMMON:
        return (a | b) & -(a | b)
    return {ADD: a + b, MULTIPLY: a * b, MINIMUM: min(a, b), MAXIMUM: max(a, b)}[operation]
