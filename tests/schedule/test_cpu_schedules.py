"""A CPU's schedules as data: the names under which measurements are stored, and the loops that each is for."""

from __future__ import annotations

import pytest

from polytile.codegen.cpp import loops
from polytile.codegen.cpp.loops import EMITTERS
from polytile.ir.loop import Loop
from polytile.schedule.answers import Combine, Hold, Share
from polytile.schedule.cpu import catalogue as cpu
from polytile.schedule.cpu.schedule import NAMES, CpuSchedule, Lanes, Stores
from polytile.schedule.cpu.scheduled import apply_rewrites, apply_schedule
from polytile.schedule.cpu.space import Usefulness, legal, schedules
from polytile.schedule.nest import Form, nest_of
from tests.codegen.helpers import P0, S0, S1, kernel_of, load, loop, op, store
from tests.codegen.test_loops_golden import embedding_backward, softmax
from tests.schedule.test_schedules import columns, points, rows, running_products


def sums_by_an_axis() -> Loop:
    """Stores that meet in one element."""
    return loop([store("o", 0, load("x", P0), mode="add")], {P0: S0})


def transposed() -> Loop:
    made = points()
    return loop([*made.stores, store("t", P0, op("neg", load("y", P0 * S0)))], {P0: S0})


LOOPS = (points, rows, columns, running_products, sums_by_an_axis, transposed)


def test_every_schedule_has_a_name_of_its_own() -> None:
    for group in (cpu.POINTS, cpu.ROWS):
        assert len({schedule.name for schedule in group}) == len(group)
    assert {schedule for group in (cpu.POINTS, cpu.ROWS) for schedule in group} == {CpuSchedule(*key) for key in NAMES}
    assert dict(cpu.SPLIT.config(4).values) == {"variant": "split", "threads": 4}


def test_answers_without_code_are_refused() -> None:
    with pytest.raises(ValueError, match=r"memory, grid, launch, along, cached was asked for; no code is generated"):
        CpuSchedule(Hold.MEMORY, Share.GRID, Combine.LAUNCH)
    with pytest.raises(ValueError, match="streamed"):
        CpuSchedule(Hold.MEMORY, Share.PROGRAM, Combine.PROGRAM, Lanes.ALONG, Stores.STREAMED)


@pytest.mark.parametrize("make", LOOPS)
def test_what_is_tried_is_legal_and_has_code(make: type) -> None:
    kernel = apply_rewrites(kernel_of(make()))
    nest = nest_of(kernel.loop)
    found = schedules(nest, 4)
    assert found[0][1] == 1 and not found[0][0].needs_threads
    for schedule, threads in found:
        assert legal(nest, schedule) and (threads > 1 or not schedule.needs_threads)
        form = Form.COLUMN if schedule is cpu.SHORT_ROWS else nest.form
        assert (form, schedule.share, schedule.lanes) in EMITTERS
        assert "kernel" in loops.generate(kernel, schedule, "kernel", 64)


def printed(make: type, schedule: CpuSchedule) -> list[str]:
    return apply_schedule(apply_rewrites(kernel_of(make())), schedule).text.splitlines()


def test_a_loop_under_a_schedule_prints_its_passes() -> None:
    assert printed(softmax, cpu.PERSISTENT) == [
        "persistent: threads divide rows of p0; vectors along r0",
        "  pass 0: reduces t1; 4 vectors at a time",
        "  pass 1: reduces t4; caches t3 in a1; 4 vectors at a time",
        "  pass 2: takes t3; stores a1",
    ]
    assert printed(softmax, cpu.LOOPED)[-1] == "  pass 2: stores a1"  # computed again
    assert printed(softmax, cpu.SPLIT)[1] == "  pass 0: reduces t1; 4 vectors at a time; barrier"
    assert printed(softmax, cpu.SHORT_ROWS)[0] == "short: threads divide rows of p0; vectors along p0; a0, a1 transposed"
    assert printed(columns, cpu.SPLIT) == [
        "split: threads divide shares of each row of p0; vectors along p0", "  pass 0: reduces t1; barrier",
    ]  # fmt: skip
    assert printed(points, cpu.STREAMED)[-1] == "  pass 0: streams a1"


def test_no_two_threads_store_to_one_element_unless_they_do_so_atomically() -> None:
    assert printed(embedding_backward, cpu.PLAIN)[0] == "plain: threads divide p1, a range each; vectors along p1"
    assert printed(sums_by_an_axis, cpu.PLAIN)[0] == "plain: threads divide nothing; vectors along p0"
    assert printed(sums_by_an_axis, cpu.ATOMIC)[0] == "atomic: threads divide points; vectors along p0"


def test_stores_that_meet_are_one_threads_or_atomic() -> None:
    nest = nest_of(kernel_of(sums_by_an_axis()).loop)
    assert schedules(nest, 8) == ((cpu.PLAIN, 1), (cpu.ATOMIC, 8))
    assert schedules(nest, 1) == ((cpu.PLAIN, 1),)


def test_where_a_schedule_makes_sense_depends_on_the_sizes_of_the_axes_alone() -> None:
    """Of a range of sizes where nothing is decided no others are known: a table's rows are none of them."""
    kernel = apply_rewrites(kernel_of(loop([store("o", P0, load("table", P0 * S1))], {P0: S0})))
    nest = nest_of(kernel.loop)
    sizes = {symbol.name: 1 << 20 for symbol in kernel.axis_symbols}
    assert len(sizes) == 1 < len(kernel.symbols)
    usefulness = Usefulness(kernel, nest, 1 << 20)
    assert all(isinstance(usefulness.is_worth_trying(schedule, threads, sizes), bool) for schedule, threads in schedules(nest, 4))
