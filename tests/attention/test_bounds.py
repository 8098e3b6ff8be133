"""Bounds of the loop over keys against the masks that they follow from."""

from __future__ import annotations

import pytest
import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from polytile.attention.bounds import FIRST, LAST, Analysis, Interval
from polytile.attention.scores import KEY, QUERY
from polytile.ir import expr
from polytile.ir.expr import Node

KEYS, BLOCKS = 60, ((0, 0), (0, 15), (7, 22), (40, 59))


def compared(name: str, left: sympy.Expr, right: sympy.Expr) -> Node:
    return expr.op(name, torch.bool, expr.index_value(left, torch.int64), expr.index_value(right, torch.int64))


def joined(name: str, *masks: Node) -> Node:
    return expr.op(name, torch.bool, *masks)


CAUSAL, WINDOW = compared("le", KEY, QUERY), compared("gt", KEY, QUERY - 9)
PREFIX = compared("lt", KEY, sympy.Integer(20))
CHUNK = compared("eq", FloorDiv(KEY, sympy.Integer(8)), FloorDiv(QUERY, sympy.Integer(8)))
MASKS = {
    "causal": (CAUSAL, lambda i, j: j <= i),
    "turned": (compared("ge", QUERY + 5, KEY), lambda i, j: j <= i + 5),
    "window": (joined("logical_and", CAUSAL, WINDOW), lambda i, j: i - 9 < j <= i),
    "prefix": (joined("logical_or", PREFIX, CAUSAL), lambda i, j: j < 20 or j <= i),
    "hidden": (joined("logical_not", CAUSAL), lambda i, j: j > i),
    "chunk": (CHUNK, lambda i, j: i // 8 == j // 8),
    "odd": (compared("ne", KEY, QUERY), lambda i, j: i != j),
}


def points(interval: Interval, first: int, last: int) -> set[int]:
    at = {FIRST: first, LAST: last}
    low = 0 if interval.low is None else int(interval.low.subs(at))
    high = KEYS if interval.high is None else int(interval.high.subs(at))
    return set(range(max(0, low), min(KEYS, high)))


@pytest.mark.parametrize("name", MASKS)
def test_bounds_hold_every_key_that_is_seen_and_only_keys_that_all_see(name: str) -> None:
    mask, sees = MASKS[name]
    bounds = Analysis().bounds(mask)
    for first, last in BLOCKS:
        rows = [{j for j in range(KEYS) if sees(i, j)} for i in range(first, last + 1)]
        assert set.union(*rows) <= points(bounds.some, first, last)
        if bounds.all is not None:
            assert points(bounds.all, first, last) <= set.intersection(*rows)


@pytest.mark.parametrize("name", ["causal", "turned", "window", "prefix", "hidden"])
def test_bounds_are_as_narrow_as_blocks_allow(name: str) -> None:
    mask, sees = MASKS[name]
    bounds = Analysis().bounds(mask)
    for first, last in BLOCKS:
        rows = [{j for j in range(KEYS) if sees(i, j)} for i in range(first, last + 1)]
        assert points(bounds.some, first, last) == set.union(*rows)
        assert bounds.all is not None and points(bounds.all, first, last) == set.intersection(*rows)
