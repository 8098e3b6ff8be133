"""Pointwise loops: sizes, layouts, masks, indices read from memory, in-place writes."""

from __future__ import annotations

import pytest
import torch
from torch.utils._sympy.functions import FloorDiv, Mod, ModularIndexing

from polytile.ir import expr
from tests.codegen.helpers import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    I32,
    I64,
    P0,
    P1,
    P2,
    S0,
    S1,
    U8,
    Case,
    checked,
    load,
    loop,
    op,
    random,
    store,
)

GENERATORS = ("cpp", "triton")

IND0 = expr.indirect_symbol(0)
LENGTHS = [0, 1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 4095, 4097, 9001]


@pytest.mark.parametrize("dtype", [F32, F64, BF16, F16, I32, I64, U8, BOOL], ids=str)
def test_every_length(dtype: torch.dtype) -> None:
    """Below, at and above the vector length and the block."""
    x, y = load("x", P0, dtype), load("y", P0, dtype)
    case = Case(loop([store("o", P0, op("mul", x, y))], {P0: S0}), {"x": dtype, "y": dtype, "o": dtype})
    for n in LENGTHS:
        case.check({"x": random(n, dtype), "y": random(n, dtype), "o": random(n, dtype)}, {S0: n})


def test_every_shape_of_two_axes() -> None:
    x, b = load("x", P0 * S1 + P1), load("b", P1)
    case = Case(loop([store("o", P0 * S1 + P1, op("add", x, b))], {P0: S0, P1: S1}), {"x": F32, "b": F32, "o": F32})
    for rows, columns in [(0, 5), (5, 0), (1, 1), (1, 4097), (4097, 1), (3, 17), (70, 70), (2, 8200)]:
        n = rows * columns
        case.check({"x": random(n), "b": random(columns), "o": random(n)}, {S0: rows, S1: columns})


def test_a_loop_without_axes_runs_once() -> None:
    case = Case(loop([store("o", 0, op("add", load("x", 0), load("y", 3)))], {}), {"x": F32, "y": F32, "o": F32})
    case.check({"x": random(1), "y": random(4), "o": random(1)})


def test_strided_transposed_broadcast_and_reversed_operands() -> None:
    point = P0 * S1 + P1
    loads = [
        load("t", P1 * S0 + P0),
        load("s", 3 * point + 1),
        load("r", P0),
        load("c", P1),
        load("k", 0),
        load("f", P0 * S1 + S1 - 1 - P1),
    ]
    total = loads[0]
    for value in loads[1:]:
        total = op("add", total, value)
    case = Case(loop([store("o", point, total)], {P0: S0, P1: S1}), {**dict.fromkeys("tsrckf", F32), "o": F32})
    for rows, columns in [(1, 1), (5, 3), (33, 18), (7, 130)]:
        n = rows * columns
        lengths = {"t": n, "s": 3 * n + 1, "r": rows, "c": columns, "k": 1, "f": n, "o": n}
        case.check({name: random(count) for name, count in lengths.items()}, {S0: rows, S1: columns}, absolute=1e-5)


@pytest.mark.parametrize("dtype", [F32, F64, BF16, U8, BOOL], ids=str)
def test_strided_and_transposed_stores(dtype: torch.dtype) -> None:
    x = load("x", P0 * S1 + P1, dtype)
    stores = [store("o", P0 * S1 + P1, x), store("t", P1 * S0 + P0, x), store("s", 2 * (P0 * S1 + P1), x)]
    case = Case(loop(stores, {P0: S0, P1: S1}), dict.fromkeys("xots", dtype))
    for rows, columns in [(1, 1), (3, 5), (19, 35)]:
        n = rows * columns
        case.check(
            {"x": random(n, dtype), "o": random(n, dtype), "t": random(n, dtype), "s": random(2 * n, dtype)},
            {S0: rows, S1: columns},
        )


def test_constant_short_axes() -> None:
    """Axes too short for a vector: the other one carries it."""
    index = P0 * 3 + P1
    case = Case(loop([store("o", index, op("neg", load("x", index)))], {P0: S0, P1: 3}), {"x": F32, "o": F32})
    for n in (1, 2, 40):
        case.check({"x": random(3 * n), "o": random(3 * n)}, {S0: n})


