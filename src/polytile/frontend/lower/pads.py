"""Pads that repeat the source, reflection, replication and circular padding, decomposed while the graph is traced.

The last dimension is a concatenation of pieces, which kernels copy with full vectors; torch's own rule looks up each element. The
other dimensions are looked up a row at a time. Where the padding of the last dimension is a size, or crops, pieces of torch's
would be compiled for whether it is 0 or 1; there polytile's own operator takes their place, whose lowering is the same choice by
position without a question about sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import sympy
import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.joins import all_of, between, choose, compare, moved
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.value import Point, computed
from polytile.frontend.lower.value import Tensor as Lowered
from polytile.frontend.lower.views import require_loop_dtype
from polytile.ir import expr
from polytile.ir.expr import Node
from polytile.ir.sizes import ZERO, Size, as_size

REFLECTED, REPLICATED, CIRCULAR = "reflected at the outermost elements", "the outermost elements", "from the other end"
"""What is in the padding."""

_library = torch.library.Library("polytile", "FRAGMENT")
_library.define("pad_rows(Tensor x, SymInt before, SymInt after, str kind) -> Tensor")


def padded(x: Tensor, padding: list[int], kind: str) -> Tensor:
    """`x` with `padding`, (before, after) of each dimension from the last one on."""
    before, after = padding[:2]
    if free_unbacked_symbols(x.shape[-1]):
        rows = _looked_up(x, padding, kind, 0)
    elif all(isinstance(n, int) and n >= 0 for n in (before, after)):
        rows = torch.cat(_pieces(_looked_up(x, padding, kind, 1), before, after, kind), -1)
    else:
        rows = PAD_ROWS(_looked_up(x, padding, kind, 1), before, after, kind)
    layout = suggest_memory_format(x) if x.device.type == "cpu" else torch.contiguous_format
    return rows.contiguous(memory_format=layout)


def _looked_up(x: Tensor, padding: list[int], kind: str, first: int) -> Tensor:
    """`x` with the padding of dimensions `first`, `first` + 1, ..., counted from the last one."""
    places: list[Tensor | None] = [None] * x.ndim
    for k in range(first, len(padding) // 2):
        place = _places(x.shape[-1 - k], padding[2 * k], padding[2 * k + 1], kind, x.device)
        places[-1 - k] = place.view(-1, *[1] * (k - first))
    return x if all(place is None for place in places) else torch.ops.aten._unsafe_index(x, places)


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


def _padded_rows(x: Tensor, before: int, after: int, kind: str) -> Tensor:
    return x.index_select(-1, _places(x.shape[-1], before, after, kind, x.device))


def _fake(x: Tensor, before: int, after: int, kind: str) -> Tensor:
    return x.new_empty([*x.shape[:-1], x.shape[-1] + before + after])


_library.impl("pad_rows", _padded_rows, "CompositeExplicitAutograd")
torch.library.register_fake("polytile::pad_rows", _fake, lib=_library)

PAD_ROWS = torch.ops.polytile.pad_rows.default

OUTSIDE: dict[str, Callable[[Size, Size], tuple[Size, Size]]] = {
    REFLECTED: lambda at, n: (-at, 2 * n - 2 - at),
    REPLICATED: lambda at, n: (ZERO, n - 1),
    CIRCULAR: lambda at, n: (at + n, at - n),
}
"""The element at position `at` of a row of n elements, if at < 0 and if at ≥ n."""


@lowers(PAD_ROWS)
def pad_rows(builder: Builder, x: Lowered, before: Size, after: Size, kind: str) -> Lowered:
    require_loop_dtype(x.dtype)
    shape, begin, n = builder.result_sizes(), as_size(before), x.sizes[-1]
    end = sympy.expand(begin + n)

    def element_at(point: Point) -> Node:
        index, last = point[-1], len(point) - 1
        at = sympy.expand(index - begin)
        first, beyond = (x.at(moved(point, last, sympy.expand(there))) for there in OUTSIDE[kind](at, n))
        inside = all_of(between(index, begin, end, shape[-1]))
        own = x.at(moved(point, last, at)) if inside is None else expr.mask_loads(x.at(moved(point, last, at)), inside)
        past = expr.mask_loads(beyond, compare("ge", index, end))
        rest = expr.op("where", own.dtype, compare("lt", index, end), own, past)
        return choose(compare("lt", index, begin), first, rest)

    return computed(shape, x.dtype, x.device, element_at)


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    **{f"reflection_pad{rank}d.default": partial(padded, kind=REFLECTED) for rank in (1, 2, 3)},
    **{f"replication_pad{rank}d.default": partial(padded, kind=REPLICATED) for rank in (1, 2, 3)},
}
