"""The inputs of a graph that are weights: parameters and buffers of modules, and other tensors marked as static."""

from __future__ import annotations

import torch
from torch._guards import TracingContext


def weights_of(graph: torch.fx.GraphModule, kind: str) -> dict[str, str]:
    """The inputs that are weights, each with its kind (ir.buffer.Buffer). `kind` says which AOTAutograd graph this is:
    "forward", "backward" or "inference".

    Dynamo marks parameters, buffers and tensors passed to `torch._dynamo.mark_static_address`. AOTAutograd records their
    positions among the forward graph's inputs. Inputs of the backward graph that were inputs of the forward graph keep their
    names.
    """
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None:
        return {}
    names = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
    if kind == "backward":
        forward = {f"primals_{place + 1}" for place in metadata.static_input_indices}
        return {name: "trained" for name in names if name in forward}
    return {
        names[place]: "constant" if kind == "inference" else "trained"
        for place in metadata.static_input_indices
        if place < len(names)
    }