def test_indices_with_divisions() -> None:
    loads = [
        load("x", FloorDiv(P0, S1)),
        load("y", Mod(P0, S1)),
        load("z", ModularIndexing(P0, 2, S1)),
        load("w", Mod(P0, 4) * S0 + FloorDiv(P0, 4)),
    ]
    total = loads[0]
    for value in loads[1:]:
        total = op("sub", total, value)
    value = op("add", total, op("cast", expr.index_value(FloorDiv(P0, S1) + P0), dtype=F32))
    case = Case(loop([store("o", P0, value)], {P0: S0}), {**dict.fromkeys("xyzw", F32), "o": F32})
    for n, d in [(1, 1), (50, 3), (100, 16), (257, 1000)]:
        case.check({**{name: random(4 * (n + d)) for name in "xyzw"}, "o": random(n)}, {S0: n, S1: d})


# masks -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [F32, F64, BF16, I64, BOOL], ids=str)
def test_two_tensors_side_by_side(dtype: torch.dtype) -> None:
    """A concatenation: each half is read only where it lies, at indices that are outside of the tensor elsewhere."""
    left = op("lt", expr.index_value(P1), expr.index_value(S1), dtype=BOOL)
    x = load("x", P0 * S1 + P1, dtype, mask=left)
    y = load("y", P0 * S1 + P1 - S1, dtype, mask=op("logical_not", left))
    case = Case(
        loop([store("o", P0 * 2 * S1 + P1, op("where", left, x, y))], {P0: S0, P1: 2 * S1}),
        {"x": dtype, "y": dtype, "o": dtype},
    )
    for rows, columns in [(1, 1), (3, 5), (4, 16), (5, 33)]:
        n = rows * columns
        case.check({"x": random(n, dtype), "y": random(n, dtype), "o": random(2 * n, dtype)}, {S0: rows, S1: columns})


def test_loads_under_masks_of_every_kind() -> None:
    """Read from memory: for each lane, for each row; contiguous, broadcast, strided and gathered."""
    lane, row = load("m", P0 * S1 + P1, BOOL), load("r", P0, BOOL)
    stores = []
    for k, index in enumerate([P0 * S1 + P1, P0, 2 * P1, Mod(P1 * 3, S1)]):
        for j, mask in enumerate([lane, row]):
            stores.append(store(f"o{k}{j}", P0 * S1 + P1, load("x", index, mask=mask)))
    names = [s.buffer for s in stores]
    case = Case(loop(stores, {P0: S0, P1: S1}), {"x": F32, "m": BOOL, "r": BOOL, **dict.fromkeys(names, F32)})
    for rows, columns in [(1, 1), (4, 16), (6, 37)]:
        n = rows * columns
        given = {"x": random(2 * n), "m": random(n, BOOL), "r": random(rows, BOOL)}
        case.check({**given, **{name: random(n) for name in names}}, {S0: rows, S1: columns})


@pytest.mark.parametrize("dtype", [F32, BF16, I64, BOOL], ids=str)
def test_stores_under_masks(dtype: torch.dtype) -> None:
    lane, row, x = load("m", P0 * S1 + P1, BOOL), load("r", P0, BOOL), load("x", P0 * S1 + P1, dtype)
    stores = [
        store("o", P0 * S1 + P1, x, mask=lane),
        store("q", P0 * S1 + P1, x, mask=row),
        store("t", P1 * S0 + P0, x, mask=lane),
        store("u", P1 * S0 + P0, x, mask=row),
    ]
    case = Case(loop(stores, {P0: S0, P1: S1}), {**dict.fromkeys("xoqtu", dtype), "m": BOOL, "r": BOOL})
    for rows, columns in [(1, 1), (4, 16), (5, 37)]:
        n = rows * columns
        given = {"m": random(n, BOOL), "r": random(rows, BOOL)}
        case.check({**given, **{name: random(n, dtype) for name in "xoqtu"}}, {S0: rows, S1: columns})


# indices from memory ---------------------------------------------------------------------------------------------------


def test_rows_are_looked_up() -> None:
    """An embedding: one index for each row, negative ones from the end."""
    value = load("x", IND0 * S1 + P1, indirect=(checked("i", P0, S0),))
    case = Case(loop([store("o", P0 * S1 + P1, value)], {P0: S0, P1: S1}), {"x": F32, "i": I64, "o": F32})
    for rows, columns in [(1, 1), (5, 3), (40, 33)]:
        indices = torch.randint(-rows, rows, (rows,))
        case.check({"x": random(rows * columns), "i": indices, "o": random(rows * columns)}, {S0: rows, S1: columns})


