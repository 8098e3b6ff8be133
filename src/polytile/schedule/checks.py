"""Run-time checks of a loop's indices and divisors. A kernel that fails check k (from 1) returns k."""

from __future__ import annotations

from polytile.errors import DivisionByZero
from polytile.ir import expr, printer
from polytile.ir.expr import Const, Index, Node, Op
from polytile.ir.loop import Loop

NO_DIVISOR = str(DivisionByZero())


def numbers(loop: Loop) -> dict[int, int]:
    """The number of each check, by the id of its `against` node."""
    return {id(node): k for k, node in enumerate(_checked(loop), 1)}


def against(check: Op) -> Node:
    """The size that an index is checked against; for a divisor check, the divisor itself. Checks with equal nodes share
    a number."""
    return check.args[-1]


def from_zero(node: Node) -> tuple[Node, ...]:
    """The index x and the size n where `node` is the check of an index that may not be negative,
    `check_index(where(x < 0, n, x), n)`; () for any other node. Where x lies outside of [0, n) is one comparison then."""
    match node:
        case Op(name="check_index", args=(Op(name="where", args=(Op(name="lt", args=(x, Const(value=0))), beyond, inside)), n)):
            return (x, n) if inside is x and beyond is n else ()
    return ()


def _checked(loop: Loop) -> dict[Node, Op]:
    return {against(n): n for n in expr.walk(*loop.roots) if expr.is_check(n)}


def check_messages(loop: Loop) -> tuple[str, ...]:
    """The messages of failed checks 1, 2, ...."""
    return tuple(_message(check) for check in _checked(loop).values())


def _message(check: Op) -> str:
    if check.name == "check_divisor":
        return NO_DIVISOR
    return f"an index is out of range for a dimension of {_text(against(check))} elements"


def _text(size: Node) -> str:
    match size:
        case Const():
            return str(size.value)
        case Index():
            return printer.index_text(size.expr)
        case Op(name="where"):  # under a mask
            return _text(size.args[1])
    return "that many"
