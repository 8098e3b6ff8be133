"""Whole C++ kernels for loops: the schedule that a form and a variant name, inside its translation unit."""

from __future__ import annotations

from collections.abc import Callable

from polytile.codegen.cpp.columns import short_rows, split_columns, whole_columns
from polytile.codegen.cpp.pointwise import pointwise
from polytile.codegen.cpp.rows import split_rows, whole_rows
from polytile.codegen.cpp.tiled import tiled
from polytile.codegen.cpp.unit import Unit
from polytile.codegen.writer import Writer
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.nest import Form

Schedule = Callable[[Unit, Writer], None]

SCHEDULES: dict[tuple[Form, str], Schedule] = {
    (Form.POINTWISE, "plain"): pointwise,
    (Form.POINTWISE, "streamed"): pointwise,
    (Form.POINTWISE, "atomic"): pointwise,
    (Form.POINTWISE, "tiled"): tiled,
    (Form.POINTWISE, "short"): tiled,
    (Form.ROW, "looped"): whole_rows,
    (Form.ROW, "persistent"): whole_rows,
    (Form.ROW, "split"): split_rows,
    (Form.COLUMN, "short"): short_rows,
    (Form.COLUMN, "looped"): whole_columns,
    (Form.COLUMN, "split"): split_columns,
}


def generate(kernel: LoopKernel, variant: str, name: str, vector_bytes: int) -> str:
    """The translation unit of `kernel` under `variant` (see `kernels.variants`), entry point `name`, for vectors of
    `vector_bytes` bytes. Raises LoweringError where some operation has no C++ form."""
    unit, work = Unit(kernel, variant, vector_bytes), Writer()
    SCHEDULES[unit.nest.form, variant](unit, work)
    return unit.source(name, work)
