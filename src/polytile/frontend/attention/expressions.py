"""Takes the computation of scores out of a graph: which nodes a kernel computes, and which it reads.

    where(arange(n) <= arange(m)[:, None], products, -inf) + padding[:, None, None, :]
        →   an Expression of products and padding

Computed are the nodes with an element for each query and key, single numbers, and what is made from positions alone. Read are
tensors with fewer elements, and numeric tensors with an element for each pair that come from memory or that several attentions
share, unless they are made from smaller ones by a few operators.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.fx

from polytile.frontend.attention.held import Expression
from polytile.frontend.attention.regions import MOST_NODES, is_by_elements
from polytile.frontend.attention.scores import NotAttention
from polytile.frontend.attention.shifts import SHIFT
from polytile.frontend.attention.views import VIEWS, is_whole_slice, same, shape, uses, value
from polytile.ir.dropout import Dropout

aten = torch.ops.aten

MAKERS = (
    aten.arange.start_step, aten.arange.start, aten.arange.default, aten.full.default, aten.ones.default, aten.zeros.default,
    aten.scalar_tensor.default, torch.ops.prims.iota.default,
)  # fmt: skip
"""Operators that make a tensor of positions or of one number."""
FEW = 8
"""The nodes from which a numeric mask or bias that several attentions share may be made in each of them."""


def expression_of(
    products: torch.fx.Node, results: Sequence[torch.fx.Node], empty_is_0: bool, computed: Sequence[torch.fx.Node] = (),
    dropout: Dropout | None = None,
) -> tuple[Expression, list[torch.fx.Node]]:  # fmt: skip
    """The expression of these results, with `dropout` of the weights, and the nodes that it reads in addition to the `products`.
    What depends on the nodes `computed` is computed too. Raises NotAttention."""
    taken = _Taken(products, computed)
    outputs = tuple(taken.copied(node) for node in results)
    taken.graph.output(outputs)
    _, _, scale, dtype = products.args
    assert isinstance(scale, float) and isinstance(dtype, torch.dtype)
    return Expression(taken.graph, scale, dtype, empty_is_0, dropout), taken.read


class _Taken:
    """A graph that grows by the nodes that a kernel computes."""

    def __init__(self, products: torch.fx.Node, computed: Sequence[torch.fx.Node]) -> None:
        self.graph = torch.fx.Graph()
        self.read: list[torch.fx.Node] = []
        self._copies = {products: self.graph.placeholder("products")}
        self._last = self._copies[products]
        self._scored = dict.fromkeys((products, *computed), True)
        self._products = products

    def copied(self, node: torch.fx.Node) -> torch.fx.Node:
        """The node in the new graph, with all that it is computed from."""
        if node not in self._copies:
            if len(self._copies) > 2 * MOST_NODES:
                raise NotAttention("its scores take too many operators")
            if self._is_computed(node):
                inputs = {each: self.copied(each) for each in node.all_input_nodes}
                self._copies[node] = self.graph.node_copy(node, inputs.__getitem__)
            else:
                self._copies[node] = self._placeholder(node)
        return self._copies[node]

    def _placeholder(self, node: torch.fx.Node) -> torch.fx.Node:
        with self.graph.inserting_after(self._last):
            self._last = self.graph.placeholder(f"read_{len(self.read)}")
        self.read.append(node)
        return self._last

    def _is_computed(self, node: torch.fx.Node) -> bool:
        if node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
            return False
        if node.target in MAKERS or _is_view(node):
            return True
        if not is_by_elements(node):
            return False
        if self._is_scored(node) or value(node).ndim == 0 or not value(node).is_floating_point() or _depends_on_nothing(node):
            return True
        others = [user for user in uses(node) if SHIFT not in user.meta]
        return has_pairs(node, self._products) and (len(others) == 1 or _is_cheap(node, self._products))


    def _is_scored(self, node: torch.fx.Node) -> bool:
        """Whether it depends on the products, or on what is computed as they are, through elementwise operators and views."""
        if node not in self._scored:
            passes = node.op == "call_function" and (_is_view(node) or is_by_elements(node))
            self._scored[node] = passes and any(map(self._is_scored, node.all_input_nodes))
        return self._scored[node]


def has_pairs(node: torch.fx.Node, products: torch.fx.Node) -> bool:
    """Whether a tensor has an element for each query and key."""
    return value(node).ndim >= 2 and same(shape(node)[-2:], shape(products)[-2:])


def _is_view(node: torch.fx.Node) -> bool:
    return node.target in VIEWS or is_whole_slice(node)


def _depends_on_nothing(node: torch.fx.Node) -> bool:
    """Whether it is made from positions and numbers."""
    tensors = [each for each in node.all_input_nodes if isinstance(each.meta.get("val"), torch.Tensor)]
    return node.target in MAKERS or (
        (_is_view(node) or is_by_elements(node)) and all(map(_depends_on_nothing, tensors))
    )


def _is_cheap(node: torch.fx.Node, products: torch.fx.Node) -> bool:
    """Whether few operators make it from booleans and from tensors with fewer elements."""
    makers, left = set[torch.fx.Node](), [node]
    while left:
        each = left.pop()
        if each in makers or not isinstance(each.meta.get("val"), torch.Tensor):
            continue
        if each.target not in MAKERS and not _is_view(each):
            if value(each).is_floating_point() and has_pairs(each, products) and not is_by_elements(each):
                return False
            if not has_pairs(each, products):
                continue
            makers.add(each)
        if each.op == "call_function" and (value(each).is_floating_point() or _is_view(each)):
            left += each.all_input_nodes
        if len(makers) > FEW:
            return False
    return True
