"""Reductions: every kind and type, along rows and down columns, over one and two axes, split over threads or not."""

from __future__ import annotations

import pytest
import sympy
import torch

from polytile.ir import expr
from polytile.ir.dtypes import compute_dtype
from polytile.ir.expr import Node
from polytile.ir.loop import Store
from tests.codegen.helpers import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    INF,
    NAN,
    P0,
    P1,
    R0,
    R1,
    R2,
    S0,
    S1,
    U8,
    Case,
    load,
    loop,
    op,
    random,
    store,
)  # fmt: skip

GENERATORS = ("cpp", "triton")

ROW, COLUMN = P0 * S1 + R0, R0 * S0 + P0  # x as (s0, s1), reduced over s1; x as (s1, s0), reduced over s1
LAYOUTS = {"row": ROW, "column": COLUMN}
SHAPES = [(1, 1), (1, 15), (1, 16), (3, 17), (2, 70), (70, 3), (33, 64), (5, 1000), (1, 20000), (300, 7), (130, 130)]
LONGEST = {"cpp": 100_000, "triton": 5_000}
"""Elements of a row that no block holds; a kernel that is interpreted takes a millisecond a block."""
TOLERANCE = {F32: 2e-5, F64: 1e-11, BF16: 2e-2, F16: 4e-3}


def reductions(x: Node, dtype: torch.dtype) -> tuple[list[Store], dict[str, torch.dtype]]:
    """Stores of every reduction that the type has, and the types of what they store."""
    stores, dtypes = [], {}

    def add(name: str, value: Node) -> None:
        stores.append(store(name, P0, value))
        dtypes[name] = value.dtype

    wide = torch.int64 if not dtype.is_floating_point else compute_dtype(dtype)
    add("sum", expr.reduce("sum", wide, op("cast", x, dtype=wide) if x.dtype != wide else x))
    add("prod", expr.reduce("prod", wide, op("cast", x, dtype=wide) if x.dtype != wide else x))
    for kind in ("max", "min"):
        add(kind, expr.reduce(kind, x.dtype, x))
        found = expr.reduce(f"arg{kind}", x.dtype, x, expr.index_value(R0))
        add(f"arg{kind}", expr.part(found, 1, I64))
        add(f"best_{kind}", expr.part(found, 0, x.dtype))
    truth = op("cast", x, dtype=BOOL) if x.dtype != BOOL else x
    for kind in ("any", "all"):
        add(kind, expr.reduce(kind, BOOL, truth))
    if dtype.is_floating_point:
        both = expr.reduce("welford", wide, x)
        add("mean", expr.part(both, 0, wide))
        add("deviation", expr.part(both, 1, wide))
    return stores, dtypes


