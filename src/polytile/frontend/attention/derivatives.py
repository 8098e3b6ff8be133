"""Finds the backward pass of decomposed attention in a joint graph.

    grad of out ──► bmm(·, vᵀ) ──► softmax's derivative ──► mask, scale ──► bmm(·, k), bmm(qᵀ, ·)
              └──► bmm(sharesᵀ, ·)                     └──► gradient of a bias

Between the softmax and the products every step is linear in the gradient: a factor, a condition, a view or a conversion. Other
uses of the gradient on the way are gradients of biases.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.fx

from polytile.frontend.attention.dropout import Dropped, before_dropout
from polytile.frontend.attention.scores import PRODUCTS, NotAttention
from polytile.frontend.attention.shifts import Shifts
from polytile.frontend.attention.views import (
    COPIES,
    EXPAND,
    PERMUTE,
    VIEWS,
    keeps_order,
    number,
    same,
    shape,
    source,
    value,
)
from polytile.frontend.taken_apart import KEY, Name, Result

aten = torch.ops.aten

FACTORS = (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar)
MOST_STEPS = 48
"""Maximum number of nodes between the softmax's derivative and a product."""


@dataclass(frozen=True)
class Gradients:
    """The backward pass of one attention.

    Attributes
    ----------
    grad
        The gradient of the second product's result.
    changes
        The gradient of the softmax's argument.
    steps
        The nodes from `changes` to the operand of the products for q and k, without views and conversions.
    of_q, of_k, of_v
        Products that compute the gradients of the operands, if these are wanted; `turned` if that for k is (d, n).
    of_bias
        Whether `changes` has other uses.
    """

    grad: torch.fx.Node
    changes: torch.fx.Node
    steps: tuple[torch.fx.Node, ...]
    of_q: torch.fx.Node | None
    of_k: torch.fx.Node | None
    of_v: torch.fx.Node | None
    turned: bool
    of_bias: bool

    @cached_property
    def products(self) -> tuple[torch.fx.Node, ...]:
        return tuple(node for node in (self.of_v, self.of_q, self.of_k) if node is not None)


