"""The schedule of columns that a cluster of programs holds, a block of them at a time: each program has its share of the rows in
registers, and everything is read once.

What the programs leave is put together by fewer threads than hold the block, and brought back to all of them by way of scratch
memory: the compiler would lay out the whole block anew instead, there and back through shared memory. Elements of 16 bits are
held as they are, two to a register.
"""

from __future__ import annotations

from dataclasses import replace

import sympy
import torch

from polytile.kernels.canonical import LoopKernel
from polytile.kernels.facts import Facts
from polytile.kernels.nest import Nest
from polytile.kernels.triton.cluster import Cluster
from polytile.kernels.triton.kernel import Launch, Scratch, TritonKernel
from polytile.kernels.triton.reductions import Reduction
from polytile.kernels.triton.split import masked
from polytile.kernels.triton.unit import Unit
from polytile.problem import Config

REGISTERS = 1 << 16
"""Of a multiprocessor."""


def columns_cluster(kernel: LoopKernel, nest: Nest, config: Config, facts: Facts, overlaps: bool) -> TritonKernel:
    """The launch of `kernel` under a config whose `splits` programs hold a block of columns."""
    return Columns(kernel, nest, config, facts, overlaps).made()


def registers(config: Config) -> int:
    """Registers that a thread may have where a multiprocessor is to hold `resident` programs."""
    return REGISTERS // (32 * int(config["warps"]) * int(config["resident"])) // 8 * 8


class Columns(Cluster):
    """A kernel in the making."""

    def _begun(self) -> Unit:
        unit = super()._begun()
        unit.body.forgets = True
        return unit

    def _launch(self, unit: Unit, clusters: sympy.Expr) -> Launch:
        return replace(super()._launch(unit, clusters), own=(("maxnreg", registers(self.config)),))

    def _together(self, unit: Unit, reductions: list[Reduction]) -> None:
        """Every program leaves the results once more, for itself alone. Positions are computed anew, or they would take registers
        until they are needed again: a program's number along the third axis is 0, which the compiler does not know."""
        unit.fetch([root for k in range(self.nest.passes) for root in self.nest.roots_in(k)], unit.scope)
        unit.flush(unit.scope)
        inner, masks = unit.scope.inner(), unit.tile.masks(unit.tile.parallel_dims)
        own = self._place(unit, "split")
        kept: list[tuple[str, str]] = []
        for reduction in reductions:
            reduction.finish(self._left(unit, reduction, inner, before=False), inner)
            for name, dtype in reduction.results(unit.scope):
                kept.append((name, self._own(unit, dtype)))
                inner.lines.append(f"tl.store({kept[-1][1]} + ({own}), {name}{masked(masks)})")
        unit.flush(inner)
        unit.out.line("tl.debug_barrier()")
        unit.scope.lines += [f"{name} = {self._load(memory, own, masks, '0')}" for name, memory in kept]
        unit.flush(unit.scope)
        unit.out.line("first += tl.program_id(2)")
        self._along(unit, unit.tile.reduced[0])

    def _own(self, unit: Unit, dtype: torch.dtype) -> str:
        """Scratch memory with an element for each column and program."""
        self.memory.append(Scratch(dtype, sympy.expand(unit.rows * self.splits)))
        return unit.scratch(len(self.memory) - 1, dtype)


__all__ = ["columns_cluster"]
