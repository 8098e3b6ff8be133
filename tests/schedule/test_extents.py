"""Loops that differ only in constant extents share one kernel, where that costs no speed."""

from __future__ import annotations

import itertools

import pytest
import sympy
import torch
from torch import nn

import polytile
from polytile.ir import expr, sizes
from polytile.ir.buffer import Buffer
from polytile.ir.loop import Axis, Loop
from polytile.schedule.canonical import CallSite, LoopKernel, canonicalize
from tests.codegen.helpers import F32, P0, P1, R0, S0, load, loop, op, store


def canonical(body: Loop) -> tuple[LoopKernel, CallSite]:
    buffers = {name: Buffer(name, F32, (S0,), ()) for name in body.reads() | body.writes()}
    return canonicalize(body, buffers, extents_too=True)


def number(value: int) -> sympy.Expr:
    return sympy.Integer(value)


def channels(count: int) -> Loop:
    return loop([store("o", P0, op("rsqrt", load("x", P0)))], {P0: number(count)})


def scaled_rows(count: int) -> Loop:
    value = op("mul", load("x", count * P0 + P1), load("w", P1))
    return loop([store("o", 2 * count * P0 + P1, value)], {P0: S0, P1: number(count)})


def column_sum(count: int) -> Loop:
    total = expr.reduce("sum", F32, load("x", count * R0 + P0))
    return Loop("sum", (Axis(P0, number(count)),), (Axis(R0, S0),), (store("o", P0, total),), ())


def row_sum(length: int) -> Loop:
    total = expr.reduce("sum", F32, load("x", length * P0 + R0))
    return Loop("sum", (Axis(P0, S0),), (Axis(R0, number(length)),), (store("o", P0, total),), ())


@pytest.mark.parametrize(
    ("make", "one", "other"), [(channels, 24, 160), (scaled_rows, 128, 160), (column_sum, 24, 160)]
)
def test_what_differs_in_a_constant_extent_alone_is_one_kernel(make: object, one: int, other: int) -> None:
    assert callable(make)
    (first, here), (second, there) = canonical(make(one)), canonical(make(other))
    assert first.text == second.text
    assert number(one) in here.sizes and number(other) in there.sizes


@pytest.mark.parametrize(
    ("make", "one", "other"), [(channels, 4, 6), (scaled_rows, 24, 160), (scaled_rows, 40, 24), (row_sum, 128, 160)]
)
def test_extents_that_vectors_depend_on_stay_in_the_text(make: object, one: int, other: int) -> None:
    assert callable(make)
    assert canonical(make(one))[0].text != canonical(make(other))[0].text


def test_an_extent_stays_where_values_depend_on_the_place() -> None:
    def beginning(count: int) -> Loop:
        first = op("lt", expr.index_value(P0), expr.const(count // 2, torch.int64), dtype=torch.bool)
        return loop([store("o", P0, expr.load(F32, "x", P0, mask=first))], {P0: number(count)})

    assert number(128) not in canonical(beginning(128))[1].sizes


def test_strides_are_multiples_of_the_argument() -> None:
    kernel, site = canonical(scaled_rows(128))
    _rows, count = kernel.symbols
    assert site.sizes == (S0, 128)
    assert kernel.loop.stores[0].index == 2 * count * sizes.axis("p0") + sizes.axis("p1")


def test_norms_of_several_numbers_of_channels_share_kernels() -> None:
    def layer(before: int, channels: int) -> list[nn.Module]:
        return [nn.Conv2d(before, channels, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]

    counts = (3, 128, 144, 160, 176)
    layers = [each for before, count in itertools.pairwise(counts) for each in layer(before, count)]
    network = nn.Sequential(*layers).eval()
    x = torch.randn(2, 3, 5, 7)
    compiled = torch.compile(network, backend="polytile", dynamic=True, options={"stall": "compile"})
    polytile.reset()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), network(x))
    assert polytile.counters["kernels_generated"] <= 5
