"""When in a loop a value can be computed: at row or element level, and after how many reductions.

A loop with nested reductions makes several passes over its reduced axes. Pass d (counted from 0) can use the results of d nested
reductions. Row-level work that needs d reductions runs between pass d-1 and pass d. Numbered as stages:

    element level, needs d reductions   stage 2d
    row level, needs d reductions       stage 2d - 1
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from polytile.ir import expr, sizes
from polytile.ir.expr import Const, Load, Node, Op, Reduce
from polytile.ir.loop import Loop, depends_on_point, element_level


def depth(*roots: Node) -> int:
    """Length of the longest chain of nested reductions under `roots`."""
    depths: dict[int, int] = {}
    for node in expr.walk(*roots):
        inner = max((depths[id(c)] for c in node.children), default=0)
        depths[id(node)] = inner + (sweeps(node) if isinstance(node, Reduce) else 0)
    return max((depths[id(r)] for r in roots), default=0)


def sweeps(node: Reduce) -> int:
    """How many passes a reduction makes over its arguments: two for welford, which needs the mean before the deviations."""
    return 2 if node.kind == "welford" else 1


@dataclass(frozen=True)
class Use:
    """Values that are needed at `stage`: those of a store to `buffer`, or the arguments of a reduction (None)."""

    stage: int
    roots: tuple[Node, ...]
    buffer: str | None = None


def uses(loop: Loop) -> Iterator[Use]:
    """Everything that the loop evaluates at its top: its stores, and the arguments of its reductions."""
    reduced = {a.symbol for a in loop.reduced}
    for store in loop.stores:
        stage = 2 * depth(*store.roots)
        yield Use(stage if element_level(loop, store) else stage - 1, store.roots, store.buffer)
    for node in expr.walk(*loop.roots):
        if isinstance(node, Reduce):
            varies = any(depends_on_point(a, reduced) for a in node.args)
            for sweep in range(sweeps(node)):
                yield Use(2 * (depth(*node.args) + sweep) if varies or reduced else 0, node.args)


def loads_of(use: Use) -> set[Load]:
    """The loads for `use` itself: those that are not inside a reduction under it."""
    loads: set[Load] = set()
    stack, seen = list(use.roots), set()
    while stack:
        node = stack.pop()
        if id(node) in seen or isinstance(node, Reduce):
            continue
        seen.add(id(node))
        if isinstance(node, Load):
            loads.add(node)
        stack.extend(node.children)
    return loads


def in_place_fault(loop: Loop, aliases: dict[str, str] | None = None) -> str | None:
    """Why a buffer that the loop reads and writes would be read after it has changed; None if it would not.

    It is legal to read exactly the element that the same point writes, no later than the stage of the write, if the write is
    plain ("set", without an indirect index). `aliases` maps written buffers to the buffers whose memory they would share.
    """
    aliases = aliases or {}
    all_uses = list(uses(loop))
    loads = [(use, load) for use in all_uses for load in loads_of(use)]
    for store, use in zip(loop.stores, all_uses, strict=False):
        memory = aliases.get(store.buffer, store.buffer)
        for other, load in loads:
            if load.buffer not in (memory, store.buffer):
                continue
            if store.mode != "set" or store.indirect or load.indirect or not sizes.equal(load.index, store.index):
                return f"reads {load.buffer}[{load.index}] and writes {store.buffer}[{store.index}] in the same memory"
            if other.stage > use.stage:
                return f"reads {load.buffer}[{load.index}] again after it wrote {store.buffer}[{store.index}]"
    return None


def waits(loop: Loop) -> bool:
    """Whether some value at a point of a row depends on a reduction of that row.

    The sum of a softmax does not count: it is computed together with the maximum that keeps it from overflowing.
    """
    reductions = [n for n in expr.walk(*loop.roots) if isinstance(n, Reduce) and softmax_argument(n) is None]
    nested = any(isinstance(below, Reduce) for node in reductions for below in expr.walk(*node.args))
    return nested or any(element_level(loop, store) and depth(*store.roots) > 0 for store in loop.stores)


def softmax_argument(node: Node) -> Node | None:
    """x if `node` is sum(exp(x - max(x))) over the row. As in logsumexp, an infinite maximum may be replaced by 0."""
    match node:
        case Reduce(kind="sum", args=(Op(name="exp", args=(Op(name="sub", args=(x, shift)),)),)):
            high = shift if isinstance(shift, Reduce) else _finite(shift)
            same = isinstance(high, Reduce) and high.kind == "max" and high.args[0] is x
            return x if same and x.dtype == node.dtype and x.dtype.is_floating_point else None
    return None


def _finite(node: Node) -> Node | None:
    """x if `node` is x with infinities replaced by 0, else None."""
    match node:
        case Op(name="where", args=(Op(name="eq", args=(Op(name="abs", args=(x,)), Const(value=limit))), Const(value=zero), y)):
            return x if x is y and limit == math.inf and zero == 0 else None
    return None
