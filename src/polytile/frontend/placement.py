"""Decides which values of a graph are stored, and in what layout.

A value that is not stored is recomputed by each of its users. Passes can undo a store: `inline_cheap` recomputes a cheap value
where it is read, and fusion puts producer and reader into one kernel. But no pass can undo a recomputation once two kernels
contain it. So costly values are stored here, and only those that are cheaper to compute than to read stay unstored.
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
from polytile.ir import divisions, expr, ops, sizes
from polytile.ir.buffer import View
from polytile.ir.template import Template

KEEP_COST = 8.0
"""Multiply-adds per element from which a value with several users is stored.

A store and a load of a float32 move 8 bytes. At the 10 GB/s or so that one core gets, that takes as long as about 8 multiply-adds
per lane. Known wrong: if everything stays in the L1 cache, recomputing loses from about 2 on, and fusion usually makes up for it.
"""

KEEP_LOADS = 2
"""Number of loads from which a value with several users is stored: each further user would read all operands again, where reading
the value takes one load.

An operand that is broadcast, such as a row's mean, is in a cache by then and does not count. A single load of a product is
enough, because the store becomes the product's epilogue, which reads nothing.
"""

LARGEST_VALUE = 96
"""Number of nodes from which any value is stored, so that kernels stay readable and quick to compile."""

MOST_COMPARED = 32
"""Maximum number of returned views of one value that are compared pairwise for overlap. With more, the base is stored without
asking."""


def place(builder: Builder, node: torch.fx.Node, value: Tensor, needed: bool, written: bool) -> Tensor:
    """The result of `node`, stored or not.

    It is stored if it is `needed` or large, or if it has several users and is costly, has many loads, or is returned anyway.
    `written` means that it is the new value of an overwritten input, whose traced strides are assumed not to overlap.
    """
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
        return False  # it is stored already, perhaps in a narrower dtype
    cost = sum(ops.definition(n.name).cost for n in nodes if isinstance(n, expr.Op))
    axes = {axis for axis, n in zip(value.axes, value.sizes, strict=True) if n != 1}
    loads = [n for n in nodes if isinstance(n, expr.Load) and (n.indirect or axes <= n.index.free_symbols)]
    if cost >= KEEP_COST or len(loads) >= KEEP_LOADS or any(user.op == "output" for user in node.users):
        return True
    products = {operation.out.buffer for operation in builder.operations if isinstance(operation, Template)}
    return any(load.buffer in products for load in loads)


def bases(graph: torch.fx.Graph, generated: Container[object]) -> set[torch.fx.Node]:
    """Nodes whose values are stored because views of them are wanted. A view of any other unstored value is computed on its own,
    without the rest of that value. `generated` holds the operators that have a lowering."""
    return _returned_bases(graph) | _library_bases(graph, generated) | _strided_bases(graph)


def _strided_bases(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Bases of views whose memory is looked at by as_strided, which may reach elements that the view does not have."""
    parts = [node.args[0] for node in graph.find_nodes(op="call_function", target=torch.ops.aten.as_strided.default)]
    return {base for part in parts if isinstance(part, torch.fx.Node) and (base := _base(part)) is not part}