@pytest.mark.parametrize("dtype", [F32, F64, BF16, U8, BOOL], ids=str)
def test_elements_are_gathered(dtype: torch.dtype) -> None:
    """One index for each element, alone and under a mask."""
    index, mask = checked("i", P0 * S1 + P1, S1), load("m", P0 * S1 + P1, BOOL)
    plain = load("x", P0 * S1 + IND0, dtype, indirect=(index,))
    masked = load("x", P0 * S1 + IND0, dtype, indirect=(index,), mask=mask)
    stores = [store("o", P0 * S1 + P1, plain), store("q", P0 * S1 + P1, masked)]
    case = Case(loop(stores, {P0: S0, P1: S1}), {**dict.fromkeys("xoq", dtype), "i": I64, "m": BOOL})
    for rows, columns in [(1, 1), (4, 16), (9, 35)]:
        n = rows * columns
        given = {"i": torch.randint(-columns, columns, (n,)), "m": random(n, BOOL)}
        case.check({**given, **{name: random(n, dtype) for name in "xoq"}}, {S0: rows, S1: columns})


def test_two_indices_and_an_int32_index() -> None:
    i, j = checked("i", P0, S0), op("cast", load("j", P0, I32), dtype=I64)
    value = load("x", IND0 * S0 + expr.indirect_symbol(1), indirect=(i, j))
    case = Case(loop([store("o", P0, value)], {P0: S0}), {"x": F32, "i": I64, "j": I32, "o": F32})
    for n in (1, 17, 40):
        given = {"i": torch.randint(-n, n, (n,)), "j": torch.randint(0, n, (n,), dtype=I32)}
        case.check({"x": random(n * n), **given, "o": random(n)}, {S0: n})


@pytest.mark.parametrize("n", [1, 5, 16, 40])
@pytest.mark.parametrize("bad", [1000, -1000, "n", "-n-1"])
def test_an_index_out_of_range_raises_and_nothing_is_read_there(n: int, bad: int | str) -> None:
    by_lane = load("x", IND0, indirect=(checked("i", P0, S0),))
    by_row = load("x", IND0 * S1 + P1, indirect=(checked("i", P0, S0),))
    lanes = Case(loop([store("o", P0, by_lane)], {P0: S0}), {"x": F32, "i": I64, "o": F32})
    rows = Case(loop([store("o", P0 * S1 + P1, by_row)], {P0: S0, P1: S1}), {"x": F32, "i": I64, "o": F32})
    wrong = {"n": n, "-n-1": -n - 1}.get(bad, bad)  # type: ignore[call-overload]
    for position in {0, n - 1}:
        indices = torch.zeros(n, dtype=I64)
        indices[position] = wrong
        for case in (lanes, rows):
            case.check_raises({"x": random(3 * n), "i": indices, "o": random(3 * n)}, {S0: n, S1: 3})


def test_a_table_without_rows_is_never_read() -> None:
    """Whatever the index: the table's memory does not exist."""
    value = load("x", IND0 * S1 + P1, indirect=(checked("i", P0, 0),))
    case = Case(loop([store("o", P0 * S1 + P1, value)], {P0: S0, P1: S1}), {"x": F32, "i": I64, "o": F32})
    case.check_raises({"x": torch.empty(0), "i": torch.zeros(3, dtype=I64), "o": random(6)}, {S0: 3, S1: 2})


# in place --------------------------------------------------------------------------------------------------------------


def test_values_are_loaded_before_any_store_of_the_same_point() -> None:
    """o ← x, and p ← 2·(o as it was)."""
    stores = [store("o", P0, load("x", P0)), store("p", P0, op("mul", load("o", P0), expr.const(2.0, F32)))]
    case = Case(loop(stores, {P0: S0}), dict.fromkeys("xop", F32))
    for n in (1, 16, 37):
        case.check({name: random(n) for name in "xop"}, {S0: n})


def test_three_axes_in_any_order() -> None:
    point = (P0 * S1 + P1) * 5 + P2
    other = (P2 * S1 + P1) * S0 + P0
    case = Case(
        loop([store("o", point, op("add", load("x", point), load("y", other)))], {P0: S0, P1: S1, P2: 5}),
        dict.fromkeys("xyo", F32),
    )
    for a, b in [(1, 1), (3, 4), (17, 6)]:
        case.check({name: random(5 * a * b) for name in "xyo"}, {S0: a, S1: b})


