"""Schedules as data: what they answer, the names under which measurements are stored, and where they are legal."""

from __future__ import annotations

import pytest

from polytile.ir import expr
from polytile.ir.loop import Loop
from polytile.problem import Config
from polytile.runtime.cuda import device
from polytile.schedule.answers import Combine, Hold, Share
from polytile.schedule.gpu import catalogue
from polytile.schedule.gpu.legality import fits, legal
from polytile.schedule.gpu.schedule import Blocks, GpuSchedule
from polytile.schedule.gpu.scheduled import apply_schedule
from polytile.schedule.gpu.space import schedules
from polytile.schedule.nest import nest_of
from tests.codegen.helpers import F32, P0, R0, S0, S1, kernel_of, load, loop, op, store
from tests.codegen.test_loops_golden import cumsum

X = load("x", P0 * S1 + R0)
CENTRED = op("sub", X, expr.reduce("sum", F32, X))


def points() -> Loop:
    return loop([store("o", P0, op("exp", load("x", P0)))], {P0: S0})


def rows() -> Loop:
    return loop([store("o", P0 * S1 + R0, CENTRED)], {P0: S0}, {R0: S1})


def columns() -> Loop:
    return loop([store("o", P0, expr.reduce("sum", F32, load("x", R0 * S0 + P0)))], {P0: S0}, {R0: S1})


def rows_and_columns() -> Loop:
    return loop([store("o", P0 * S1 + R0, CENTRED), store("c", R0, X, mode="sum")], {P0: S0}, {R0: S1})


def running_products() -> Loop:
    """A scan beside a reduction, which programs cannot share."""
    total = expr.reduce("sum", F32, X)
    return loop([store("o", P0 * S1 + R0, op("mul", expr.scan("prod", F32, X), total))], {P0: S0}, {R0: S1})


LOOPS = (points, rows, columns, rows_and_columns, running_products)
POINTS = catalogue.pointwise(x=256, warps=1)
ROWS = catalogue.persistent(x=1, r=64, warps=2), catalogue.looped(x=1, r=64, warps=2)
SHARED = catalogue.split(r=64, warps=2, splits=4), catalogue.cluster(x=1, r=64, warps=2, splits=4)
SUMS = (
    catalogue.column_reduction(x=1, r=64, warps=2, programs=8),
    catalogue.blocked_column_reduction(x=1, r=64, parts=2, warps=2, programs=8),
    catalogue.cluster_column_reduction(x=1, r=64, warps=2, splits=2, programs=8), catalogue.column_parallel(x=1, r=64, warps=2),
)  # fmt: skip


@pytest.mark.parametrize("make", LOOPS)
def test_a_stored_config_names_the_schedule_that_it_came_from(make: type) -> None:
    kernel = kernel_of(make())
    found = list(schedules(kernel, nest_of(kernel.loop), device.named("H100")))
    assert found and [catalogue.schedule_of(one.config) for one in found] == found


def test_the_names_under_which_measurements_are_stored() -> None:
    finalised = catalogue.split(x=32, r=64, warps=4, splits=64, finalise=8)
    assert finalised.config == Config.of(variant="split", x=32, r=64, warps=4, splits=64, finalise=8)
    assert finalised.combine is Combine.LAUNCH and SHARED[0].combine is Combine.LAST_PROGRAM
    assert [one.name for one in (POINTS, *ROWS, *SHARED)] == ["pointwise", "persistent", "looped", "split", "cluster"]
    assert [one.name for one in SUMS] == ["column_reduction", "column_reduction", "column_reduction", "column_parallel"]


def launches(make: type, schedule: GpuSchedule) -> list[str]:
    return [line.split(": ", 1)[1] for line in apply_schedule(kernel_of(make()), schedule).text.splitlines()[1:]]


def test_a_loop_under_a_schedule_prints_its_launches() -> None:
    assert launches(rows, ROWS[1]) == ["passes 0, 1 over blocks"]
    assert launches(rows, SHARED[0]) == ["pass 0 over shares of rows; leaves t1", "pass 1 over shares of rows, backwards"]
    assert launches(columns, SHARED[0]) == ["pass 0 over shares of rows; leaves t1; the last program stores the rows' values"]
    assert launches(columns, catalogue.split(x=32, r=64, warps=4, splits=64, finalise=8)) == [
        "pass 0 over shares of rows; leaves t1", "combines what pass 0 left",
    ]  # fmt: skip
    assert launches(rows_and_columns, SUMS[0]) == [
        "passes 0, 1 over blocks of rows in turn; leaves t0", "combines what pass 1 left",
    ]  # fmt: skip
    assert len(launches(rows_and_columns, catalogue.column_reduction(x=1, r=64, warps=2, programs=1))) == 1
    assert launches(rows_and_columns, SUMS[3]) == [
        "pass 0 over blocks of columns, backwards; leaves t1", "combines what pass 0 left", "pass 1 over blocks",
    ]  # fmt: skip


def test_a_scan_that_programs_share_has_a_launch_before_for_their_totals() -> None:
    assert launches(cumsum, SHARED[0]) == ["totals over shares of rows; leaves t1", "pass 0 over shares of rows"]


def test_one_program_of_a_column_reduction_shares_no_column() -> None:
    one, several = (catalogue.column_reduction(x=4, r=64, warps=2, programs=n) for n in (1, 132))
    assert (one.columns, several.columns) == (Share.PROGRAM, Share.GRID)
    alone = catalogue.cluster_column_reduction(x=1, r=64, warps=2, splits=4, programs=4)
    assert alone.columns is Share.CLUSTER


def test_legal_is_what_the_loop_asks_for() -> None:
    able = {make.__name__: [s for s in (POINTS, *ROWS, *SHARED, *SUMS) if legal(kernel_of(make()), s)] for make in LOOPS}
    assert able == {
        "points": [POINTS],
        "rows": [*ROWS, *SHARED],
        "columns": [*ROWS, SHARED[0]],  # nothing is read twice
        "rows_and_columns": list(SUMS),
        "running_products": list(ROWS),
    }


def test_rows_fit_where_registers_hold_them() -> None:
    assert fits(ROWS[0], [64]) and not fits(ROWS[0], [65]) and fits(ROWS[1], [1 << 20])
    assert fits(SHARED[1], [256]) and not fits(SHARED[1], [257]) and fits(SUMS[1], [128]) and not fits(SUMS[1], [129])


def test_answers_without_code_are_refused() -> None:
    with pytest.raises(ValueError, match="no code is generated"):
        GpuSchedule(Hold.REGISTERS, Share.GRID, Combine.LAUNCH, Blocks(warps=4))
