"""The table of pointwise operators whose arguments are only operands: names, meaning, type promotion.

Each row reads: these ATen overloads, on arguments of one computed dtype, are this expression. Names are "packet" (its default
overload, and prims' operator of that name, if any) or "packet.overload". Operators with further arguments (alpha, rounding modes,
bounds) are in pointwise.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as Promotion

from polytile.errors import LoweringError
from polytile.ir import expr, ops
from polytile.ir.expr import Node

Element = Callable[..., Node]


def _on_bool(name: str, swap_not: int | None = None) -> Element:
    """The logical operation `name`, with argument number `swap_not` negated first."""

    def of(*args: Node) -> Node:
        args = tuple(_op("logical_not", a) if k == swap_not else a for k, a in enumerate(args))
        return _op(name, *args)

    return of


def _op(name: str, *args: Node) -> Node:
    return expr.op(name, torch.bool, *args)


# The meaning of an operation on bool, if eager has it at all; a < b reads: not a, and b.
ON_BOOL: Mapping[str, Element] = {
    "add": _on_bool("logical_or"), "maximum": _on_bool("logical_or"), "bitwise_or": _on_bool("logical_or"),
    "mul": _on_bool("logical_and"), "minimum": _on_bool("logical_and"), "bitwise_and": _on_bool("logical_and"),
    "bitwise_xor": _on_bool("logical_xor"), "bitwise_not": _on_bool("logical_not"),
    "ne": _on_bool("logical_xor"), "eq": lambda a, b: _op("logical_not", _op("logical_xor", a, b)),
    "lt": _on_bool("logical_and", 0), "le": _on_bool("logical_or", 0),
    "gt": _on_bool("logical_and", 1), "ge": _on_bool("logical_or", 1),
    "logical_and": _on_bool("logical_and"), "logical_or": _on_bool("logical_or"),
    "logical_xor": _on_bool("logical_xor"), "logical_not": _on_bool("logical_not"),
}  # fmt: skip


def node(name: str, *args: Node) -> Node:
    """The IR operation `name` on arguments of one dtype, with the result dtype of its definition. Raises LoweringError for
    arithmetic that bool does not support."""
    dtype = args[0].dtype
    if dtype == torch.bool:
        if name not in ON_BOOL:
            raise LoweringError(f"there is no {name} of bool values.")
        return ON_BOOL[name](*args)
    return expr.op(name, torch.bool if ops.definition(name).result == "bool" else dtype, *args)


def like(value: bool | int | float, other: Node) -> Node:
    """The constant `value` in the dtype of `other`."""
    return expr.const(value, other.dtype)


def is_float(x: Node) -> bool:
    return x.dtype.is_floating_point


def is_unsigned(x: Node) -> bool:
    return x.dtype in (torch.bool, torch.uint8)


def false(_: Node) -> Node:
    return expr.const(False, torch.bool)


def selected(condition: Node, a: Node, b: Node) -> Node:
    return expr.op("where", a.dtype, condition, a, b)


# expressions ----------------------------------------------------------------------------------------------------------


def only_floats(name: str) -> Element:
    """`name` on floating-point values; integers are unchanged."""
    return lambda x: node(name, x) if is_float(x) else x


def only_signed(name: str) -> Element:
    return lambda x: x if is_unsigned(x) else node(name, x)


def test_of_floats(name: str) -> Element:
    """A test that is false for every integer."""
    return lambda x: node(name, x) if is_float(x) else false(x)


def sign(x: Node) -> Node:
    if x.dtype == torch.bool:
        return x
    return expr.op("cast", x.dtype, node("ne", x, like(0, x))) if is_unsigned(x) else node("sign", x)


def signbit(x: Node) -> Node:
    return false(x) if is_unsigned(x) else node("signbit", x) if is_float(x) else node("lt", x, like(0, x))


def infinite(value: float) -> Element:
    return lambda x: node("eq", x, like(value, x)) if is_float(x) else false(x)


def isfinite(x: Node) -> Node:
    if not is_float(x):
        return expr.const(True, torch.bool)
    return node("logical_not", node("logical_or", node("isnan", x), node("isinf", x)))


def relu(x: Node) -> Node:
    return x if is_unsigned(x) else node("maximum", x, like(0, x))


def angle(x: Node) -> Node:
    """π for negative numbers, 0 for others, NaN for NaN."""
    negative = selected(node("lt", x, like(0, x)), like(math.pi, x), like(0, x))
    return selected(node("isnan", x), x, negative)


def frac(x: Node) -> Node:
    return node("sub", x, node("trunc", x))


def positive(x: Node) -> Node:
    return x


def ignoring_nan(name: str) -> Element:
    """maximum or minimum that prefers a number to NaN."""

    def of(a: Node, b: Node) -> Node:
        if not is_float(a):
            return node(name, a, b)
        return selected(node("isnan", a), b, selected(node("isnan", b), a, node(name, a, b)))

    return of


def cbrt(x: Node) -> Node:
    root = node("pow", node("abs", x), like(1 / 3, x))
    return node("copysign", root, x)


# the table ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """`names`: overloads; `element`: their expression, on nodes of one dtype; `kind`: torch's promotion rule."""

    names: str
    element: Element
    kind: Promotion


