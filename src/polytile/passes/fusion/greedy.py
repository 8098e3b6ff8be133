"""Greedy fusion: fuses the pair of loops that saves the most memory traffic, until no pair is left.

The order is deterministic: bytes saved, then position in the program. A pair that does not fit is not tried again. A fused loop
forms new pairs.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import sympy

from polytile.ir import sizes
from polytile.ir.loop import Loop
from polytile.ir.program import Program
from polytile.passes.fusion import cost
from polytile.passes.fusion.graph import Graph
from polytile.passes.fusion.merge import Merged, Unfit, merge

log = logging.getLogger("polytile.fusion")
NEAREST = 8  # users of a shared buffer, before and after a loop, to pair it with


@dataclass(frozen=True)
class Facts:
    """A loop's memory traffic in bytes per buffer, and its numbers of points and rows as expanded polynomials."""

    loop: Loop
    reads: dict[str, int]
    writes: dict[str, int]
    points: sympy.Expr
    rows: sympy.Expr
    scatter: bool

    @property
    def bytes(self) -> int:
        return sum(self.reads.values()) + sum(self.writes.values())


@dataclass(frozen=True)
class Proposal:
    """Two loops to fuse, `first` before `second`, the bytes that this would save, and the stores that become unnecessary
    (`droppable`)."""

    first: int
    second: int
    saved: int
    droppable: frozenset[str]


Propose = Callable[["Fuser", int, int], Proposal | None]
Accept = Callable[["Fuser", Proposal, Merged], bool]


class Fuser:
    """The state of one greedy pass over a program."""

    def __init__(self, program: Program, propose: Propose, accept: Accept = lambda *_: True) -> None:
        self.program = program
        self.propose, self.accept = propose, accept
        self.graph = Graph(program)
        self.facts: dict[int, Facts] = {}
        self.users: dict[str, set[int]] = {}
        self.writers: dict[str, set[int]] = {}
        self.readers: dict[str, set[int]] = {}
        self.observed = program.observed_buffers()
        for i, operation in self.graph.operations.items():
            for name in operation.reads():
                self.readers.setdefault(name, set()).add(i)
            for name in operation.writes():
                self.writers.setdefault(name, set()).add(i)
            if isinstance(operation, Loop):
                self.facts[i] = self._facts(operation)
        self.heap: list[tuple[int, int, int, int, Proposal]] = []
        self.pushed = 0

    def run(self) -> Program:
        for i in list(self.facts):
            self._push_all(i, [j for j in self._neighbours(i) if j > i])
        while self.heap:
            *_, proposal = heapq.heappop(self.heap)
            now = self._proposal(proposal.first, proposal.second)
            if now == proposal:
                self._try(proposal)
            elif now is not None:  # other fusions have changed the savings
                self._push(now)
        return replace(self.program, operations=self.graph.in_order())

    def droppable(self, first: int, second: int) -> frozenset[str]:
        """Buffers that `first` writes and that only these two loops use."""
        both = {first, second}
        return frozenset(
            name
            for name in self.facts[first].writes
            if name in self.facts[second].reads
            and name not in self.observed
            and self.readers.get(name, set()) <= both
            and self.writers[name] <= {first}
        )

    def _facts(self, loop: Loop) -> Facts:
        reads, writes = cost.traffic(loop, self.program.buffers)
        rows = sizes.expand(sizes.product([a.size for a in loop.axes]))
        points = sizes.expand(rows * sizes.product([a.size for a in loop.reduced]))
        scatter = any(s.mode != "set" or s.indirect for s in loop.stores)
        return Facts(loop, reads, writes, points, rows, scatter)

    def _neighbours(self, i: int) -> list[int]:
        """Loops that share a buffer with loop i. Only the nearest ones are returned if a buffer has many users."""
        neighbours: set[int] = set()
        facts = self.facts[i]
        for name in [*facts.reads, *facts.writes]:
            sharing = (self.readers.get(name, set()) | self.writers.get(name, set())) & self.facts.keys()
            neighbours.update(sorted(sharing - {i}, key=lambda j: (abs(j - i), j))[: 2 * NEAREST])
        return sorted(neighbours)

    def _push_all(self, i: int, others: list[int]) -> None:
        for j in others:
            proposal = self._proposal(min(i, j), max(i, j))
            if proposal is not None:
                self._push(proposal)

    def _push(self, proposal: Proposal) -> None:
        self.pushed += 1  # breaks ties: the same pair may be proposed twice
        heapq.heappush(self.heap, (-proposal.saved, proposal.first, proposal.second, self.pushed, proposal))

    def _proposal(self, i: int, j: int) -> Proposal | None:
        """The current proposal for fusing loops i and j; None if one is gone, a dependency separates them, or they clearly do not
        fit."""
        if i not in self.facts or j not in self.facts or not _may_fit(self.facts[i], self.facts[j]):
            return None
        order = self.graph.ordered(i, j)
        return self.propose(self, *order) if order is not None else None

    def _try(self, proposal: Proposal) -> None:
        first, second = self.facts[proposal.first].loop, self.facts[proposal.second].loop
        try:
            merged = merge(first, second, self.program.buffers, proposal.droppable)
        except Unfit as reason:
            log.debug("%s + %s: %s", first.name, second.name, reason)
            return
        if not self.accept(self, proposal, merged):
            return
        log.debug("%s + %s: fused, %d bytes saved", first.name, second.name, proposal.saved)
        self._replace(proposal, merged.loop)

    def _replace(self, proposal: Proposal, loop: Loop) -> None:
        old = {proposal.first, proposal.second}
        new = self.graph.merge(proposal.first, proposal.second, loop)
        touched = {name for i in old for facts in [self.facts.pop(i)] for name in (*facts.reads, *facts.writes)}
        self.facts[new] = facts = self._facts(loop)
        for table, names in ((self.readers, facts.reads), (self.writers, facts.writes)):
            for name in touched:
                table.get(name, set()).difference_update(old)
            for name in names:
                table.setdefault(name, set()).add(new)
        self._push_all(new, self._neighbours(new))


def _may_fit(a: Facts, b: Facts) -> bool:
    """A quick test on the numbers of points, before any index is compared."""
    if bool(a.loop.reduced) == bool(b.loop.reduced):
        return bool(a.points == b.points and a.rows == b.rows)
    large, small = (a, b) if a.loop.reduced else (b, a)
    return bool(small.points == large.points or small.points == large.rows)
