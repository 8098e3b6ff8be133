"""Sizes at stand-in values, by which fusions are ranked."""

from __future__ import annotations

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Mod

import polytile
from polytile.passes.fusion.cost import STAND_IN, estimate
from tests.codegen.helpers import S0, S1


def test_a_size_is_estimated_at_one_value_of_every_symbol() -> None:
    assert estimate(S0 * S1 + 1) == STAND_IN**2 + 1


def test_a_divisor_is_not_zero() -> None:
    pieces = FloorDiv(S0, 2 * STAND_IN)
    assert estimate(FloorDiv(S0, pieces)) == 2 * STAND_IN
    assert estimate(Mod(S0, pieces, evaluate=False)) == 0


def test_a_size_without_a_value_counts_as_one() -> None:
    assert estimate(FloorDiv(S0, FloorDiv(sympy.Integer(5), S0))) == 1


def test_an_image_in_windows_larger_than_a_stand_in_compiles() -> None:
    def means(x: torch.Tensor) -> torch.Tensor:
        pieces = x.shape[1] // (2 * STAND_IN)
        rows = x[:, : pieces * 2 * STAND_IN].reshape(x.shape[0] * pieces, -1)
        return (rows - rows.mean(1, keepdim=True)).reshape(x.shape[0], pieces, -1)

    compiled = torch.compile(means, backend="polytile", dynamic=True, options={"stall": "compile", "on_failure": "raise"})
    polytile.reset()
    for shape in ((3, 290), (2, 515)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), means(x))
    assert polytile.counters["kernels_generated"]
