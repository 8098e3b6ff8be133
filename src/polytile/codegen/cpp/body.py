"""Values of a loop as lines of C++: one local variable per node, named as in the loop's own text, emitted once per scope."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import sympy
import torch

from polytile.codegen.cpp import memory, ops, random, text
from polytile.codegen.cpp.indices import index_vector
from polytile.codegen.emission import Emitter
from polytile.ir import expr, sizes
from polytile.ir.expr import Const, Index, Load, Node, Op
from polytile.ir.loop import Store
from polytile.schedule import checks
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.nest import Nest


@dataclass
class Scope:
    """Lines of one C++ scope, and the names of the values known in it: its own and those of enclosing scopes. `leave`
    is the statement that abandons the scope's point when a run-time check fails."""

    lines: list[str] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    leave: str = "return;"

    def inner(self, leave: str = "return;") -> Scope:
        return Scope([], dict(self.names), leave)


def always(text: str) -> Callable[[Scope], str]:
    """An emitter override whose value is `text` in every scope."""
    return lambda scope: text


class Body(Emitter[Scope]):
    """Emits nodes as C++.

    `lanes` is the C++ text of the vector's lane count; uniform values are one-lane vectors. `destinations` maps stores
    to the buffers that receive their whole vectors, for the schedule to write out. `streamed` holds the ids of
    non-temporal stores. `adder` names the function of accumulating stores. In every scope that receives vectors, `tail`
    is the tail tag and `n` the number of live lanes.
    """

    def __init__(self, kernel: LoopKernel, nest: Nest, lanes: str = "L", adder: str = memory.PLAIN) -> None:
        super().__init__(nest.nodes)
        self.kernel, self.nest, self.lanes, self.adder = kernel, nest, lanes, adder
        self.destinations: dict[int, str] = {}
        self.streamed: frozenset[int] = frozenset()
        self.row: sympy.Expr | None = None
        """What the C++ variable `row` holds: the index of a row's first element, where rows are stored one behind the other."""
        self._checks = checks.numbers(nest.loop)
        self._bound = 0

    def lanes_of(self, node: Node) -> str:
        return self.lanes if self.nest.is_vector(node) else "1"

    # nodes -------------------------------------------------------------------------------------------------------------

    def _needed(self, node: Node) -> tuple[Node, ...]:
        return checks.from_zero(node) or self.nest.operands(node)

    def _one(self, node: Node, scope: Scope) -> str:
        """Declares the node's variable, except for constants, which are inlined."""
        kind = text.value_type(node.dtype)
        if isinstance(node, Const):
            return f"splat<{kind}, {self.lanes_of(node)}>({text.number(node.value, node.dtype)})"
        value = self._value(node, scope)
        scope.lines.append(f"const V<{kind}, {self.lanes_of(node)}> {self.name(node)} = {value};")
        return self.name(node)

    def _load(self, node: Load, scope: Scope) -> str:
        return memory.load(self, node, scope)

    def _operation(self, node: Op, scope: Scope) -> str:
        lanes = self.lanes_of(node)
        return random.run(self, node, scope) or ops.text(node, [self.operand(a, lanes, scope) for a in node.args], lanes)

    def operand(self, node: Node, lanes: str, scope: Scope) -> str:
        """The value of `node` as a vector of `lanes` lanes."""
        name = self.emit(node, scope)
        if lanes == self.lanes_of(node):
            return name
        kind = text.value_type(node.dtype)
        return f"splat<{kind}, {lanes}>({self.scalar(node, scope)})"

    def scalar(self, node: Node, scope: Scope) -> str:
        """The value of a uniform node as a scalar."""
        name = self.emit(node, scope)
        return text.number(node.value, node.dtype) if isinstance(node, Const) else f"{name}[0]"

    def mask(self, node: Node | None, scope: Scope) -> str | None:
        """A uniform condition as C++; None if there is none."""
        return None if node is None else f"{self.scalar(node, scope)} != 0"

    def _index_value(self, node: Index) -> str:
        kind = text.value_type(node.dtype)
        if not self.nest.is_vector(node):
            return f"{kind}({text.index(node.expr)})"
        vector = self.index_vector(node.expr, {})
        return vector if kind == "i64" else f"cast<{kind}>({vector})"

    def _checked(self, node: Op, scope: Scope) -> str:
        """Emits an index check. Negative indices count from the end, or are out of range (`checks.from_zero`). If an index is out
        of range, the check's number is recorded and the point abandoned before the index is used."""
        lanes = self.lanes_of(node)
        negatives_are_wrong = checks.from_zero(node)
        index, size = (self.operand(a, lanes, scope) for a in negatives_are_wrong or node.args)
        if not negatives_are_wrong:
            index = f"from_end<{lanes}>({index}, {size})"
        self._check(f"out_of_range<{lanes}>({index}, {size}", node, scope)
        return index

    def _divisor(self, node: Op, scope: Scope) -> str:
        """Emits a divisor check, which abandons the point before a division by 0."""
        lanes = self.lanes_of(node)
        divisor = self.operand(node.args[0], lanes, scope)
        self._check(f"any_zero<{lanes}>({divisor}", node, scope)
        return divisor

    def _check(self, test: str, node: Op, scope: Scope) -> None:
        """`test` is a call without its closing arguments and parenthesis."""
        count = "n" if self.lanes_of(node) != "1" else "1"
        number = self._checks[id(checks.against(node))]
        scope.lines.append(f"if ({test}, {count}, {number}, error)) {scope.leave}")

    # indices -----------------------------------------------------------------------------------------------------------

    def element(self, index: sympy.Expr, start: sympy.Expr | None = None) -> str:
        """C++ for `index`, at `start` of the vector axis if that is given."""
        vec = self.nest.vec.symbol
        if self.row is not None and sizes.equal(index, self.row + vec):
            return f"row + {vec if start is None else start}"
        return text.index(index if start is None else sympy.expand(index.xreplace({vec: start})))

    def index_vector(self, e: sympy.Expr, indirect: dict[sympy.Symbol, str]) -> str:
        return index_vector(e, self.nest.vec.symbol, self.lanes, indirect)

    def indirect(
        self, nodes: tuple[Node, ...], index: sympy.Expr, scope: Scope
    ) -> tuple[sympy.Expr, dict[sympy.Symbol, str]]:
        """Replaces the uniform indirect symbols of `index` by C++ variables; returns it with the texts of the vector ones."""
        bound: dict[sympy.Symbol, sympy.Expr] = {}
        vectors: dict[sympy.Symbol, str] = {}
        for k, node in enumerate(nodes):
            symbol = expr.indirect_symbol(k)
            if self.nest.is_vector(node):
                name = self.emit(node, scope)
                vectors[symbol] = name if node.dtype == torch.int64 else f"cast<i64>({name})"
            elif symbol in index.free_symbols:
                bound[symbol] = sizes.axis(self.bound(self.scalar(node, scope), scope))
        return sizes.substitute(index, bound), vectors

    def bound(self, value: str, scope: Scope) -> str:
        """Declares an integer variable in `scope` with this value and returns its name."""
        name = f"at{self._bound}"  # a name like i64 would hide the type
        self._bound += 1
        scope.lines.append(f"const long {name} = {value};")
        return name

    def _store(self, store: Store, scope: Scope) -> None:
        memory.store(self, store, scope)
