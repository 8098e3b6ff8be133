"""Copies that a training step's graph can do without.

    p = softmax(s)              p = softmax(s)
    c = clone(p)            →   o = bmm(p, v)        the backward pass gets p once
    o = bmm(c, v)

`dropout` with a probability of zero leaves such copies, for example. If both `p` and `c` are saved for the backward pass, a step
writes and keeps the same values twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeGuard

import torch
import torch.fx
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten


def drop_plain_copies(graph: torch.fx.Graph) -> None:
    """Let what reads a `clone` read its source, where both have the same strides and nobody can tell them apart: neither shares
    memory with an argument of the joint graph or with one of its results, which a caller may change."""
    outside = {*_storages(graph.find_nodes(op="placeholder")), *_storages(graph.output_node().all_input_nodes)}
    for clone in graph.find_nodes(op="call_function", target=aten.clone.default):
        source = clone.args[0]
        if _is_plain(clone, source) and outside.isdisjoint(_storages([clone, source])):
            clone.replace_all_uses_with(source)
            graph.erase_node(clone)


def _storages(nodes: Iterable[torch.fx.Node]) -> Iterator[StorageWeakRef]:
    for value in tree_leaves([node.meta.get("val") for node in nodes]):
        if _is_strided(value):
            yield StorageWeakRef(value.untyped_storage())


def _is_plain(clone: torch.fx.Node, source: torch.fx.Node) -> bool:
    """Whether both hold their elements in the same places."""
    own, others = clone.meta["val"], source.meta["val"]
    both = _is_strided(own) and _is_strided(others)
    return both and all(statically_known_true(a == b) for a, b in zip(own.stride(), others.stride(), strict=True))


def _is_strided(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided
