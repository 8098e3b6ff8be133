"""Reads what happens to scores between the product of q and k and the softmax, backwards from the softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from polytile.frontend.attention.views import (
    CASTS,
    RESHAPES,
    VIEWS,
    is_one,
    keeps_order,
    number,
    shape,
    source,
    uses,
    value,
)

aten = torch.ops.aten

PRODUCTS = (aten.bmm.default, aten.mm.default)
SOFTMAXES = {aten._softmax.default: False, aten._safe_softmax.default: True}
"""Softmax operators, and whether a row whose scores are all -inf gives 0."""
LOWEST = -1e30
"""Fills up to this value absorb any score that is added to them."""


class NotAttention(Exception):
    """Raised if two products around a softmax are not an attention that kernels support; the message says why."""


@dataclass
class Scores:
    """scores = mask(scale·factors·left@right).

    Attributes
    ----------
    left, right
        Operands of the product.
    added
        Biases, with the views that give them the shape of the softmax.
    kept
        True where a score is kept and false where it is replaced by `fill`; the opposite if `inverted`.
    factors
        (whether it divides, a number known only at run time, or one per head).
    """

    product: torch.fx.Node
    left: torch.fx.Node
    right: torch.fx.Node
    scale: float = 1.0
    factors: list[tuple[bool, Any]] = field(default_factory=list)
    added: list[tuple[torch.fx.Node, tuple[torch.fx.Node, ...]]] = field(default_factory=list)
    kept: torch.fx.Node | None = None
    inverted: bool = False
    fill: float = -math.inf


def scores_of(last: torch.fx.Node, module: torch.fx.GraphModule) -> Scores:
    """The scores of `last`, a softmax's argument. Raises NotAttention."""
    reading = _Reading(last, module)
    while reading.node.target not in (*PRODUCTS, aten.baddbmm.default, aten.addmm.default):
        reading.step()
    return reading.result()


