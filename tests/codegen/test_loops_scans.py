"""Scans: every kind, along rows and down columns, one row divided over threads, beside reductions and other values."""

from __future__ import annotations

import pytest
import torch

from polytile.ir import expr
from polytile.ir.expr import Node
from tests.codegen.helpers import (
    BF16,
    BOOL,
    F32,
    F64,
    I8,
    I32,
    I64,
    INF,
    NAN,
    P0,
    R0,
    S0,
    S1,
    U8,
    Case,
    load,
    loop,
    op,
    random,
    store,
)

GENERATORS = ("cpp", "triton")

ROW, COLUMN = P0 * S1 + R0, R0 * S0 + P0
LAYOUTS = {"row": ROW, "column": COLUMN}
SHAPES = [(0, 3), (3, 0), (1, 1), (1, 16), (3, 17), (70, 5), (5, 1000), (1, 20_000), (2, 4099)]
TOLERANCE = {F32: 1e-4, F64: 1e-11, BF16: 2e-2}


def cumulative(kind: str, x: Node) -> Node:
    return expr.scan(kind, x.dtype, x)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("sum", F32), ("sum", F64), ("sum", I64), ("prod", F32), ("prod", I32), ("logsumexp", F32), ("logsumexp", F64)],
)
def test_running_totals(kind: str, dtype: torch.dtype, layout: str) -> None:
    index = LAYOUTS[layout]
    value = cumulative(kind, op("mul", load("x", index, dtype), expr.const(1, dtype)))
    case = Case(loop([store("o", index, value)], {P0: S0}, {R0: S1}), {"x": dtype, "o": dtype})
    assert ("split" in case.variants) == (layout == "row")
    for rows, length in SHAPES:
        n = rows * length
        x = random(n, dtype, 0.9, 1.1) if kind == "prod" and dtype == F32 else random(n, dtype, -2, 3)
        case.check({"x": x, "o": random(n, dtype)}, {S0: rows, S1: length}, relative=TOLERANCE, absolute=1e-3)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [F32, F64, BF16, I8, I64, U8], ids=str)
@pytest.mark.parametrize("kind", ["max", "min"])
def test_running_extremes_and_where_they_stand(kind: str, dtype: torch.dtype, layout: str) -> None:
    """The later of equal extremes; a NaN stays."""
    index, x = LAYOUTS[layout], load("x", LAYOUTS[layout], dtype)
    both = expr.scan(kind, x.dtype, x, expr.index_value(R0))
    stores = [store("v", index, expr.part(both, 0, x.dtype)), store("i", index, expr.part(both, 1, I64))]
    case = Case(loop(stores, {P0: S0}, {R0: S1}), {"x": dtype, "v": dtype, "i": I64})
    for rows, length in SHAPES[:7]:
        n = rows * length
        x_values = torch.randint(0, 5, (n,)).to(dtype)
        if dtype.is_floating_point and n > 20:
            x_values[n // 2] = NAN
            x_values[:3] = -INF
        case.check({"x": x_values, "v": random(n, dtype), "i": random(n, I64)}, {S0: rows, S1: length}, None)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["sum", "max"])
def test_a_scan_beside_what_it_scans(kind: str, layout: str) -> None:
    """The value is loaded once, whether the scan or what uses both comes to it first."""
    index, x = LAYOUTS[layout], load("x", LAYOUTS[layout])
    scanned = cumulative("sum", x) if kind == "sum" else expr.part(expr.scan("max", F32, x, expr.index_value(R0)), 0, F32)
    stores = [store("a", index, op("mul", scanned, x)), store("b", index, op("sub", x, scanned))]
    case = Case(loop(stores, {P0: S0}, {R0: S1}), {"x": F32, "a": F32, "b": F32})
    for rows, length in SHAPES[2:7]:
        n = rows * length
        case.check({"x": random(n), "a": random(n), "b": random(n)}, {S0: rows, S1: length}, relative=TOLERANCE, absolute=1e-3)


def test_infinities_in_logsumexp() -> None:
    x = load("x", ROW)
    case = Case(loop([store("o", ROW, cumulative("logsumexp", x))], {P0: S0}, {R0: S1}), {"x": F32, "o": F32})
    values = torch.tensor([[-INF, -INF, 1.0, 2.0], [INF, 1.0, 2.0, -INF], [1.0, INF, INF, 3.0], [0.0, NAN, 1.0, INF]])
    case.check({"x": values.reshape(-1), "o": torch.zeros(16)}, {S0: 4, S1: 4})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_scan_that_two_passes_need(layout: str) -> None:
    """The prefix divided by its own largest value."""
    index = LAYOUTS[layout]
    prefix = cumulative("sum", op("abs", load("x", index)))
    value = op("div", prefix, expr.reduce("max", F32, prefix))
    case = Case(loop([store("o", index, value)], {P0: S0}, {R0: S1}), {"x": F32, "o": F32})
    for rows, length in SHAPES[2:7]:
        n = rows * length
        case.check({"x": random(n), "o": random(n)}, {S0: rows, S1: length}, relative=TOLERANCE)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_scans_of_one_row_after_a_reduction(layout: str) -> None:
    index, x = LAYOUTS[layout], load("x", LAYOUTS[layout])
    centred = op("sub", x, expr.reduce("max", F32, x))
    both = expr.scan("max", F32, x, expr.index_value(R0))
    stores = [
        store("a", index, op("mul", cumulative("sum", centred), load("w", P0))),
        store("b", index, cumulative("logsumexp", x)),
        store("c", index, expr.part(both, 1, I64)),
    ]
    case = Case(loop(stores, {P0: S0}, {R0: S1}), {"x": F32, "w": F32, "a": F32, "b": F32, "c": I64})
    for rows, length in SHAPES[2:7]:
        n = rows * length
        tensors = {"x": random(n), "w": random(rows), "a": random(n), "b": random(n), "c": random(n, I64)}
        case.check(tensors, {S0: rows, S1: length}, relative=TOLERANCE, absolute=1e-3)


def test_bool_values_are_counted_and_compared() -> None:
    x = load("x", ROW, BOOL)
    both = expr.scan("max", BOOL, x, expr.index_value(R0))
    stores = [
        store("n", ROW, expr.scan("sum", I64, x)),
        store("v", ROW, expr.part(both, 0, BOOL)),
        store("i", ROW, expr.part(both, 1, I64)),
    ]
    case = Case(loop(stores, {P0: S0}, {R0: S1}), {"x": BOOL, "n": I64, "v": BOOL, "i": I64})
    tensors = {"x": random(111, BOOL), "n": random(111, I64), "v": random(111, BOOL), "i": random(111, I64)}
    case.check(tensors, {S0: 3, S1: 37}, None)
