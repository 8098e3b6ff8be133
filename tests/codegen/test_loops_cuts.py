"""Comparisons of the vector axis: the sweep stops where they change, whichever way they are written."""

from __future__ import annotations

import pytest
import torch

from polytile.codegen.cpp import loops
from polytile.ir import expr
from polytile.ir.expr import Node
from polytile.schedule.cpu import catalogue as cpu
from polytile.schedule.nest import nest_of
from tests.codegen.helpers import BOOL, F32, I64, P0, P1, R0, R1, S0, S1, Case, load, loop, op, random, store

GENERATORS = ("cpp", "triton")

ROW, POINT = P0 * S1 + R0, P0 * S1 + P1
SHAPES = [(1, 1), (3, 5), (20, 17), (40, 100)]


def index(e: object) -> Node:
    return expr.index_value(e)  # type: ignore[arg-type]


def compare(name: str, left: Node, right: Node) -> Node:
    return op(name, left, right, dtype=BOOL)


CONDITIONS = {
    "below a size": lambda v: compare("lt", index(v), index(S0)),
    "up to the row": lambda v: compare("le", index(v), index(P0)),
    "the row above": lambda v: compare("gt", index(P0 + 2), index(v)),
    "from the row on": lambda v: compare("ge", index(v - P0), expr.const(0, I64)),
    "mirrored": lambda v: compare("lt", index(P0 - v), expr.const(3, I64)),
    "against a number": lambda v: compare("ge", expr.const(7, I64), index(v)),
    "against a tensor": lambda v: compare("lt", index(v), load("length", P0, I64)),
    "a tensor against it": lambda v: compare("le", load("length", P0, I64), index(v - 1)),
    "of a multiple": lambda v: compare("lt", index(3 * v - 5), index(P0)),
    "of a multiple, from there on": lambda v: compare("gt", index(2 * v + 1), index(S0)),
    "of a multiple, mirrored": lambda v: compare("le", index(P0 - 2 * v), expr.const(-3, I64)),
    "a tensor against a multiple": lambda v: compare("ge", load("length", P0, I64), index(2 * v - 1)),
    "inside a window": lambda v: op(
        "logical_and", compare("ge", index(v), index(P0)), compare("lt", index(v), index(P0 + 4))
    ),
    "not": lambda v: op("logical_not", compare("gt", index(v), load("length", 0, I64))),
}


def tensors(rows: int, columns: int, *outputs: int) -> dict[str, torch.Tensor]:
    found = {"x": random(rows * columns), "length": torch.randint(-2, columns + 2, (rows,))}
    return found | {f"o{k}": random(n) for k, n in enumerate(outputs)}


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_pointwise_loop_is_swept_in_pieces(name: str) -> None:
    """Selected, loaded under the condition, stored under it."""
    condition = CONDITIONS[name](P1)
    stores = [
        store("o0", POINT, op("where", condition, load("x", POINT), expr.const(-1.0, F32))),
        store("o1", POINT, load("x", POINT, mask=condition)),
        store("o2", POINT, op("neg", load("x", POINT)), mask=condition),
        store("o3", POINT, op("cast", condition, dtype=F32)),
    ]
    body = loop(stores, {P0: S0, P1: S1})
    assert nest_of(body).cuts
    case = Case(body, {"x": F32, "length": I64, **dict.fromkeys(("o0", "o1", "o2", "o3"), F32)})
    for rows, columns in SHAPES:
        n = rows * columns
        case.check(tensors(rows, columns, n, n, n, n), {S0: rows, S1: columns})


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_row_is_swept_in_pieces(name: str) -> None:
    """A masked softmax and a masked running sum; long rows shared by threads too."""
    x = op("where", CONDITIONS[name](R0), load("x", ROW), expr.const(-100.0, F32))
    power = op("exp", op("sub", x, expr.reduce("max", F32, x)))
    softmax = Case(
        loop([store("o0", ROW, op("div", power, expr.reduce("sum", F32, power)))], {P0: S0}, {R0: S1}),
        {"x": F32, "length": I64, "o0": F32},
    )
    prefix = Case(
        loop([store("o0", ROW, expr.scan("sum", F32, load("x", ROW, mask=CONDITIONS[name](R0))))], {P0: S0}, {R0: S1}),
        {"x": F32, "length": I64, "o0": F32},
    )
    for rows, columns in [*SHAPES, (3, 9000)]:
        given = tensors(rows, columns, rows * columns)
        softmax.check(given, {S0: rows, S1: columns})
        prefix.check(given, {S0: rows, S1: columns}, absolute=2e-3)


