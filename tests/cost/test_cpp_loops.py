"""The prior of a CPU's loops: what it puts first where it has to choose."""

from __future__ import annotations

import pytest

from polytile.cost.cpp_loops import LoopPrior
from polytile.ir import expr
from polytile.schedule.cpu import catalogue as cpu
from polytile.schedule.cpu.scheduled import apply_rewrites
from polytile.schedule.nest import nest_of
from tests.codegen.helpers import P0, S0, checked, kernel_of, load, loop, store


@pytest.mark.parametrize(("threads", "best"), [(2, cpu.PLAIN), (4, cpu.PLAIN), (64, cpu.ATOMIC)])
def test_few_threads_are_no_match_for_one_that_needs_no_atomics(threads: int, best: object) -> None:
    """A histogram of 20 000 values by two threads' atomics took 13 times as long as by one thread."""
    counted = store("o", expr.indirect_symbol(0), load("x", P0), mode="add", indirect=(checked("i", P0, 99),))
    kernel = apply_rewrites(kernel_of(loop([counted], {P0: S0})))
    size = {symbol.name: 200_000 for symbol in kernel.symbols}

    def seconds(schedule: cpu.CpuSchedule, threads: int) -> float:
        return LoopPrior(kernel, nest_of(kernel.loop), schedule, 16).seconds(threads, size)

    faster = cpu.PLAIN if seconds(cpu.PLAIN, 1) < seconds(cpu.ATOMIC, threads) else cpu.ATOMIC
    assert faster is best
