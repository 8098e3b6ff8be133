"""Operands that are broadcast in some calls and not in others, where tracing asks nobody which."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import polytile
from tests.behaviour.helpers import compiled, sized

FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "rows of a bias": lambda a, b: torch.addmm(b, a, a.t() @ a),
    "biases": lambda a, b: torch.baddbmm(b[None], a[None], (a.t() @ a)[None]),
    "a bias of a sum of products": lambda a, b: torch.addbmm(b, a[None], (a.t() @ a)[None]),
    "a bias of a vector": lambda a, b: torch.addmv(b[0], a.t() @ a, a[0]),
    "values at rows": lambda a, b: torch.index_put(a, (torch.arange(a.shape[0]).flip(0),), b),
    "values at points": lambda a, b: a.index_put((torch.arange(a.shape[0])[:, None], torch.arange(a.shape[1])), b),
    "sums at rows": lambda a, b: a.index_put((torch.arange(a.shape[0]) // 2,), b, accumulate=True),
}
SHAPES = (((3, 3), (6, 6)), ((3, 3), (2, 2)), ((3, 3), (6, 2)), ((7, 5), (2, 11)))
"""Of the tensor, and of one whose halves are the operand."""


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_operand_that_some_calls_broadcast(name: str, first: int) -> None:
    def function(a: Tensor, y: Tensor) -> Tensor:
        return FUNCTIONS[name](a, y[: y.shape[0] // 2, : y.shape[1] // 2])

    run = compiled(function, force="interpreted")
    for shapes in SHAPES[first:]:
        a, y = sized(*shapes)
        torch.testing.assert_close(run(a, y), function(a, y))


def test_sizes_that_a_guard_makes_equal_are_no_open_broadcast() -> None:
    """The halves of an even length: s // 2 and s - s // 2, which only the guard of their product tells to be equal."""

    def gated(x: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, -1)
        return torch.nn.functional.gelu(left) * right

    call = compiled(gated)
    for shape in ((5, 96), (3, 130)):
        x = torch.randn(shape)
        torch.testing.assert_close(call(x), gated(x))
    explained = polytile.explain(call, x)
    assert {row.how for row in explained.operators} == {"generated"}
    assert len({decision.kernel for decision in explained.decisions}) == 1
