"""Siblings side by side: loops over the same points that read the same memory read it once.

loop a for p0 over r0      loop b for p0 over r0         loop b for p0 over r0
  m[p0] = sum x[p0, r0]      n[p0] = max x[p0, r0]   →     t = x[p0, r0];  m[p0] = sum t;  n[p0] = max t
"""

from __future__ import annotations

from polytile.ir.program import Program
from polytile.passes.fusion.greedy import Fuser, Proposal
from polytile.passes.fusion.merge import Merged

# Siblings fuse if that saves at least this share of what the smaller one moves; below it the gain is lost in the
# longer body, and buffers live longer. Known wrong: at sizes so small that calls dominate, any fusion gains.
WORTHWHILE = 1 / 4


def fuse_horizontally(program: Program) -> Program:
    """`program` with independent loops that share reads fused, the pair that saves most bytes first."""
    return Fuser(program, _propose, _accept).run()


def _propose(fuser: Fuser, first: int, second: int) -> Proposal | None:
    a, b = fuser.facts[first], fuser.facts[second]
    if a.scatter or b.scatter or any(name in b.reads for name in a.writes):
        return None
    saved = sum(min(a.reads[n], b.reads[n]) for n in a.reads if n in b.reads)
    if saved < WORTHWHILE * min(a.bytes, b.bytes):
        return None
    return Proposal(first, second, saved, frozenset())


def _accept(fuser: Fuser, proposal: Proposal, merged: Merged) -> bool:
    """Only what both read at the same element is truly read once."""
    a, b = fuser.facts[proposal.first], fuser.facts[proposal.second]
    return sum(min(a.reads[n], b.reads[n]) for n in merged.common) >= WORTHWHILE * min(a.bytes, b.bytes)
