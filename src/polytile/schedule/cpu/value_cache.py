"""The value cache of a row: values that a pass computes at some cost and a later pass over the same row needs again.

Values are cached where the row's result will be stored, if that has room for them: the kernel writes that memory
anyway, and a row of any length fits. Otherwise they go to a scratch row.
"""

from __future__ import annotations

from collections.abc import Collection

from polytile.ir import ops, sizes
from polytile.ir.expr import Load, Node, Op, Part, Reduce
from polytile.ir.loop import Store
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.nest import Form, Nest

THRESHOLD = 8.0  # multiply-adds per lane from which a load from the cache is cheaper than recomputing


def cached_values(nest: Nest) -> dict[Node, int]:
    """Vector values of a row that two or more passes need and that cost at least THRESHOLD, mapped to the pass that
    makes each. Values cached already count as reads. Empty for a scan, whose passes run in order anyway."""
    if nest.form is not Form.ROW or nest.scans:
        return {}
    first_pass: dict[Node, int] = {}
    cached: dict[Node, int] = {}
    for k in range(nest.passes):
        earlier = [n for n, first in first_pass.items() if first < k and nest.is_vector(n) and work(n, cached) >= THRESHOLD]
        for node in nest.nodes_in(k, stop=earlier):
            if node in earlier:
                cached[node] = first_pass[node]
            first_pass.setdefault(node, k)
    return cached


def cache_stores(kernel: LoopKernel, nest: Nest) -> dict[Node, Store]:
    """For cached values, the stores of a later pass whose elements can hold them until then. Each store holds one value."""
    cached, chosen = cached_values(nest), dict[Node, Store]()
    for node, first in cached.items():
        last = max(k for k in range(first, nest.passes) if node in set(nest.nodes_in(k, stop=_before(cached, k))))
        stores = (s for k in range(max(last, first + 1), nest.passes) for s in nest.stores_in(k))
        free = [s for s in stores if s not in chosen.values() and _holds(kernel, nest, node, first, s)]
        if free:
            chosen[node] = free[0]
    return chosen


def _before(cached: dict[Node, int], k: int) -> list[Node]:
    """The values that pass k takes from the cache."""
    return [n for n, first in cached.items() if first < k]


def _holds(kernel: LoopKernel, nest: Nest, node: Node, first: int, store: Store) -> bool:
    """Whether the elements of `store` can hold `node` from pass `first` on. Nothing else may use that memory: no other
    store or load of the tensor. Since it may belong to an input that the loop's own points read until they write, no
    later load of the same place is allowed either."""
    plain = store.mode == "set" and not store.indirect and store.mask is None
    fits = node.dtype.is_floating_point and kernel.storage(store.buffer) == node.dtype
    if not plain or not fits or sizes.coefficient(store.index, nest.vec.symbol) != 1:
        return False
    if store.buffer in nest.loop.reads() or sum(s.buffer == store.buffer for s in nest.loop.stores) > 1:
        return False
    cached = cached_values(nest)
    later = [n for k in range(first + 1, nest.passes) for n in nest.nodes_in(k, stop=_before(cached, k))]
    loads = [n for n in later if isinstance(n, Load) and not cached.get(n, nest.passes) <= first]
    return not any(sizes.equal(load.index, store.index) for load in loads)


def work(root: Node, cached: Collection[Node] = ()) -> float:
    """Cost of computing a value from memory, without reductions, in multiply-adds per lane; values in `cached` are read
    from memory."""
    total, stack, seen = 0.0, [root], set()
    while stack:
        node = stack.pop()
        if id(node) in seen or isinstance(node, Reduce | Part):
            continue
        seen.add(id(node))
        if node is not root and node in cached:
            total += 1.0
            continue
        total += 1.0 if isinstance(node, Load) else ops.definition(node.name).cost if isinstance(node, Op) else 0.0
        stack.extend(node.children)
    return total
