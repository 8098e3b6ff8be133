"""The schedule of sums down the columns of rows that a cluster of programs holds: each program has its share of the columns, of
every row that the cluster goes over, and keeps their sums. Everything is read once.

    launch 0   cluster c goes over rows c, c + clusters, ... and leaves its sums in scratch memory, a row of it for each sum
    launch 1   adds up these rows (sums.py)

Where a reduction is due, every program tells the others by their shared memory what its share comes to, and waits until it has
been told as much: nothing but that, so that loads of the next rows and stores of the last ones go on meanwhile. A barrier of the
cluster would wait for the stores. There are two boxes for what is told. A program that tells something for a later turn has been
told by all for the turn before it, so all have taken what stood in the same box before.
"""

from __future__ import annotations

import torch

from polytile.codegen.triton.body import Scope
from polytile.codegen.triton.cluster import POINTS, Cluster, clustered
from polytile.codegen.triton.kernel import Launch, TritonKernel
from polytile.codegen.triton.reductions import Reduction
from polytile.codegen.triton.sums import Sums, add, begin
from polytile.codegen.triton.unit import Unit
from polytile.ir import sizes
from polytile.problem import Config
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.facts import Facts
from polytile.schedule.nest import Nest

KINDS = ("sum", "prod", "max", "min")
TOLD = 16
"""Values that a program can tell at a time: what its boxes have room for."""


def clustered_sums(kernel: LoopKernel, nest: Nest, config: Config, facts: Facts, overlaps: bool) -> TritonKernel:
    """The launches of `kernel` under a config whose `splits` programs hold a row."""
    return ClusteredSums(kernel, nest, config, facts, overlaps).made()


def has_shares(nest: Nest) -> bool:
    """Whether programs can tell each other what their shares come to: single values of 32 bits."""
    told = all(r.kind in KINDS and r.dtype == torch.float32 for r in nest.reduces)
    return clustered(nest) and not nest.scans and told and len(nest.reduces) <= TOLD


class ClusteredSums(Sums):
    """A kernel in the making."""

    number, count = "(tl.program_id(0) // SPLITS)", "(tl.num_programs(0) // SPLITS)"

    def __init__(self, kernel: LoopKernel, nest: Nest, config: Config, facts: Facts, overlaps: bool) -> None:
        super().__init__(kernel, nest, config, facts, overlaps)
        self.cluster = Telling(kernel, nest, config, facts, overlaps)
        self.unit.constants["SPLITS"] = self.cluster.splits

    def _launch(self) -> Launch:
        splits = self.cluster.splits
        return self.unit.launch(grid=(self.programs * splits, sizes.ONE, sizes.ONE), cluster=splits)

    def _begin(self) -> None:
        self.cluster.share(self.unit, self.columns)
        begin(self.unit, self.sums)
        self.unit.out.extend(["pt_open()", "turn = 0"])

    def _block(self, scope: Scope) -> None:
        self.cluster.passes(self.unit, scope)
        add(self.unit, self.sums, scope)
        self.unit.flush(scope)


class Telling(Cluster):
    """How programs of a cluster hold rows, one at a time, and tell each other of them."""

    def _meet(self, unit: Unit, reductions: list[Reduction], scope: Scope) -> None:
        if not reductions:
            return
        parts = self._parts(reductions, scope)
        scope.lines += [f"pt_tell({part}, {number}, turn, split, SPLITS)" for number, part in enumerate(parts)]
        scope.lines.append(f"pt_hear({len(reductions)}, turn, SPLITS)")
        for number, reduction in enumerate(reductions):
            (told,) = reduction.running("told")
            scope.lines.append(f"{told} = pt_told(tl.arange(0, SPLITS), {number}, turn)")
            reduction.finish([told], scope)
        scope.lines.append("turn += 1")

    def _parts(self, reductions: list[Reduction], scope: Scope) -> list[str]:
        """Names of what the program's share comes to; of two sums at once, so that its warps wait for each other as for one."""
        parts = [name for reduction in reductions for name in reduction.running("part")]
        if [reduction.kind for reduction in reductions] == ["sum", "sum"]:
            values = ", ".join(value for reduction in reductions for value in reduction.values(scope))
            scope.lines.append(f"{', '.join(parts)} = tl.reduce(({values}), 0, pt_add_two)")
            return parts
        for part, reduction in zip(parts, reductions, strict=True):
            value = reduction.over_block(scope, POINTS)
            scope.lines.append(f"{part} = {value}")
        return parts


__all__ = ["clustered_sums", "has_shares"]
