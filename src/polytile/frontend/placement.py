"""Where the values of a graph live: which are stored, and in what layout.

A value that nobody stores is computed again by each user. The passes can take a store back (`inline_cheap` computes a
cheap one where it is read, fusion puts producer and reader into one kernel, and then nothing goes through memory), but
no pass can take a second computation back once two kernels have it. So what costs something is stored here, and only
what is cheaper to compute than to read is left open.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Sequence
from dataclasses import replace
from itertools import combinations, starmap
from typing import Any

import sympy
import torch
import torch.fx
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.value import Point, Tensor, computed, stored
from polytile.ir import expr, ops, sizes
from polytile.ir.program import Template, View

KEEP_COST = 8.0
"""Multiply-adds for one element from which a value with several users is stored. A store and a load of a float32 move
8 bytes; at the 10 GB/s or so that a core has for itself that is the time of about 8 multiply-adds a lane. Wrong where
everything stays in the first cache: there computing again loses from about 2 on, and fusion mostly saves the day."""

KEEP_LOADS = 2
"""Loads from which a value with several users is stored: each further user would read as many operands again, where
reading the value takes one load. What is the same along some dimension, such as a row's mean, is in a cache by then and
does not count. One load is enough where it is a product's: storing is then the product's epilogue, which reads nothing."""

LARGEST_VALUE = 96
"""Nodes from which any value is stored, so that kernels stay small enough to read and quick to compile."""

MOST_COMPARED = 32
"""Returned views of one value of which each two are asked whether they share elements; of more their base is stored unasked."""


def place(builder: Builder, node: torch.fx.Node, value: Tensor, needed: bool, written: bool) -> Tensor:
    """`value`, the result of `node`: stored if it is `needed`, or large, or if it has several users and is costly, reads
    much, or is returned anyway; else as it is. `written`: it is what an overwritten input becomes, whose traced strides are
    taken to keep all elements apart."""
    distinct = written or is_new(node)
    if value.node is None:
        return laid_out(builder, value, node.meta["val"], distinct) if needed and written else value
    nodes = list(expr.walk(value.node))
    small = len(nodes) < LARGEST_VALUE and not needed
    if small and (len(node.users) < 2 or not _worth_keeping(builder, node, value, nodes)):
        return value
    return laid_out(builder, value, node.meta["val"], distinct)


def _worth_keeping(builder: Builder, node: torch.fx.Node, value: Tensor, nodes: Sequence[expr.Node]) -> bool:
    if isinstance(value.node, expr.Load) and all(user.op != "output" for user in node.users):
        return False  # what is stored already, perhaps in a narrower type
    cost = sum(ops.definition(n.name).cost for n in nodes if isinstance(n, expr.Op))
    axes = {axis for axis, n in zip(value.axes, value.sizes, strict=True) if n != 1}
    loads = [n for n in nodes if isinstance(n, expr.Load) and (n.indirect or axes <= n.index.free_symbols)]
    if cost >= KEEP_COST or len(loads) >= KEEP_LOADS or any(user.op == "output" for user in node.users):
        return True
    products = {operation.out.buffer for operation in builder.operations if isinstance(operation, Template)}
    return any(load.buffer in products for load in loads)


def bases(graph: torch.fx.Graph, generated: Container[object]) -> set[torch.fx.Node]:
    """Nodes whose values are stored because views of them are wanted. Other views of what is not stored are computed alone,
    which saves the rest. `generated` has the operators with a lowering."""
    return _returned_bases(graph) | _library_bases(graph, generated)


def _returned_bases(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """A view of these is returned in strides that only a view can have, such as those of every other column, or several views
    that may share elements: who changes one sees it in the others. Nor are several computed that have all elements in all."""
    found, returned = set(), _Views()
    for output in tree_leaves([node.args[0] for node in graph.nodes if node.op == "output"]):
        if not isinstance(output, torch.fx.Node) or not isinstance(output.meta.get("val"), torch.Tensor):
            continue
        if not _apart_but_repeated(output.meta["val"]):
            found.add(_base(output))
        returned.add(output)
    return found | returned.covered() | returned.shared()


def _library_bases(graph: torch.fx.Graph, generated: Container[object]) -> set[torch.fx.Node]:
    """Library calls want several views of these, which have no fewer elements in all: storing each base once takes one kernel, or
    none after a product, where its views would take one each. So lie the queries, keys and values of attention."""
    wanted = _Views()
    for node in graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem and node.target not in generated:
            for given in node.all_input_nodes:
                wanted.add(given)
    return wanted.covered()


_SCATTERS = {
    torch.ops.aten.slice_scatter.default, torch.ops.aten.select_scatter.default, torch.ops.aten.diagonal_scatter.default,
}  # fmt: skip


def partly_written(graph: torch.fx.Graph, changed: Container[str]) -> set[torch.fx.Node]:
    """What a part of an overwritten input becomes when some of it is. It is traced in the input's own strides, which are taken to
    keep all elements apart, though nothing proves it: torch promises nothing of tensors that are written where they overlap."""
    parts: set[torch.fx.Node] = {n for n in graph.nodes if n.op == "placeholder" and n.name in changed}
    for node in graph.nodes:
        whole = node.args[0] if node.args else None
        if whole in parts and (node.target in _SCATTERS or (is_view(node.target) and node.target not in _ANYWHERE)):
            parts.add(node)
    return {node for node in parts if node.target in _SCATTERS}


_ANYWHERE = {torch.ops.aten.as_strided.default, torch.ops.aten.expand.default}


class _Views:
    """Views, by what they are views of."""

    def __init__(self) -> None:
        self.views: dict[torch.fx.Node, dict[torch.fx.Node, torch.Tensor]] = {}

    def add(self, node: torch.fx.Node) -> None:
        base = _base(node)
        if base is not node and isinstance(base.meta.get("val"), torch.Tensor):
            self.views.setdefault(base, {})[node] = node.meta["val"]

    def covered(self) -> set[torch.fx.Node]:
        """What has several views, with as many elements as itself in all."""
        return {base for base, views in self._several() if _covered(base.meta["val"], views)}

    def shared(self) -> set[torch.fx.Node]:
        """What has several views of which two may have elements in common, or too many to compare."""
        return {base for base, views in self._several() if len(views) > MOST_COMPARED or not _all_disjoint(views)}

    def _several(self) -> list[tuple[torch.fx.Node, list[torch.Tensor]]]:
        return [(base, list(views.values())) for base, views in self.views.items() if len(views) > 1]


def _covered(base: torch.Tensor, views: Sequence[torch.Tensor]) -> bool:
    """Whether views have as many elements as their base in all, provably."""
    rest = sum(map(_elements, views), sizes.ZERO) - _elements(base)
    return bool(sizes.is_nonnegative(sizes.expand(rest)))


def _all_disjoint(views: Sequence[torch.Tensor]) -> bool:
    return all(starmap(_disjoint, combinations(views, 2)))


def _disjoint(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two views of one tensor provably have no element in common."""
    if a.dtype != b.dtype:  # their places count in other units
        return False
    gap = sizes.as_size(b.storage_offset()) - sizes.as_size(a.storage_offset())
    runs = [None, *(s for s in map(sizes.as_stride, a.stride()) if s != 0)]
    return any(_behind(a, b, gap, every) or _behind(b, a, -gap, every) for every in runs)


def _behind(a: torch.Tensor, b: torch.Tensor, gap: sympy.Expr, every: sympy.Expr | None) -> bool:
    """Whether `b`, which begins `gap` elements behind `a`, lies behind it in each run of `every` elements, as columns of the same
    rows do. None: in the one run of all elements."""
    if every is None:
        return sizes.is_nonnegative(sizes.expand(gap - _reach(a) - 1))
    gap = gap % every if gap.is_Integer and every.is_Integer else sizes.split_by(gap, every)[1]
    room = every - gap - _reach(b, every)
    return all(sizes.is_nonnegative(sizes.expand(e - 1)) for e in (gap - _reach(a, every), room))


def _reach(tensor: torch.Tensor, every: sympy.Expr | None = None) -> sympy.Expr:
    """How far the last element, in a run of `every`, lies behind the first."""
    dims = zip((sizes.unguarded(sizes.as_size(n)) for n in tensor.shape), map(sizes.as_stride, tensor.stride()), strict=True)
    return sum(((n - 1) * s for n, s in dims if every is None or not _multiple(s, every)), sizes.ZERO)


def _elements(tensor: torch.Tensor) -> sympy.Expr:
    return sympy.Mul(*(sizes.as_size(n) for n in tensor.shape))


def _base(node: torch.fx.Node) -> torch.fx.Node:
    """What a node is a view of, at the end of a chain of views; itself if it is none."""
    while (is_view(node.target) or node.target is operator.getitem) and isinstance(node.args[0], torch.fx.Node):
        if node.target is operator.getitem and not is_view(node.args[0].target):
            break
        node = node.args[0]
    return node


def is_view(target: object) -> bool:
    """Whether an operator's result is a view of its first argument, by its schema."""
    schema = getattr(target, "_schema", None)
    return schema is not None and len(schema.returns) == 1 and schema.returns[0].alias_info is not None


def laid_out(builder: Builder, value: Tensor, fake: torch.Tensor, distinct: bool = False) -> Tensor:
    """`value` stored in the strides that were traced, or row-major where `fits` says that it cannot be. Along a
    dimension of stride 0 only one element is stored."""
    strides = tuple(sizes.as_stride(s) for s in fake.stride())
    if value.view is not None and _same_strides(value, strides):
        return value
    guarded = [sizes.as_size(s) for s in fake.stride()]
    if repeated := _repeated(value.sizes, strides):
        base = _first_along(value, repeated)
        kept = [d for d in range(value.rank) if d not in repeated]
        dense = _strides_for([base.sizes[d] for d in kept], [guarded[d] for d in kept])
        full = tuple(dense[kept.index(d)] if d in kept else sizes.ZERO for d in range(value.rank))
        view = builder.realize(base, tuple(sizes.ONE if d in repeated else full[d] for d in range(value.rank))).view
        assert view is not None
        return stored(View(view.buffer, view.dtype, value.sizes, full, view.offset), value.device)
    return builder.realize(value, strides if distinct else _strides_for(value.sizes, guarded))


def advised(result: Any, fake: Any) -> Any:
    """`result`, of an operator whose results are traced as `fake`: images that were traced with their channels last and are not
    stored yet will be stored so, whoever asks for it."""
    if isinstance(result, tuple) and isinstance(fake, tuple | list):
        return tuple(map(advised, result, fake))
    if not isinstance(result, Tensor) or result.node is None or not isinstance(fake, torch.Tensor) or result.rank != 4:
        return result
    wanted = sizes.channels_last_strides(result.sizes)
    alike = all(sizes.equal(sizes.as_stride(a), b) for a, b in zip(fake.stride(), wanted, strict=True))
    return replace(result, layout=wanted) if alike else result


def fits(value: Tensor, node: torch.fx.Node) -> bool:
    """Whether `laid_out` can give `value`, of `node`, the traced strides: it has them, or they keep all elements apart."""
    fake = node.meta["val"]
    strides = tuple(sizes.as_stride(s) for s in fake.stride())
    return (value.view is not None and _same_strides(value, strides)) or is_new(node) or _apart_but_repeated(fake)


_STRIDED = {torch.ops.aten.empty_strided.default, torch.ops.aten.new_empty_strided.default}


def is_new(node: torch.fx.Node) -> bool:
    """Whether the result of `node` is memory of its own, whose strides keep all elements apart, though nothing may prove it:
    operators leave no others. Sizes such as (s // 4) * (s // (s // 4)) beside strides in s prove nothing."""
    while node.target is operator.getitem and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
    target, fake = node.target, node.meta.get("val")
    made = isinstance(target, OpOverload) and target not in _STRIDED and not is_view(target)
    strides = [s for value in tree_leaves(fake) if isinstance(value, torch.Tensor) for s in value.stride()]
    return made and all(sizes.as_size(s) != 0 for s in strides)


