"""Whole Triton kernels for loops: a ScheduledLoop (schedule/gpu/scheduled.py) as text, under the facts of a regime."""

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
"""What emits rows, columns, and rows beside which columns are added up, by who shares a row."""
SEGMENTS: dict[Segments, Callable[[LoopKernel, Nest, Config, Facts, bool], TritonKernel]] = {
    Segments.ATOMIC: atomic_sums, Segments.FIRST_OCCURRENCE: first_occurrence, Segments.OWNER_COMPUTES: owner_computes,
    Segments.SORTED: sorted_segment_reduction,
}  # fmt: skip
"""What emits segment sums."""


def generate(kernel: LoopKernel, config: Config, facts: Facts, overlaps: bool = False) -> TritonKernel:
    """The launches of `kernel` under `config` (see schedule/), right wherever `facts` hold and the config is valid. `overlaps`:
    they may start before what runs ahead of them has ended, which the device must know how to do (from 9.0 on). Raises
    LoweringError where some operation or type has no Triton form."""
    if (segments := Segments.named(config)) is not None:
        own, nest = apply_rewrites(kernel, one_sweep=False)
        return SEGMENTS[segments](own, nest, config, facts, overlaps)
    loop = apply_schedule(kernel, schedule_of(config))
    debug.show(4, lambda: f"{printer.loop_text(loop.kernel.loop)}\n{loop.text}")
    emitters = COLUMN_SUMS if loop.schedule.columns is not None else COLUMNS if loop.nest.form is Form.COLUMN else ROWS
    return emitters[loop.schedule.share](loop, facts, overlaps)
