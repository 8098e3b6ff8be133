"""Fuses producers into consumers: a loop reads what another stored from a register instead of memory.

    loop a for p0, p1        loop b for p0 over r0             loop b for p0 over r0
      t = exp x[p0, p1]        s = reduce sum buf[p0, r0]  →     t = exp x[p0, r0]
      buf[p0, p1] = t          out[p0] = s                       out[p0] = reduce sum t

The store of `buf` stays in the fused loop if anything else reads it. `merge.py` decides which loops may be fused.
"""

from __future__ import annotations

from polytile.ir.program import Program
from polytile.passes.fusion.greedy import Fuser, Proposal


def fuse_vertically(program: Program) -> Program:
    """`program` with every producer fused into a consumer where the two fit, in order of bytes saved."""
    return Fuser(program, _propose).run()


def _propose(fuser: Fuser, first: int, second: int) -> Proposal | None:
    a, b = fuser.facts[first], fuser.facts[second]
    passed = [name for name in a.writes if name in b.reads]
    if not passed or a.scatter:
        return None
    droppable = fuser.droppable(first, second)
    if b.scatter and (a.loop.reduced or b.loop.reduced or droppable != set(a.writes)):
        return None  # a scatter runs on fewer threads: fuse only cheap work that nothing else needs
    saved = sum(b.reads[n] for n in passed) + sum(a.writes[n] for n in droppable)
    saved += sum(min(a.reads[n], b.reads[n]) for n in a.reads if n in b.reads)
    return Proposal(first, second, saved, droppable)
