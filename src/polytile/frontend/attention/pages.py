"""Reads keys and values in place that are gathered from the pages of a cache before attention.

    k = cache[table].flatten(1, 2).transpose(1, 2)           cache (pages, page, heads, d), table (batch, slots)
    k = cache[table].permute(0, 2, 1, 3, 4).reshape(…)       cache (pages, heads, page, d)
    k = cache[places].transpose(1, 2)                        cache (tokens, heads, d), places (batch, keys): pages of one row

`paged_attention(q, cache, cache, bias, table, scale, causal, fill, empty_is_0)` takes both caches as (pages, heads, page, d).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

from polytile.frontend.attention.operator import ATTENTION, new_result
from polytile.frontend.attention.views import COPIES, PERMUTE, RESHAPES, UNSQUEEZE, inserted, shape, source, value
from polytile.ir.attention import gathered

aten = torch.ops.aten
_library = torch.library.Library("polytile", "FRAGMENT")
_library.define(
    "paged_attention(Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor table, float? scale, str causal, float fill, "
    "bool empty_is_0) -> Tensor"
)

Label = tuple[str, ...]
"""The dimensions that make up one dimension of a view: "b", "s", and the cache's own, "1" and so on."""
INDEX_TYPES = (torch.int32, torch.int64)


@torch.library.register_fake("polytile::paged_attention", lib=_library)
def _fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> torch.Tensor:
    return new_result(q, v)


def _run(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, table: torch.Tensor,
    scale: float | None, causal: str, fill: float, empty_is_0: bool,
) -> torch.Tensor:  # fmt: skip
    """Runs the operator before a program exists."""
    result: torch.Tensor = ATTENTION(q, gathered(k, table), gathered(v, table), bias, scale, causal, fill, empty_is_0)
    return result


_library.impl("paged_attention", _run, "CompositeExplicitAutograd")
PAGED = torch.ops.polytile.paged_attention.default


@dataclass(frozen=True)
class Pages:
    """Keys or values: `cache` at `table`. `order` permutes the cache's dimensions to (pages, heads, page, d), where 0 stands for
    pages and None for a page of one row."""

    cache: torch.fx.Node
    table: torch.fx.Node
    order: tuple[int | None, ...]


def read_in_place(graph: torch.fx.Graph, attention: torch.fx.Node) -> bool:
    """Make an attention whose keys and values are gathered by the same table read them from the caches; returns whether it
    does."""
    q, k, v, bias, *rest = attention.args
    assert isinstance(k, torch.fx.Node) and isinstance(v, torch.fx.Node)
    origins = [pages_of(node) for node in (k, v)]
    keys, values = origins
    if keys is None or values is None or keys.table is not values.table:
        return False
    with graph.inserting_before(attention):
        caches = [_ordered(graph, each) for each in (keys, values)]
        paged = graph.call_function(PAGED, (q, *caches, bias, keys.table, *rest))
    paged.meta = dict(attention.meta)
    attention.replace_all_uses_with(paged)
    graph.erase_node(attention)
    return True


def _ordered(graph: torch.fx.Graph, pages: Pages) -> torch.fx.Node:
    """The cache as (pages, heads, page, d)."""
    node, order = pages.cache, pages.order
    steps: list[tuple[Any, tuple[Any, ...]]] = [(UNSQUEEZE, (1,))] if None in order else []
    if None in order:
        order = tuple(1 if d is None else d + 1 if d else 0 for d in order)
    for target, given in (*steps, (PERMUTE, (list(order),))):
        node = inserted(graph, target, node, *given)
    return node


def pages_of(node: torch.fx.Node) -> Pages | None:
    """What `node`, (batch, heads, keys, d), is gathered from; None if it is not."""
    path: list[torch.fx.Node] = []
    while node.op == "call_function" and node.target in (*RESHAPES, *COPIES, PERMUTE):
        path.append(node)
        node = source(node)
    if node.target != aten.index.Tensor:
        return None
    cache, indices = node.args
    table = indices[0] if isinstance(indices, Sequence) and len(indices) == 1 else None
    if not isinstance(cache, torch.fx.Node) or not isinstance(table, torch.fx.Node):
        return None
    if value(table).ndim != 2 or value(table).dtype not in INDEX_TYPES or value(cache).ndim not in (3, 4):
        return None
    names = ["b", "s", *(str(d) for d in range(1, value(cache).ndim))]
    labels: list[Label] = [(name,) for name in names]
    sizes = dict(zip(names, shape(node), strict=True))
    for view in reversed(path):
        if view.target == PERMUTE:
            order: Any = view.args[1]
            labels = [labels[d] for d in order]
        elif view.target in RESHAPES:
            merged = _merged(labels, sizes, shape(view))
            if merged is None:
                return None
            labels = merged
    if len(labels) != 4 or labels[0] != ("b",) or labels[2][:1] != ("s",) or len(labels[2]) != value(cache).ndim - 2:
        return None
    (heads, *more), (_, *page), (d, *others) = labels[1], labels[2], labels[3]
    if more or others or "s" in (heads, d):
        return None
    return Pages(cache, table, (0, int(heads), int(page[0]) if page else None, int(d)))


def _merged(labels: list[Label], sizes: dict[str, Any], wanted: Sequence[Any]) -> list[Label] | None:
    """The labels of a view of these sizes: each dimension is a run of earlier dimensions. None if it is not such a view."""
    runs: list[Label] = []
    rest = list(labels)
    for n in wanted:
        run: Label = ()
        product: Any = 1
        while rest and not (run and statically_known_true(product == n)):
            run += rest.pop(0)
            product = 1
            for each in run:
                product = product * sizes[each]
        if not run or not statically_known_true(product == n):
            return None
        runs.append(run)
    return None if rest else runs
