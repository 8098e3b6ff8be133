"""What is asked of a captured graph before it is lowered: whether it is supported, and what a call of it changes."""

from __future__ import annotations

import torch
import torch.fx
from torch._library.fake_class_registry import FakeScriptObject
from torch.utils._pytree import tree_leaves

from polytile.frontend.lower.random import is_drawn
from polytile.runtime.target import Target

ATEN = ("aten", "prims")
"""Namespaces of operators that are PyTorch's own functions."""

OBJECTS = torch.Generator | FakeScriptObject
"""Objects that are passed through unchanged to library calls or to the caller: generators, and DTensor's devices and groups."""

NUMBERS = torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool


def unsupported(graph: torch.fx.GraphModule) -> str:
    """Why no program can be made of the graph; "" if one can.

    Not supported are devices without a code generator, tensors without strides, arguments with the negative bit set,
    arguments that are neither tensors, numbers nor objects that library calls accept, and memory that arguments share whose
    traced size is not that of all calls.
    """
    if base := _base_of_fixed_size(graph.graph):
        return f"arguments share memory that is changed, {base}, which torch traced with the number of elements of the first call"
    for node in graph.graph.nodes:
        for value in tree_leaves(node.meta.get("val")):
            if isinstance(value, torch.Tensor):
                if why := Target.of(value.device).unavailable:
                    return why
                if value.layout is not torch.strided or value.is_quantized:
                    kind = "quantized" if value.is_quantized else str(value.layout).removeprefix("torch.")
                    return f"polytile generates no kernels for {kind} tensors"
                if node.op == "placeholder" and value.is_neg():
                    return f"polytile's kernels read what is in memory, and argument {node.name} is marked as negated (is_neg)"
            elif node.op == "placeholder" and not isinstance(value, NUMBERS | OBJECTS | str | None):
                return f"polytile takes tensors and numbers, and argument {node.name} is a {type(value).__name__}"
    return ""


def _base_of_fixed_size(graph: torch.fx.Graph) -> str:
    """An input that AOTAutograd puts in place of arguments that share memory without being views of one tensor; "" if there is
    none. It has a fixed size even where those of the arguments are symbolic, and no guard says so."""
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.as_strided_scatter.default):
        base, _, *layout = node.args
        is_fixed = base.op == "placeholder" and all(isinstance(n, int) for n in base.meta["val"].shape)
        if is_fixed and any(isinstance(leaf, torch.fx.Node) for leaf in tree_leaves(layout)):
            return str(base.name)
    return ""


def is_repeatable(graph: torch.fx.GraphModule) -> bool:
    """Whether the graph can be called again after a call failed half-way: it mutates no argument and draws no random numbers."""
    targets = {node.target for node in graph.graph.nodes if node.op == "call_function"}
    opaque = any(isinstance(target, torch._ops.HigherOrderOperator) or is_drawn(target) for target in targets)
    return not opaque and not changed_inputs(graph.graph)


def calls_aten_alone(graph: torch.fx.GraphModule) -> bool:
    """Whether every operator of the graph is one of ATen's: none of another package, and none that takes functions."""
    targets = {node.target for node in graph.graph.nodes if node.op == "call_function"}
    foreign = (t for t in targets if isinstance(t, torch._ops.OperatorBase) and getattr(t, "namespace", "") not in ATEN)
    return next(foreign, None) is None


def changed_inputs(graph: torch.fx.Graph) -> set[str]:
    """Names of the inputs that the graph overwrites."""
    changed: set[str] = set()
    for node in graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            changed |= {leaf.name for leaf in tree_leaves(node.args) if isinstance(leaf, torch.fx.Node)}
    return changed
