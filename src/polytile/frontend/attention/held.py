"""Attention as one node each way from its recognition in a joint graph until that graph has been partitioned.

    held(q, k, v, captured, random) -> (out, lse)
    held_backward(q, k, v, captured, out, lse, grad, random) -> (dq, dk, dv, changes)

`random` is the state of dropout's numbers, or None. The scores are an `Expression` in the node's `meta`: a graph of the products
and of `captured`, the tensors and sizes that it reads. The partitioner thus meets no scores, and can save none for the backward
pass. `write_out_held` turns the nodes into the operators of operator.py afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch
import torch.fx

from polytile.frontend.attention.operator import COMPUTED, OF_BACKWARD, PRODUCTS, WITH_LSE
from polytile.frontend.attention.views import inserted
from polytile.ir.dropout import Dropout

EXPRESSION = "polytile_scores"
"""The key of the Expression in a held node's `meta`."""


@dataclass(frozen=True)
class Expression:
    """Scores (batch, heads, m, n), and in a backward pass their slopes, as a graph of scaled products and of what is captured."""

    graph: torch.fx.Graph
    scale: float
    dtype: torch.dtype
    empty_is_0: bool
    dropout: Dropout | None = None

    def put(self, graph: torch.fx.Graph, q: torch.fx.Node, k: torch.fx.Node, captured: Sequence[torch.fx.Node]) -> list[Any]:
        """Copy the nodes to the insertion point of another graph; returns those of the results."""
        products = inserted(graph, PRODUCTS, q, k, self.scale, self.dtype)
        copied = dict(zip(self.graph.find_nodes(op="placeholder"), (products, *captured), strict=True))
        for node in self.graph.nodes:
            if node.op == "call_function":
                copied[node] = graph.node_copy(node, copied.__getitem__)
                copied[node].meta[COMPUTED] = False  # each use may compute it anew
        return [copied[node] for node in self.graph.output_node().args[0]]  # type: ignore[union-attr]


def held(q: Any, k: Any, v: Any, captured: Any, random: Any) -> Any:
    """Stands for the forward pass; is never called."""
    raise AssertionError("Attention was not written out after partitioning.")


def held_backward(q: Any, k: Any, v: Any, captured: Any, out: Any, lse: Any, grad: Any, random: Any) -> Any:
    """Stands for the backward pass; is never called. `changes`, the gradient of the scores, is wanted if something uses it."""
    raise AssertionError("The derivative of attention was not written out after partitioning.")


def hold(graph: torch.fx.Graph, target: Any, expression: Expression, arguments: Sequence[Any], fakes: Any) -> torch.fx.Node:
    """A held node, whose results are like `fakes`."""
    node = graph.call_function(target, tuple(arguments))
    node.meta |= {"val": fakes, EXPRESSION: expression}
    return node


def write_out_held(module: torch.fx.GraphModule) -> None:
    """Replace the held nodes of one of AOTAutograd's graphs by attention whose scores are computed in the kernel."""
    graph, changed = module.graph, False
    for node in list(graph.nodes):
        if node.target in (held, held_backward):
            changed = True
            with graph.inserting_before(node):
                node.replace_all_uses_with(_operator(graph, node))
            graph.erase_node(node)
    if changed:
        graph.eliminate_dead_code()
        graph.lint()
        module.recompile()


def _operator(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node:
    q, k, v, captured, *rest, random = node.args
    expression: Expression = node.meta[EXPRESSION]
    values = expression.put(graph, q, k, captured)  # type: ignore[arg-type]
    dropout = (random, *astuple(expression.dropout)) if expression.dropout is not None else ()
    if node.target is held:
        return inserted(graph, WITH_LSE, q, k, v, *values, expression.scale, expression.empty_is_0, *dropout)
    return inserted(graph, OF_BACKWARD, q, k, v, *values, *rest, None, expression.scale, *dropout)
