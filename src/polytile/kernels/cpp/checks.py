"""Run-time index checks of a loop: a kernel that fails check number k (from 1) returns k."""

from __future__ import annotations

from polytile.ir import expr
from polytile.ir.expr import Const, Index, Node, Op
from polytile.ir.program import Loop
from polytile.kernels.cpp import text


def checked_sizes(loop: Loop) -> list[Node]:
    """What the loop's indices are checked against, one for each number."""
    checks = [n for n in expr.walk(*loop.roots) if isinstance(n, Op) and n.name == "check_index"]
    return list(dict.fromkeys(n.args[1] for n in checks))


def check_messages(loop: Loop) -> tuple[str, ...]:
    """What a failed check 1, 2, ... says."""
    return tuple(f"an index is out of range for a dimension of {_text(size)} elements" for size in checked_sizes(loop))


def _text(size: Node) -> str:
    match size:
        case Const():
            return str(size.value)
        case Index():
            return text.index(size.expr)
        case Op(name="where"):  # under a mask
            return _text(size.args[1])
    return "that many"
