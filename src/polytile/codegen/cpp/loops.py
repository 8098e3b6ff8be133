"""Whole C++ kernels for loops: a ScheduledLoop (schedule/cpu/scheduled.py) as text."""

from __future__ import annotations

from collections.abc import Callable

from polytile import debug
from polytile.codegen.cpp.columns import short_rows, split_columns, whole_columns
from polytile.codegen.cpp.pointwise import pointwise
from polytile.codegen.cpp.rows import split_rows, whole_rows
from polytile.codegen.cpp.tiled import tiled
from polytile.codegen.cpp.unit import Unit
from polytile.codegen.writer import Writer
from polytile.ir import printer
from polytile.schedule.answers import Share
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.cpu.schedule import CpuSchedule, Lanes
from polytile.schedule.cpu.scheduled import apply_schedule
from polytile.schedule.nest import Form

Emitter = Callable[[Unit, Writer], None]

EMITTERS: dict[tuple[Form, Share, Lanes], Emitter] = {
    (Form.POINTWISE, Share.PROGRAM, Lanes.ALONG): pointwise,
    (Form.POINTWISE, Share.PROGRAM, Lanes.TILED): tiled,
    (Form.POINTWISE, Share.PROGRAM, Lanes.ACROSS): tiled,
    (Form.ROW, Share.PROGRAM, Lanes.ALONG): whole_rows,
    (Form.ROW, Share.CLUSTER, Lanes.ALONG): split_rows,
    (Form.COLUMN, Share.PROGRAM, Lanes.ALONG): whole_columns,
    (Form.COLUMN, Share.PROGRAM, Lanes.ACROSS): short_rows,
    (Form.COLUMN, Share.CLUSTER, Lanes.ALONG): split_columns,
}
"""What writes the loops of a layout, by who shares a row and which points are lanes; rows side by side in lanes are columns."""


def generate(kernel: LoopKernel, schedule: CpuSchedule, name: str, vector_bytes: int) -> str:
    """The translation unit of a kernel after `apply_rewrites`, under `schedule`, with the entry point `name`, for vectors of
    `vector_bytes` bytes. Raises LoweringError where some operation has no C++ form.

    apply_schedule   what the schedule makes of the loop: its vectors, caches, threads and passes, as data
    Unit             writes the loop's values
    EMITTERS         write the loops around them
    Unit.source      puts the function with its arguments around that, and ahead of it what of the prelude it uses
    """
    loop = apply_schedule(kernel, schedule)
    debug.show(4, lambda: f"{printer.loop_text(kernel.loop)}\n{loop.text}")
    unit, work = Unit(loop, vector_bytes), Writer()
    EMITTERS[loop.nest.form, schedule.share, schedule.lanes](unit, work)
    return unit.source(name, work)
