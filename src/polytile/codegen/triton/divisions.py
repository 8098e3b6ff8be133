"""Strength reduction of divisions of a loop's position: no // and no % inside the loop.

For an index with x // d and x % d, where x grows by s per block (s = q·d + r, 0 ≤ r < d, computed before the loop):

    x % d   →  m + r, minus d if that is d or more
    x // d  →  n + q, plus one in that case

and with (x // d) % k, where q = q'·k + r': that + r' (plus one in the same case), minus k if that is k or more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import sympy
from torch.utils._sympy.functions import FloorDiv, Mod, ModularIndexing, PythonMod

from polytile.codegen.triton.body import Body
from polytile.codegen.triton.tile import Dim
from polytile.ir import sizes

DIVISIONS = (FloorDiv, Mod, PythonMod, ModularIndexing)


@dataclass
class Pair:
    """x // d and x % d in variables of this name, and by k the requested (x // d) % k."""

    name: str
    x: sympy.Expr
    d: sympy.Expr
    within: dict[sympy.Expr, str]


class Carried:
    """The divisions among `indices` of values that are linear in the position along `dim`. `body` knows their variables."""

    def __init__(self, body: Body, dim: Dim, indices: Iterable[sympy.Expr]) -> None:
        self.body, self.dim = body, dim
        self.symbol = dim.axes[0].symbol
        self.pairs: dict[tuple[sympy.Expr, sympy.Expr], Pair] = {}
        self.variables: dict[sympy.Expr, sympy.Symbol] = {}
        for index in indices:
            for part in sorted(body.simplified(index).atoms(*DIVISIONS), key=str):
                self._add(part)

    def _add(self, part: sympy.Expr) -> None:
        x, d = part.args[:2]
        step = sizes.coefficient(x, self.symbol)
        fixed = d.free_symbols | (part.args[2].free_symbols if isinstance(part, ModularIndexing) else set())
        if step is None or step == 0 or x.has(*DIVISIONS) or not sizes.is_nonnegative(step):
            return
        if not fixed | step.free_symbols <= set(self.body.known_symbols):
            return
        pair = self.pairs.setdefault((x, d), Pair(f"{self.symbol.name}_part{len(self.pairs)}", x, d, {}))
        match part:
            case FloorDiv():
                name = pair.name
            case ModularIndexing():
                name = pair.within.setdefault(part.args[2], f"{pair.name}_within{len(pair.within)}")
            case _:
                name = f"{pair.name}_rest"
        self.variables[part] = sizes.axis(name)

    def begin(self, first: str) -> list[str]:
        """Lines before the loop, whose first block starts at `first`."""
        lines = [f"{self.symbol} = {first}"] if self.pairs else []
        step = self.dim.name if self.dim.block > 1 else "1"
        for pair in self.pairs.values():
            name, d = pair.name, self.body.index(pair.d)
            grown = f"({self.body.index(sizes.coefficient(pair.x, self.symbol) or sizes.ZERO)}) * {step}"
            lines.append(f"{name} = {self.body.index(FloorDiv(pair.x, pair.d))}")
            lines.append(f"{name}_rest = ({self.body.index(pair.x)}) - {name} * ({d})")
            lines.append(f"{name}_step = ({grown}) // ({d})")
            lines.append(f"{name}_more = ({grown}) % ({d})")
            for k, within in pair.within.items():
                lines.append(f"{within} = {self.body.index(ModularIndexing(pair.x, pair.d, k))}")
                lines.append(f"{within}_more = {name}_step % ({self.body.index(k)})")
        return lines

    def step(self) -> list[str]:
        """Lines at the end of the loop's body."""
        lines = []
        kind = "tl.int64" if self.body.facts.wide else "tl.int32"
        for pair in self.pairs.values():
            name, d = pair.name, self.body.index(pair.d)
            lines.append(f"{name}_rest += {name}_more")
            lines.append(f"{name}_over = {name}_rest >= {d}")
            lines.append(f"{name}_rest = tl.where({name}_over, {name}_rest - ({d}), {name}_rest)")
            lines.append(f"{name} += {name}_step + {name}_over.to({kind})")
            for k, within in pair.within.items():
                size = self.body.index(k)
                lines.append(f"{within} += {within}_more + {name}_over.to({kind})")
                lines.append(f"{within} = tl.where({within} >= {size}, {within} - ({size}), {within})")
        return lines
