"""Holds the CPU's calls of scaled_dot_product_attention in a joint graph whose masks the graph computes.

    where(arange(n) <= arange(m)[:, None], 0, -inf) → flash(q, k, v, mask), flash_backward(…, mask)
        →   held(q, k, v), held_backward(…)

PyTorch's operators take a mask in memory, with an element for each query and key, and the forward pass may save it. Held calls
compute it (held.py). A mask that comes from memory, or a bias with an element for each pair, stays an argument of the call.
"""

from __future__ import annotations

import math
from operator import getitem
from typing import Any

import torch
import torch.fx

from polytile.frontend.attention.expressions import expression_of, has_pairs
from polytile.frontend.attention.held import held, held_backward, hold
from polytile.frontend.attention.operator import OF_BACKWARD, PRODUCTS, WITH_LSE
from polytile.frontend.attention.scores import NotAttention
from polytile.frontend.attention.views import inserted, loosen_views, shape, value
from polytile.frontend.lower.overloads import named_arguments

aten = torch.ops.aten

FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
FLASH_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def hold_masked_calls(graph: torch.fx.Graph) -> bool:
    """Returns whether there was any."""
    changed = False
    for call in graph.find_nodes(op="call_function", target=FLASH):
        given = named_arguments(FLASH, call.args, call.kwargs)
        items = {user.args[1]: user for user in call.users if user.target is getitem}
        backward = [user for user in items[1].users if user.target == FLASH_BACKWARD] if set(items) == {0, 1} else []
        plain = given["dropout_p"] == 0 and not given["is_causal"] and isinstance(given["attn_mask"], torch.fx.Node)
        scale = given["scale"] if given["scale"] is not None else _scale(given["query"])
        if plain and scale is not None and len(backward) == 1 and set(items[1].users) == set(backward):
            changed = _hold(graph, call, given, items, backward[0], scale) or changed
    return changed


def _scale(q: torch.fx.Node) -> float | None:
    length = shape(q)[3]
    return 1 / math.sqrt(length) if isinstance(length, int) and length else None


def _hold(
    graph: torch.fx.Graph, call: torch.fx.Node, given: dict[str, Any], items: dict[Any, torch.fx.Node], backward: torch.fx.Node,
    scale: float,
) -> bool:  # fmt: skip
    q, k, v, mask = (given[name] for name in ("query", "key", "value", "attn_mask"))
    with graph.inserting_before(call):
        products = inserted(graph, PRODUCTS, q, k, scale, torch.float32)
        scores = inserted(graph, aten.add.Tensor, products, mask)
        slopes = inserted(graph, aten.full.default, [], 1.0, dtype=torch.float32, device=value(q).device)
        try:
            expression, read = expression_of(products, (scores,), True)
            again, _ = expression_of(products, (scores, slopes), True)
        except NotAttention:
            return False
        if any(isinstance(each.meta["val"], torch.Tensor) and has_pairs(each, products) for each in read):
            return False
        results = WITH_LSE(*map(value, (q, k, v, scores)), scale, True)
        forward = hold(graph, held, expression, (q, k, v, read, None), results)
    _, _, _, _, out, lse, *_ = backward.args
    with graph.inserting_before(backward):
        arguments = (q, k, v, read, out, lse, backward.args[0])
        fakes = OF_BACKWARD(*map(value, (q, k, v, scores, slopes, *arguments[4:])), None, scale)
        gradients = hold(graph, held_backward, again, (*arguments, None), fakes)
    for old, new in ((call, forward), (backward, gradients)):
        old.replace_all_uses_with(new)
        for item in new.users:
            item.meta["val"] = new.meta["val"][item.args[1]]
            loosen_views(item)
    return True
