"""Loop rewrites that only generation needs: reductions spelled in simpler ones."""

from __future__ import annotations

import torch

from polytile.ir import expr, sizes
from polytile.ir.expr import Node, Part, Reduce
from polytile.ir.program import Loop


def expand_welford(loop: Loop) -> Loop:
    """welford(x) → mean = sum(x) / n, then sum of (x - mean)²: two sweeps of a row that stays in cache, each one fully
    vectorised, and more accurate than the one-sweep recurrence."""
    count = sizes.product([a.size for a in loop.reduced])

    def rule(node: Node, children: tuple[Node, ...]) -> Node:
        if not (isinstance(node, Part) and isinstance(node.node, Reduce) and node.node.kind == "welford"):
            return expr.rebuild(node, children)
        x, dtype = children[0].children[0], node.dtype
        total = expr.reduce("sum", dtype, x)
        n = expr.index_value(count, torch.int64)
        mean = expr.op("div", dtype, total, expr.op("cast", dtype, n) if not isinstance(n, expr.Const) else expr.const(n.value, dtype))
        if node.k == 0:
            return mean
        centred = expr.op("sub", dtype, x, mean)
        return expr.reduce("sum", dtype, expr.op("mul", dtype, centred, centred))

    return loop.map_roots(lambda roots: expr.rewrite(roots, rule))
