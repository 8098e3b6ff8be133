"""Fuses siblings: loops over the same points that read the same memory read it once.

    loop a for p0 over r0      loop b for p0 over r0         loop b for p0 over r0
      m[p0] = sum x[p0, r0]      n[p0] = max x[p0, r0]   →     t = x[p0, r0];  m[p0] = sum t;  n[p0] = max t

Loops that compute the same expensive values are fused too, however few reads they share: a dropout and its gradient use the same
random numbers. Loops of one constant weight alone stay apart on a CPU, since the result of each is kept between calls
(compiler/computed_weights.py).
"""

from __future__ import annotations

from polytile.ir import expr, ops
from polytile.ir.buffer import Buffer
from polytile.ir.expr import Op
from polytile.ir.loop import Loop
from polytile.ir.program import Program
from polytile.passes.fusion import cost
from polytile.passes.fusion.greedy import Fuser, Proposal
from polytile.passes.fusion.merge import Merged

# Siblings are fused if that saves at least this share of the smaller one's traffic. Below it, the longer body costs more
# than it gains, and buffers live longer. Known wrong: at sizes so small that call overhead dominates, any fusion gains.
WORTHWHILE = 1 / 4
DEAR = 32.0
"""Cost, in multiply-adds, of shared computation that justifies a fusion by itself."""


def fuse_horizontally(program: Program) -> Program:
    """`program` with independent loops that share reads fused, in order of bytes saved."""
    return Fuser(program, _propose, _accept).run()


def _propose(fuser: Fuser, first: int, second: int) -> Proposal | None:
    a, b = fuser.facts[first], fuser.facts[second]
    if a.scatter or b.scatter or any(name in b.reads for name in a.writes):
        return None
    if a.reads.keys() == b.reads.keys() and len(a.reads) == 1 and _kept(fuser.program.buffers[next(iter(a.reads))]):
        return None
    saved = sum(min(a.reads[n], b.reads[n]) for n in a.reads if n in b.reads)
    if saved < WORTHWHILE * min(a.bytes, b.bytes) and not _expensive_operations(a.loop) & _expensive_operations(b.loop):
        return None
    return Proposal(first, second, saved, frozenset())


def _kept(weight: Buffer) -> bool:
    return weight.weight == "constant" and weight.device.type == "cpu"


def _accept(fuser: Fuser, proposal: Proposal, merged: Merged) -> bool:
    """Check the proposal on the fused loop: only loads of the same element and computations of the same value are saved."""
    a, b = fuser.facts[proposal.first], fuser.facts[proposal.second]
    saved = sum(min(a.reads[n], b.reads[n]) for n in merged.common)
    alike = cost.compute(*a.loop.roots) + cost.compute(*b.loop.roots) - cost.compute(*merged.loop.roots)
    return saved >= WORTHWHILE * min(a.bytes, b.bytes) or alike >= DEAR


def _expensive_operations(loop: Loop) -> frozenset[tuple[str, frozenset[str]]]:
    """The expensive operations of a loop, each with the buffers that it depends on."""
    return frozenset(
        (node.name, frozenset(load.buffer for load in expr.loads(node)))
        for node in expr.walk(*loop.roots)
        if isinstance(node, Op) and ops.definition(node.name).cost >= DEAR
    )
