"""Stores that may meet in one element: added in the order of the loop, by one thread or by threads that keep apart."""

from __future__ import annotations

import pytest
import torch

from polytile.codegen.triton.memory import ATOMICS
from polytile.ir import expr
from polytile.runtime.launcher import time_burst
from polytile.schedule.cpu.scatter import owner_axis
from polytile.schedule.nest import nest_of
from tests.codegen.helpers import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    I8,
    I32,
    I64,
    P0,
    P1,
    P2,
    R0,
    S0,
    S1,
    S2,
    Case,
    checked,
    load,
    loop,
    op,
    random,
    store,
)

GENERATORS = ("cpp", "triton")

IND0, IND1 = expr.indirect_symbol(0), expr.indirect_symbol(1)
TOLERANCE = {F32: 1e-4, F64: 1e-11, BF16: 0.1, F16: 2e-2}


def skip_narrow(dtype: torch.dtype, generator: str) -> None:
    if generator == "triton" and dtype not in ATOMICS:
        pytest.skip("a GPU adds no such elements to memory; operators add them up in 32 bits")


@pytest.mark.parametrize("dtype", [F32, F64, BF16, F16, I8, I32, I64, BOOL], ids=str)
def test_rows_are_added_into_a_table(dtype: torch.dtype, generator: str) -> None:
    """The backward of an embedding: threads divide the columns."""
    skip_narrow(dtype, generator)
    target = store("o", IND0 * S1 + P1, load("x", P0 * S1 + P1, dtype), mode="add", indirect=(checked("i", P0, 7),))
    case = Case(loop([target], {P0: S0, P1: S1}), {"x": dtype, "i": I64, "o": dtype})
    assert [c.config["threads"] for c in case.candidates] == [1, 2]
    for rows, columns in [(0, 3), (1, 1), (30, 5), (100, 16), (50, 70)]:
        tensors = {
            "x": random(rows * columns, dtype),
            "i": torch.randint(-7, 7, (rows,)),
            "o": random(7 * columns, dtype),
        }
        case.check(
            tensors,
            {S0: rows, S1: columns},
            None if dtype == BOOL else F64,
            relative=TOLERANCE,
            absolute=1e-3 if dtype in (F32, F64) else 0.2,
        )


def test_elements_are_added_along_each_row() -> None:
    """scatter_add along the last dimension: threads divide the rows, whatever the indices."""
    target = store("o", P0 * S2 + IND0, load("x", P0 * S1 + P1), mode="add", indirect=(checked("i", P0 * S1 + P1, S2),))
    case = Case(loop([target], {P0: S0, P1: S1}), {"x": F32, "i": I64, "o": F32})
    assert len(case.candidates) == 2 and case.variants == ["plain"]
    for rows, columns, width in [(1, 1, 1), (5, 40, 3), (40, 17, 20)]:
        tensors = {
            "x": random(rows * columns),
            "i": torch.randint(-width, width, (rows * columns,)),
            "o": random(rows * width),
        }
        case.check(tensors, {S0: rows, S1: columns, S2: width}, relative=TOLERANCE, absolute=1e-5)


def test_nothing_keeps_threads_apart() -> None:
    """Every element may be anybody's: one thread in order, or atomic additions."""
    target = store("o", IND0, load("x", P0), mode="add", indirect=(checked("i", P0, S1),))
    case = Case(loop([target], {P0: S0}), {"x": F32, "i": I64, "o": F32})
    assert case.variants == ["plain", "atomic"]
    for n, width in [(1, 1), (1000, 3), (500, 400)]:
        tensors = {"x": random(n), "i": torch.randint(-width, width, (n,)), "o": random(width)}
        case.check(tensors, {S0: n, S1: width}, relative=TOLERANCE, absolute=1e-3)


@pytest.mark.parametrize("dtype", [F64, BF16, F16, I8, I64, BOOL], ids=str)
def test_atomic_additions_of_every_type(dtype: torch.dtype, generator: str) -> None:
    skip_narrow(dtype, generator)
    target = store("o", IND0, load("x", P0, dtype), mode="add", indirect=(checked("i", P0, S1),))
    case = Case(loop([target], {P0: S0}), {"x": dtype, "i": I64, "o": dtype})
    tensors = {"x": torch.ones(100, dtype=dtype), "i": torch.arange(100) % 7, "o": torch.zeros(7, dtype=dtype)}
    case.check(tensors, {S0: 100, S1: 7}, None)


def test_overlapping_windows_add_up_on_one_thread() -> None:
    """Windows of stride 1: neighbours share elements, so no axis keeps threads apart."""
    whole = loop([store("o", P0 + P1, load("x", P0 * 3 + P1), mode="add")], {P0: S0, P1: 3})
    assert owner_axis(whole, nest_of(whole).vec) is None
    apart = loop([store("o", P0 * 3 + P1, load("x", P0 * 3 + P1), mode="add")], {P0: S0, P1: 3})
    assert owner_axis(apart, nest_of(apart).vec) is not None
    for body in (whole, apart):
        case = Case(body, {"x": F32, "o": F32})
        for n in (1, 5, 100):
            case.check({"x": random(3 * n), "o": random(3 * n + 2)}, {S0: n}, relative=TOLERANCE, absolute=1e-5)