@dataclass(frozen=True)
class Joint:
    """A joint graph. `names`: its nodes by name; `of_tangents`: nodes that depend on the gradients of its results; `derivatives`:
    the derivatives of its softmaxes; `shifts`: those of its attentions so far."""

    module: torch.fx.GraphModule
    names: dict[str, torch.fx.Node]
    of_tangents: frozenset[torch.fx.Node]
    derivatives: Mapping[torch.fx.Node, torch.fx.Node]
    shifts: Shifts

    @classmethod
    def of(cls, module: torch.fx.GraphModule) -> Joint:
        behind = set[torch.fx.Node]()
        derivatives = dict[torch.fx.Node, torch.fx.Node]()
        names = {node.name: node for node in module.graph.nodes}
        for node in module.graph.nodes:
            if (node.op == "placeholder" and "tangents" in str(node.target)) or not behind.isdisjoint(node.all_input_nodes):
                behind.add(node)
            noted = node.meta.get(KEY)
            if isinstance(noted, Result) and noted.call.target == aten._softmax_backward_data.default:
                arguments = [names.get(each.node) if isinstance(each, Name) else None for each in noted.call.args[:2]]
                if arguments[1] is not None:
                    derivatives[_plain(arguments[1])] = node
        return cls(module, names, frozenset(behind), derivatives, Shifts(module))

    def gradients(
        self, softmax: torch.fx.Node, last: torch.fx.Node, left: torch.fx.Node, right: torch.fx.Node,
        dropped: Dropped | None = None,
    ) -> Gradients | None:  # fmt: skip
        """The backward pass of last(softmax(f(left @ right)), v), or None if there is none; the softmax may be `dropped`. Raises
        NotAttention."""
        changes = self.derivatives.get(_plain(softmax))
        if changes is None:
            if any(user in self.of_tangents for user in _reached(softmax)):
                raise NotAttention("only its values have a gradient")
            return None
        grad = self._grad(changes, last, dropped)
        of_v = next((user for user in grad.users if _is_product(user, (last.args[0], True), (grad, False))), None)
        paths = dict(self._paths(changes, ()))
        of_q = _first(node for node in paths if _is_product(node, None, (right, True)) and _has(node, 0, paths[node], False))
        turned = _first(node for node in paths if _is_product(node, (left, True), None) and _has(node, 1, paths[node], False))
        of_k = turned or _first(
            node for node in paths if _is_product(node, None, (left, False)) and _has(node, 0, paths[node], True)
        )
        sides = [node for node in (of_q, of_k) if node is not None]
        if not sides:
            raise NotAttention("the gradient of its scores leads to no product for queries or keys in linear steps")
        steps = [tuple(step for step in paths[node] if step.target not in VIEWS) for node in sides]
        if any(each != steps[0] for each in steps):
            raise NotAttention("the gradients of its queries and keys come from different scores")
        inside = {changes, *[step for node in sides for step in paths[node]]}
        of_bias = any(user not in inside and user not in sides for node in inside for user in node.users)
        return Gradients(grad, changes, steps[0], of_q, of_k, of_v, turned is not None, of_bias)

    def _grad(self, changes: torch.fx.Node, last: torch.fx.Node, dropped: Dropped | None) -> torch.fx.Node:
        """The gradient of the result of `last`, from which that of the softmax is a product with the values, dropped as the
        softmax was."""
        node, path, left = self.names.get(changes.meta[KEY].call.args[0].node), list[torch.fx.Node](), dropped
        while node is not None:
            inner = before_dropout(node, left, self.module)
            if inner is None and node.target not in VIEWS:
                break
            path.insert(0, node)
            node, left = (source(node), left) if inner is None else (inner, None)
        if left is not None:
            raise NotAttention("the gradient of its softmax is not dropped as its weights are")
        if node is None or node.target not in PRODUCTS or not keeps_order(node, path):
            raise NotAttention("the gradient of its softmax is no product")
        if not _is_product(node, None, (last.args[1], True)):
            raise NotAttention("the gradient of its softmax is no product with the values")
        return source(node)

    def _paths(
        self, node: torch.fx.Node, path: tuple[torch.fx.Node, ...]
    ) -> Iterator[tuple[torch.fx.Node, tuple[torch.fx.Node, ...]]]:
        """The products that a gradient reaches through linear steps, and the steps."""
        if len(path) > MOST_STEPS:
            raise NotAttention("the gradients of its scores take too many steps")
        for user in node.users:
            if user.target in PRODUCTS:
                yield user, path
            elif self._is_linear(user, node):
                yield from self._paths(user, (*path, user))

    def _is_linear(self, user: torch.fx.Node, node: torch.fx.Node) -> bool:
        if user.target in VIEWS:
            return True
        others = [each for each in user.args if each is not node]
        if user.kwargs or any(isinstance(each, torch.fx.Node) and each in self.of_tangents for each in others):
            return False
        if user.target in FACTORS:
            first = source(user) if isinstance(user.args[0], torch.fx.Node) else None
            return len(user.args) == 2 and len(others) == 1 and (user.target not in FACTORS[2:] or first is node)
        if user.target == aten.where.self:
            return user.args[0] is not node and len(others) == 2 and number(others[1], self.module) == 0
        return user.target == aten.neg.default


def _first(nodes: Iterable[torch.fx.Node]) -> torch.fx.Node | None:
    return next(iter(nodes), None)


def _has(product: torch.fx.Node, operand: int, path: Sequence[torch.fx.Node], turned: bool) -> bool:
    """Whether an operand of a product is the end of a path that keeps the order of elements, transposed if `turned`."""
    base, is_turned = _turned(product.args[operand])
    before = path[: path.index(base) + 1] if base in path else ()
    views = [step for step in before if step.target in VIEWS]
    return is_turned == turned and (not views or keeps_order(source(views[0]), views))


def _reached(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """What uses a node, through views."""
    for user in node.users:
        yield user
        if user.target in VIEWS:
            yield from _reached(user)


def _plain(node: torch.fx.Node) -> torch.fx.Node:
    while node.target in COPIES or (node.target == EXPAND and same(shape(source(node)), shape(node))):
        node = source(node)
    return node


def _is_product(node: torch.fx.Node, left: tuple[object, bool] | None, right: tuple[object, bool] | None) -> bool:
    """Whether it is a product of these operands; each is a node and whether that is transposed, or anything if None."""
    if node.target not in PRODUCTS:
        return False
    wanted = zip(node.args, (left, right), strict=True)
    return all(each is None or _turned(given) == _turned(each[0], each[1]) for given, each in wanted)


def _turned(node: object, turned: bool = False) -> tuple[torch.fx.Node, bool]:
    """The matrices that a node holds, and whether it has them transposed."""
    assert isinstance(node, torch.fx.Node)
    node = _plain(node)
    while node.target == PERMUTE:
        order, rank = list(node.args[1]), value(node).ndim  # type: ignore[arg-type]
        if order != [*range(rank - 2), rank - 1, rank - 2]:
            break
        node, turned = _plain(source(node)), not turned
    return node, turned
