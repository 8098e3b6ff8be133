"""Views in an ATen graph: which nodes are the same tensor in another shape, and which repeat, cast or copy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

aten, prims = torch.ops.aten, torch.ops.prims

RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
COPIES = (aten.clone.default, aten.alias.default, aten.lift_fresh_copy.default, aten.detach.default)
CASTS = (aten._to_copy.default, prims.convert_element_type.default)
UNSQUEEZE, SQUEEZES = aten.unsqueeze.default, (aten.squeeze.dims, aten.squeeze.dim, aten.squeeze.default)
EXPAND, PERMUTE, SLICE = aten.expand.default, aten.permute.default, aten.slice.Tensor
VIEWS = (*RESHAPES, *COPIES, *CASTS, UNSQUEEZE, *SQUEEZES, EXPAND, PERMUTE)
"""Operators that preserve the order of elements, depending on their use (see `keeps_order`)."""


def value(node: torch.fx.Node) -> torch.Tensor:
    """The node's tensor as it was traced, without data."""
    fake: torch.Tensor = node.meta["val"]
    return fake


def shape(node: torch.fx.Node) -> tuple[Any, ...]:
    """The node's sizes, some of them symbolic."""
    return tuple(value(node).shape)


BACKWARD = "polytile_backward"
"""The key in a node's `meta` that marks what only the backward pass needs, while attention is looked for in a joint graph."""


def uses(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The users of a node that need more than its sizes, those in a backward pass left out."""
    return [user for user in node.users if user.target != aten.sym_size.int and BACKWARD not in user.meta]


def same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether sizes are known to be equal, without adding a guard."""
    return len(one) == len(other) and all(statically_known_true(a == b) for a, b in zip(one, other, strict=True))


def is_one(size: Any) -> bool:
    """Whether the size is known to be 1 at each call."""
    return statically_known_true(size == 1)


def source(node: torch.fx.Node) -> torch.fx.Node:
    """The first argument of a node."""
    given = node.args[0]
    assert isinstance(given, torch.fx.Node)
    return given


def inserted(graph: torch.fx.Graph, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
    """A new node, with its fake value."""
    node = graph.call_function(target, args, kwargs)
    fakes, named = torch.fx.map_arg((args, kwargs), value)
    node.meta["val"] = target(*fakes, **named)
    return node


def keeps_order(root: torch.fx.Node, path: Iterable[torch.fx.Node]) -> bool:
    """Whether the views in `path`, each of the one before and the first of `root`, preserve the row-major order of elements. The
    order of dimensions of size 1 does not matter."""
    dims: list[int | None] = _dims(root)
    for node in path:
        if node.target in (*RESHAPES, *SQUEEZES):
            if not _in_order(dims):
                return False
            dims = _dims(node)
        elif node.target == UNSQUEEZE:
            dims.insert(int(node.args[1]) % (len(dims) + 1), None)  # type: ignore[arg-type]
        elif node.target == PERMUTE:
            order: Any = node.args[1]
            dims = [dims[k] for k in order]
        elif node.target == EXPAND and not same(shape(source(node)), shape(node)):
            return False
    return _in_order(dims)


def _dims(node: torch.fx.Node) -> list[int | None]:
    """The dimensions of a node, with None for those of size 1."""
    return [None if is_one(size) else k for k, size in enumerate(shape(node))]


def _in_order(dims: Sequence[int | None]) -> bool:
    left = [dim for dim in dims if dim is not None]
    return left == sorted(left)


def plain(node: torch.fx.Node) -> torch.fx.Node:
    """The node of which `node` is a full view, or a copy of the same shape and dtype."""
    while True:
        whole = node.target == EXPAND and same(shape(source(node)), shape(node))
        if node.target in (aten.clone.default, aten.alias.default, aten.detach.default) or whole or is_whole_slice(node):
            node = source(node)
        else:
            return node


def loosen_views(node: torch.fx.Node) -> None:
    """Let views of a node copy where its place in memory asks for it, as that has changed since they were traced."""
    for user in node.users:
        if user.target == aten.view.default:
            user.target = aten.reshape.default
        if user.target in (*RESHAPES, *COPIES, UNSQUEEZE, *SQUEEZES, EXPAND, PERMUTE, SLICE):
            loosen_views(user)


def is_whole_slice(node: torch.fx.Node) -> bool:
    """Whether the node is a slice that leaves nothing out."""
    return node.target == SLICE and same(shape(source(node)), shape(node))


def unrepeated(node: torch.fx.Node) -> torch.fx.Node | None:
    """Of keys or values (b, heads · r, n, d) whose heads are each repeated r times: the node (b, heads, 1, n, d) that they are
    made from. None of others."""
    node = plain(node)
    if node.target not in RESHAPES or value(node).ndim != 4:
        return None
    expanded = source(node)
    while expanded.target == aten.clone.default:
        expanded = source(expanded)
    if expanded.target != EXPAND or value(expanded).ndim != 5:
        return None
    single = plain(source(expanded))
    one, many, whole = shape(single), shape(expanded), shape(node)
    others = (0, 1, 3, 4)
    kept = value(single).ndim == 5 and is_one(one[2]) and same([one[k] for k in others], [many[k] for k in others])
    return single if kept and same((many[0], many[3], many[4]), (whole[0], whole[2], whole[3])) else None


def number(node: Any, module: torch.fx.GraphModule) -> float | None:
    """A number known during tracing: itself, or that of a one-element tensor filled with it. None if unknown."""
    if isinstance(node, bool | int | float):
        return float(node)
    if not isinstance(node, torch.fx.Node):
        return None
    if node.target in (*COPIES, *CASTS):
        return number(source(node), module)
    if node.target in (aten.full.default, aten.scalar_tensor.default):
        given = node.args[-1]
        return float(given) if isinstance(given, bool | int | float) else None
    if node.op == "get_attr":
        constant = getattr(module, str(node.target), None)
        if isinstance(constant, torch.Tensor) and constant.numel() == 1 and constant.device.type == "cpu":
            return float(constant.item())
    return None
