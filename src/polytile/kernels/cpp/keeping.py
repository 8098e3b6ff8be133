"""Values worth keeping: what a pass computes at some cost and a later pass over the same row needs again."""

from __future__ import annotations

from polytile.ir import ops
from polytile.ir.expr import Load, Node, Op, Part, Reduce
from polytile.kernels.nest import Form, Nest

THRESHOLD = 8.0  # multiply-adds a lane: from here on a load from the cache is cheaper than computing again


def kept_values(nest: Nest) -> dict[Node, int]:
    """Vector values of a row that two or more passes need and that cost at least THRESHOLD, with the pass that makes each.
    None under a scan, whose passes run in order anyway."""
    if nest.form is not Form.ROW or nest.scans:
        return {}
    made: dict[Node, int] = {}
    kept: dict[Node, int] = {}
    for k in range(nest.passes):
        earlier = [n for n, first in made.items() if first < k and nest.is_vector(n) and work(n) >= THRESHOLD]
        for node in nest.nodes_in(k, stop=earlier):
            if node in earlier:
                kept[node] = made[node]
            made.setdefault(node, k)
    return kept


def work(root: Node) -> float:
    """Cost of computing a value from memory, reductions aside, in multiply-adds a lane."""
    total, stack, seen = 0.0, [root], set()
    while stack:
        node = stack.pop()
        if id(node) in seen or isinstance(node, Reduce | Part):
            continue
        seen.add(id(node))
        total += 1.0 if isinstance(node, Load) else ops.definition(node.name).cost if isinstance(node, Op) else 0.0
        stack.extend(node.children)
    return total
