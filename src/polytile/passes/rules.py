"""Algebraic simplifications as a table of (reading, pattern, result), tried in order at every operation, arguments first.

A pattern is an operation's name with arguments, each of which is a number (a constant of that value), a letter (any node; the
same letter twice means the same node), or a pattern. `when` is a further condition. No rule changes any bit of a floating-point
result, except NaN payloads: x + 0 is not x if x is -0, so that rule is for integers, and x + -0.0 has its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from polytile.ir import expr, ops
from polytile.ir.expr import Const, Node, Op

Bindings = dict[str, Node]
Pattern = Any  # (name, argument, ...), a number, or a letter


@dataclass(frozen=True)
class Rule:
    """A simplification. `reading` states it for people; `result` gets the bindings and the matched node."""

    reading: str
    pattern: tuple[Any, ...]
    result: Callable[[Bindings, Node], Node]
    when: Callable[[Bindings, Node], bool] = lambda m, node: True


def _integer(m: Bindings, node: Node) -> bool:
    return not node.dtype.is_floating_point and not node.dtype.is_complex


def _x(m: Bindings, node: Node) -> Node:
    return m["x"]


def _zero(m: Bindings, node: Node) -> Node:
    return expr.const(0, node.dtype)


def _boolean(value: bool) -> Callable[[Bindings, Node], Node]:
    return lambda m, node: expr.const(value, torch.bool)


def _op(name: str, *letters: str) -> Callable[[Bindings, Node], Node]:
    return lambda m, node: expr.op(name, node.dtype, *[m[letter] for letter in letters])


def _constants(m: Bindings, node: Node) -> bool:
    return _integer(m, node) and isinstance(m["c"], Const) and isinstance(m["d"], Const)


def _regroup(name: str) -> Callable[[Bindings, Node], Node]:
    return lambda m, node: expr.op(name, node.dtype, m["x"], fold(expr.op(name, node.dtype, m["c"], m["d"])))


def _constant_first(m: Bindings, node: Node) -> bool:
    return isinstance(m["c"], Const) and not isinstance(m["x"], Const)


def _nonzero_first(m: Bindings, node: Node) -> bool:
    """A constant comes first that is not zero: of 0 and -0, an extreme may return the one that comes first."""
    return _constant_first(m, node) and isinstance(m["c"], Const) and m["c"].value != 0


def _same_compare(m: Bindings, node: Node) -> bool:
    return not m["x"].dtype.is_floating_point


# The wider types that represent all values of each type exactly: a cast through one of them is lossless.
_EXACT: dict[torch.dtype, tuple[torch.dtype, ...]] = {
    torch.bool: (
        torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64,
    ),
    torch.uint8: (torch.int16, torch.int32, torch.int64, torch.float32, torch.float64),
    torch.int8: (torch.int16, torch.int32, torch.int64, torch.float32, torch.float64),
    torch.int16: (torch.int32, torch.int64, torch.float32, torch.float64),
    torch.int32: (torch.int64, torch.float64),
    torch.float32: (torch.float64,),
}  # fmt: skip


def holds(wide: torch.dtype, narrow: torch.dtype) -> bool:
    """Whether `wide` represents every value of `narrow` exactly."""
    return wide == narrow or wide in _EXACT.get(narrow, ())


def _lossless_inside(m: Bindings, node: Node) -> bool:
    """cast(cast(x)): the inner cast is exact, so casting x directly gives the same result, as a test for zero does for bool."""
    assert isinstance(node, Op)
    return holds(node.args[0].dtype, m["x"].dtype)


def _no_cast(m: Bindings, node: Node) -> bool:
    return m["x"].dtype == node.dtype


RULES: tuple[Rule, ...] = (
    # constants come last
    Rule("c + x → x + c", ("add", "c", "x"), _op("add", "x", "c"), _constant_first),
    Rule("c · x → x · c", ("mul", "c", "x"), _op("mul", "x", "c"), _constant_first),
    Rule("c ∧ x → x ∧ c", ("logical_and", "c", "x"), _op("logical_and", "x", "c"), _constant_first),
    Rule("c ∨ x → x ∨ c", ("logical_or", "c", "x"), _op("logical_or", "x", "c"), _constant_first),
    Rule("min(c, x) → min(x, c)", ("minimum", "c", "x"), _op("minimum", "x", "c"), _nonzero_first),
    Rule("max(c, x) → max(x, c)", ("maximum", "c", "x"), _op("maximum", "x", "c"), _nonzero_first),
    # neutral and absorbing elements
    Rule("x + 0 → x  (integers)", ("add", "x", 0), _x, _integer),
    Rule("x + -0.0 → x", ("add", "x", -0.0), _x),
    Rule("x - 0 → x", ("sub", "x", 0), _x),
    Rule("x · 1 → x", ("mul", "x", 1), _x),
    Rule("x / 1 → x", ("div", "x", 1), _x),
    Rule("x · 0 → 0  (integers)", ("mul", "x", 0), _zero, _integer),
    Rule("x - x → 0  (integers)", ("sub", "x", "x"), _zero, _integer),
    Rule("x // 1 → x  (integers)", ("floordiv", "x", 1), _x, _integer),
    Rule("x % 1 → 0  (integers)", ("remainder", "x", 1), _zero, _integer),
    Rule("x ^ 1 → x", ("pow", "x", 1), _x),
    Rule("x · -1 → -x", ("mul", "x", -1), _op("neg", "x"), lambda m, node: node.dtype.is_floating_point),
    # signs
    Rule("-(-x) → x", ("neg", ("neg", "x")), _x),
    Rule("|-x| → |x|", ("abs", ("neg", "x")), _op("abs", "x")),
    Rule("||x|| → |x|", ("abs", ("abs", "x")), _op("abs", "x")),
    Rule("x + (-y) → x - y", ("add", "x", ("neg", "y")), _op("sub", "x", "y")),
    Rule("x - (-y) → x + y", ("sub", "x", ("neg", "y")), _op("add", "x", "y")),
    # constants meet
    Rule("(x + c) + d → x + (c + d)  (integers)", ("add", ("add", "x", "c"), "d"), _regroup("add"), _constants),
    Rule("(x · c) · d → x · (c · d)  (integers)", ("mul", ("mul", "x", "c"), "d"), _regroup("mul"), _constants),
    # extremes
    Rule("min(x, x) → x", ("minimum", "x", "x"), _x),
    Rule("max(x, x) → x", ("maximum", "x", "x"), _x),
    Rule("max(max(x, y), y) → max(x, y)", ("maximum", ("maximum", "x", "y"), "y"), _op("maximum", "x", "y")),
    Rule("min(min(x, y), y) → min(x, y)", ("minimum", ("minimum", "x", "y"), "y"), _op("minimum", "x", "y")),
    Rule("max(x, -∞) → x", ("maximum", "x", -math.inf), _x),
    Rule("min(x, ∞) → x", ("minimum", "x", math.inf), _x),
    # selection and logic
    Rule("where(true, x, y) → x", ("where", True, "x", "y"), _x),
    Rule("where(false, x, y) → y", ("where", False, "x", "y"), lambda m, node: m["y"]),
    Rule("where(c, x, x) → x", ("where", "c", "x", "x"), _x),
    Rule("where(¬c, x, y) → where(c, y, x)", ("where", ("logical_not", "c"), "x", "y"), _op("where", "c", "y", "x")),
    Rule("¬¬x → x", ("logical_not", ("logical_not", "x")), _x),
    Rule("x ∧ true → x", ("logical_and", "x", True), _x),
    Rule("x ∧ false → false", ("logical_and", "x", False), _boolean(False)),
    Rule("x ∧ x → x", ("logical_and", "x", "x"), _x),
    Rule("x ∨ false → x", ("logical_or", "x", False), _x),
    Rule("x ∨ true → true", ("logical_or", "x", True), _boolean(True)),
    Rule("x ∨ x → x", ("logical_or", "x", "x"), _x),
    # comparisons of a value with itself
    Rule("x = x → true  (integers)", ("eq", "x", "x"), _boolean(True), _same_compare),
    Rule("x ≠ x → false  (integers)", ("ne", "x", "x"), _boolean(False), _same_compare),
    Rule("x < x → false", ("lt", "x", "x"), _boolean(False)),
    Rule("x > x → false", ("gt", "x", "x"), _boolean(False)),
    Rule("x ≤ x → true  (integers)", ("le", "x", "x"), _boolean(True), _same_compare),
    Rule("x ≥ x → true  (integers)", ("ge", "x", "x"), _boolean(True), _same_compare),
    # conversions
    Rule("cast to its own type → x", ("cast", "x"), _x, _no_cast),
    Rule("cast(cast(x)) → cast(x), the inner exact", ("cast", ("cast", "x")), _op("cast", "x"), _lossless_inside),
)  # fmt: skip
_BY_NAME: dict[str, tuple[Rule, ...]] = {
    name: tuple(rule for rule in RULES if rule.pattern[0] == name) for name in {rule.pattern[0] for rule in RULES}
}


def match(pattern: Pattern, node: Node, bindings: Bindings) -> bool:
    """Whether `node` matches `pattern`. Adds the letters' nodes to `bindings`."""
    if isinstance(pattern, str):
        return bindings.setdefault(pattern, node) is node
    if isinstance(pattern, tuple):
        if not isinstance(node, Op) or node.name != pattern[0] or len(node.args) != len(pattern) - 1:
            return False
        return all(match(p, a, bindings) for p, a in zip(pattern[1:], node.args, strict=True))
    return isinstance(node, Const) and is_number(node, pattern)


