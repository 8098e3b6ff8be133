"""Expressions of a loop's nodes as lines of C++: one local variable a node, emitted once a scope."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import sympy
import torch

from polytile.ir import expr, sizes
from polytile.ir.expr import Const, Index, Load, Node, Op, Part, Reduce, Scan
from polytile.ir.program import Store
from polytile.kernels.canonical import LoopKernel
from polytile.kernels.cpp import ops, text
from polytile.kernels.cpp.analysis import Nest


@dataclass
class Checks:
    """Run-time index checks of a kernel: (size, message), numbered from 1 in the kernel's return value."""

    found: list[tuple[str, str]] = field(default_factory=list)

    def number(self, size: str, message: str) -> int:
        if (size, message) not in self.found:
            self.found.append((size, message))
        return self.found.index((size, message)) + 1


@dataclass
class Scope:
    """Lines of one C++ scope and the names of the nodes known in it (its own and those of the scopes around it)."""

    lines: list[str]
    names: dict[int, str]

    def inner(self) -> Scope:
        return Scope([], dict(self.names))


class Body:
    """Emits nodes. `lanes` is the C++ text of the vector lane count; uniform values are vectors of one lane.

    `special` gives the text of nodes that are made elsewhere (a row's reductions, cached values, the accumulator of a
    template); `tail` and `count` name the tail tag and the number of live lanes in the current scope.
    """

    def __init__(self, kernel: LoopKernel, nest: Nest, checks: Checks, lanes: str = "L") -> None:
        self.kernel, self.nest, self.checks, self.lanes = kernel, nest, checks, lanes
        self.special: dict[int, str] = {}
        self.on_scan: Callable[[Scan, int, Scope], str] | None = None
        self._count = 0

    def lanes_of(self, node: Node) -> str:
        return self.lanes if self.nest.is_vector(node) else "1"

    def vector_type(self, node: Node) -> str:
        return f"V<{text.value_type(node.dtype)}, {self.lanes_of(node)}>"

    def fresh(self) -> str:
        self._count += 1
        return f"t{self._count - 1}"

    # nodes -------------------------------------------------------------------------------------------------------------

    def emit(self, node: Node, scope: Scope) -> str:
        """The name of `node`'s value in `scope`, adding lines for it and for what it needs."""
        for below in self._needed(node, scope):
            scope.names[id(below)] = self._one(below, scope)
        return scope.names[id(node)]

    def _needed(self, root: Node, scope: Scope) -> list[Node]:
        """Nodes to emit, children first, stopping at what the scope knows and at what is made elsewhere."""
        order: list[Node] = []
        stack, seen = [(root, False)], set()
        while stack:
            node, done = stack.pop()
            if done:
                order.append(node)
                continue
            if id(node) in seen or id(node) in scope.names:
                continue
            seen.add(id(node))
            stack.append((node, True))
            if id(node) not in self.special:
                stack.extend((c, False) for c in reversed(self._operands(node)))
        return order

    @staticmethod
    def _operands(node: Node) -> tuple[Node, ...]:
        if isinstance(node, Reduce):
            return ()
        if isinstance(node, Part):
            return node.node.children if isinstance(node.node, Scan) else ()
        return node.children

    def _one(self, node: Node, scope: Scope) -> str:
        if isinstance(node, Const):
            return f"splat<{text.value_type(node.dtype)}, {self.lanes_of(node)}>({text.number(node.value, node.dtype)})"
        name = self.fresh()
        scope.lines.append(f"const {self.vector_type(node)} {name} = {self._value(node, scope)};")
        return name

    def _value(self, node: Node, scope: Scope) -> str:
        if id(node) in self.special:
            return self.special[id(node)]
        match node:
            case Index():
                return self._index_value(node)
            case Load():
                return self._load(node, scope)
            case Op() if node.name == "check_index":
                return self._check(node, scope)
            case Op():
                lanes = self.lanes_of(node)
                return ops.text(node, [self.operand(a, lanes, scope) for a in node.args], lanes)
            case Scan():
                assert self.on_scan is not None
                return self.on_scan(node, 0, scope)
            case Part(node=Scan()):
                assert self.on_scan is not None
                return self.on_scan(node.node, node.k, scope)
        raise AssertionError(f"{node} has no value here")

    def operand(self, node: Node, lanes: str, scope: Scope) -> str:
        """`node`'s value as a vector of `lanes` lanes."""
        name = self.emit(node, scope)
        if lanes == self.lanes_of(node):
            return name
        kind = text.value_type(node.dtype)
        if isinstance(node, Const):
            return f"splat<{kind}, {lanes}>({text.number(node.value, node.dtype)})"
        return f"splat<{kind}, {lanes}>({name}[0])"

    def _index_value(self, node: Index) -> str:
        kind = text.value_type(node.dtype)
        if not self.nest.is_vector(node):
            return f"V<{kind}, 1>(({kind})({text.index(node.expr)}))"
        return f"cast<{kind}>({self.index_vector(node.expr, {})})"

    def index_vector(self, e: sympy.Expr, indirect: dict[sympy.Symbol, str]) -> str:
        """An index expression as a vector of i64: the vector axis counts up along the lanes."""
        vec = self.nest.vec.symbol
        c = sizes.coefficient(e, vec)
        own = set(indirect) & e.free_symbols
        if c is not None and not own:
            step = "" if c == 1 else f" * ({text.index(c)})"
            return f"(iota<i64, {self.lanes}>(){step} + ({text.index(e)}))" if c != 0 else self._splat_index(text.index(e))
        return _VectorIndex(self.lanes, vec, indirect).text(e)

    def _splat_index(self, value: str) -> str:
        return f"splat<i64, {self.lanes}>({value})"

    # memory ------------------------------------------------------------------------------------------------------------

    def _indirect(self, nodes: tuple[Node, ...], scope: Scope) -> tuple[dict[sympy.Symbol, str], dict[sympy.Symbol, str]]:
        """Stand-in symbols of an index: (uniform ones → scalar text, vector ones → vector text)."""
        uniform, vectors = {}, {}
        for k, node in enumerate(nodes):
            name = self.emit(node, scope)
            if self.nest.is_vector(node):
                kind = text.value_type(node.dtype)
                vectors[expr.indirect_symbol(k)] = name if kind == "i64" else f"cast<i64>({name})"
            else:
                value = text.number(node.value, node.dtype) if isinstance(node, Const) else f"{name}[0]"
                uniform[expr.indirect_symbol(k)] = f"(long){value}"
        return uniform, vectors

    def _bind(self, index: sympy.Expr, uniform: dict[sympy.Symbol, str], scope: Scope) -> sympy.Expr:
        """Uniform indirect values become C variables."""
        mapping = {}
        for symbol, value in uniform.items():
            if symbol in index.free_symbols:
                name = f"i{self._count}"
                self._count += 1
                scope.lines.append(f"const long {name} = {value};")
                mapping[symbol] = sizes.axis(name)
        return sizes.substitute(index, mapping)

    def _load(self, node: Load, scope: Scope) -> str:
        kind, vec = text.value_type(node.dtype), self.nest.vec.symbol
        uniform, vectors = self._indirect(node.indirect, scope)
        mask = self.emit(node.mask, scope) if node.mask is not None else None
        index = self._bind(node.index, uniform, scope)
        raw = self._raw(node)
        c = None if vectors else sizes.coefficient(index, vec)
        if not self.nest.is_vector(node):
            return self._guarded(f"{raw('1')}({node.buffer} + {text.index(index)})", node, mask, "1")
        if mask is not None and node.mask is not None and self.nest.is_vector(node.mask):
            at = self.index_vector(index, vectors)
            return self._as_value(node, f"vload_masked<{self._raw_type(node)}, {self.lanes}>(tail, {node.buffer}, {at}, {mask}, n)")
        if c == 0:
            value = f"splat<{kind}, {self.lanes}>({self._as_value(node, raw('1') + f'({node.buffer} + {text.index(index)})', '1')}[0])"
            return self._guarded(value, None, mask, self.lanes, kind)
        if c == 1:
            value = f"vload<{self._raw_type(node)}, {self.lanes}>(tail, {node.buffer} + {text.index(index)}, n)"
        elif c is not None:
            value = f"vload_strided<{self._raw_type(node)}, {self.lanes}>(tail, {node.buffer} + {text.index(index)}, {text.index(c)}, n)"
        else:
            value = f"vload_gather<{self._raw_type(node)}, {self.lanes}>(tail, {node.buffer}, {self.index_vector(index, vectors)}, n)"
        return self._guarded(self._as_value(node, value), None, mask, self.lanes, kind)

    def _raw_type(self, node: Load) -> str:
        return text.value_type(node.dtype)

    def _raw(self, node: Load) -> Callable[[str], str]:
        return lambda lanes: f"load<{self._raw_type(node)}, {lanes}>"

    def _as_value(self, node: Load, value: str, lanes: str | None = None) -> str:
        """bool8 loads give 0 or 1; a mask is 0 or -1."""
        return f"(-{value})" if node.dtype == torch.bool else value

    def _guarded(self, value: str, node: Load | None, mask: str | None, lanes: str, kind: str | None = None) -> str:
        if node is not None:
            kind, value = text.value_type(node.dtype), self._as_value(node, value)
        return value if mask is None else f"({mask}[0] ? {value} : V<{kind}, {lanes}>{{}})"

    def _check(self, node: Op, scope: Scope) -> str:
        """Wraps negative indices and records those out of range."""
        lanes = self.lanes_of(node)
        value = self.operand(node.args[0], lanes, scope)
        size = self.operand(node.args[1], lanes, scope)
        number = self.checks.number(str(node.args[1]), "index out of range")
        return f"check_index<{lanes}>({value}, {size}, {'n' if lanes != '1' else '1'}, {number}, error)"

    def store(self, store: Store, scope: Scope) -> None:
        """Adds the lines of one store."""
        lines, vec = scope.lines, self.nest.vec.symbol
        storage = text.storage_type(self.kernel.storage(store.buffer))
        value_node = store.value
        uniform, vectors = self._indirect(store.indirect, scope)
        mask = self.emit(store.mask, scope) if store.mask is not None else None
        vector_mask = store.mask is not None and self.nest.is_vector(store.mask)
        index = self._bind(store.index, uniform, scope)
        c = None if vectors else sizes.coefficient(index, vec)
        kind = text.value_type(value_node.dtype)
        vector = c != 0 or self.nest.is_vector(value_node) or vector_mask
        lanes = self.lanes if vector else "1"
        value = self.operand(value_node, lanes, scope)
        if value_node.dtype == torch.bool:
            value = f"({value} & 1)"
        at = f"{store.buffer} + {text.index(index)}"
        if store.mode == "set" and not vector_mask and c != 0 and c is not None:
            line = f"vstore<{storage}, {lanes}>(tail, {at}, {value}, n);" if c == 1 else f"vstore_strided<{storage}, {lanes}>(tail, {at}, {value}, {text.index(c)}, n);"
        elif not vector:
            line = f"store<{storage}, {kind}, 1>({at}, {value});" if store.mode == "set" else f"{self.adder}<{storage}>({at}, {value}[0]);"
        else:
            line = self._lane_store(store, storage, kind, value, index, vectors, mask if vector_mask else None)
        lines.append(f"if ({mask}[0]) {{ {line} }}" if mask is not None and not vector_mask else line)

    adder = "add_plain"

    def _lane_store(
        self, store: Store, storage: str, kind: str, value: str, index: sympy.Expr, vectors: dict[sympy.Symbol, str], mask: str | None
    ) -> str:
        act = f"store<{storage}, {kind}, 1>(p, V<{kind}, 1>(x[k]))" if store.mode == "set" else f"{self.adder}<{storage}>(p, x[k])"
        lanes = self.lanes
        live = mask or f"V<i32, {lanes}>(-1)"
        return (
            f"{{ const V<i64, {lanes}> at = {self.index_vector(index, vectors)}; const V<{kind}, {lanes}> x = {value}; "
            f"each_lane<{lanes}>(tail, {live}, n, [&](long k) PT_INLINE {{ {storage}* p = {store.buffer} + at[k]; {act}; }}); }}"
        )


