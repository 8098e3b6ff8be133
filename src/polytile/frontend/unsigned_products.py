"""Rewrites products of uint8 by int8 whose offset is subtracted again to products of int8.

    c = _int_mm(x, w) - 128·sum(w, 0)     →     c = _int_mm(x - 128 as int8, w)

Libraries write the left side for activations that they shift by 128, because the instruction multiplies unsigned by signed bytes.
Generated kernels shift internally (matmul/cpp/int8.py), so that no call has to sum the weight.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from polytile.frontend.attention.views import inserted

aten = torch.ops.aten
OFFSET = 128


def sign_products(graph: torch.fx.Graph) -> None:
    """Rewrite such products of `graph`, whose nodes carry fake values."""
    for node in list(graph.find_nodes(op="call_function", target=aten._int_mm.default)):
        x, w = node.args
        if x.meta["val"].dtype != torch.uint8 or len(node.users) != 1:
            continue
        user = next(iter(node.users))
        if user.target is not aten.sub.Tensor or user.args[0] is not node or user.kwargs or not _is_offset(user.args[1], w):
            continue
        with graph.inserting_before(node):
            wide = inserted(graph, aten._to_copy.default, x, dtype=torch.int32)
            shifted = inserted(graph, aten.sub.Tensor, wide, OFFSET)
            signed = inserted(graph, aten._to_copy.default, shifted, dtype=torch.int8)
            product = inserted(graph, node.target, signed, w)
        user.replace_all_uses_with(product)
        offset = user.args[1]
        for unused in (user, node, offset, offset.args[0]):
            if not unused.users:
                graph.erase_node(unused)


def _is_offset(value: Any, w: torch.fx.Node) -> bool:
    """Whether `value` is OFFSET times the column sums of `w`, one row of int32."""
    if not _calls(value, aten.mul.Tensor) or value.meta["val"].dtype != torch.int32:
        return False
    total, factor = value.args
    summed = _calls(total, aten.sum.dim_IntList) and total.args[0] is w and list(total.args[1]) in ([0], [-2])
    return factor == OFFSET and summed and total.meta["val"].dtype == torch.int32


def _calls(value: Any, target: Any) -> bool:
    return isinstance(value, torch.fx.Node) and value.target is target
