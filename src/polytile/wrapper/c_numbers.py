"""Symbolic integers and conditions as exact C: an overflow of 64 bits, or a division by 0, sets the variable `bad`."""

from __future__ import annotations

from collections.abc import Callable

import sympy
from sympy.logic import boolalg
from torch.utils._sympy.functions import (
    CeilDiv,
    CleanDiv,
    FloorDiv,
    Identity,
    Max,
    Min,
    Mod,
    ModularIndexing,
    PowByNatural,
    PythonMod,
)

LARGEST_POWER = 8
"""Powers up to this one are written as products."""

PRELUDE = """\
static inline int64_t add(int64_t a, int64_t b, int *bad)
{
    int64_t result;
    *bad |= __builtin_add_overflow(a, b, &result);
    return result;
}

static inline int64_t mul(int64_t a, int64_t b, int *bad)
{
    int64_t result;
    *bad |= __builtin_mul_overflow(a, b, &result);
    return result;
}

static inline int64_t floordiv(int64_t a, int64_t b, int *bad)
{
    if (b == 0 || (b == -1 && a == INT64_MIN)) {
        *bad = 1;
        return 0;
    }
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static inline int64_t mod(int64_t a, int64_t b, int *bad)
{
    return (int64_t)((uint64_t)a - (uint64_t)floordiv(a, b, bad) * (uint64_t)b);
}

static inline int64_t largest(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
"""
"""The functions that the text calls."""

Name = Callable[[sympy.Symbol], str]


class NotInC(Exception):
    """The expression has a part without a C form; Python must compute it."""


def integer(value: sympy.Basic, name: Name) -> str:
    """A symbolic integer as C. `name` maps a symbol to its C name. Raises NotInC."""
    if isinstance(value, sympy.Integer):
        return _literal(int(value))
    if isinstance(value, sympy.Symbol):
        if not value.is_integer:
            raise NotInC
        return name(value)
    write = _INTEGERS.get(type(value))
    if write is None:
        raise NotInC
    return write(value, lambda part: integer(part, name))


def condition(value: sympy.Basic, name: Name) -> str:
    """A condition on symbolic integers as C. Raises NotInC."""
    if value in (sympy.true, sympy.false):
        return str(int(bool(value)))
    if isinstance(value, boolalg.Not):
        return f"!({condition(value.args[0], name)})"
    if isinstance(value, boolalg.And | boolalg.Or):
        between = " && " if isinstance(value, boolalg.And) else " || "
        return between.join(f"({condition(part, name)})" for part in value.args)
    if isinstance(value, sympy.core.relational.Relational):
        return f"{integer(value.args[0], name)} {value.rel_op} {integer(value.args[1], name)}"
    raise NotInC


def _literal(value: int) -> str:
    if not -(1 << 63) < value < 1 << 63:
        raise NotInC
    return str(value)


Part = Callable[[sympy.Basic], str]


def _chain(function: str, last: str = ", &bad") -> Callable[[sympy.Basic, Part], str]:
    """Nested calls f(f(a, b), c) over any number of operands."""

    def write(value: sympy.Basic, part: Part) -> str:
        text, *rest = [part(argument) for argument in value.args]
        for each in rest:
            text = f"{function}({text}, {each}{last})"
        return text

    return write


def _power(value: sympy.Basic, part: Part) -> str:
    base, exponent = value.args
    if not (isinstance(exponent, sympy.Integer) and 1 <= exponent <= LARGEST_POWER):
        raise NotInC
    text = factor = part(base)
    for _ in range(int(exponent) - 1):
        text = f"mul({text}, {factor}, &bad)"
    return text


def _modular(value: sympy.Basic, part: Part) -> str:
    base, divisor, modulus = map(part, value.args)
    return f"mod(floordiv({base}, {divisor}, &bad), {modulus}, &bad)"


def _ceildiv(value: sympy.Basic, part: Part) -> str:
    base, divisor = map(part, value.args)
    return f"-floordiv(-{base}, {divisor}, &bad)"


_INTEGERS: dict[type, Callable[[sympy.Basic, Part], str]] = {
    sympy.Add: _chain("add"),
    sympy.Mul: _chain("mul"),
    sympy.Pow: _power,
    PowByNatural: _power,
    FloorDiv: _chain("floordiv"),
    CleanDiv: _chain("floordiv"),
    CeilDiv: _ceildiv,
    Mod: _chain("mod"),
    PythonMod: _chain("mod"),
    ModularIndexing: _modular,
    Max: _chain("largest", ""),
    Min: _chain("least", ""),
    Identity: lambda value, part: part(value.args[0]),
}
