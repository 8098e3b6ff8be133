"""Complete Triton kernels for loops: prints a ScheduledLoop (schedule/gpu/scheduled.py) under the facts of a regime."""

from __future__ import annotations

from collections.abc import Callable

from polytile import debug
from polytile.codegen.triton.cluster import cluster
from polytile.codegen.triton.cluster_column_reduction import cluster_column_reduction
from polytile.codegen.triton.cluster_columns import cluster_columns
from polytile.codegen.triton.column_parallel import column_parallel
from polytile.codegen.triton.column_reduction import column_reduction
from polytile.codegen.triton.index_search import first_occurrence, owner_computes
from polytile.codegen.triton.kernel import TritonKernel
from polytile.codegen.triton.schedules import emit
from polytile.codegen.triton.segment_sums import atomic_sums
from polytile.codegen.triton.sorted_segments import sorted_segment_reduction
from polytile.codegen.triton.split import split
from polytile.codegen.triton.unit import Unit
from polytile.ir import printer
from polytile.problem import Config
from polytile.schedule.answers import Share
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.facts import Facts
from polytile.schedule.gpu.catalogue import schedule_of
from polytile.schedule.gpu.legality import apply_rewrites
from polytile.schedule.gpu.scheduled import ScheduledLoop, apply_schedule
from polytile.schedule.gpu.segments import Segments
from polytile.schedule.nest import Form, Nest

Emitter = Callable[[ScheduledLoop, Facts, bool], TritonKernel]


def one_launch(loop: ScheduledLoop, facts: Facts, overlaps: bool) -> TritonKernel:
    """The launch of programs that share no rows."""
    unit = Unit(loop.kernel, loop.nest, loop.schedule, facts, overlaps)
    emit(unit)
    return TritonKernel((unit.launch(),))


ROWS: dict[Share, Emitter] = {Share.PROGRAM: one_launch, Share.CLUSTER: cluster, Share.GRID: split}
COLUMNS: dict[Share, Emitter] = {**ROWS, Share.CLUSTER: cluster_columns}
COLUMN_SUMS: dict[Share, Emitter] = {
    Share.PROGRAM: column_reduction, Share.CLUSTER: cluster_column_reduction, Share.GRID: column_parallel,
}  # fmt: skip
"""The emitters of rows, of columns, and of rows with column sums, by who shares a row."""
SEGMENTS: dict[Segments, Callable[[LoopKernel, Nest, Config, Facts, bool], TritonKernel]] = {
    Segments.ATOMIC: atomic_sums, Segments.FIRST_OCCURRENCE: first_occurrence, Segments.OWNER_COMPUTES: owner_computes,
    Segments.SORTED: sorted_segment_reduction,
}  # fmt: skip
"""The emitters of segment sums."""


def generate(kernel: LoopKernel, config: Config, facts: Facts, overlaps: bool = False) -> TritonKernel:
    """Generates the launches of a kernel, correct wherever `facts` hold and the config is valid.

    Parameters
    ----------
    kernel : LoopKernel
        The kernel.
    config : Config
        Names a schedule (see schedule/).
    facts : Facts
        What holds for the arguments.
    overlaps : bool
        Whether launches may start before the preceding kernel has ended; requires compute capability 9.0.

    Returns
    -------
    TritonKernel
        The launches.

    Raises
    ------
    LoweringError
        If an operation or dtype has no Triton form.
    """
    if (segments := Segments.named(config)) is not None:
        own, nest = apply_rewrites(kernel, one_sweep=False)
        return SEGMENTS[segments](own, nest, config, facts, overlaps)
    loop = apply_schedule(kernel, schedule_of(config))
    debug.show(4, lambda: f"{printer.loop_text(loop.kernel.loop)}\n{loop.text}")
    emitters = COLUMN_SUMS if loop.schedule.columns is not None else COLUMNS if loop.nest.form is Form.COLUMN else ROWS
    return emitters[loop.schedule.share](loop, facts, overlaps)
