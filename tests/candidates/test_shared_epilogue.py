"""Products that end in the same epilogue but read their operands otherwise, in one process."""

from __future__ import annotations

import pytest
import torch

from polytile.compiler import programs
from tests.behaviour.helpers import compiled

K = 200
"""Long enough for the epilogue to be a unit of its own."""


def by_rows(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, w) + r


def by_columns(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, w.t()) + r


def names_of_both() -> list[str]:
    first, second = ([*program.multikernels[0].candidates] for program in programs.compiled_programs()[-2:])
    there = {candidate.name for candidate in second}
    return [c.name for c in first if c.origin == "cpp" and c.name in there and c.name.endswith("t1")]


def test_what_one_product_is_bound_to_another_does_not_change() -> None:
    x, w, r = torch.randn(40, K), torch.randn(K, K), torch.randn(40, K)
    compiled(by_rows, tune="off")(x, w, r), compiled(by_columns, tune="off")(x, w, r)
    names = names_of_both()
    if not names:
        pytest.skip("the products have no candidate in common")
    for name in names[:3]:
        torch._dynamo.reset()
        one, other = compiled(by_rows, force=name), compiled(by_columns, force=name)
        for _ in range(2):
            torch.testing.assert_close(one(x, w, r), by_rows(x, w, r), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(other(x, w, r), by_columns(x, w, r), rtol=1e-4, atol=1e-4)
