"""Siblings side by side: loops over the same points that read the same memory read it once.

loop a for p0 over r0      loop b for p0 over r0         loop b for p0 over r0
  m[p0] = sum x[p0, r0]      n[p0] = max x[p0, r0]   →     t = x[p0, r0];  m[p0] = sum t;  n[p0] = max t

The same goes for loops that compute the same expensive values, however little they read in common: a dropout and its gradient use
the same random numbers.
"""

from __future__ import annotations

from polytile.ir import expr, ops
from polytile.ir.expr import Op
from polytile.ir.program import Loop, Program
from polytile.passes.fusion import cost
from polytile.passes.fusion.greedy import Fuser, Proposal
from polytile.passes.fusion.merge import Merged

# Siblings fuse if that saves at least this share of what the smaller one moves; below it the gain is lost in the
# longer body, and buffers live longer. Known wrong: at sizes so small that calls dominate, any fusion gains.
WORTHWHILE = 1 / 4
DEAR = 32.0
"""Multiply-adds of an operation, or of what two loops compute alike, from which on doing it once is worth a fusion."""


def fuse_horizontally(program: Program) -> Program:
    """`program` with independent loops that share reads fused, the pair that saves most bytes first."""
    return Fuser(program, _propose, _accept).run()


def _propose(fuser: Fuser, first: int, second: int) -> Proposal | None:
    a, b = fuser.facts[first], fuser.facts[second]
    if a.scatter or b.scatter or any(name in b.reads for name in a.writes):
        return None
    saved = sum(min(a.reads[n], b.reads[n]) for n in a.reads if n in b.reads)
    if saved < WORTHWHILE * min(a.bytes, b.bytes) and not _expensive_operations(a.loop) & _expensive_operations(b.loop):
        return None
    return Proposal(first, second, saved, frozenset())


def _accept(fuser: Fuser, proposal: Proposal, merged: Merged) -> bool:
    """Only loads of the same element are truly saved, and only computations of the same value."""
    a, b = fuser.facts[proposal.first], fuser.facts[proposal.second]
    saved = sum(min(a.reads[n], b.reads[n]) for n in merged.common)
    alike = cost.compute(*a.loop.roots) + cost.compute(*b.loop.roots) - cost.compute(*merged.loop.roots)
    return saved >= WORTHWHILE * min(a.bytes, b.bytes) or alike >= DEAR


def _expensive_operations(loop: Loop) -> frozenset[tuple[str, frozenset[str]]]:
    """The expensive operations of a loop, each with the buffers that it is computed from."""
    return frozenset(
        (node.name, frozenset(load.buffer for load in expr.loads(node)))
        for node in expr.walk(*loop.roots)
        if isinstance(node, Op) and ops.definition(node.name).cost >= DEAR
    )
