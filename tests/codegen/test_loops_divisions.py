"""Divisions of positions: Python's // and %, of negative values too, in every place where a generator writes them."""

from __future__ import annotations

import pytest
import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, ModularIndexing, PythonMod

from polytile.ir import expr
from tests.codegen.helpers import F32, I64, P0, P1, R0, S0, S1, Case, load, loop, random, store

GENERATORS = ("cpp", "triton")

FAR = 8192
"""Elements that a position may be off the middle of its tensor."""

DIVIDED = {
    "quotient": FloorDiv(P0 - S1, 3),
    "quotient by a size": FloorDiv(P0 - 5, S1),
    "remainder": PythonMod(P0 - S1, 7),
    "remainder by a size": PythonMod(2 * P0 - 11, S1),
    "remainder of a quotient": ModularIndexing(P0 - S1, 3, 5),
    "of a mirrored position": FloorDiv(S0 - 9 - P0, 4) + PythonMod(S0 - 9 - P0, 4),
    "of nothing negative": FloorDiv(P0 + S1, 3) + PythonMod(P0 + S1, 3) + ModularIndexing(P0, 3, 5),
}


@pytest.mark.parametrize("index", DIVIDED.values(), ids=DIVIDED)
def test_divided_positions_are_pythons(index: sympy.Expr) -> None:
    """As a value, and as the place of a load, alone and beside an outer axis."""
    value = Case(loop([store("o", P0, expr.index_value(index))], {P0: S0}), {"o": I64})
    at = sympy.Integer(FAR) + index
    read = Case(loop([store("o", P0, load("x", at))], {P0: S0}), {"x": F32, "o": F32})
    rows = Case(loop([store("o", P1 * S0 + P0, load("x", at + P1))], {P1: S1, P0: S0}), {"x": F32, "o": F32})
    for n, m in ((1, 1), (13, 4), (64, 17), (300, 2), (301, 33)):
        size = {S0: n, S1: m}
        value.check({"o": torch.zeros(n, dtype=I64)}, size)
        read.check({"x": random(2 * FAR), "o": random(n)}, size)
        rows.check({"x": random(2 * FAR), "o": random(n * m)}, size)


@pytest.mark.parametrize("index", DIVIDED.values(), ids=DIVIDED)
def test_divided_positions_along_a_row_that_is_summed(index: sympy.Expr) -> None:
    """Where blocks go along the divided axis, quotient and remainder are carried from one to the next."""
    value = load("x", sympy.Integer(FAR) + P0 + index.xreplace({P0: R0}))
    case = Case(loop([store("o", P0, expr.reduce("sum", F32, value))], {P0: S1}, {R0: S0}), {"x": F32, "o": F32})
    for n, m in ((1, 1), (13, 4), (64, 17), (300, 2), (301, 33), (150, 6), (31, 5)):
        case.check({"x": random(2 * FAR), "o": random(m)}, {S0: n, S1: m}, absolute=1e-3)


def test_a_rolled_row_is_the_row() -> None:
    """x[(p - shift) mod n] for shifts of either sign."""
    for shift in (3, -3):
        rolled = P1 * S0 + PythonMod(P0 - shift, S0)
        case = Case(loop([store("o", P1 * S0 + P0, load("x", rolled))], {P1: S1, P0: S0}), {"x": F32, "o": F32})
        for n, m in ((3, 2), (17, 1), (64, 9), (100, 31)):
            case.check({"x": random(n * m), "o": random(n * m)}, {S0: n, S1: m})
