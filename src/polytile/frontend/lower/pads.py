"""Pads that repeat the source, reflection, replication and circular padding, decomposed while the graph is traced.

The last dimension is a concatenation of pieces, which kernels copy with full vectors; torch's own rule looks up each element. The
other dimensions are looked up a row at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

REFLECTED, REPLICATED, CIRCULAR = "reflected at the outermost elements", "the outermost elements", "from the other end"
"""What is in the padding."""


def padded(x: Tensor, padding: list[int], kind: str) -> Tensor:
    """`x` with `padding`, (before, after) of each dimension from the last one on. A last dimension whose padding is negative or
    a size is looked up as the others are: pieces of a size would be compiled for whether it is 1."""
    places: list[Tensor | None] = [None] * x.ndim
    in_pieces = all(isinstance(n, int) and n >= 0 for n in padding[:2]) and not free_unbacked_symbols(x.shape[-1])
    for k in range(1 if in_pieces else 0, len(padding) // 2):
        place = _places(x.shape[-1 - k], padding[2 * k], padding[2 * k + 1], kind, x.device)
        places[-1 - k] = place.view(-1, *[1] * (k - 1 if in_pieces else k))
    rows = x if all(place is None for place in places) else torch.ops.aten._unsafe_index(x, places)
    joined = torch.cat(_pieces(rows, padding[0], padding[1], kind), -1) if in_pieces else rows
    layout = suggest_memory_format(x) if x.device.type == "cpu" else torch.contiguous_format
    return joined.contiguous(memory_format=layout)


def _places(n: int, before: int, after: int, kind: str, device: torch.device) -> Tensor:
    """The element at each position of a padded dimension of n elements."""
    place = torch.arange(-before, n + after, device=device)
    if kind == REFLECTED:
        return n - 1 - (n - 1 - place.abs()).abs()
    if kind == REPLICATED:
        return place.clamp(0, n - 1)
    return torch.where(place < 0, place + n, torch.where(place < n, place, place - n))


def _pieces(x: Tensor, before: int, after: int, kind: str) -> list[Tensor]:
    """The padding before `x` along the last dimension, `x`, and the padding after it."""
    n, rows = x.shape[-1], x.shape[:-1]
    if kind == REFLECTED:
        return [x.narrow(-1, 1, before).flip(-1), x, x.narrow(-1, n - 1 - after, after).flip(-1)]
    if kind == REPLICATED:
        return [x[..., :1].expand(*rows, before), x, x[..., -1:].expand(*rows, after)]
    return [x.narrow(-1, n - before, before), x, x.narrow(-1, 0, after)]


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    **{f"reflection_pad{rank}d.default": partial(padded, kind=REFLECTED) for rank in (1, 2, 3)},
    **{f"replication_pad{rank}d.default": partial(padded, kind=REPLICATED) for rank in (1, 2, 3)},
}