def test_everything_is_added_into_one_element() -> None:
    case = Case(
        loop(
            [store("o", 0, load("x", P0 * S1 + P1), mode="add"), store("c", 0, expr.const(1.0, F32), mode="add")],
            {P0: S0, P1: S1},
        ),
        dict.fromkeys("xoc", F32),
    )
    for rows, columns in [(1, 1), (3, 40)]:
        tensors = {"x": random(rows * columns), "o": random(1), "c": random(1)}
        case.check(tensors, {S0: rows, S1: columns}, relative=TOLERANCE, absolute=1e-4)


@pytest.mark.parametrize("dtype", [F32, BF16, I64, BOOL], ids=str)
def test_elements_are_replaced(dtype: torch.dtype) -> None:
    """index_put without accumulation, at indices that do not repeat; some under a mask."""
    target = store(
        "o", P0 * S2 + IND0, load("x", P0 * S1 + P1, dtype), indirect=(checked("i", P1, S2),), mask=load("m", P1, BOOL)
    )
    case = Case(loop([target], {P0: S0, P1: S1}), {"x": dtype, "i": I64, "m": BOOL, "o": dtype})
    for rows, columns in [(1, 1), (4, 33)]:
        width = columns + 3
        tensors = {
            "x": random(rows * columns, dtype),
            "i": torch.randperm(width)[:columns],
            "m": random(columns, BOOL),
            "o": random(rows * width, dtype),
        }
        case.check(tensors, {S0: rows, S1: columns, S2: width}, None)


def test_of_repeated_indices_the_last_stays() -> None:
    target = store("o", IND0 * S1 + P1, load("x", P0 * S1 + P1), indirect=(checked("i", P0, 3),))
    case = Case(loop([target], {P0: S0, P1: S1}), {"x": F32, "i": I64, "o": F32})
    for entry_name, entry in case.entries():
        x, i, o = random(20 * 5), torch.randint(0, 3, (20,)), torch.zeros(15)
        time_burst(entry, case.arguments({"x": x, "i": i, "o": o}, {S0: 20, S1: 5}), 1)
        for row in range(3):
            last = int((i == row).nonzero().max())
            assert torch.equal(o[row * 5 : row * 5 + 5], x[last * 5 : last * 5 + 5]), entry_name


def test_two_indices_and_a_middle_axis() -> None:
    """o[p0, i, j, p2] += x: threads divide the first axis."""
    where = ((P0 * 4 + IND0) * 5 + IND1) * S2 + P2
    indices = (checked("i", P1, 4), checked("j", P1, 5))
    target = store("o", where, load("x", (P0 * S1 + P1) * S2 + P2), mode="add", indirect=indices)
    body = loop([target], {P0: S0, P1: S1, P2: S2})
    assert owner_axis(body, nest_of(body).vec).symbol == P0  # type: ignore[union-attr]
    case = Case(body, {"x": F32, "i": I64, "j": I64, "o": F32})
    for a, b, c in [(1, 1, 1), (3, 30, 17)]:
        tensors = {
            "x": random(a * b * c),
            "i": torch.randint(-4, 4, (b,)),
            "j": torch.randint(-5, 5, (b,)),
            "o": random(a * 20 * c),
        }
        case.check(tensors, {S0: a, S1: b, S2: c}, relative=TOLERANCE, absolute=1e-5)


def test_an_accumulating_store_beside_a_reduction_has_one_thread() -> None:
    x = load("x", P0 * S1 + R0)
    share = op("div", x, expr.reduce("sum", F32, x))
    target = store("o", IND0, share, mode="add", indirect=(checked("i", P0 * S1 + R0, 9),))
    case = Case(loop([target], {P0: S0}, {R0: S1}), {"x": F32, "i": I64, "o": F32})
    assert all(c.config["threads"] == 1 for c in case.candidates)
    for rows, length in [(1, 1), (4, 40)]:
        tensors = {"x": random(rows * length, low=1.0), "i": torch.randint(0, 9, (rows * length,)), "o": random(9)}
        case.check(tensors, {S0: rows, S1: length}, relative=TOLERANCE, absolute=1e-5)


def test_a_bad_index_changes_nothing_outside() -> None:
    target = store("o", IND0 * S1 + P1, load("x", P0 * S1 + P1), mode="add", indirect=(checked("i", P0, 7),))
    case = Case(loop([target], {P0: S0, P1: S1}), {"x": F32, "i": I64, "o": F32})
    case.check_raises({"x": random(15), "i": torch.tensor([0, 7, 1]), "o": random(35)}, {S0: 3, S1: 5})
