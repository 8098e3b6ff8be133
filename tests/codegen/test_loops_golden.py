"""The text of generated kernels; golden/*.cpp is what a person has read and found good (POLYTILE_ACCEPT=1 accepts)."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch

from polytile.codegen.cpp import loops
from polytile.ir import expr
from polytile.ir.loop import Loop
from polytile.schedule.cpu import catalogue as cpu
from polytile.schedule.cpu.schedule import CpuSchedule
from polytile.schedule.rewrite import plain_reductions
from tests.codegen.helpers import F32, P0, P1, R0, S0, S1, S2, assert_golden, checked, kernel_of, load, loop, op, store

ROW = P0 * S1 + R0
IND0 = expr.indirect_symbol(0)
number = functools.partial(expr.const, dtype=F32)


def softmax() -> Loop:
    x = load("x", ROW)
    power = op("exp", op("sub", x, expr.reduce("max", F32, x)))
    return loop([store("o", ROW, op("div", power, expr.reduce("sum", F32, power)))], {P0: S0}, {R0: S1})


def layer_norm() -> Loop:
    x = load("x", ROW)
    both = expr.reduce("welford", F32, x)
    variance = op("div", expr.part(both, 1, F32), op("cast", expr.index_value(S1), dtype=F32))
    scale = op("rsqrt", op("add", variance, number(1e-5)))
    out = op("mul", op("sub", x, expr.part(both, 0, F32)), scale)
    out = op("add", op("mul", out, load("w", R0)), load("b", R0))
    return loop([store("o", ROW, out), store("scale", P0, scale)], {P0: S0}, {R0: S1})


def bias_gelu() -> Loop:
    x = op("add", load("x", P0 * S1 + P1), load("b", P1))
    inner = op("add", op("erf", op("mul", x, number(0.7071067811865476))), number(1.0))
    return loop([store("o", P0 * S1 + P1, op("mul", op("mul", x, number(0.5)), inner))], {P0: S0, P1: S1})


def column_sum() -> Loop:
    return loop([store("o", P0, expr.reduce("sum", F32, load("x", R0 * S0 + P0)))], {P0: S0}, {R0: S1})


def cumsum() -> Loop:
    return loop([store("o", ROW, expr.scan("sum", F32, load("x", ROW)))], {P0: S0}, {R0: S1})


def embedding() -> Loop:
    value = load("x", IND0 * S1 + P1, indirect=(checked("i", P0, 1000),))
    return loop([store("o", P0 * S1 + P1, value)], {P0: S0, P1: S1})


def gather() -> Loop:
    """Negative indices are out of range: the check is one comparison of unsigned numbers."""
    i, size = load("i", P0 * S2 + P1, torch.int64), expr.index_value(S1)
    least = op("where", op("lt", i, expr.const(0, torch.int64), dtype=torch.bool), size, i)
    value = load("x", IND0 + P0 * S1, indirect=(op("check_index", least, size),))
    return loop([store("o", P0 * S2 + P1, value)], {P0: S0, P1: S2})


def embedding_backward() -> Loop:
    target = store("o", IND0 * S1 + P1, load("x", P0 * S1 + P1), mode="add", indirect=(checked("i", P0, 1000),))
    return loop([target], {P0: S0, P1: S1})


GOLDEN: dict[str, tuple[Callable[[], Loop], CpuSchedule]] = {
    "softmax_persistent": (softmax, cpu.PERSISTENT),
    "softmax_short": (softmax, cpu.SHORT_ROWS),
    "softmax_split": (softmax, cpu.SPLIT),
    "layer_norm": (layer_norm, cpu.LOOPED),
    "bias_gelu": (bias_gelu, cpu.PLAIN),
    "column_sum": (column_sum, cpu.LOOPED),
    "column_sum_split": (column_sum, cpu.SPLIT),
    "cumsum": (cumsum, cpu.LOOPED),
    "cumsum_split": (cumsum, cpu.SPLIT),
    "embedding": (embedding, cpu.PLAIN),
    "gather": (gather, cpu.PLAIN),
    "embedding_backward": (embedding_backward, cpu.PLAIN),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_generated_text(name: str) -> None:
    make, schedule = GOLDEN[name]
    text = loops.generate(kernel_of(plain_reductions(make())), schedule, "polytile_kernel", 64)
    assert_golden(f"{name}.cpp", text[text.index("using namespace pt;") :])
