"""Producer into consumer: a loop that reads what another stored reads it from a register instead.

    loop a for p0, p1        loop b for p0 over r0             loop b for p0 over r0
      t = exp x[p0, p1]        s = reduce sum buf[p0, r0]  →     t = exp x[p0, r0]
      buf[p0, p1] = t          out[p0] = s                       out[p0] = reduce sum t

The store of `buf` stays in the fused loop where somebody else reads it. What may fuse is in `merge.py`.
"""

from __future__ import annotations

from polytile.ir.program import Program
from polytile.passes.fusion.greedy import Fuser, Proposal


def fuse_vertically(program: Program) -> Program:
    """`program` with every producer fused into a consumer where the two fit, the pair that saves most bytes first."""
    return Fuser(program, _propose).run()


def _propose(fuser: Fuser, first: int, second: int) -> Proposal | None:
    a, b = fuser.facts[first], fuser.facts[second]
    passed = [name for name in a.writes if name in b.reads]
    if not passed or a.scatter:
        return None
    droppable = fuser.droppable(first, second)
    if b.scatter and (a.loop.reduced or b.loop.reduced or droppable != set(a.writes)):
        return None  # a scatter runs on fewer threads: only cheap work that it alone needs goes along
    saved = sum(b.reads[n] for n in passed) + sum(a.writes[n] for n in droppable)
    saved += sum(min(a.reads[n], b.reads[n]) for n in a.reads if n in b.reads)
    return Proposal(first, second, saved, droppable)
