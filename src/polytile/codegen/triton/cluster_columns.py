"""The cluster schedule of columns, a block of them at a time: each program holds its share of the rows in registers,
and everything is read once.

The partial results are combined by fewer threads than hold the block, and return to all of them through scratch memory.
The compiler would instead convert the layout of the whole block, there and back through shared memory. 16-bit elements
are kept packed, two to a register.
"""

from __future__ import annotations

import sympy
import torch

from polytile.codegen.triton.body import ZERO, Scope
from polytile.codegen.triton.cluster import END, Cluster
from polytile.codegen.triton.kernel import Scratch, TritonKernel
from polytile.codegen.triton.reductions import Reduction
from polytile.codegen.triton.text import masked
from polytile.codegen.triton.unit import Unit
from polytile.schedule.facts import Facts
from polytile.schedule.gpu.scheduled import ScheduledLoop


def cluster_columns(loop: ScheduledLoop, facts: Facts, overlaps: bool) -> TritonKernel:
    """The launch of `loop` in which `splits` programs hold a block of columns together."""
    return ClusterColumns(loop, facts, overlaps).build()


class ClusterColumns(Cluster):
    """Builds the kernel."""

    def _begin_unit(self) -> Unit:
        unit = super()._begin_unit()
        (dim,) = unit.tile.reduced
        unit.body.recomputed = [f"first += {ZERO}", *unit.positions(dim, unit.block_at(dim, "first"), END)]
        return unit

    def _combine(self, unit: Unit, reductions: list[Reduction], scope: Scope) -> None:
        """Each program stores the results once more, for itself alone."""
        unit.fetch([root for k in range(self.nest.passes) for root in self.nest.roots_in(k)], scope)
        unit.flush(scope)
        inner, masks = scope.inner(), unit.tile.masks(unit.tile.parallel_dims)
        own = self._place(unit, "split")
        kept: list[tuple[str, str]] = []
        for reduction in reductions:
            reduction.finish(self._partial_results(unit, reduction, inner, before=False), inner)
            for name, dtype in reduction.results(scope):
                kept.append((name, self._own(unit, dtype)))
                inner.lines.append(f"tl.store({kept[-1][1]} + ({own}), {name}{masked(masks)})")
        unit.flush(inner)
        unit.out.line("tl.debug_barrier()")
        scope.lines += [f"{name} = {self._load(memory, own, masks, '0')}" for name, memory in kept]
        unit.flush(scope)

    def _own(self, unit: Unit, dtype: torch.dtype) -> str:
        """Scratch memory with one element per column and program."""
        self.memory.append(Scratch(dtype, sympy.expand(unit.rows * self.splits)))
        return unit.scratch(len(self.memory) - 1, dtype)
