"""Two stores that reach every other element each are one on a GPU (ir.loop.neighbours): of 4-bit weights, two numbers a byte."""

from __future__ import annotations

import pytest
import sympy
import torch

from polytile.codegen.triton.generate import generate
from polytile.ir.loop import Loop, neighbours
from polytile.problem import Config
from polytile.schedule.facts import Facts
from tests.codegen.helpers import BF16, F32, P0, P1, S0, S1, U8, Case, load, loop, op, store
from tests.codegen.test_triton_prior import ranking

GENERATORS = ("triton",)
AT = P0 * S1 + P1


def halves(high: sympy.Expr = 2 * AT + 1) -> Loop:
    """Both halves of each byte, times the scale of its row."""
    byte, scale = load("x", AT, U8), load("y", P0, BF16)
    values = [op("mul", op("cast", byte, dtype=F32), scale), op("mul", op("neg", op("cast", byte, dtype=F32)), scale)]
    return loop([store("o", 2 * AT, values[0]), store("o", high, values[1])], {P0: S0, P1: S1})


@pytest.mark.parametrize("rows, columns", [(1, 1), (3, 5), (37, 130), (64, 256)])
def test_both_elements_are_stored(generator: str, rows: int, columns: int) -> None:
    case = Case(halves(), {"x": U8, "y": BF16, "o": BF16})
    x = torch.randint(0, 256, (rows * columns,), dtype=torch.uint8)
    tensors = {"x": x, "y": torch.randn(rows).to(BF16), "o": torch.zeros(2 * rows * columns, dtype=BF16)}
    case.check(tensors, {S0: rows, S1: columns})


def test_they_are_one_store(generator: str) -> None:
    case = Case(halves(), {"x": U8, "y": BF16, "o": BF16}, compiled=False)
    (launch,) = generate(case.kernel, Config.of(variant="pointwise", x=64, y=16, warps=4), Facts()).launches
    assert launch.source.count("tl.store(") == 1 and "tl.interleave(" in launch.source


def test_elements_that_are_not_adjacent_are_stored_apart(generator: str) -> None:
    apart = halves(2 * AT + 3)
    assert [len(group) for group in neighbours(apart.stores, P1)] == [1, 1]
    assert [len(group) for group in neighbours(halves().stores, P1)] == [2]
    assert [len(group) for group in neighbours(halves().stores, P0)] == [1, 1]  # a row apart


def test_the_prior_knows_that_no_bytes_are_wasted(generator: str) -> None:
    """5.3 M bytes of int4 weights: stores apart took 160 µs on an H200, where a copy of as many bytes takes 6."""
    together, apart = (
        next(iter(ranking(Case(body, {"x": U8, "y": BF16, "o": BF16}).kernel, n0=544, n1=9664).values()))
        for body in (halves(), halves(2 * AT + 3))
    )
    assert together < 8 < 40 < apart