def is_number(node: Const, value: bool | int | float) -> bool:
    """Whether the constant equals `value`. Zeros must have the same sign, and a bool matches only a bool."""
    if isinstance(value, bool) or isinstance(node.value, bool):
        return node.value is value
    same_sign = math.copysign(1.0, node.value) == math.copysign(1.0, value)
    return node.value == value and (same_sign or value != 0)


def apply(node: Node) -> Node:
    """Rewrite `node` by the first matching rule until none matches. Its arguments have been rewritten already."""
    for _ in range(16):
        new = _apply_once(node)
        if new is node:
            return node
        node = new
    return node


def _apply_once(node: Node) -> Node:
    if not isinstance(node, Op):
        return node
    folded = fold(node)
    if folded is not node:
        return folded
    for rule in _BY_NAME.get(node.name, ()):
        bindings: Bindings = {}
        if match(rule.pattern, node, bindings) and rule.when(bindings, node):
            return rule.result(bindings, node)
    return node


_NOT_FOLDED = ("check_index", "check_divisor", "bitcast", "philox_uniform", "philox_normal", "philox_int")


def fold(node: Node) -> Node:
    """Evaluate an operation on constants in its own dtype; any other node is returned unchanged."""
    if not isinstance(node, Op) or node.name in _NOT_FOLDED or not all(isinstance(a, Const) for a in node.args):
        return node
    args = [torch.tensor(a.value, dtype=a.dtype, device="cpu") for a in node.args if isinstance(a, Const)]
    value = args[0].to(node.dtype) if node.name == "cast" else ops.definition(node.name).meaning(*args).to(node.dtype)
    return expr.const(value.item(), node.dtype)