def _returned_bases(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Bases of returned views that must stay views.

    Either the view has strides that only a view can have, such as every other column, or several views may share elements, so
    that a write to one shows in the other. Also bases of views that together have all elements: storing the base computes them
    once.
    """
    found, returned = set(), _Views()
    for output in tree_leaves([node.args[0] for node in graph.nodes if node.op == "output"]):
        if not isinstance(output, torch.fx.Node) or not isinstance(output.meta.get("val"), torch.Tensor):
            continue
        if not _apart_but_repeated(output.meta["val"]):
            found.add(_base(output))
        returned.add(output)
    return found | returned.covered() | returned.shared()


def _library_bases(graph: torch.fx.Graph, generated: Container[object]) -> set[torch.fx.Node]:
    """Bases of views that library calls read and that together have at least as many elements as the base.

    Storing the base takes one kernel, or none as a product's epilogue, where the views would take one each. Typical are the
    queries, keys and values of attention.
    """
    wanted = _Views()
    for node in graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem and node.target not in generated:
            for given in node.all_input_nodes:
                wanted.add(given)
    return wanted.covered()


SCATTERS = {
    torch.ops.aten.slice_scatter.default, torch.ops.aten.select_scatter.default, torch.ops.aten.diagonal_scatter.default,
}  # fmt: skip


def partly_written(graph: torch.fx.Graph, changed: Container[str]) -> set[torch.fx.Node]:
    """The new values of inputs that are partly overwritten.

    They are traced with the input's own strides, which are assumed not to overlap although nothing proves it: torch does not
    define writes to tensors whose elements overlap.
    """
    parts: set[torch.fx.Node] = {n for n in graph.nodes if n.op == "placeholder" and n.name in changed}
    for node in graph.nodes:
        whole = node.args[0] if node.args else None
        if whole in parts and (node.target in SCATTERS or (is_view(node.target) and node.target not in _ANYWHERE)):
            parts.add(node)
    return {node for node in parts if node.target in SCATTERS}


_ANYWHERE = {torch.ops.aten.as_strided.default, torch.ops.aten.expand.default}


class _Views:
    """Views, grouped by their base."""

    def __init__(self) -> None:
        self.views: dict[torch.fx.Node, dict[torch.fx.Node, torch.Tensor]] = {}

    def add(self, node: torch.fx.Node) -> None:
        base = _base(node)
        if base is not node and isinstance(base.meta.get("val"), torch.Tensor):
            self.views.setdefault(base, {})[node] = node.meta["val"]

    def covered(self) -> set[torch.fx.Node]:
        """Bases with several views that together have at least as many elements."""
        return {base for base, views in self._several() if _covered(base.meta["val"], views)}

    def shared(self) -> set[torch.fx.Node]:
        """Bases with several views of which two may share elements, or with too many to compare."""
        return {base for base, views in self._several() if len(views) > MOST_COMPARED or not _all_disjoint(views)}

    def _several(self) -> list[tuple[torch.fx.Node, list[torch.Tensor]]]:
        return [(base, list(views.values())) for base, views in self.views.items() if len(views) > 1]


def _covered(base: torch.Tensor, views: Sequence[torch.Tensor]) -> bool:
    """Whether the views provably have as many elements in total as their base."""
    rest = sum(map(_elements, views), sizes.ZERO) - _elements(base)
    return bool(sizes.is_nonnegative(sizes.expand(rest)))


def _all_disjoint(views: Sequence[torch.Tensor]) -> bool:
    return all(starmap(_disjoint, combinations(views, 2)))


def _disjoint(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two views of one tensor provably share no element."""
    if a.dtype != b.dtype:  # their offsets count in different units
        return False
    gap = sizes.as_size(b.storage_offset()) - sizes.as_size(a.storage_offset())
    runs = [None, *(s for s in map(sizes.as_stride, a.stride()) if s != 0)]
    return any(_behind(a, b, gap, every) or _behind(b, a, -gap, every) for every in runs)


def _behind(a: torch.Tensor, b: torch.Tensor, gap: sympy.Expr, every: sympy.Expr | None) -> bool:
    """Whether `b`, which starts `gap` elements after `a`, lies after `a` within each run of `every` elements, as disjoint columns
    of the same rows do. None means a single run of all elements."""
    if every is None:
        return sizes.is_nonnegative(sizes.expand(gap - _reach(a) - 1))
    gap = gap % every if gap.is_Integer and every.is_Integer else divisions.split_by(gap, every)[1]
    room = every - gap - _reach(b, every)
    return all(sizes.is_nonnegative(sizes.expand(e - 1)) for e in (gap - _reach(a, every), room))


def _reach(tensor: torch.Tensor, every: sympy.Expr | None = None) -> sympy.Expr:
    """Distance from the first to the last element within a run of `every`."""
    dims = zip((sizes.unguarded(sizes.as_size(n)) for n in tensor.shape), map(sizes.as_stride, tensor.stride()), strict=True)
    return sum(((n - 1) * s for n, s in dims if every is None or not _multiple(s, every)), sizes.ZERO)


def _elements(tensor: torch.Tensor) -> sympy.Expr:
    return sympy.Mul(*(sizes.as_size(n) for n in tensor.shape))


def _base(node: torch.fx.Node) -> torch.fx.Node:
    """The base at the end of a chain of views; the node itself if it is not a view."""
    while (is_view(node.target) or node.target is operator.getitem) and isinstance(node.args[0], torch.fx.Node):
        if node.target is operator.getitem and not is_view(node.args[0].target):
            break
        node = node.args[0]
    return node


def is_view(target: object) -> bool:
    """Whether an operator's result is a view of its first argument, according to its schema."""
    schema = getattr(target, "_schema", None)
    return schema is not None and len(schema.returns) == 1 and schema.returns[0].alias_info is not None


def laid_out(builder: Builder, value: Tensor, fake: torch.Tensor, distinct: bool = False) -> Tensor:
    """`value`, stored with the traced strides, or row-major if `fits` says that this is impossible. Along a dimension of stride
    0, only one element is stored."""
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
    """The `result` of an operator that was traced as `fake`. If an unstored image was traced in channels-last layout, it will be
    stored that way."""
    if isinstance(result, tuple) and isinstance(fake, tuple | list):
        return tuple(map(advised, result, fake))
    if not isinstance(result, Tensor) or result.node is None or not isinstance(fake, torch.Tensor) or result.rank != 4:
        return result
    wanted = sizes.channels_last_strides(result.sizes)
    alike = all(sizes.equal(sizes.as_stride(a), b) for a, b in zip(fake.stride(), wanted, strict=True))
    return replace(result, layout=wanted) if alike else result


def fits(value: Tensor, node: torch.fx.Node) -> bool:
    """Whether `laid_out` can give the value of `node` its traced strides: it has them already, or they do not overlap."""
    fake = node.meta["val"]
    strides = tuple(sizes.as_stride(s) for s in fake.stride())
    return (value.view is not None and _same_strides(value, strides)) or is_new(node) or _apart_but_repeated(fake)


_STRIDED = {torch.ops.aten.empty_strided.default, torch.ops.aten.new_empty_strided.default}


def is_new(node: torch.fx.Node) -> bool:
    """Whether the result of `node` is fresh memory, whose strides do not overlap even if that cannot be proved: operators return
    no others. Sizes such as (s // 4) * (s // (s // 4)) with strides in s prove nothing."""
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
    """Dimensions of stride 0, except those of size 0 or 1: an empty dimension has no first element to store."""
    return [d for d, s in enumerate(strides) if s == 0 and extents[d] not in (0, 1)]


def _same_strides(value: Tensor, strides: Sequence[sympy.Expr]) -> bool:
    assert value.view is not None
    return all(n == 1 or sizes.equal(a, b) for n, a, b in zip(value.sizes, value.view.strides, strides, strict=True))


def _first_along(value: Tensor, dims: Sequence[int]) -> Tensor:
    """`value` with only the first element along `dims`, kept as dimensions of size 1."""
    extents = [sizes.ONE if d in dims else n for d, n in enumerate(value.sizes)]

    def at(point: Point) -> expr.Node:
        return value.at([sizes.ZERO if d in dims else p for d, p in enumerate(point)])

    return computed(extents, value.dtype, value.device, at)


def _strides_for(extents: Sequence[sympy.Expr], strides: Sequence[sympy.Expr]) -> tuple[sympy.Expr, ...]:
    """The traced strides if elements do not overlap, else row-major ones."""
    if not apart(extents, strides):
        return sizes.contiguous_strides(extents)
    return tuple(sizes.as_stride(s) for s in strides)


def apart(extents: Sequence[sympy.Expr], strides: Sequence[sympy.Expr]) -> bool:
    """Whether strides provably keep all elements apart: in some order of the dimensions, each stride is a multiple of the span of
    those before it. Sizes max(0, n) count as n, since there are no elements otherwise."""
    if any(n == 0 for n in extents):
        return True
    extents = [sizes.unguarded(n) for n in extents]
    plain = [sizes.as_stride(s) for s in strides]
    return _in_some_order(_dims(extents, plain), sizes.ONE) or _in_some_order(_dims(*_positive(extents, strides)), sizes.ONE)


def _dims(extents: Sequence[sympy.Expr], strides: Sequence[sympy.Expr]) -> list[tuple[sympy.Expr, sympy.Expr]]:
    return [(n, s) for n, s in zip(extents, strides, strict=True) if n != 1]


def _positive(extents: Sequence[sympy.Expr], strides: Sequence[sympy.Expr]) -> tuple[list[sympy.Expr], list[sympy.Expr]]:
    """Both with a positive symbol for each max(1, n) in the strides, and for its n. The two differ only if n is 0, and then a
    tensor of that size has no elements."""
    symbols: dict[sympy.Expr, sympy.Expr] = {}
    for guarded in sorted({e for s in strides for e in sizes.guards(s, sizes.ONE)}, key=str):
        n = sizes.unguarded(guarded, sizes.ONE)
        symbols[guarded] = symbols[n] = sympy.Symbol(f"[{n}]", integer=True, positive=True)
    return [n.xreplace(symbols) for n in extents], [s.xreplace(symbols) for s in strides]


def _in_some_order(dims: Sequence[tuple[sympy.Expr, sympy.Expr]], span: sympy.Expr) -> bool:
    """Whether the (size, stride) pairs can be put in such an order, starting with a stride that is a multiple of `span`."""
    if not dims:
        return True
    for k, (n, s) in enumerate(dims):
        if _multiple(s, span) and _in_some_order([*dims[:k], *dims[k + 1 :]], sizes.expand(s * n)):
            return True
    return False


def _multiple(stride: sympy.Expr, span: sympy.Expr) -> bool:
    """Whether stride = c·span for some c ≥ 1."""
    quotient = sizes.divide(sizes.expand(stride), span) if not sizes.has_division(stride + span) else None
    if quotient is None:
        return sizes.equal(stride, span)
    return bool(sizes.is_nonnegative(sizes.expand(quotient - 1)))