class _VectorIndex:
    """An index expression that is not linear in the vector axis, as arithmetic on i64 vectors."""

    def __init__(self, lanes: str, vec: sympy.Symbol, vectors: dict[sympy.Symbol, str]) -> None:
        self.lanes, self.vec, self.vectors = lanes, vec, vectors

    def text(self, e: sympy.Expr) -> str:
        varying = {self.vec, *self.vectors}
        if not e.free_symbols & varying:
            return f"splat<i64, {self.lanes}>({text.index(e)})"
        if e == self.vec:
            return f"(iota<i64, {self.lanes}>() + {self.vec.name})"
        if e in self.vectors:
            return self.vectors[e]
        args = [self.text(a) for a in e.args]
        name = type(e).__name__
        if isinstance(e, sympy.Add):
            return "(" + " + ".join(args) + ")"
        if isinstance(e, sympy.Mul):
            return "(" + " * ".join(args) + ")"
        if isinstance(e, sympy.Pow) and e.exp.is_Integer and e.exp > 0:
            return "(" + " * ".join([args[0]] * int(e.exp)) + ")"
        if name == "FloorDiv":
            return f"truncdiv({args[0]}, {args[1]})"
        if name in ("Mod", "PythonMod"):
            return f"fmod({args[0]}, {args[1]})"
        if name == "ModularIndexing":
            return f"fmod(truncdiv({args[0]}, {args[1]}), {args[2]})"
        if name in ("Max", "Min"):
            result, function = args[0], "maximum" if name == "Max" else "minimum"
            for other in args[1:]:
                result = f"{function}({result}, {other})"
            return result
        raise ops.LoweringError(f"the index expression {e} has no C++ form; the operator runs as a library call.")
