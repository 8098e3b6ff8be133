"""Sizes that only the device knows, after equal calls have become one.

The partitioner merges equal calls. The sizes of their results are then the same number under two symbols, and only the symbol of
the call that is kept has a value. The traced results of later nodes still name the other one.

    i = nonzero(m)        [u0]                      i = nonzero(m)   [u0]
    j = nonzero(m)        [u1]    → merged →        y = x[i]         [u0]
    y = x[i]; z = w[j]    [u0], [u1]                z = w[i]         [u1], here renewed to [u0]
"""

from __future__ import annotations

import torch
import torch.fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._pytree import tree_leaves


def renew_merged_sizes(graph: torch.fx.Graph) -> None:
    """Trace the nodes again whose results have sizes that neither an input nor an earlier call defines."""
    known: set[object] = set()
    for node in graph.nodes:
        symbols = free_unbacked_symbols(tree_leaves(node.meta.get("val")))
        if node.op == "placeholder" or node.meta.get("unbacked_bindings"):
            known |= symbols
        elif symbols - known:
            node.meta["val"] = _traced(node)


def _traced(node: torch.fx.Node) -> object:
    """The fake result of `node` for the fake results of its arguments."""
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
    mode = next((leaf.fake_mode for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, FakeTensor)), None)
    if mode is None:
        return node.target(*args, **kwargs)  # type: ignore[operator]
    with mode, enable_python_dispatcher():
        return node.target(*args, **kwargs)  # type: ignore[operator]
