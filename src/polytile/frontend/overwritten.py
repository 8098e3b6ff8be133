"""Inputs that a forward pass overwrites and whose old values its backward pass needs.

The partitioner assumes that a graph's inputs are free: it passes one to the backward graph, which recomputes from it what the
forward graph computed. An input that the forward pass has overwritten holds its new value by then, and the gradient would be
wrong.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.fx
from torch.utils.checkpoint import CheckpointPolicy

aten = torch.ops.aten


def keep_overwritten(graph: torch.fx.Graph) -> None:
    """Let the backward part of a joint graph see the old values of the inputs that the forward part overwrites: each one on which
    it depends is read through a clone, which is saved for the backward pass and never recomputed."""
    inputs = graph.find_nodes(op="placeholder")
    tangents = [node for node in inputs if "tangents" in str(node.target)]  # the naming on which torch's partitioner relies
    primals = [node for node in inputs if node not in tangents]
    backward = _reached(tangents)
    overwritten = {node.args[0] for node in graph.nodes if node.target is aten.copy_.default}
    for node in primals:
        old = _reached([node]) if node in overwritten else set()
        if any(user in backward and user.op != "output" for reader in old - backward for user in reader.users):
            _read_through_clone(graph, node)
        for clone in filter(_made_by_the_tracer, node.users):
            clone.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _made_by_the_tracer(user: torch.fx.Node) -> bool:
    """Whether this is the copy through which AOTAutograd reads an input that it overwrites with a result of the graph."""
    return user.target is aten.clone.default and not user.meta.get("stack_trace")


def _reached(starts: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    """These nodes, and all nodes that depend on them."""
    reached, left = set(), list(starts)
    while left:
        node = left.pop()
        if node not in reached:
            reached.add(node)
            left.extend(node.users)
    return reached


def _read_through_clone(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    first = next(n for n in graph.nodes if n.op != "placeholder")
    with graph.inserting_before(first):
        clone = graph.call_function(aten.clone.default, (node,))
    clone.meta["val"] = node.meta["val"].detach().clone()
    readers = [n for n in node.users if n is not clone and n.op != "output" and n.target is not aten.copy_.default]
    for reader in readers:
        reader.replace_input_with(node, clone)