@pytest.mark.parametrize("dtype", [F32, F64, BF16, I64, BOOL, U8], ids=str)
def test_operands_that_lie_the_other_way_round(dtype: torch.dtype) -> None:
    """Transposed in square tiles, at sizes of whole tiles and blocks and not; one is a window of a larger matrix."""
    x, y = load("x", P1 * S0 + P0, dtype), load("y", P0 * S1 + P1, dtype)
    z = load("z", (P1 + 1) * (S0 + 3) + P0 + 2, dtype)
    value = op("maximum", op("maximum", x, y), z)
    case = Case(loop([store("o", P0 * S1 + P1, value)], {P0: S0, P1: S1}), dict.fromkeys("xyzo", dtype))
    assert ("tiled" in case.variants) == (dtype != U8)
    for rows, columns in [(0, 3), (1, 1), (1, 40), (40, 1), (16, 16), (8, 24), (37, 50), (64, 7), (150, 300), (70, 1100)]:
        n = rows * columns
        tensors = {name: random(n, dtype) for name in "xyo"} | {"z": random((columns + 1) * (rows + 3), dtype)}
        case.check(tensors, {S0: rows, S1: columns})


@pytest.mark.parametrize("dtype", [F32, F64, BF16, I64, BOOL, U8], ids=str)
def test_rows_so_short_that_lanes_run_along_another_axis(dtype: torch.dtype) -> None:
    """What lies along the short rows is transposed on its way in and out; one operand lies along the lanes, one is a row."""
    point = P0 * S1 + P1
    value = op("maximum", op("maximum", load("x", point, dtype), load("y", P1 * S0 + P0, dtype)), load("b", P1, dtype))
    case = Case(loop([store("o", point, value)], {P0: S0, P1: S1}), dict.fromkeys("xybo", dtype))
    assert ("short" in case.variants) == (dtype != U8)
    for rows, columns in [(0, 3), (1, 1), (40, 1), (16, 4), (1100, 2), (1100, 4), (50, 3), (64, 16), (37, 20)]:
        tensors = {name: random(rows * columns, dtype) for name in "xyo"} | {"b": random(columns, dtype)}
        case.check(tensors, {S0: rows, S1: columns})


def test_short_rows_with_gaps_between_them() -> None:
    point = P0 * (S1 + 2) + P1
    value = op("add", load("x", P0 * S1 + P1), load("b", P1))
    case = Case(loop([store("o", point, value)], {P0: S0, P1: S1}), dict.fromkeys("xbo", F32))
    assert "short" in case.variants
    for rows, columns in [(1, 1), (50, 3), (64, 16)]:
        n = rows * columns
        case.check({"x": random(n), "b": random(columns), "o": random(n + 2 * rows)}, {S0: rows, S1: columns})


@pytest.mark.parametrize("dtype", [F32, F64, I64, BOOL, U8], ids=str)
def test_short_rows_that_are_all_the_same(dtype: torch.dtype) -> None:
    """No vector is read, only one number at a time; what is transposed on its way out is no wider than a register."""
    case = Case(loop([store("o", P0 * S1 + P1, load("b", P1, dtype))], {P0: S0, P1: S1}), dict.fromkeys("bo", dtype))
    for rows, columns in [(1, 1), (50, 3), (64, 15)]:
        case.check({"b": random(columns, dtype), "o": random(rows * columns, dtype)}, {S0: rows, S1: columns})


def test_one_of_three_axes_lies_the_other_way_round() -> None:
    point, transposed = (P0 * S1 + P1) * 20 + P2, (P0 * 20 + P2) * S1 + P1
    scale = load("s", P0 * S1 + P1)
    case = Case(
        loop([store("o", point, op("mul", load("x", transposed), scale))], {P0: S0, P1: S1, P2: 20}),
        dict.fromkeys("xso", F32),
    )
    assert "tiled" in case.variants
    for a, b in [(1, 1), (3, 40)]:
        case.check({"x": random(20 * a * b), "s": random(a * b), "o": random(20 * a * b)}, {S0: a, S1: b})


def test_only_whole_lines_that_the_loop_does_not_read_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polytile.runtime.cpu.last_level", lambda: 1 << 20)
    x, o = load("x", P0), load("o", P0)
    fresh = Case(loop([store("o", P0, op("mul", x, x))], {P0: S0}), {"x": F32, "o": F32})
    assert "streamed" in fresh.variants
    (streamed, *_) = [c for c in fresh.candidates if c.config["variant"] == "streamed"]
    assert "vstream<" in streamed.source and "stream_fence();" in streamed.source
    (size,) = fresh.kernel.symbols
    assert streamed.valid({size.name: 1 << 17}) and not streamed.valid({size.name: (1 << 17) - 1})
    for stores in ([store("o", P0, op("mul", x, o))], [store("o", 2 * P0, x)], [store("o", P0, x, mode="add")]):
        assert "streamed" not in Case(loop(stores, {P0: S0}), {"x": F32, "o": F32}, compiled=False).variants
