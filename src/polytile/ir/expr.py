"""Expression nodes: what a loop computes at one point of its domain, as an interned, immutable DAG.

Nodes are hash-consed: building the same node twice returns the same object. Sharing is automatic, equality is identity, and
common subexpressions need no pass. Index expressions inside nodes are sympy expressions over the loop's axes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeGuard, TypeVar

import sympy
import torch

from polytile.ir import sizes

_interned: weakref.WeakValueDictionary[tuple[Any, ...], Node] = weakref.WeakValueDictionary()
NodeT = TypeVar("NodeT", bound="Node")


@dataclass(frozen=True, eq=False)
class Node:
    """Base class of expression nodes. `dtype` is the compute dtype; bfloat16 and float16 tensors are computed in float32."""

    dtype: torch.dtype

    @property
    def children(self) -> tuple[Node, ...]:
        return ()

    @property
    def indices(self) -> tuple[sympy.Expr, ...]:
        """Index expressions held by the node itself."""
        return ()


def make(cls: type[NodeT], **values: Any) -> NodeT:
    """The unique node of class `cls` with these fields."""
    key = (cls, *[_key(values.get(f.name)) for f in fields(cls)])
    node = _interned.get(key)
    if node is None:
        node = cls(**values)
        _interned[key] = node
    return node  # type: ignore[return-value]


def _key(value: Any) -> Any:
    if isinstance(value, Node):
        return ("node", id(value))
    if isinstance(value, tuple):
        return tuple(_key(v) for v in value)
    if isinstance(value, float):  # 0.0 and -0.0, and the NaNs, must stay apart
        return ("float", value.hex())
    if isinstance(value, bool | int):
        return (type(value).__name__, value)
    return value


@dataclass(frozen=True, eq=False)
class Const(Node):
    """A number; `value` is a Python bool, int or float."""

    value: bool | int | float


@dataclass(frozen=True, eq=False)
class Index(Node):
    """The value of an index expression, converted to `dtype`."""

    expr: sympy.Expr

    @property
    def indices(self) -> tuple[sympy.Expr, ...]:
        return (self.expr,)


@dataclass(frozen=True, eq=False)
class Load(Node):
    """Element `index` of `buffer`, counted in elements from its start.

    `indirect[k]` is an integer node whose value replaces the symbol `indirect_symbol(k)` in `index`. Where `mask` is false,
    nothing is read and the value is zero.
    """

    buffer: str
    index: sympy.Expr
    indirect: tuple[Node, ...] = ()
    mask: Node | None = None

    @property
    def children(self) -> tuple[Node, ...]:
        return self.indirect + ((self.mask,) if self.mask is not None else ())

    @property
    def indices(self) -> tuple[sympy.Expr, ...]:
        return (self.index,)


@dataclass(frozen=True, eq=False)
class Op(Node):
    """A pointwise operation from the table in `ir/ops.py`."""

    name: str
    args: tuple[Node, ...]

    @property
    def children(self) -> tuple[Node, ...]:
        return self.args


@dataclass(frozen=True, eq=False)
class _Along(Node):
    """Combines `args` along the reduced axes. Multiple results are read through `Part`."""

    kind: str
    args: tuple[Node, ...]

    @property
    def children(self) -> tuple[Node, ...]:
        return self.args


class Reduce(_Along):
    """A reduction over the loop's reduced axes, of a kind in `reductions.REDUCTIONS`."""


class Scan(_Along):
    """An inclusive prefix scan along the loop's reduced axis, of a kind in `reductions.SCANS`."""


@dataclass(frozen=True, eq=False)
class Part(Node):
    """Result number `k` of a Reduce or Scan with several results."""

    node: Node
    k: int

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.node,)


@dataclass(frozen=True, eq=False)
class Accumulator(Node):
    """The value of a template at the current output element; used only in epilogues."""


def const(value: bool | int | float, dtype: torch.dtype) -> Const:
    """A constant converted to `dtype` the way torch converts a Python number."""
    if dtype == torch.bool:
        value = bool(value)
    elif dtype.is_floating_point:
        value = float(value)
    else:
        value = int(value)
    return make(Const, dtype=dtype, value=value)


def index_value(expr: sympy.Expr, dtype: torch.dtype = torch.int64) -> Node:
    """The value of an index expression: a Const if it is an integer, else an Index."""
    if expr.is_Integer:
        return const(int(expr), dtype)
    return make(Index, dtype=dtype, expr=expr)


def load(dtype: torch.dtype, buffer: str, index: sympy.Expr, indirect: tuple[Node, ...] = (), mask: Node | None = None) -> Load:
    """A Load of element `index` of `buffer`, with compute dtype `dtype`."""
    return make(Load, dtype=dtype, buffer=buffer, index=index, indirect=indirect, mask=mask)


def op(name: str, dtype: torch.dtype, *args: Node) -> Op:
    """The operation `name` of these arguments, with values of `dtype`."""
    return make(Op, dtype=dtype, name=name, args=args)


def reduce(kind: str, dtype: torch.dtype, *args: Node) -> Reduce:
    """The reduction `kind` of these arguments over all reduced axes."""
    return make(Reduce, dtype=dtype, kind=kind, args=args)


def scan(kind: str, dtype: torch.dtype, *args: Node) -> Scan:
    """The scan `kind` of these arguments along the reduced axis."""
    return make(Scan, dtype=dtype, kind=kind, args=args)


