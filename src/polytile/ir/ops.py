"""The table of pointwise operations: name, number of arguments, result type, meaning and rough cost.

The meaning is a torch function: the reference interpreter runs it, and every code generator must agree with it. A code
generator has its own table from these names to text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from polytile.errors import IRError


@dataclass(frozen=True)
class OpDef:
    """A pointwise operation.

    Attributes
    ----------
    result
        The result dtype: "same" as the arguments', "bool", or "given" by the node.
    cost
        Multiply-adds of one vector lane. Results that cost 8 or more are worth keeping instead of recomputing.
    """

    name: str
    arity: int
    meaning: Callable[..., Any]
    result: str = "same"
    cost: float = 1.0


def _division(divide: Callable[..., torch.Tensor], **how: str) -> Callable[..., torch.Tensor]:
    """A division that treats an integer divisor of 0 as 1."""

    def meaning(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return divide(a, b if a.dtype.is_floating_point else torch.where(b == 0, torch.ones_like(b), b), **how)

    return meaning


def _rounded_through(dtype: torch.dtype) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x.to(torch.float32).to(dtype).to(x.dtype)


TABLE: tuple[OpDef, ...] = (
    # arithmetic
    OpDef("add", 2, torch.add), OpDef("sub", 2, torch.sub), OpDef("mul", 2, torch.mul),
    OpDef("div", 2, torch.true_divide, cost=4),
    OpDef("neg", 1, torch.neg), OpDef("abs", 1, torch.abs), OpDef("fma", 3, lambda a, b, c: a * b + c),
    OpDef("minimum", 2, torch.minimum), OpDef("maximum", 2, torch.maximum),
    OpDef("floordiv", 2, _division(torch.div, rounding_mode="floor"), cost=8),
    OpDef("truncdiv", 2, _division(torch.div, rounding_mode="trunc"), cost=8),
    OpDef("remainder", 2, _division(torch.remainder), cost=8),
    OpDef("fmod", 2, _division(torch.fmod), cost=8),
    OpDef("reciprocal", 1, torch.reciprocal, cost=4), OpDef("sqrt", 1, torch.sqrt, cost=4),
    OpDef("rsqrt", 1, torch.rsqrt, cost=6), OpDef("sign", 1, torch.sign, cost=2),
    # rounding
    OpDef("floor", 1, torch.floor), OpDef("ceil", 1, torch.ceil), OpDef("trunc", 1, torch.trunc),
    OpDef("round", 1, torch.round),
    OpDef("round_bf16", 1, _rounded_through(torch.bfloat16)), OpDef("round_f16", 1, _rounded_through(torch.float16)),
    OpDef("round_e4m3", 1, _rounded_through(torch.float8_e4m3fn), cost=4),
    OpDef("round_e5m2", 1, _rounded_through(torch.float8_e5m2), cost=4),
    # exponentials, logarithms, powers
    OpDef("exp", 1, torch.exp, cost=12), OpDef("exp2", 1, torch.exp2, cost=12), OpDef("expm1", 1, torch.expm1, cost=16),
    OpDef("log", 1, torch.log, cost=14), OpDef("log2", 1, torch.log2, cost=14), OpDef("log10", 1, torch.log10, cost=14),
    OpDef("log1p", 1, torch.log1p, cost=18), OpDef("pow", 2, torch.pow, cost=40),
    OpDef("sigmoid", 1, torch.sigmoid, cost=16), OpDef("erf", 1, torch.erf, cost=20), OpDef("erfc", 1, torch.erfc, cost=24),
    OpDef("erfinv", 1, torch.erfinv, cost=30),
    # trigonometric and hyperbolic
    OpDef("sin", 1, torch.sin, cost=20), OpDef("cos", 1, torch.cos, cost=20), OpDef("tan", 1, torch.tan, cost=24),
    OpDef("asin", 1, torch.asin, cost=20), OpDef("acos", 1, torch.acos, cost=20), OpDef("atan", 1, torch.atan, cost=20),
    OpDef("atan2", 2, torch.atan2, cost=30), OpDef("sinh", 1, torch.sinh, cost=20), OpDef("cosh", 1, torch.cosh, cost=20),
    OpDef("tanh", 1, torch.tanh, cost=18), OpDef("asinh", 1, torch.asinh, cost=24), OpDef("acosh", 1, torch.acosh, cost=24),
    OpDef("atanh", 1, torch.atanh, cost=24),
    # special functions
    OpDef("lgamma", 1, torch.lgamma, cost=60), OpDef("digamma", 1, torch.digamma, cost=60),
    OpDef("hypot", 2, torch.hypot, cost=10),
    OpDef("copysign", 2, torch.copysign, cost=2),
    # comparisons and tests
    OpDef("eq", 2, torch.eq, "bool"), OpDef("ne", 2, torch.ne, "bool"), OpDef("lt", 2, torch.lt, "bool"),
    OpDef("le", 2, torch.le, "bool"), OpDef("gt", 2, torch.gt, "bool"), OpDef("ge", 2, torch.ge, "bool"),
    OpDef("isnan", 1, torch.isnan, "bool"), OpDef("isinf", 1, torch.isinf, "bool"),
    OpDef("signbit", 1, torch.signbit, "bool"),
    # logic on bool; and/or/xor/not on integers are the bitwise_ names
    OpDef("logical_and", 2, torch.logical_and, "bool"), OpDef("logical_or", 2, torch.logical_or, "bool"),
    OpDef("logical_xor", 2, torch.logical_xor, "bool"), OpDef("logical_not", 1, torch.logical_not, "bool"),
    OpDef("bitwise_and", 2, torch.bitwise_and), OpDef("bitwise_or", 2, torch.bitwise_or),
    OpDef("bitwise_xor", 2, torch.bitwise_xor), OpDef("bitwise_not", 1, torch.bitwise_not),
    OpDef("shift_left", 2, torch.bitwise_left_shift), OpDef("shift_right", 2, torch.bitwise_right_shift),
    # selection and conversion
    OpDef("where", 3, torch.where, "given"), OpDef("cast", 1, lambda x: x, "given"),
    OpDef("bitcast", 1, lambda x: x, "given"),
    # checked index: value < 0 counts from the end; out of [-size, size) is an error at run time (IndexError)
    OpDef("check_index", 2, lambda i, n: torch.where(i < 0, i + n, i), cost=2),
    # an integer to divide by: 0 is an error at run time (DivisionByZero)
    OpDef("check_divisor", 1, lambda d: d),
    # counter-based random numbers: arguments (seed, offset), both int64
    OpDef("philox_uniform", 2, lambda s, o: s, "given", cost=40), OpDef("philox_normal", 2, lambda s, o: s, "given", cost=160),
    OpDef("philox_int", 2, lambda s, o: s, "given", cost=120),
)  # fmt: skip
BY_NAME: dict[str, OpDef] = {definition.name: definition for definition in TABLE}


def definition(name: str) -> OpDef:
    """The definition of the named operation; raises IRError for an unknown name."""
    if name not in BY_NAME:
        raise IRError(f"there is no IR operation {name!r}; see polytile/ir/ops.py for the table.")
    return BY_NAME[name]