def _apart_but_repeated(fake: torch.Tensor) -> bool:
    extents = [sizes.as_size(n) for n in fake.shape]
    strides = [sizes.as_size(s) for s in fake.stride()]
    kept = sorted({*range(len(extents))} - {*_repeated(extents, strides)})
    return apart([extents[d] for d in kept], [strides[d] for d in kept])


def _repeated(extents: Sequence[sympy.Expr], strides: Sequence[sympy.Expr]) -> list[int]:
    """Dimensions along which all elements are one; not those without elements, which have no first to stand for all."""
    return [d for d, s in enumerate(strides) if s == 0 and extents[d] not in (0, 1)]


def _same_strides(value: Tensor, strides: Sequence[sympy.Expr]) -> bool:
    assert value.view is not None
    return all(n == 1 or sizes.equal(a, b) for n, a, b in zip(value.sizes, value.view.strides, strides, strict=True))


def _first_along(value: Tensor, dims: Sequence[int]) -> Tensor:
    """`value` with only the first element of `dims`, kept as dimensions of size 1."""
    extents = [sizes.ONE if d in dims else n for d, n in enumerate(value.sizes)]

    def at(point: Point) -> expr.Node:
        return value.at([sizes.ZERO if d in dims else p for d, p in enumerate(point)])

    return computed(extents, value.dtype, value.device, at)


def _strides_for(extents: Sequence[sympy.Expr], strides: Sequence[sympy.Expr]) -> tuple[sympy.Expr, ...]:
    """The traced strides where no two elements share a place, else row-major."""
    if not apart(extents, strides):
        return sizes.contiguous_strides(extents)
    return tuple(sizes.as_stride(s) for s in strides)


def apart(extents: Sequence[sympy.Expr], strides: Sequence[sympy.Expr]) -> bool:
    """Whether strides keep all elements apart, as far as can be proved: some order of the dimensions has each stride a
    multiple of the span of the ones before it. Sizes max(0, n) count as n: where they are not, there are no elements."""
    if any(n == 0 for n in extents):
        return True
    extents = [sizes.unguarded(n) for n in extents]
    plain = [sizes.as_stride(s) for s in strides]
    return _in_some_order(_dims(extents, plain), sizes.ONE) or _in_some_order(_dims(*_positive(extents, strides)), sizes.ONE)


def _dims(extents: Sequence[sympy.Expr], strides: Sequence[sympy.Expr]) -> list[tuple[sympy.Expr, sympy.Expr]]:
    return [(n, s) for n, s in zip(extents, strides, strict=True) if n != 1]


def _positive(extents: Sequence[sympy.Expr], strides: Sequence[sympy.Expr]) -> tuple[list[sympy.Expr], list[sympy.Expr]]:
    """Both with a positive symbol for each max(1, n) in the strides, and for its n: the two differ only where n is 0,
    and where that is a size there are no elements to be apart."""
    symbols: dict[sympy.Expr, sympy.Expr] = {}
    for guarded in sorted({e for s in strides for e in sizes.guards(s, sizes.ONE)}, key=str):
        n = sizes.unguarded(guarded, sizes.ONE)
        symbols[guarded] = symbols[n] = sympy.Symbol(f"[{n}]", integer=True, positive=True)
    return [n.xreplace(symbols) for n in extents], [s.xreplace(symbols) for s in strides]


def _in_some_order(dims: Sequence[tuple[sympy.Expr, sympy.Expr]], span: sympy.Expr) -> bool:
    """Whether the (size, stride) pairs can be put in such an order, the first with a stride that `span` divides."""
    if not dims:
        return True
    for k, (n, s) in enumerate(dims):
        if _multiple(s, span) and _in_some_order([*dims[:k], *dims[k + 1 :]], sizes.expand(s * n)):
            return True
    return False


def _multiple(stride: sympy.Expr, span: sympy.Expr) -> bool:
    """stride = c·span for some c ≥ 1."""
    quotient = sizes.divide(sizes.expand(stride), span) if not sizes.has_division(stride + span) else None
    if quotient is None:
        return sizes.equal(stride, span)
    return bool(sizes.is_nonnegative(sizes.expand(quotient - 1)))