class _Reading:
    """The walk from the softmax to the product. `views` has the reshapes passed so far, the innermost first."""

    def __init__(self, last: torch.fx.Node, module: torch.fx.GraphModule) -> None:
        self.last, self.node, self.module = last, last, module
        self.views: tuple[torch.fx.Node, ...] = ()
        self.scores = Scores(last, last, last)

    def step(self) -> None:
        """Pass one node."""
        node = self.node
        if node is not self.last and len(uses(node)) != 1:
            raise NotAttention(f"{node.target} between the product and the softmax has other uses")
        if node.op != "call_function":
            raise NotAttention("no product leads to the softmax")
        if node.target in VIEWS:
            self.views = (node, *self.views) if node.target not in CASTS else self.views
            self.node = source(node)
        elif node.target in _STEPS:
            _STEPS[node.target](self, node)
        else:
            raise NotAttention(f"{node.target} stands between the product and the softmax")

    def times(self, node: torch.fx.Node) -> None:
        """Read a factor or divisor of the product, or of the expression to which a bias and a mask are applied."""
        divides = node.target in (aten.div.Tensor, aten.div.Scalar)
        inner, factor = node.args[:2]
        both = isinstance(inner, torch.fx.Node) and isinstance(factor, torch.fx.Node)
        if not divides and (not isinstance(inner, torch.fx.Node) or (both and not self._leads_to_product(inner))):
            inner, factor = factor, inner
        known = number(factor, self.module)
        if not isinstance(inner, torch.fx.Node) or len(node.args) > 2 or node.kwargs:
            raise NotAttention("scores are rounded")
        if known is not None:
            self.scores.scale *= 1 / known if divides else known
        elif isinstance(factor, torch.fx.Node) and _is_factor(factor, inner):
            self.scores.factors.append((divides, factor))
        else:
            raise NotAttention("scores are multiplied by a tensor")
        self.node = inner

    def plus(self, node: torch.fx.Node) -> None:
        """Read a bias."""
        left, right = node.args[:2]
        if not isinstance(right, torch.fx.Node) or not isinstance(left, torch.fx.Node):
            raise NotAttention("a number is added to the scores")
        if node.kwargs.get("alpha", 1) != 1:
            raise NotAttention("a bias is added with a factor")
        if not self._leads_to_product(left):
            left, right = right, left
        self._add(right)
        self.node = left

    def chosen(self, node: torch.fx.Node) -> None:
        """Read a mask: where(kept, scores, fill), or where(left out, fill, scores)."""
        condition, *branches = node.args
        places = [k for k, branch in enumerate(branches) if number(branch, self.module) is not None]
        if len(places) != 1 or not isinstance(condition, torch.fx.Node):
            raise NotAttention("a mask chooses among tensors")
        fill, scores = number(branches[places[0]], self.module), branches[1 - places[0]]
        assert fill is not None and isinstance(scores, torch.fx.Node)
        if self.scores.kept is not None or self._is_scaled or (self.scores.added and fill > LOWEST):
            raise NotAttention("masked scores are changed before the softmax")
        if any(view.target in RESHAPES for view in self.views):
            raise NotAttention("a mask has another shape than the softmax")
        self.scores.kept, self.scores.fill, self.scores.inverted = condition, fill, places[0] == 0
        self.node = scores

    def result(self) -> Scores:
        """The scores, with the product's operands."""
        node, scores = self.node, self.scores
        arguments: Any = node.args
        scores.product = node
        if not keeps_order(node, self.views):
            raise NotAttention("scores are transposed before the softmax")
        if node.target in PRODUCTS:
            scores.left, scores.right = arguments
            return scores
        bias, scores.left, scores.right = arguments
        beta, alpha = (number(node.kwargs.get(name, 1), self.module) for name in ("beta", "alpha"))
        if beta not in (0, 1) or alpha is None:
            raise NotAttention("a bias is added with a factor")
        if beta:
            self._add(bias)
        scores.scale *= alpha
        return scores

    @property
    def _is_scaled(self) -> bool:
        return self.scores.scale != 1.0 or bool(self.scores.factors)

    def _add(self, bias: torch.fx.Node) -> None:
        """Add a bias to which no factor passed earlier applies. If a mask was passed, its fill must be low enough to absorb the
        bias."""
        if self._is_scaled:
            raise NotAttention("a bias is multiplied by the scale")
        if self.scores.kept is not None and self.scores.fill > LOWEST:
            raise NotAttention("scores with a bias are replaced where they are masked")
        self.scores.added.append((bias, self.views))

    def _leads_to_product(self, node: torch.fx.Node) -> bool:
        """Whether a product is reachable from `node` through operations on scores."""
        seen = 0
        while node.op == "call_function" and seen < 12:
            if node.target in (*PRODUCTS, aten.baddbmm.default, aten.addmm.default):
                return True
            if node.target not in VIEWS and node.target not in _STEPS:
                return False
            inner = [a for a in node.args if isinstance(a, torch.fx.Node) and isinstance(a.meta.get("val"), torch.Tensor)]
            inner = [a for a in inner if value(a).is_floating_point() and not _is_scalar(a)]
            if not inner:
                return False
            node, seen = max(inner, key=lambda a: value(a).ndim), seen + 1
        return False


def _is_scalar(node: torch.fx.Node) -> bool:
    fake = node.meta.get("val")
    return not isinstance(fake, torch.Tensor) or fake.ndim == 0


def _is_factor(factor: torch.fx.Node, scores: torch.fx.Node) -> bool:
    """Whether a factor is a single number, or at most one per head."""
    if _is_scalar(factor):
        return True
    sizes = shape(factor)
    return len(sizes) <= value(scores).ndim == 4 and all(is_one(n) for n in sizes[-2:]) and value(factor).is_floating_point()


_STEPS: dict[Any, Callable[[_Reading, torch.fx.Node], None]] = {
    aten.mul.Tensor: _Reading.times,
    aten.mul.Scalar: _Reading.times,
    aten.div.Tensor: _Reading.times,
    aten.div.Scalar: _Reading.times,
    aten.add.Tensor: _Reading.plus,
    aten.where.self: _Reading.chosen,
}