def test_two_reduced_axes_and_a_condition_on_the_outer_one() -> None:
    """What the vector axis is compared with changes inside the pass: no cut, and right."""
    condition = compare("lt", index(R0), index(P0))
    other = R1
    value = load("x", (P0 * 5 + other) * S1 + R0, mask=compare("le", index(R0), index(other)))
    total = expr.reduce("sum", F32, op("where", condition, value, expr.const(0.5, F32)))
    case = Case(loop([store("o", P0, total)], {P0: S0}, {other: 5, R0: S1}), {"x": F32, "o": F32})
    for rows, columns in [(1, 1), (7, 40)]:
        case.check({"x": random(rows * columns * 5), "o": random(rows)}, {S0: rows, S1: columns}, absolute=1e-4)


def test_pieces_of_a_concatenation_of_three() -> None:
    first, second = compare("lt", index(P1), index(S1)), compare("lt", index(P1), index(2 * S1))
    middle = op("logical_and", op("logical_not", first), second)
    x = load("x", POINT, mask=first)
    y = load("y", POINT - S1, mask=middle)
    z = load("z", POINT - 2 * S1, mask=op("logical_not", second))
    value = op("where", first, x, op("where", second, y, z))
    case = Case(loop([store("o", 3 * P0 * S1 + P1, value)], {P0: S0, P1: 3 * S1}), dict.fromkeys("xyzo", F32))
    for rows, columns in SHAPES:
        n = rows * columns
        case.check({"x": random(n), "y": random(n), "z": random(n), "o": random(3 * n)}, {S0: rows, S1: columns})


def test_a_check_under_a_condition_is_an_error_only_there() -> None:
    condition = compare("lt", index(P1), index(S0))
    safe = op("where", condition, load("i", P0, I64), expr.const(0, I64))
    checked = op("check_index", safe, op("where", condition, index(S1), expr.const(1, I64)))
    value = load("x", expr.indirect_symbol(0), indirect=(checked,), mask=condition)
    case = Case(loop([store("o", POINT, value)], {P0: S0, P1: S1}), {"x": F32, "i": I64, "o": F32})
    given = {"x": random(40), "i": torch.randint(-40, 40, (3,)), "o": random(120)}
    case.check(given, {S0: 3, S1: 40})
    given["i"][1] = 41
    case.check_raises(given, {S0: 3, S1: 40})


def joined(first: object, second: object) -> Case:
    """Rows of x up to `first`, of y up to `second`, and 0 behind."""
    below, behind = compare("lt", index(P1), index(first)), compare("ge", index(P1), index(second))
    middle = op("logical_not", op("logical_or", below, behind))
    value = op("where", below, load("x", POINT, mask=below), load("y", POINT, mask=middle))
    value = op("where", behind, expr.const(0.0, F32), value)
    return Case(loop([store("o", POINT, value)], {P0: S0, P1: S1}), dict.fromkeys("xyo", F32))


def plain(case: Case) -> str:
    """The C++ of the plain schedule, without what it is made from."""
    text = loops.generate(case.kernel, cpu.PLAIN, "polytile_kernel", 64)
    return text[text.index("using namespace pt;") :]


@pytest.mark.parametrize("second", [S0, S0 + 5, 2 * S0 + 3], ids=str)
def test_pieces_in_a_known_order_have_a_text_each(second: object) -> None:
    """Also where a piece is empty, or lies behind the row's end."""
    case = joined(S0, second)
    text = plain(case)
    assert "next_cut(" not in text and text.count("from < upto") == (2 if second == S0 else 3)
    assert ("each_vector<L, 5>" in text) == (second == S0 + 5)
    for rows, columns in SHAPES:
        n = rows * columns
        case.check({"x": random(n), "y": random(n), "o": random(n)}, {S0: rows, S1: columns})


def test_pieces_in_an_unknown_order_are_found_one_by_one() -> None:
    case = joined(S0, S1 - S0)
    assert "next_cut(" in plain(case)
    for rows, columns in SHAPES:
        n = rows * columns
        case.check({"x": random(n), "y": random(n), "o": random(n)}, {S0: rows, S1: columns})
