"""Vector width of a loop in C++, and which loads gather."""

from __future__ import annotations

import torch

from polytile.ir import sizes
from polytile.ir.expr import Load, Node
from polytile.schedule.cpu.fused_axes import repeats
from polytile.schedule.nest import Nest

NARROWEST = 4  # bytes of a lane in transposed squares; with narrower lanes, a register has more lanes than a square has rows


def lane_bytes(nest: Nest) -> int:
    """Width in bytes of the widest element type in vectors, which determines the number of lanes. Masks are 4 bytes
    wide, the indices of gathers 8. Integers computed only from indices may be wider than a register."""
    widest, from_memory = 1, set[int]()
    for node in nest.needed:
        if not nest.is_vector(node):
            continue
        if isinstance(node, Load) or any(id(c) in from_memory for c in nest.operands(node)):
            from_memory.add(id(node))
        if isinstance(node, Load) and needs_gather(nest, node):
            return 8
        if id(node) in from_memory or node.dtype.is_floating_point:
            widest = max(widest, bytes_of(node))
    return widest if from_memory else max(widest, 4)


def bytes_of(node: Node) -> int:
    """Width in bytes of a lane that holds the value; a bool is a mask."""
    return 4 if node.dtype == torch.bool else node.dtype.itemsize


def needs_gather(nest: Nest, load: Load) -> bool:
    """Whether a vector load needs a vector of indices."""
    uneven = sizes.coefficient(load.index, nest.vec.symbol) is None and repeats(nest, load) is None
    return uneven or any(nest.is_vector(i) for i in load.indirect)
