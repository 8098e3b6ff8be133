"""Index expressions as vectors of i64, one index per lane."""

from __future__ import annotations

from collections.abc import Mapping

import sympy
from torch.utils._sympy.functions import FloorDiv, Mod, ModularIndexing, PythonMod

from polytile.codegen.cpp import text
from polytile.codegen.index_text import MAXIMA, MINIMA
from polytile.errors import LoweringError
from polytile.ir import sizes


def index_vector(e: sympy.Expr, vec: sympy.Symbol, lanes: str, indirect: Mapping[sympy.Symbol, str]) -> str:
    """C++ for the indices of all lanes: the axis `vec` increases along the lanes, and each symbol of `indirect` is a
    vector with that text. Divides as Python does (see codegen/index_text.py). Raises LoweringError for an expression
    that has no C++ form."""
    step = None if e.free_symbols & indirect.keys() else sizes.coefficient(e, vec)
    if step == 0:
        return f"splat<i64, {lanes}>({text.index(e)})"
    if step is not None:
        times = "" if step == 1 else f" * ({text.index(step)})"
        return f"(iota<i64, {lanes}>(){times} + ({text.index(e)}))"
    return _Vector(vec, lanes, indirect).text(e)


class _Vector:
    """An index expression that is not linear in the vector axis, as vector arithmetic."""

    def __init__(self, vec: sympy.Symbol, lanes: str, indirect: Mapping[sympy.Symbol, str]) -> None:
        self.vec, self.lanes, self.indirect = vec, lanes, indirect

    def text(self, e: sympy.Expr) -> str:
        if not e.free_symbols & {self.vec, *self.indirect}:
            return f"splat<i64, {self.lanes}>({text.index(e)})"
        if e in self.indirect:
            return self.indirect[e]
        if e == self.vec:
            return f"(iota<i64, {self.lanes}>() + {self.vec})"
        args = [self.text(a) for a in e.args]
        divide, rest = ("truncdiv", "fmod") if sizes.is_nonnegative(e.args[0]) else ("floordiv", "remainder")
        match e:
            case sympy.Add():
                return "(" + " + ".join(args) + ")"
            case sympy.Mul():
                return "(" + " * ".join(args) + ")"
            case sympy.Pow() if e.exp.is_Integer and e.exp > 0:
                return "(" + " * ".join([args[0]] * int(e.exp)) + ")"
            case FloorDiv():
                return f"{divide}({args[0]}, {args[1]})"
            case Mod() | PythonMod():
                return f"{rest}({args[0]}, {args[1]})"
            case ModularIndexing():
                return f"{rest}({divide}({args[0]}, {args[1]}), {args[2]})"
        if isinstance(e, MAXIMA + MINIMA):
            function, result = "maximum" if isinstance(e, MAXIMA) else "minimum", args[0]
            for other in args[1:]:
                result = f"{function}({result}, {other})"
            return result
        raise LoweringError(f"the index expression {e} has no C++ form; the operator runs as a library call.")
