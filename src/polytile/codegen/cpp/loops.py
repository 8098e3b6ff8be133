"""Whole C++ kernels for loops: from a loop and a schedule to text, step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from polytile.codegen.cpp.columns import short_rows, split_columns, whole_columns
from polytile.codegen.cpp.pointwise import pointwise
from polytile.codegen.cpp.rows import split_rows, whole_rows
from polytile.codegen.cpp.tiled import tiled
from polytile.codegen.cpp.unit import Unit
from polytile.codegen.writer import Writer
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.cpu.fused_axes import fuse_axes
from polytile.schedule.cpu.schedule import CpuSchedule, Lanes
from polytile.schedule.nest import Form
from polytile.schedule.rewrite import plain_reductions
from polytile.schedule.schedule import Share

REWRITES = (plain_reductions, fuse_axes)
"""What becomes of a loop before it is scheduled, in order."""

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


def spelled(kernel: LoopKernel) -> LoopKernel:
    """The kernel in the reductions and axes that are generated."""
    loop = kernel.loop
    for rewrite in REWRITES:
        loop = rewrite(loop)
    return replace(kernel, loop=loop)


def generate(kernel: LoopKernel, schedule: CpuSchedule, name: str, vector_bytes: int) -> str:
    """The translation unit of a `spelled` kernel under `schedule`, entry point `name`, for vectors of `vector_bytes` bytes.
    Raises LoweringError where some operation has no C++ form.

    unit      the layout of the loop, what is transposed, cached, streamed or atomic, and what writes its values
    emitter   the loops around them
    source    the function with its arguments, and what of the prelude it uses
    """
    unit, work = Unit(kernel, schedule, vector_bytes), Writer()
    EMITTERS[unit.nest.form, schedule.share, schedule.lanes](unit, work)
    return unit.source(name, work)