def values(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Numbers with many ties; their product stays in range."""
    if dtype == BOOL:
        return torch.rand(count) < 0.5
    if dtype.is_floating_point:
        return (torch.randint(-6, 7, (count,)) / 4).to(dtype)
    return torch.randint(0 if dtype == U8 else -3, 4, (count,)).to(dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [F32, F64, BF16, F16, I8, I16, I32, I64, U8, BOOL], ids=str)
def test_every_kind(dtype: torch.dtype, layout: str) -> None:
    stores, dtypes = reductions(load("x", LAYOUTS[layout], dtype), dtype)
    case = Case(loop(stores, {P0: S0}, {R0: S1}), {"x": dtype, **dtypes})
    for rows, length in SHAPES:
        outputs = {name: torch.zeros(rows, dtype=kind) for name, kind in dtypes.items()}
        given = {"x": values(rows * length, dtype)}
        case.check({**given, **outputs}, {S0: rows, S1: length}, relative=TOLERANCE, absolute=2e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nan_and_infinity(layout: str, generator: str) -> None:
    """NaN is the extreme wherever it stands, the first of several; sums follow eager. Eager's moments of a row that holds an
    infinity are NaN on a GPU and may not be on a CPU."""
    stores, dtypes = reductions(load("x", LAYOUTS[layout]), F32)
    if generator == "triton":
        stores = [s for s in stores if s.buffer not in ("mean", "deviation")]
        dtypes = {s.buffer: dtypes[s.buffer] for s in stores}
    case = Case(loop(stores, {P0: S0}, {R0: S1}), {"x": F32, **dtypes})
    for length in (1, 17, 40, 100):
        for special in ([NAN], [INF], [-INF], [INF, -INF], [NAN, INF], [-INF, -INF], [0.0, -0.0]):
            x = torch.full((7, length), -INF if special == [-INF, -INF] else 0.5)
            for row in range(7):
                for k, number in enumerate(special):
                    x[row, (row * 13 + k * 5) % length] = number
            flat = (x if layout == "row" else x.T).reshape(-1).contiguous()
            outputs = {name: torch.zeros(7, dtype=kind) for name, kind in dtypes.items()}
            case.check({"x": flat, **outputs}, {S0: 7, S1: length}, relative=TOLERANCE, absolute=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [F32, I32, BOOL], ids=str)
def test_empty_rows_give_the_identity(dtype: torch.dtype, layout: str) -> None:
    stores, dtypes = reductions(load("x", LAYOUTS[layout], dtype), dtype)
    case = Case(loop(stores, {P0: S0}, {R0: S1}), {"x": dtype, **dtypes})
    for rows, length in [(0, 5), (0, 0), (4, 0), (70, 0)]:
        outputs = {name: torch.ones(rows, dtype=kind) for name, kind in dtypes.items()}
        case.check({"x": torch.zeros(rows * length, dtype=dtype), **outputs}, {S0: rows, S1: length})


def test_one_result_for_everything(generator: str) -> None:
    """No axis is left; the reduced ones are one or two."""
    one = Case(loop([store("o", 0, expr.reduce("sum", F32, load("x", R0)))], {}, {R0: S0}), {"x": F32, "o": F32})
    value = expr.reduce("max", F32, load("x", R1 * S0 + R0))
    two = Case(loop([store("o", 0, value)], {}, {R0: S0, R1: S1}), {"x": F32, "o": F32})
    for n in (0, 1, 17, 5000, LONGEST[generator]):
        one.check({"x": random(n), "o": random(1)}, {S0: n}, relative=TOLERANCE, absolute=2e-3)
    for a, b in [(0, 3), (1, 1), (33, 40), (7, 3000)]:
        two.check({"x": random(a * b), "o": random(1)}, {S0: a, S1: b})


def test_three_reduced_axes(generator: str) -> None:
    """Rows and planes with gaps between them, so that no two axes are one, by every schedule in turn."""
    x = load("x", R0 * (S0 * (S1 + 1) + 2) + R1 * (S1 + 1) + R2)
    stores = [store("o", 0, expr.reduce("sum", F32, op("mul", x, x))), store("e", (R0 * S0 + R1) * S1 + R2, op("exp", x))]
    case = Case(loop(stores, {}, {R0: 9, R1: S0, R2: S1}), dict.fromkeys("xoe", F32))
    for a, b in [(1, 1), (3, 2), (5, 4), (2, 7), (4, 3), (1, 6), (6, 1), (3, 5), (0, 4)]:
        tensors = {"x": random(9 * (a * (b + 1) + 2)), "o": random(1), "e": random(9 * a * b)}
        case.check(tensors, {S0: a, S1: b}, relative=TOLERANCE)


@pytest.mark.parametrize("order", ["inner", "middle", "outer", "apart"])
def test_two_reduced_axes(order: str, generator: str) -> None:
    """(p0, r0, r1) in memory, then the parallel axis between and behind the reduced ones, then two parallel ones."""
    index, axes, count = {
        "inner": ((P0 * S1 + R0) * 9 + R1, {P0: S0}, lambda a, b: a * b * 9),
        "middle": ((R0 * S0 + P0) * 9 + R1, {P0: S0}, lambda a, b: a * b * 9),
        "outer": ((R0 * 9 + R1) * S0 + P0, {P0: S0}, lambda a, b: a * b * 9),
        "apart": (((P0 * S1 + R0) * 5 + P1) * 9 + R1, {P0: S0, P1: 5}, lambda a, b: a * b * 45),
    }[order]
    x = load("x", index)
    total = expr.reduce("sum", F32, x)
    deviation = expr.reduce("sum", F32, op("mul", op("sub", x, total), op("sub", x, total)))
    place = P0 * 5 + P1 if order == "apart" else P0
    stores = [store("s", place, total), store("d", place, deviation), store("o", index, op("sub", op("exp", x), total))]
    case = Case(loop(stores, axes, {R0: S1, R1: 9}), dict.fromkeys("xsdo", F32))
    long = 300 if generator == "cpp" else 40  # the outer one is walked step by step, which takes Triton's interpreter long
    for a, b in [(1, 1), (3, 2), (70, 5), (2, long), (4, 0)]:
        n, rows = count(a, b), a * (5 if order == "apart" else 1)
        tensors = {"x": random(n, low=0.0, high=0.1), "s": random(rows), "d": random(rows), "o": random(n)}
        case.check(tensors, {S0: a, S1: b}, relative=TOLERANCE, absolute=1e-4)


# whole kernels ---------------------------------------------------------------------------------------------------------


def softmax(x: Node) -> Node:
    power = op("exp", op("sub", x, expr.reduce("max", F32, x)))
    return op("div", power, expr.reduce("sum", F32, power))


@pytest.mark.parametrize("dtype", [F32, F64, BF16], ids=str)
@pytest.mark.parametrize("width", [2, 4, 8])
def test_groups_of_few_neighbours_share_vectors(width: int, dtype: torch.dtype) -> None:
    """Sums over a batch of images whose channels lie in groups, innermost, and have statistics by group and image."""
    channels = 4 * width
    place = (R0 * S0 + R1) * channels + P0 * width + P1
    scaled = op("mul", load("x", place, dtype), load("g", R0 * 4 + P0, dtype))
    value = op("add", scaled, load("b", P0 * width + P1, dtype))
    total = expr.reduce("sum", value.dtype, value)
    stores = [store("o", place, value), store("s", P0 * width + P1, total)]
    case = Case(loop(stores, {P0: 4, P1: width}, {R0: 2, R1: S0}), dict.fromkeys("xgbos", dtype))
    assert f", {width}>(tail, " in case.candidates[0].source
    for points in (0, 1, 3, 300):
        n = 2 * points * channels
        tensors = {"x": n, "g": 8, "b": channels, "o": n, "s": channels}
        case.check(
            {name: random(size, dtype) for name, size in tensors.items()},
            {S0: points},
            relative=TOLERANCE,
            absolute=1e-4,
        )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [F32, BF16, F16], ids=str)
def test_softmax(dtype: torch.dtype, layout: str, generator: str) -> None:
    index = LAYOUTS[layout]
    case = Case(
        loop([store("o", index, softmax(load("x", index, dtype)))], {P0: S0}, {R0: S1}), {"x": dtype, "o": dtype}
    )
    assert ("persistent" in case.variants) == (layout == "row")
    for rows, length in [*SHAPES, (2, 0), (0, 4), (1, LONGEST[generator])]:
        case.check(
            {"x": random(rows * length, dtype), "o": random(rows * length, dtype)},
            {S0: rows, S1: length},
            relative=TOLERANCE,
        )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_normalisation_with_statistics_weights_and_residual(layout: str) -> None:
    """Row loads, row stores at different levels, and one value kept from the first pass."""
    index = LAYOUTS[layout]
    x = op("add", load("x", index), op("tanh", load("res", index)))
    both = expr.reduce("welford", F32, x)
    variance = op("div", expr.part(both, 1, F32), op("cast", expr.index_value(S1), dtype=F32))
    scale = op("rsqrt", op("add", variance, expr.const(1e-5, F32)))
    out = op("mul", op("sub", x, expr.part(both, 0, F32)), op("mul", scale, load("w", P0)))
    out = op("add", out, load("b", R0))
    running = op("add", op("mul", load("run", P0), expr.const(0.9, F32)), expr.part(both, 0, F32))
    stores = [store("o", index, out), store("scale", P0, scale), store("run", P0, running)]
    names = ("x", "res", "w", "b", "run", "o", "scale")
    case = Case(loop(stores, {P0: S0}, {R0: S1}), dict.fromkeys(names, F32))
    for rows, length in [(1, 17), (3, 16), (70, 5), (5, 1000), (130, 33)]:
        counts = {"x": rows * length, "res": rows * length, "o": rows * length, "b": length}
        tensors = {name: random(counts.get(name, rows)) for name in names}
        case.check(tensors, {S0: rows, S1: length}, relative=TOLERANCE, absolute=1e-4)


@pytest.mark.parametrize("rows_first", [True, False], ids=["transposed on the way out", "transposed on the way in"])
def test_lanes_are_the_rows_whose_results_lie_side_by_side(rows_first: bool) -> None:
    """Of two axes of rows, that along which the transposed tensor is contiguous, whichever side of the loop it is on."""
    rows, columns = (P0 * S1 + P1) * 20 + R0, (P0 * 20 + R0) * S1 + P1
    source, target = (columns, rows) if rows_first else (rows, columns)
    x = load("x", source)
    centred = op("sub", x, op("mul", expr.reduce("sum", F32, x), expr.const(0.05, F32)))
    stores = [store("o", target, op("mul", centred, load("w", R0))), store("k", rows, centred)]
    case = Case(loop(stores, {P0: S0, P1: S1}, {R0: 20}), dict.fromkeys("xwok", F32))
    short = next(c for c in case.candidates if c.config["variant"] == "short")
    assert "const long p1, const long n, State& s" in short.source
    for a, b in [(1, 1), (3, 16), (2, 37), (40, 3)]:
        n = 20 * a * b
        tensors = {"x": random(n), "w": random(20), "o": random(n), "k": random(n)}
        case.check(tensors, {S0: a, S1: b}, relative=TOLERANCE, absolute=1e-5)


def test_three_passes_over_a_row_and_its_reversal() -> None:
    """A value made in the first pass is needed in the third alone; another tensor is read backwards."""
    x = op("exp", load("x", ROW))
    total = expr.reduce("sum", F32, x)
    spread = expr.reduce("max", F32, op("abs", op("sub", load("y", P0 * S1 + S1 - 1 - R0), total)))
    case = Case(loop([store("o", ROW, op("div", x, spread))], {P0: S0}, {R0: S1}), dict.fromkeys("xyo", F32))
    assert case.variants == ["persistent", "looped", "short", "split"]
    for rows, length in [(1, 1), (3, 50), (2, 9000)]:
        n = rows * length
        case.check({"x": random(n), "y": random(n), "o": random(n)}, {S0: rows, S1: length}, relative=TOLERANCE)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_row_picks_its_target(layout: str) -> None:
    """Cross entropy: an index for each row, checked, one element of the row by it."""
    index = LAYOUTS[layout]
    x = load("x", index)
    target = op("check_index", load("t", P0, I64), expr.index_value(S1), dtype=I64)
    symbol = expr.indirect_symbol(0)
    picked = load("x", P0 * S1 + symbol if layout == "row" else symbol * S0 + P0, indirect=(target,))
    loss = op("sub", op("log", expr.reduce("sum", F32, op("exp", x))), picked)
    weighted = op("mul", x, load("w", symbol, indirect=(target,)))
    stores = [store("o", P0, loss), store("g", index, weighted)]
    case = Case(loop(stores, {P0: S0}, {R0: S1}), {"x": F32, "t": I64, "w": F32, "o": F32, "g": F32})
    for rows, length in [(1, 1), (3, 17), (80, 5), (9, 1100)]:
        n = rows * length
        tensors = {
            "x": random(n),
            "t": torch.randint(-length, length, (rows,)),
            "w": random(length),
            "o": random(rows),
            "g": random(n),
        }
        case.check(tensors, {S0: rows, S1: length}, relative=TOLERANCE, absolute=1e-5)
        tensors["t"][-1] = length
        case.check_raises(tensors, {S0: rows, S1: length})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_checked_index_at_every_point(layout: str) -> None:
    index = LAYOUTS[layout]
    i = op("check_index", load("i", index, I64), expr.index_value(S1), dtype=I64)
    value = expr.reduce("sum", F32, load("x", expr.indirect_symbol(0), indirect=(i,)))
    case = Case(loop([store("o", P0, value)], {P0: S0}, {R0: S1}), {"i": I64, "x": F32, "o": F32})
    for rows, length in [(1, 1), (5, 37), (40, 9)]:
        indices = torch.randint(-length, length, (rows * length,))
        tensors = {"i": indices, "x": random(length), "o": random(rows)}
        case.check(tensors, {S0: rows, S1: length}, relative=TOLERANCE, absolute=1e-5)
        indices[rows * length // 2] = -length - 1
        case.check_raises(tensors, {S0: rows, S1: length})


@pytest.mark.parametrize("layout", LAYOUTS)
def test_masked_elements_do_not_count(layout: str) -> None:
    index = LAYOUTS[layout]
    x = load("x", index, mask=load("m", index, BOOL))
    stores = [
        store("o", P0, expr.reduce("sum", F32, x)),
        store("p", P0, expr.reduce("max", F32, x), mask=load("r", P0, BOOL)),
    ]
    case = Case(loop(stores, {P0: S0}, {R0: S1}), {"x": F32, "m": BOOL, "o": F32, "p": F32, "r": BOOL})
    for rows, length in [(1, 1), (3, 17), (70, 33)]:
        tensors = {"x": random(rows * length), "m": random(rows * length, BOOL), "o": random(rows), "p": random(rows)}
        case.check({**tensors, "r": random(rows, BOOL)}, {S0: rows, S1: length}, relative=TOLERANCE, absolute=1e-5)


def test_sums_stay_accurate_over_long_rows_and_columns(generator: str) -> None:
    """Running sums are folded in blocks: the error does not grow with the length; on a GPU each lane adds up one of some
    thousand shares."""
    tolerance = {F32: 3e-6 if generator == "cpp" else 1e-5}
    for index in LAYOUTS.values():
        case = Case(
            loop([store("o", P0, expr.reduce("sum", F32, load("x", index)))], {P0: S0}, {R0: S1}),
            dict.fromkeys("xo", F32),
        )
        case.check(
            {"x": torch.full((1_000_003,), 0.1), "o": torch.zeros(1)}, {S0: 1, S1: 1_000_003}, relative=tolerance
        )


@pytest.mark.parametrize("narrow", [I8, U8, I16], ids=str)
@pytest.mark.parametrize("wide", [I16, I32, I64, F64], ids=str)
def test_sums_of_narrow_and_wide_tensors_one_upon_the_other(narrow: torch.dtype, wide: torch.dtype) -> None:
    """Each is read only in its own row: what is widened is chosen by a mask, of which GCC 12 made an instruction that is none."""
    top = op("lt", expr.index_value(R0), expr.index_value(sympy.S.One), dtype=BOOL)
    total = I64 if wide != F64 else F64
    x = op("cast", load("x", P0, narrow, mask=top), dtype=total)
    y = load("y", P0, wide, mask=op("logical_not", top))
    both = op("where", top, x, y if wide == total else op("cast", y, dtype=total))
    case = Case(loop([store("o", P0, expr.reduce("sum", total, both))], {P0: S0}, {R0: 2}), {"x": narrow, "y": wide, "o": total})
    for n in (1, 7, 100):
        case.check({"x": random(n, narrow), "y": random(n, wide), "o": random(n, total)}, {S0: n})
