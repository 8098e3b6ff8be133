"""Random numbers from a counter: every layout of a block draws what the reference draws."""

from __future__ import annotations

import pytest
import sympy
import torch

from polytile.ir import expr
from tests.codegen.helpers import F32, F64, I64, P0, P1, R0, S0, S1, Case, load, loop, op, store

GENERATORS = ("cpp", "triton")
SEED = {"seed": torch.tensor([-1234567890123])}
SIZES = ((1, 3), (5, 16), (16, 32), (7, 33), (48, 64), (3, 130))


def uniform(offset: sympy.Expr, dtype: torch.dtype = F32) -> expr.Node:
    return op("philox_uniform", load("seed", 0, I64), expr.index_value(offset), dtype=dtype)


@pytest.mark.parametrize("first", [0, 1 << 40, 3, 1])
def test_uniform_numbers_of_a_run(first: int) -> None:
    """Whole blocks share counters where the run begins with one; else each number has its own."""
    case = Case(loop([store("o", P0, uniform(P0 + first))], {P0: S0}), {"seed": I64, "o": F32})
    for n in (1, 4, 7, 64, 77, 1000):
        for _ in range(4):
            case.check({**SEED, "o": torch.zeros(n)}, {S0: n}, None)


@pytest.mark.parametrize(
    "offset", [P0 * S1 + P1, P1 * S0 + P0, P0 * 64 + P1, P0 * 3 + 2 * P1, 4 * P0 * S1 + 4 * P1], ids=str
)
def test_uniform_numbers_of_two_axes(offset: sympy.Expr) -> None:
    case = Case(loop([store("o", P0 * S1 + P1, uniform(offset))], {P0: S0, P1: S1}), {"seed": I64, "o": F32})
    for m, n in SIZES:
        for _ in range(4):
            case.check({**SEED, "o": torch.zeros(m * n)}, {S0: m, S1: n}, None)


@pytest.mark.parametrize("down", [False, True], ids=["rows", "columns"])
def test_numbers_that_are_dropped_on_the_way_into_a_sum(down: bool) -> None:
    """Held whole, gone through block by block, and shared among programs."""
    at = R0 * S0 + P0 if down else P0 * S1 + R0
    kept = op("where", op("lt", uniform(at), expr.const(0.5, F32), dtype=torch.bool), load("x", at), expr.const(0.0, F32))
    total = expr.reduce("sum", F32, kept)
    case = Case(loop([store("o", P0, total)], {P0: S0}, {R0: S1}), {"seed": I64, "x": F32, "o": F32})
    for m, n in SIZES:
        for _ in range(6):
            case.check({**SEED, "x": torch.randn(m * n), "o": torch.zeros(m)}, {S0: m, S1: n}, F64, absolute=1e-5)
