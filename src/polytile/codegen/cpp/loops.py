"""Complete C++ kernels for loops: prints a ScheduledLoop (schedule/cpu/scheduled.py)."""

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
"""Emits the loop nest of a form, by who shares a row or column and along which points the lanes run. Rows side by side
in lanes are columns."""


def generate(kernel: LoopKernel, schedule: CpuSchedule, name: str, vector_bytes: int) -> str:
    """Generates the translation unit of a kernel.

        apply_schedule   applies the schedule: vectors, caches, threads and passes of the loop, as data
        Unit             emits the loop's values
        EMITTERS         emit the loops around them
        Unit.source      adds the function with its arguments, and the parts of the prelude that it uses

    Parameters
    ----------
    kernel : LoopKernel
        A kernel after `apply_rewrites`.
    schedule : CpuSchedule
        The schedule to apply.
    name : str
        Name of the entry point.
    vector_bytes : int
        Bytes per vector register.

    Returns
    -------
    str
        The source text.

    Raises
    ------
    LoweringError
        If an operation has no C++ form.
    """
    loop = apply_schedule(kernel, schedule)
    debug.show(4, lambda: f"{printer.loop_text(kernel.loop)}\n{loop.text}")
    unit, work = Unit(loop, vector_bytes), Writer()
    EMITTERS[loop.nest.form, schedule.share, schedule.lanes](unit, work)
    return unit.source(name, work)
