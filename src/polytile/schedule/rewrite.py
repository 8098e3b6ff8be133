"""Rewrites reductions and scans into those that are generated: values of the result's dtype, no bool, no welford.

sum(x) of type T      →  sum(cast(x, T))
any(x), all(x)        →  cast(any(x ≠ 0), T)
max(x), min(x)        →  any(x), all(x)                       for bool x
argmax(x, i)          →  argmax(cast(x, uint8), i)            for bool x; scans likewise
welford(x)            →  mean = sum(x) / n, sum((x - mean)²)

and, where a row should be read as seldom as possible

max(x), sum(exp(x - max(x)))  →  online_softmax(x)       also with 0 for an infinite maximum
"""

from __future__ import annotations

import math

import torch

from polytile.ir import expr, sizes
from polytile.ir.expr import Const, Node, Part, Reduce, Scan
from polytile.ir.levels import softmax_argument
from polytile.ir.loop import Loop

OF_BOOL = {"max": "any", "min": "all"}


def plain_reductions(loop: Loop, welford: bool = True) -> Loop:
    """`loop` without the reductions that generated code lacks. With `welford` false, welford reductions stay."""
    count = sizes.product([a.size for a in loop.reduced])

    def rule(node: Node, children: tuple[Node, ...]) -> Node:
        match node:
            case Part(node=Reduce(kind="welford")) if welford:
                return _deviations(children[0], node, expr.index_value(count, torch.int64))
            case Part():
                rebuilt = expr.rebuild(node, children)
                own = children[0].children[0].dtype if node.k == 0 else node.dtype
                return _cast(expr.part(children[0], node.k, own), node.dtype) if own != node.dtype else rebuilt
            case Reduce(kind="welford"):
                return expr.reduce(node.kind, node.dtype, _cast(children[0], node.dtype))
            case Reduce():
                return _reduce(node, children)
            case Scan():
                return _scan(node, children)
        return expr.rebuild(node, children)

    return loop.map_roots(lambda roots: expr.rewrite(roots, rule))


def one_sweep(loop: Loop) -> Loop:
    """`loop` with a row's maximum, and the sum of exponentials relative to it, computed in one pass over the row."""

    def rule(node: Node, children: tuple[Node, ...]) -> Node:
        node = expr.rebuild(node, children)
        value = softmax_argument(node)
        if value is None:
            return node
        both = expr.reduce("online_softmax", node.dtype, value)
        total = expr.part(both, 1, node.dtype)
        if isinstance(node.children[0].children[0].children[1], Reduce):
            return total
        endless = expr.const(math.inf, node.dtype)  # for an infinite maximum, a logsumexp takes exponentials as they are
        return expr.op("where", node.dtype, expr.op("eq", torch.bool, expr.part(both, 0, node.dtype), endless), endless, total)

    loop = loop.map_roots(lambda roots: expr.rewrite(roots, rule))
    sweeps = {n.args[0]: n for n in expr.walk(*loop.roots) if isinstance(n, Reduce) and n.kind == "online_softmax"}

    def greatest(node: Node, children: tuple[Node, ...]) -> Node:
        node = expr.rebuild(node, children)
        if isinstance(node, Reduce) and node.kind == "max" and node.args[0] in sweeps:
            return expr.part(sweeps[node.args[0]], 0, node.dtype)
        return node

    return loop.map_roots(lambda roots: expr.rewrite(roots, greatest)) if sweeps else loop


def _reduce(node: Reduce, args: tuple[Node, ...]) -> Node:
    value, rest = args[0], args[1:]
    if rest:
        value = _cast(value, torch.uint8) if value.dtype == torch.bool else value
        return expr.reduce(node.kind, value.dtype, value, *rest)
    if value.dtype == torch.bool == node.dtype and node.kind in OF_BOOL:
        return expr.reduce(OF_BOOL[node.kind], torch.bool, value)
    if node.kind in ("any", "all"):
        return _cast(expr.reduce(node.kind, torch.bool, _cast(value, torch.bool)), node.dtype)
    if node.dtype == torch.bool:  # a bool sum or product has a bool result too
        return _cast(_reduce_as(node.kind, torch.uint8 if node.kind == "prod" else torch.int64, value), torch.bool)
    return _reduce_as(node.kind, node.dtype, value)


def _reduce_as(kind: str, dtype: torch.dtype, value: Node) -> Node:
    return expr.reduce(kind, dtype, _cast(value, dtype))


def _scan(node: Scan, args: tuple[Node, ...]) -> Node:
    if len(args) == 1:
        return expr.scan(node.kind, node.dtype, _cast(args[0], node.dtype))
    value = _cast(args[0], torch.uint8) if args[0].dtype == torch.bool else args[0]
    return expr.scan(node.kind, value.dtype, value, args[1])


def _deviations(reduce: Node, part: Part, count: Node) -> Node:
    """Two fully vectorised sweeps of a row that stays in cache, which are more accurate than the one-sweep recurrence."""
    dtype, x = part.dtype, reduce.children[0]
    x = _cast(x, dtype)
    n = expr.const(count.value, dtype) if isinstance(count, Const) else _cast(count, dtype)
    mean = expr.op("div", dtype, expr.reduce("sum", dtype, x), n)
    if part.k == 0:
        return mean
    centred = expr.op("sub", dtype, x, mean)
    return expr.reduce("sum", dtype, expr.op("mul", dtype, centred, centred))


def _cast(node: Node, dtype: torch.dtype) -> Node:
    return node if node.dtype == dtype else expr.op("cast", dtype, node)
