"""The cluster schedule of a row loop with column reduction: each program of a cluster holds its share of the columns of
every row that the cluster processes, and accumulates their sums. Everything is read once.

    launch 0   cluster c processes rows c, c + clusters, ... and leaves its sums in scratch memory, one row per sum
    launch 1   the finalise launch adds up these rows (column_reduction.py)

For a reduction, every program writes its partial result into the shared memory of all (a DSMEM exchange), and waits on an
mbarrier for the values of the others. Loads of the next rows and stores of the last ones continue during the wait; a cluster
barrier would wait for the stores. There are two buffers, for even and odd turns: a program that sends for a later turn has
received everybody's values for the preceding one, so all have read the buffer that it overwrites.
"""

from __future__ import annotations

from polytile.codegen.triton.body import Scope
from polytile.codegen.triton.cluster import POINTS, Cluster
from polytile.codegen.triton.column_reduction import ColumnReduction, add, begin
from polytile.codegen.triton.kernel import Launch, TritonKernel
from polytile.codegen.triton.reductions import Reduction
from polytile.codegen.triton.unit import Unit
from polytile.ir import sizes
from polytile.schedule.facts import Facts
from polytile.schedule.gpu.scheduled import ScheduledLoop


def cluster_column_reduction(loop: ScheduledLoop, facts: Facts, overlaps: bool) -> TritonKernel:
    """The launches of `loop` in which `splits` programs hold a row together."""
    return ClusterColumnReduction(loop, facts, overlaps).build()


class ClusterColumnReduction(ColumnReduction):
    """Builds the kernel."""

    number, count = "(tl.program_id(0) // SPLITS)", "(tl.num_programs(0) // SPLITS)"

    def __init__(self, loop: ScheduledLoop, facts: Facts, overlaps: bool) -> None:
        super().__init__(loop, facts, overlaps)
        self.cluster = DsmemCluster(loop, facts, overlaps)
        self.unit.constants["SPLITS"] = self.cluster.splits

    def _launch(self) -> Launch:
        splits = self.cluster.splits
        return self.unit.launch(grid=(self.programs * splits, sizes.ONE, sizes.ONE), cluster=splits)

    def _begin(self) -> None:
        self.cluster.share(self.unit, self.columns)
        begin(self.unit, self.sums)
        self.unit.out.extend(["pt_dsmem_init()", "turn = 0"])

    def _block(self, scope: Scope) -> None:
        self.cluster.passes(self.unit, scope)
        add(self.unit, self.sums, scope)
        self.unit.flush(scope)


class DsmemCluster(Cluster):
    """Rows held by the programs of a cluster, one at a time, whose reductions go through DSMEM."""

    def _exchange(self, unit: Unit, reductions: list[Reduction], scope: Scope) -> None:
        if not reductions:
            return
        parts = self._parts(reductions, scope)
        scope.lines += [f"pt_dsmem_send({part}, {number}, turn, split, SPLITS)" for number, part in enumerate(parts)]
        scope.lines.append(f"pt_dsmem_wait({len(reductions)}, turn, SPLITS)")
        for number, reduction in enumerate(reductions):
            (received,) = reduction.running("told")
            scope.lines.append(f"{received} = pt_dsmem_read(tl.arange(0, SPLITS), {number}, turn)")
            reduction.finish([received], scope)
        scope.lines.append("turn += 1")

    def _parts(self, reductions: list[Reduction], scope: Scope) -> list[str]:
        """Names of the program's partial results. Two sums are reduced together, so that its warps synchronise only once."""
        parts = [name for reduction in reductions for name in reduction.running("part")]
        if [reduction.kind for reduction in reductions] == ["sum", "sum"]:
            values = ", ".join(value for reduction in reductions for value in reduction.values(scope))
            scope.lines.append(f"{', '.join(parts)} = tl.reduce(({values}), 0, pt_add_two)")
            return parts
        for part, reduction in zip(parts, reductions, strict=True):
            value = reduction.over_block(scope, POINTS)
            scope.lines.append(f"{part} = {value}")
        return parts
