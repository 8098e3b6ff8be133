"""The prior of a CPU's loops: what it puts first where it has to choose."""

from __future__ import annotations

import pytest

from polytile.cost.cpp_loops import LoopPrior
from polytile.ir import expr
from polytile.ir.loop import Store
from polytile.schedule.cpu import catalogue as cpu
from polytile.schedule.cpu.scheduled import apply_rewrites
from polytile.schedule.nest import nest_of
from tests.codegen.helpers import BOOL, F32, I64, P0, P1, S0, S1, checked, kernel_of, load, loop, op, store


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


def test_each_piece_of_a_row_takes_its_time() -> None:
    """A constant pad of rows of 12 elements took three times as long as was predicted without."""
    inside = op("lt", expr.index_value(P1), expr.const(12, I64), dtype=BOOL)
    padded = store("o", P0 * S1 + P1, op("where", inside, load("x", P0 * S1 + P1, mask=inside), expr.const(0.0, F32)))
    whole = store("o", P0 * S1 + P1, load("x", P0 * S1 + P1))
    size = {"n0": 1000, "n1": 14}

    def seconds(target: Store) -> float:
        kernel = apply_rewrites(kernel_of(loop([target], {P0: S0, P1: S1})))
        return LoopPrior(kernel, nest_of(kernel.loop), cpu.PLAIN, 16).seconds(1, {s.name: size[s.name] for s in kernel.symbols})

    assert seconds(padded) > seconds(whole) + 1000 * 3e-9
