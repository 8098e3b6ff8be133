"""The cluster schedule of rows: each program of a cluster holds its share of the row in registers, as `persistent`
holds all of it, so that everything is read once. For a reduction, the programs leave their partial results in scratch
memory, wait at a cluster barrier, and each combines them. Columns are held likewise, a block of them at a time
(cluster_columns.py).

The programs of a cluster run concurrently on neighbouring multiprocessors (compute capability 9.0 and higher), so none
waits for a program that cannot start. Program 0 of a row stores the row's values.
"""

from __future__ import annotations

import sympy

from polytile.codegen.triton import scans
from polytile.codegen.triton.body import Scope
from polytile.codegen.triton.kernel import Launch, TritonKernel
from polytile.codegen.triton.reductions import Reduction
from polytile.codegen.triton.schedules import overwritten_row_loads, stored
from polytile.codegen.triton.split import Split
from polytile.codegen.triton.tile import Dim
from polytile.codegen.triton.unit import Unit
from polytile.ir import sizes
from polytile.ir.expr import Scan
from polytile.schedule.facts import Facts
from polytile.schedule.gpu.scheduled import ScheduledLoop
from polytile.schedule.nest import Form

BARRIER, ARRIVE, WAIT, POINTS = "pt_cluster_barrier()", "pt_cluster_arrive()", "pt_cluster_wait()", "points"
END = "tl.minimum(first + chunk, {})"
"""End of a program's part, given the length of the row."""


def cluster(loop: ScheduledLoop, facts: Facts, overlaps: bool) -> TritonKernel:
    """The launch of `loop` in which `splits` programs hold a row together."""
    return Cluster(loop, facts, overlaps).build()


class Cluster(Split):
    """Builds the kernel."""

    def build(self) -> TritonKernel:
        return TritonKernel((self._only(),), tuple(self.memory))

    def _only(self) -> Launch:
        unit = self._begin_unit()
        unit.place(number="(tl.program_id(0) // SPLITS)")
        self.share(unit, unit.tile.reduced[0])
        self.passes(unit, unit.scope)
        return self._of_clusters(unit, sizes.product(unit.tile.tiles))

    def _begin_unit(self) -> Unit:
        unit = Unit(self.kernel, self.nest, self.schedule, self.facts, self.overlaps)
        unit.constants["SPLITS"] = self.splits
        return unit

    def _of_clusters(self, unit: Unit, clusters: sympy.Expr) -> Launch:
        return unit.launch(grid=(clusters * self.splits, sizes.ONE, sizes.ONE), cluster=self.splits)

    def passes(self, unit: Unit, scope: Scope) -> None:
        """Emits all passes over the program's share of the block, except column sums."""
        nest = self.nest
        unit.out.line(f"row = {unit.row()}")
        unit.fetch(overwritten_row_loads(nest), scope)
        unit.fetch(nest.roots_in(0), scope)
        for k in range(nest.passes + 1):
            self._row_values(unit, k, scope)
            if k < nest.passes:
                self._exchange(unit, [Reduction(unit.body, node) for node in nest.reduces_in(k)], scope)
                for scan in nest.scans_in(k):
                    self._carried(unit, scan, scope)
                unit.body.forget(scope)
                stored(unit, k, scope)
        unit.flush(scope)

    def share(self, unit: Unit, dim: Dim) -> None:
        """Emits the positions of the program's own part of the row. All programs have equally many; in a contiguous
        row, these are whole vectors."""
        wide = ".to(tl.int64)" if self.facts.wide else ""
        unit.out.line(f"split = (tl.program_id(0) % SPLITS){wide}")
        size = unit.body.index(dim.size)
        whole = f"tl.cdiv({size}, 16 * SPLITS) * 16" if self.nest.form is Form.ROW else f"tl.cdiv({size}, SPLITS)"
        chunk = dim.name if unit.tile.even(dim) else whole
        unit.out.extend([f"chunk = {chunk}", "first = split * chunk"])
        unit.out.line(f"{POINTS} = tl.maximum(tl.minimum(chunk, {size} - first), 0)")
        unit.along(dim, "first", END)

    def _row_values(self, unit: Unit, k: int, scope: Scope) -> None:
        """Stores the row values known after k passes."""
        stores = self.nest.row_stores(k)
        if not stores:
            return
        unit.flush(scope)
        inner = scope.inner()
        with unit.out.indented("if split == 0:"):
            unit.body.stores(stores, inner)
            unit.flush(inner)

    def _exchange(self, unit: Unit, reductions: list[Reduction], scope: Scope) -> None:
        """Combines the partial results of all shares."""
        if not reductions:
            return
        for reduction in reductions:
            self._store_share(unit, reduction, scope)
        unit.out.line(BARRIER)
        self._combine(unit, reductions, scope)

    def _store_share(self, unit: Unit, reduction: Reduction, scope: Scope) -> None:
        """Stores the program's partial result in scratch memory."""
        value = reduction.over_block(scope, POINTS)
        unit.flush(scope)
        self._store_partial(unit, reduction, value)

    def _combine(self, unit: Unit, reductions: list[Reduction], scope: Scope) -> None:
        for reduction in reductions:
            reduction.finish(self._partial_results(unit, reduction, scope, before=False), scope)

    def _carried(self, unit: Unit, scan: Scan, scope: Scope) -> None:
        """Between arriving and waiting at the barrier, the program computes the scan's prefix within its own share."""
        self._store_share(unit, Reduction(unit.body, scan), scope)
        unit.out.line(ARRIVE)
        (own,) = scans.prefix(unit.body, scan, scope)
        unit.flush(scope)
        unit.out.line(WAIT)
        self._carry(unit, scan)
        (carry,) = scans.carries(unit.body, scan)
        scope.lines.append(f"{own} = {scans.COMBINE[scan.kind]}({carry}, {own})")
        scope.names[id(scan)] = own
