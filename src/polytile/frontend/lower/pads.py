"""Pads that repeat what they surround, mirrored or its outermost elements, and the gradient of the latter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols


def _padded(x: Tensor, padding: list[int], mirrored: bool) -> Tensor:
    """The last dimension as pieces side by side, which kernels copy by whole vectors: torch's own rule looks each element's
    place up. Dimensions before it are looked up, a row at a time, and so is a last one whose padding is negative or known
    only at run time. `padding` holds (before, after) for the last dimension first."""
    rank = len(padding) // 2
    places: list[Tensor | None] = [None] * x.ndim
    in_pieces = all(isinstance(n, int) and n >= 0 for n in padding[:2]) and not free_unbacked_symbols(x.shape[-1])
    for k in range(1 if in_pieces else 0, rank):
        place = _places(x.shape[-1 - k], padding[2 * k], padding[2 * k + 1], mirrored, x.device)
        places[-1 - k] = place.view(-1, *[1] * (k - 1 if in_pieces else k))
    rows = x if all(place is None for place in places) else torch.ops.aten._unsafe_index(x, places)
    joined = torch.cat(_pieces(rows, padding[0], padding[1], mirrored), -1) if in_pieces else rows
    layout = suggest_memory_format(x) if x.device.type == "cpu" else torch.contiguous_format
    return joined.contiguous(memory_format=layout)


def _places(n: int, before: int, after: int, mirrored: bool, device: torch.device) -> Tensor:
    """Which of the n elements of a dimension stands at each of its places once padded."""
    place = torch.arange(-before, n + after, device=device)
    return n - 1 - (n - 1 - place.abs()).abs() if mirrored else place.clamp(0, n - 1)


def _pieces(x: Tensor, before: int, after: int, mirrored: bool) -> list[Tensor]:
    """What stands before `x` along the last dimension, `x` and what stands behind it."""
    n, rows = x.shape[-1], x.shape[:-1]
    if mirrored:
        return [x.narrow(-1, 1, before).flip(-1), x, x.narrow(-1, n - 1 - after, after).flip(-1)]
    return [x[..., :1].expand(*rows, before), x, x[..., -1:].expand(*rows, after)]


def _reflection_pad(x: Tensor, padding: list[int]) -> Tensor:
    """Mirrored at the outermost elements, which are not repeated."""
    return _padded(x, padding, mirrored=True)


def _replication_pad(x: Tensor, padding: list[int]) -> Tensor:
    """The outermost elements again and again."""
    return _padded(x, padding, mirrored=False)


def _replication_pad_backward(grad: Tensor, x: Tensor, padding: list[int]) -> Tensor:
    """Each place of the padding gives its gradient to the nearest element of `x`; `padding` holds (before, after) for the
    last dimension first."""
    rank = len(padding) // 2
    places: list[Tensor | None] = [None] * (x.ndim - rank)
    for d in range(rank):
        k = rank - 1 - d
        place = _places(x.shape[d - rank], padding[2 * k], padding[2 * k + 1], False, x.device)
        places.append(place.view(-1, *[1] * k))
    return torch.ops.aten.index_put(torch.zeros_like(x), places, grad, accumulate=True)


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    **{f"reflection_pad{rank}d.default": _reflection_pad for rank in (1, 2, 3)},
    **{f"replication_pad{rank}d.default": _replication_pad for rank in (1, 2, 3)},
    **{f"replication_pad{rank}d_backward.default": _replication_pad_backward for rank in (1, 2, 3)},
}