DEFAULT, TO_FLOAT, TO_BOOL = Promotion.DEFAULT, Promotion.INT_TO_FLOAT, Promotion.ALWAYS_BOOL


def _same_name(names: str, kind: Promotion) -> list[Row]:
    """Rows of operators that are the IR operation of the same name."""
    return [Row(name, _operation(name), kind) for name in names.split()]


def _operation(name: str) -> Element:
    return lambda *args: node(name, *args)


def _row(names: str, element: str | Element, kind: Promotion) -> Row:
    return Row(names, _operation(element) if isinstance(element, str) else element, kind)


TABLE: tuple[Row, ...] = (
    # unary, floating-point result
    *_same_name(
        """acos acosh asin asinh atan atanh cos cosh sin sinh tan tanh exp exp2 expm1 log log2 log10 log1p
        sqrt rsqrt reciprocal erf erfc erfinv sigmoid lgamma digamma""",
        TO_FLOAT,
    ),
    _row("prims.erf_inv", "erfinv", TO_FLOAT),
    _row("prims.cbrt", cbrt, TO_FLOAT),
    _row("angle", angle, TO_FLOAT),
    # unary, same type
    _row("abs absolute", only_signed("abs"), DEFAULT),
    _row("neg negative", "neg", DEFAULT),
    _row("sign sgn", sign, DEFAULT),
    _row("ceil", only_floats("ceil"), DEFAULT),
    _row("floor", only_floats("floor"), DEFAULT),
    _row("trunc fix", only_floats("trunc"), DEFAULT),
    _row("round", only_floats("round"), DEFAULT),
    _row("frac", frac, DEFAULT),
    _row("relu", relu, DEFAULT),
    _row("positive", positive, DEFAULT),
    _row("bitwise_not", "bitwise_not", DEFAULT),
    # tests
    _row("isnan", test_of_floats("isnan"), TO_BOOL),
    _row("isinf", test_of_floats("isinf"), TO_BOOL),
    _row("isposinf", infinite(math.inf), TO_BOOL),
    _row("isneginf", infinite(-math.inf), TO_BOOL),
    _row("isfinite", isfinite, TO_BOOL),
    _row("signbit", signbit, TO_BOOL),
    # binary, same type
    _row("maximum max.other", "maximum", DEFAULT),
    _row("minimum min.other", "minimum", DEFAULT),
    _row("fmax", ignoring_nan("maximum"), DEFAULT),
    _row("fmin", ignoring_nan("minimum"), DEFAULT),
    _row("mul.Tensor mul.Scalar prims.mul", "mul", DEFAULT),
    _row("prims.add", "add", DEFAULT),
    _row("prims.sub", "sub", DEFAULT),
    _row("hypot", "hypot", DEFAULT),
    _row("bitwise_and.Tensor bitwise_and.Scalar bitwise_and.Scalar_Tensor prims.bitwise_and", "bitwise_and", DEFAULT),
    _row("bitwise_or.Tensor bitwise_or.Scalar bitwise_or.Scalar_Tensor prims.bitwise_or", "bitwise_or", DEFAULT),
    _row("bitwise_xor.Tensor bitwise_xor.Scalar bitwise_xor.Scalar_Tensor prims.bitwise_xor", "bitwise_xor", DEFAULT),
    _row(
        """bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar bitwise_left_shift.Scalar_Tensor
        __lshift__.Tensor __lshift__.Scalar prims.shift_left""",
        "shift_left",
        DEFAULT,
    ),
    _row(
        """bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar bitwise_right_shift.Scalar_Tensor
        __rshift__.Tensor __rshift__.Scalar prims.shift_right_arithmetic""",
        "shift_right",
        DEFAULT,
    ),
    # comparisons
    *[_row(f"{name}.Tensor {name}.Scalar prims.{name}", name, TO_BOOL) for name in ("eq", "ne", "lt", "le", "gt", "ge")],
    # binary, floating-point result
    _row("div.Tensor div.Scalar true_divide.Tensor true_divide.Scalar", "div", TO_FLOAT),
    _row("atan2", "atan2", TO_FLOAT),
    _row("copysign.Tensor copysign.Scalar prims.copysign", "copysign", TO_FLOAT),
)  # fmt: skip
