"""Elementwise functions of scores: the region of a graph between a product and its softmax.

    bmm → view → · scale → tanh → where(mask, ·, -inf) → softmax

`Region` has the product, the scale, the first node that is scores in the shape of the softmax, and the nodes after it. An
attention with such scores is polytile::attention_of (operator.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch.utils.checkpoint import CheckpointPolicy

from polytile.frontend.attention.operator import (
    ATTENTION,
    ATTENTION_OF,
    COMPUTED,
    OF_BACKWARD,
    WITH_LSE,
)
from polytile.frontend.attention.pages import PAGED
from polytile.frontend.attention.scores import PRODUCTS, NotAttention
from polytile.frontend.attention.trained import BACKWARD, TRAINED
from polytile.frontend.attention.views import (
    CASTS,
    COPIES,
    EXPAND,
    RESHAPES,
    VIEWS,
    is_one,
    keeps_order,
    number,
    same,
    shape,
    uses,
    value,
)
from polytile.frontend.lower.registry import TABLE, load

aten = torch.ops.aten

MOST_NODES = 64
"""Maximum number of nodes of a region, so that kernels stay readable and quick to compile."""
ELEMENTS = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
)  # fmt: skip
"""Dtypes from which scores can be computed."""


SCORED: dict[Any, tuple[int, ...]] = {
    **dict.fromkeys((ATTENTION, ATTENTION_OF, PAGED, WITH_LSE, TRAINED), (3,)),
    OF_BACKWARD: (3, 4),
    BACKWARD: (4,),
}  # fmt: skip
"""Operators of attention, and which of their arguments have an element for each query and key."""


@dataclass(frozen=True)
class Region:
    """`root` is scale · left @ right of the `product`, in the shape of the softmax; `nodes` lead from it to the softmax's
    argument, which is the last of them."""

    product: torch.fx.Node
    root: torch.fx.Node
    scale: float
    nodes: tuple[torch.fx.Node, ...]


def region_of(last: torch.fx.Node, softmax: torch.fx.Node, module: torch.fx.GraphModule, why: NotAttention) -> Region:
    """The region that ends with `last`, the argument of `softmax`. Raises `why` if there is none."""
    load()
    product = _product_behind(last)
    if product is None:
        raise why
    path = [product]
    while not same(shape(path[-1]), shape(softmax)):
        users = uses(path[-1])
        if len(users) != 1 or users[0].target not in VIEWS or users[0].target in CASTS:
            raise why
        path.append(users[0])
    if not keeps_order(product, path[1:]):
        raise why
    root, scale = path[-1], 1.0
    while len(users := uses(root)) == 1 and (factor := _factor(root, users[0], module)) is not None:
        root, scale = users[0], scale * factor
    nodes = _between(root, last, why)
    return Region(product, root, scale, nodes)


def _product_behind(last: torch.fx.Node) -> torch.fx.Node | None:
    """The only product on which `last` depends through elementwise operators and views; None if there are none or several."""
    products, stack, seen = set[torch.fx.Node](), [last], set[torch.fx.Node]()
    while stack and len(seen) <= 4 * MOST_NODES:
        node = stack.pop()
        if node in seen or node.op != "call_function" or not isinstance(node.meta.get("val"), torch.Tensor):
            continue
        seen.add(node)
        if node.target in PRODUCTS:
            products.add(node)
        elif node.target in VIEWS or is_by_elements(node):
            stack += node.all_input_nodes
    return products.pop() if len(products) == 1 else None


def _factor(root: torch.fx.Node, user: torch.fx.Node, module: torch.fx.GraphModule) -> float | None:
    """The number by which `user` multiplies the scores; None if it does not."""
    if user.target not in (aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor) or user.kwargs or len(user.args) != 2:
        return None
    left, right = user.args
    divides = user.target == aten.div.Tensor
    factor = right if left is root else None if divides else left
    known = number(factor, module)
    if known is None or value(user).dtype != value(root).dtype or (divides and not known):
        return None
    return 1 / known if divides else known


def _between(root: torch.fx.Node, last: torch.fx.Node, why: NotAttention) -> tuple[torch.fx.Node, ...]:
    """The nodes that depend on `root`, in the graph's order. Raises `why` if any is not elementwise, or is used outside."""
    inside = {root}
    nodes: list[torch.fx.Node] = []
    node = root
    while node is not last:
        node = node.next
        if node.op == "output" or len(nodes) > MOST_NODES:
            raise why
        if not inside & set(node.all_input_nodes) or node.target == aten.sym_size.int:
            continue
        unchanged = node.target in (EXPAND, *RESHAPES)
        if not (unchanged or is_by_elements(node)) or not same(shape(node), shape(root)):
            raise why
        inside.add(node)
        nodes.append(node)
    if any(user not in inside for each in (root, *nodes) if each is not last for user in uses(each)):
        raise why
    return tuple(nodes)


def is_by_elements(node: torch.fx.Node) -> bool:
    """Whether a loop computes the node elementwise."""
    target, fake = node.target, node.meta.get("val")
    if not isinstance(target, torch._ops.OpOverload) or target not in TABLE or not isinstance(fake, torch.Tensor):
        return False
    if torch.Tag.pointwise not in target.tags and target not in (*CASTS, *COPIES):
        return False
    if torch.Tag.nondeterministic_seeded in target.tags:
        return False
    given = [each.meta.get("val") for each in node.all_input_nodes]
    return all(each.dtype in ELEMENTS for each in (fake, *given) if isinstance(each, torch.Tensor))


# what only scores are computed from ------------------------------------------------------------------------------------


def mark_computed(graph: torch.fx.Graph) -> None:
    """Mark the nodes that only scores depend on and that have an element for each query and key: regions and masks. A numeric
    bias that several attentions share is stored instead."""
    if not any(node.target in SCORED for node in graph.nodes):
        return
    load()
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and _is_for_scores(node):
            node.meta[COMPUTED] = True


def recompute(graph: torch.fx.Graph) -> None:
    """Have the backward part of a joint graph compute anew what only scores depend on, so that no mask is saved for it."""
    mark_computed(graph)
    for node in graph.nodes:
        if node.meta.get(COMPUTED):
            node.meta["recompute"] = CheckpointPolicy.PREFER_RECOMPUTE


def _is_for_scores(node: torch.fx.Node) -> bool:
    fake, users = node.meta.get("val"), uses(node)
    if not isinstance(fake, torch.Tensor) or not users or node.target in SCORED:
        return False
    if node.target not in VIEWS and not is_by_elements(node):
        return False
    pairs = fake.ndim >= 2 and not any(is_one(n) for n in fake.shape[-2:])
    apart = [user for user in users if user.target != BACKWARD] or users  # a derivative is no further attention
    if not pairs or (len(apart) > 1 and fake.dtype != torch.bool and COMPUTED not in node.meta):
        return False
    return all(user.meta.get(COMPUTED) or _takes_scores(user, node) for user in users)


def _takes_scores(user: torch.fx.Node, node: torch.fx.Node) -> bool:
    places = SCORED.get(user.target, ())
    return {k for k, arg in enumerate(user.args) if arg is node} <= set(places) and bool(places)

