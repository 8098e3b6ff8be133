"""When in a loop a value can be computed: row or element level, and after how many reductions.

A loop with nested reductions runs in passes over its reduced axes. Pass d (from 0) can use what d reductions one
inside the other have given; row-level work that needs d reductions is done between pass d-1 and pass d. As one
number, the stage:

    element level, needs d reductions   stage 2d
    row level, needs d reductions       stage 2d - 1
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from polytile.ir import expr, sizes
from polytile.ir.expr import Const, Load, Node, Op, Reduce
from polytile.ir.program import Loop, depends_on_point, element_level


def depth(*roots: Node) -> int:
    """The longest chain of reductions, one inside the other, under `roots`."""
    depths: dict[int, int] = {}
    for node in expr.walk(*roots):
        inner = max((depths[id(c)] for c in node.children), default=0)
        depths[id(node)] = inner + (sweeps(node) if isinstance(node, Reduce) else 0)
    return max((depths[id(r)] for r in roots), default=0)


def sweeps(node: Reduce) -> int:
    """How often a reduction goes over its arguments: twice for welford, whose mean comes before its deviations."""
    return 2 if node.kind == "welford" else 1


@dataclass(frozen=True)
class Use:
    """Values that are needed at `stage`: a store's (`buffer` names its target) or a reduction's arguments (None)."""

    stage: int
    roots: tuple[Node, ...]
    buffer: str | None = None


def uses(loop: Loop) -> Iterator[Use]:
    """Everything the loop evaluates at its top: its stores, and the arguments of its reductions."""
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
    """The loads that are done for `use` itself: those outside any reduction under it."""
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
    """Why a buffer that the loop both reads and writes would be read after the loop has changed it; None if it is not.

    Legal is: every read is of the very element that the same point writes, at no later stage than the write, and the
    write is a plain one ("set", no indirect index). `aliases` maps written buffers to the buffers whose memory they
    would share.
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
    """Whether something at a point of a row needs a reduction of that row. The sum of a row's exponentials does not count: it is
    computed together with the maximum, without which they would overflow."""
    reductions = [n for n in expr.walk(*loop.roots) if isinstance(n, Reduce) and softmax_argument(n) is None]
    nested = any(isinstance(below, Reduce) for node in reductions for below in expr.walk(*node.args))
    return nested or any(element_level(loop, store) and depth(*store.roots) > 0 for store in loop.stores)


def softmax_argument(node: Node) -> Node | None:
    """x where `node` is sum(exp(x - max(x))) over the row, or the same with 0 in place of a greatest value that is infinite, as a
    logsumexp has it."""
    match node:
        case Reduce(kind="sum", args=(Op(name="exp", args=(Op(name="sub", args=(x, shift)),)),)):
            high = shift if isinstance(shift, Reduce) else _finite(shift)
            same = isinstance(high, Reduce) and high.kind == "max" and high.args[0] is x
            return x if same and x.dtype == node.dtype and x.dtype.is_floating_point else None
    return None


def _finite(node: Node) -> Node | None:
    """x where `node` is x, or 0 where |x| is infinite."""
    match node:
        case Op(name="where", args=(Op(name="eq", args=(Op(name="abs", args=(x,)), Const(value=limit))), Const(value=zero), y)):
            return x if x is y and limit == math.inf and zero == 0 else None
    return None
