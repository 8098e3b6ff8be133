"""Loops at several depths of a network, whose sizes are quotients of others, share one kernel."""

from __future__ import annotations

import pytest
import sympy
import torch
from torch import nn
from torch.utils._sympy.functions import FloorDiv

import polytile
from polytile.ir import sizes
from polytile.ir.buffer import Buffer
from polytile.ir.loop import Loop
from polytile.schedule.canonical import CallSite, LoopKernel, canonicalize
from tests.codegen.helpers import F32, P0, P1, S0, S1, load, loop, op, store

HALF = FloorDiv(S0 - 1, 2)
QUARTER = FloorDiv(HALF - 1, 2)
UNKNOWN = FloorDiv(S0 - 5, 2)


def canonical(body: Loop) -> tuple[LoopKernel, CallSite]:
    buffers = {name: Buffer(name, F32, (S0,), ()) for name in body.reads() | body.writes()}
    return canonicalize(body, buffers)


def rows(quotient: sympy.Expr) -> Loop:
    """A square image's rows, each behind one element more."""
    return loop([store("o", (quotient + 1) * P0 + P1, load("x", (quotient + 2) * P0 + P1))], {P0: quotient + 1, P1: quotient + 1})


def one_of_each(quotient: sympy.Expr) -> Loop:
    """The first row of each image, which is as large as says no axis."""
    return loop([store("o", P0 * S1 + P1, load("x", P0 * sizes.expand((quotient + 1) ** 2) + P1))], {P0: S0, P1: S1})


@pytest.mark.parametrize("make", [rows, one_of_each])
@pytest.mark.parametrize("quotient", [HALF, QUARTER])
def test_a_size_that_is_a_quotient_is_an_argument(make: object, quotient: sympy.Expr) -> None:
    assert callable(make)
    kernel, site = canonical(make(quotient))
    assert "//" not in kernel.text
    assert quotient + 1 in site.sizes


@pytest.mark.parametrize("make", [rows, one_of_each])
def test_images_of_several_depths_share_a_kernel(make: object) -> None:
    assert callable(make)
    (half, _), (quarter, _) = canonical(make(HALF)), canonical(make(QUARTER))
    assert half.text == quarter.text


def test_a_quotient_that_may_be_below_minus_one_stays() -> None:
    kernel, _ = canonical(one_of_each(UNKNOWN))
    assert "//" in kernel.text


def test_a_quotient_that_shortens_nothing_stays() -> None:
    body = loop([store("o", P0 * S1 + P1, op("neg", load("x", P0 * HALF + P1)))], {P0: S0, P1: S1})
    assert "//" in canonical(body)[0].text


def test_the_pools_of_a_network_share_a_kernel() -> None:
    pools = nn.Sequential(*(nn.MaxPool2d(3, 2, 1) for _ in range(4)))
    function = torch.compile(pools, dynamic=True, backend="polytile", options={"stall": "compile"})
    polytile.reset()
    for shape in ((2, 8, 65, 50), (1, 8, 33, 97)):
        x = torch.randn(shape)
        with torch.no_grad():
            torch.testing.assert_close(function(x), pools(x), rtol=0, atol=0)
    assert polytile.counters["kernels_generated"] <= 2