def part(node: Node, k: int, dtype: torch.dtype) -> Part:
    """Result number `k` of a node that has several."""
    return make(Part, dtype=dtype, node=node, k=k)


def indirect_symbol(k: int) -> sympy.Symbol:
    """The symbol that stands for `indirect[k]` in the index of a Load or Store."""
    return sizes.axis(f"ind{k}")


def walk(*roots: Node) -> Iterator[Node]:
    """Visit every node under `roots` once, children before parents."""
    seen: set[int] = set()
    stack: list[tuple[Node, bool]] = [(r, False) for r in reversed(roots)]
    while stack:
        node, done = stack.pop()
        if done:
            yield node
            continue
        if id(node) in seen:
            continue
        seen.add(id(node))
        stack.append((node, True))
        stack.extend((c, False) for c in reversed(node.children) if id(c) not in seen)


def rewrite(roots: tuple[Node, ...], rule: Callable[[Node, tuple[Node, ...]], Node]) -> tuple[Node, ...]:
    """Rebuild the DAG bottom-up. `rule(node, new_children)` returns the replacement of a node; shared nodes are visited once."""
    new: dict[int, Node] = {}
    for node in walk(*roots):
        new[id(node)] = rule(node, tuple(new[id(c)] for c in node.children))
    return tuple(new[id(r)] for r in roots)


def rebuild(node: Node, children: tuple[Node, ...], index_map: Callable[[sympy.Expr], sympy.Expr] | None = None) -> Node:
    """`node` with new children and mapped index expressions."""
    if children == node.children and (index_map is None or not node.indices):
        return node
    if isinstance(node, Index):
        return index_value(index_map(node.expr), node.dtype) if index_map else node
    if isinstance(node, Load):
        index = index_map(node.index) if index_map else node.index
        k = len(node.indirect)
        return load(node.dtype, node.buffer, index, children[:k], children[k] if node.mask is not None else None)
    if isinstance(node, Op):
        return op(node.name, node.dtype, *children)
    if isinstance(node, Reduce):
        return reduce(node.kind, node.dtype, *children)
    if isinstance(node, Scan):
        return scan(node.kind, node.dtype, *children)
    if isinstance(node, Part):
        return part(children[0], node.k, node.dtype)
    return node


def map_loads(roots: tuple[Node, ...], rule: Callable[[Load], Node]) -> tuple[Node, ...]:
    """Replace every load throughout the DAG, after what is below it."""

    def each(node: Node, children: tuple[Node, ...]) -> Node:
        node = rebuild(node, children)
        return rule(node) if isinstance(node, Load) else node

    return rewrite(roots, each)


def exchange(roots: tuple[Node, ...], nodes: Mapping[int, Node]) -> tuple[Node, ...]:
    """Replace the nodes with these identities by others."""
    return rewrite(roots, lambda node, children: nodes[id(node)] if id(node) in nodes else rebuild(node, children))


def map_indices(roots: tuple[Node, ...], index_map: Callable[[sympy.Expr], sympy.Expr]) -> tuple[Node, ...]:
    """The roots with every index replaced by what `index_map` gives for it."""
    return rewrite(roots, lambda node, children: rebuild(node, children, index_map))


def substitute(roots: tuple[Node, ...], mapping: Mapping[sympy.Symbol, sympy.Expr]) -> tuple[Node, ...]:
    """Replace index symbols throughout the DAG."""
    return map_indices(roots, lambda e: sizes.substitute(e, mapping))


def mask_loads(root: Node, mask: Node) -> Node:
    """Mask every load under `root`. The value is arbitrary, but safe to compute, where `mask` is false."""

    def rule(node: Node, children: tuple[Node, ...]) -> Node:
        node = rebuild(node, children)
        if is_check(node):
            return _checked_where(node, mask)
        if not isinstance(node, Load):
            return node
        both = mask if node.mask is None else op("logical_and", torch.bool, node.mask, mask)
        return load(node.dtype, node.buffer, node.index, node.indirect, both)

    return rewrite((root,), rule)[0]


def is_check(node: Node) -> TypeGuard[Op]:
    """Whether `node` is a check that makes the kernel return an error."""
    return isinstance(node, Op) and node.name in _HARMLESS


_HARMLESS = {"check_index": (0, 1), "check_divisor": (1,)}
"""Arguments with which a check succeeds."""


def _checked_where(check: Op, mask: Node) -> Node:
    """A checked index or divisor that is an error only where `mask` holds; elsewhere it is 0 or 1."""
    args = (
        op("where", node.dtype, mask, node, const(other, node.dtype))
        for node, other in zip(check.args, _HARMLESS[check.name], strict=True)
    )
    return op(check.name, check.dtype, *args)


def loads(*roots: Node) -> list[Load]:
    """The loads that the roots are computed from."""
    return [n for n in walk(*roots) if isinstance(n, Load)]


def free_symbols(*roots: Node) -> set[sympy.Symbol]:
    """Index symbols anywhere in the DAG, excluding the placeholders of indirect indices."""
    symbols: set[sympy.Symbol] = set()
    for node in walk(*roots):
        own = set().union(*map(sizes.symbols, node.indices))
        if isinstance(node, Load):
            own -= {indirect_symbol(k) for k in range(len(node.indirect))}
        symbols |= own
    return symbols
