"""Takes the largest bias of a row from its scores where every key of the row has a very small one.

    scores  →  scores - shift,    shift = the row's largest bias, if that is finite and below SMALLEST, else 0

Models mask by numbers such as -1e9 or the smallest of a dtype. In a row that is masked throughout, the log-sum-exp of n equal
scores is that number: it has no digits left for log n. The backward pass, which computes the weights from scores and log-sum-exp,
would take each for 1 instead of 1 / n. A softmax does not change if its rows are shifted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from polytile.frontend.attention.views import CASTS, COPIES, EXPAND, VIEWS, inserted, number, same, shape, source, value

aten = torch.ops.aten

SHIFT = "polytile_shift"
"""The key in a node's `meta` of those that a shift is computed by."""
SMALLEST = -1024.0
"""The bias below which a row is shifted. Float32 has steps of 6e-5 there."""


class Shifts:
    """The shifts of one graph. Attentions with the same biases share one."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        self.module = module
        self._known: dict[Any, torch.fx.Node] = {}

    def shift_of(self, graph: torch.fx.Graph, scores: Sequence[torch.fx.Node]) -> torch.fx.Node | None:
        """The shift of the last of `scores`, which are all nodes that depend on the first, the products; None if no bias can be
        so small. It broadcasts to the scores, with one key."""
        steps = self._steps(scores)
        if not any(self._may_be_small(step) for step in steps):
            return None
        if steps not in self._known:
            self._known[steps] = _shift(graph, self._biases(graph, steps))
        return self._known[steps]

    def _steps(self, scores: Sequence[torch.fx.Node]) -> tuple[tuple[Any, ...], ...]:
        """The biases and masks that are applied last, the innermost first: the operator and its arguments, None in place of
        scores."""
        steps, node, own = list[tuple[Any, ...]](), scores[-1], set(scores)
        while node is not scores[0]:
            inner: list[Any] = [each for each in node.args if each in own]
            known = node.target in (aten.add.Tensor, aten.where.self) and not node.kwargs
            if len(inner) != 1 or (known and not all(isinstance(each, torch.fx.Node) for each in node.args)):
                break
            if known:
                steps.insert(0, (node.target, *[None if each in own else each for each in node.args]))
            elif node.target not in (*CASTS, *COPIES):
                break
            (node,) = inner
        return tuple(steps)

    def _may_be_small(self, step: tuple[Any, ...]) -> bool:
        target, *given = step
        if target == aten.where.self:
            fills = [number(each, self.module) for each in given[1:] if each is not None]
            return any(fill is None or -math.inf < fill < SMALLEST for fill in fills)
        (bias,) = (each for each in given if each is not None)
        return isinstance(bias, torch.fx.Node) and value(bias).is_floating_point() and not self._is_infinite(bias)

    def _is_infinite(self, bias: torch.fx.Node) -> bool:
        """Whether a bias is 0 or -inf everywhere."""
        while bias.target in VIEWS:
            bias = source(bias)
        return bias.target == aten.where.self and {number(each, self.module) for each in bias.args[1:]} == {0.0, -math.inf}

    def _biases(self, graph: torch.fx.Graph, steps: tuple[tuple[Any, ...], ...]) -> torch.fx.Node:
        """What the steps make of scores of 0."""
        total: torch.fx.Node | None = None
        for target, *given in steps:
            if target == aten.add.Tensor:
                (bias,) = (_unexpanded(each) for each in given if each is not None)
                total = bias if total is None else inserted(graph, target, total, bias)
            else:
                condition, *branches = given
                (fill,) = (each for each in branches if each is not None)
                like = value(fill)
                zero = total or inserted(graph, aten.full.default, [], 0.0, dtype=like.dtype, device=like.device)
                total = inserted(graph, target, condition, *(zero if each is None else each for each in branches))
        assert total is not None
        return total


def _unexpanded(bias: torch.fx.Node) -> torch.fx.Node:
    """A bias before it was repeated along other dimensions than that of keys."""
    while bias.target == EXPAND and same(shape(bias)[-1:], shape(source(bias))[-1:]):
        bias = source(bias)
    return bias


def _shift(graph: torch.fx.Graph, biases: torch.fx.Node) -> torch.fx.Node:
    largest = inserted(graph, aten.amax.default, biases, [-1], True)
    largest.meta[SHIFT] = True
    small = inserted(graph, aten.lt.Scalar, largest, SMALLEST)
    finite = inserted(graph, aten.gt.Scalar, largest, -math.inf)
    like = value(largest)
    zero = inserted(graph, aten.full.default, [], 0.0, dtype=like.dtype, device=like.device)
    return inserted(graph, aten.where.self, inserted(graph, aten.logical_and.default, small, finite), largest, zero)
