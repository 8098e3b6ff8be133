"""Reductions of a product's rows become part of its epilogue where blocks of columns can do them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from polytile import options
from polytile.ir.loop import Loop
from polytile.ir.program import Program
from polytile.ir.template import Template
from polytile.passes.pipeline import optimize
from tests import interpret
from tests.frontend.lowering import lower

Function = Callable[[torch.Tensor, torch.Tensor], Any]


pytestmark = pytest.mark.usefixtures("on_gpu")


def optimized(function: Function, args: tuple[torch.Tensor, ...], symbolic: bool = True) -> Program:
    """The program after all passes, whose results are eager's."""
    program = optimize(lower(function, *args, symbolic=symbolic)).program
    got, want = interpret.run(program, list(args)), function(*args)
    for mine, eager in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-4)
    return program


def reduced(program: Program) -> list[bool]:
    """Of each product, whether its epilogue has reductions."""
    products = [o for o in program.operations if isinstance(o, Template)]
    return [product.epilogue is not None and bool(product.epilogue.reduced) for product in products]


FUSED: dict[str, Function] = {
    "mean of squares, beside the product": lambda x, w: ((y := torch.relu(x @ w)), y.pow(2).mean(-1)),
    "logsumexp": lambda x, w: (x @ w).logsumexp(-1),
    "mean and variance": lambda x, w: torch.var_mean(x @ w, -1),
    "what rows come to goes on": lambda x, w: torch.sqrt((x @ w).abs().sum(-1) + x[:, 0].abs()),
    "rows of a batch": lambda x, w: torch.bmm(x.view(2, -1, x.shape[1]), w.expand(2, *w.shape)).amax(-1),
}


@pytest.mark.parametrize("name", FUSED)
def test_reductions_of_rows_are_epilogue(name: str) -> None:
    program = optimized(FUSED[name], (torch.randn(6, 10), torch.randn(10, 200)))
    assert reduced(program) == [True] and not any(isinstance(o, Loop) for o in program.operations)


APART: dict[str, Function] = {
    "columns": lambda x, w: (x @ w).sum(0),
    "everything": lambda x, w: (x @ w).sum(),
    "parts of a row": lambda x, w: (x @ w).view(x.shape[0], -1, 2).amax(-1),
    "points wait for the row": lambda x, w: torch.softmax(x @ w, -1),
    "one sum waits for another": lambda x, w: ((y := x @ w) - y.mean(-1, keepdim=True)).pow(3).sum(-1),
    "where the greatest stands": lambda x, w: (x @ w + w[0]).argmax(-1),
    "a scan": lambda x, w: (x @ w).cumsum(-1),
    "an element is looked up": lambda x, w: (y := x @ w).sum(-1) + y[:, x[0].long().clamp(0, 3)].sum(-1),
}


@pytest.mark.parametrize("name", APART)
def test_what_blocks_of_columns_cannot_do_stays_a_loop(name: str) -> None:
    assert reduced(optimized(APART[name], (torch.randn(6, 10), torch.randn(10, 200)))) == [False]


def test_short_rows_of_a_known_length_may_be_gone_through_again() -> None:
    def normed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x @ w, w.shape[1:])

    for columns, fuses in ((128, True), (129, False)):
        args = torch.randn(6, 10), torch.randn(10, columns)
        assert reduced(optimized(normed, args, symbolic=False)) == [fuses]
    assert reduced(optimized(normed, (torch.randn(6, 10), torch.randn(10, 128)))) == [False]


def test_a_product_of_one_row_has_an_epilogue_too() -> None:
    args = torch.randn(1, 10), torch.randn(10, 200)
    program = optimized(lambda x, w: ((y := torch.relu(x @ w)), y.sum(-1)), args, symbolic=False)
    assert reduced(program) == [True] and len(program.operations) == 1


def test_on_a_cpu_rows_are_reduced_by_a_loop() -> None:
    with options.override(interpret=False):
        assert reduced(optimized(FUSED["logsumexp"], (torch.randn(6, 10), torch.randn(10, 200)))) == [False]
