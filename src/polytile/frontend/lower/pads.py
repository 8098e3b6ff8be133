"""Pads that repeat the source: reflection, replication and circular padding.

Row-major tensors on the CPU, and all circular padding, are lowered whole to one loop. Others are decomposed while the graph is
traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from polytile.frontend.circular_pads import PAD_CIRCULAR
from polytile.frontend.lower import value
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.joins import compare, joined
from polytile.frontend.lower.overloads import overloads
from polytile.frontend.lower.positions import Place
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.value import Call, Point, computed
from polytile.frontend.lower.views import reindexed
from polytile.ir import expr
from polytile.ir.expr import Node
from polytile.ir.library_call import Ref
from polytile.ir.sizes import ZERO, Size, as_size


def _padded(x: Tensor, padding: list[int], mirrored: bool) -> Tensor:
    """Pad the last dimension by concatenating pieces, which kernels copy with full vectors; torch's own rule looks up each
    element.

    Other dimensions are looked up a row at a time, and so is a last one whose padding is negative or known only at run time.
    `padding` holds (before, after), starting with the last dimension.
    """
    if _is_whole(x, padding):
        return NotImplemented
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


def _is_whole(x: Tensor, padding: list[int]) -> bool:
    """Whether `x` is padded by a loop of its own: the result is row-major, and the source has elements where they are needed."""
    plain = x.device.type == "cpu" and suggest_memory_format(x) == torch.contiguous_format and not x.is_complex()
    known = not any(map(free_unbacked_symbols, [*x.shape, *padding]))
    return plain and known and all(n >= 0 for n in padding)


def _places(n: int, before: int, after: int, mirrored: bool, device: torch.device) -> Tensor:
    """The element at each position of a padded dimension of n elements."""
    place = torch.arange(-before, n + after, device=device)
    return n - 1 - (n - 1 - place.abs()).abs() if mirrored else place.clamp(0, n - 1)


def _pieces(x: Tensor, before: int, after: int, mirrored: bool) -> list[Tensor]:
    """The padding before `x` along the last dimension, `x`, and the padding after it."""
    n, rows = x.shape[-1], x.shape[:-1]
    if mirrored:
        return [x.narrow(-1, 1, before).flip(-1), x, x.narrow(-1, n - 1 - after, after).flip(-1)]
    return [x[..., :1].expand(*rows, before), x, x[..., -1:].expand(*rows, after)]


def _reflection_pad(x: Tensor, padding: list[int]) -> Tensor:
    """Reflected at the outermost elements, which are not repeated."""
    return _padded(x, padding, mirrored=True)


def _replication_pad(x: Tensor, padding: list[int]) -> Tensor:
    """Repeats the outermost elements."""
    return _padded(x, padding, mirrored=False)


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    **{f"reflection_pad{rank}d.default": _reflection_pad for rank in (1, 2, 3)},
    **{f"replication_pad{rank}d.default": _replication_pad for rank in (1, 2, 3)},
}


# whole ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Beyond:
    """The padding beyond the ends of n elements. `place` returns the element for each index from -before to n + after - 1;
    `first` and `last` return it for position i of the padding before and after."""

    place: Callable[[Size, Size], Node]
    first: Callable[[Size, Size, Size], Size]
    last: Callable[[Size, Size], Size]


def _mirrored(i: Size, n: Size) -> Node:
    """n - 1 - |n - 1 - |i||."""
    last = expr.index_value(sympy.expand(n - 1))
    inside = expr.op("abs", torch.int64, expr.index_value(i))
    beyond = expr.op("abs", torch.int64, expr.op("sub", torch.int64, last, inside))
    return expr.op("sub", torch.int64, last, beyond)


def _nearest(i: Size, n: Size) -> Node:
    last, zero = expr.index_value(sympy.expand(n - 1)), expr.const(0, torch.int64)
    return expr.op("minimum", torch.int64, expr.op("maximum", torch.int64, expr.index_value(i), zero), last)


def _around(i: Size, n: Size) -> Node:
    """i + n before the first element, i - n after the last."""
    before, inside, behind = (expr.index_value(sympy.expand(place)) for place in (i + n, i, i - n))
    rest = expr.op("where", torch.int64, compare("lt", i, n), inside, behind)
    return expr.op("where", torch.int64, compare("lt", i, ZERO), before, rest)


MIRRORED = _Beyond(_mirrored, lambda i, n, before: before - i, lambda i, n: n - 2 - i)
NEAREST = _Beyond(_nearest, lambda i, n, before: ZERO, lambda i, n: n - 1)
AROUND = _Beyond(_around, lambda i, n, before: n - before + i, lambda i, n: i)


def _lower(operator: OpOverload, beyond: _Beyond) -> Callable[..., value.Tensor]:
    def lowering(builder: Builder, x: value.Tensor, padding: Sequence[Size | int]) -> value.Tensor:
        """Rows looked up one by one, each of three pieces. The loop may call `operator` in its place."""
        base, result, rank = builder.realize(x), builder.result_sizes(), len(padding) // 2
        amounts = [as_size(n) for n in padding]
        first, n = x.rank - rank, x.sizes[-1]

        def row(point: Point) -> Node:
            there = Place([*point])
            for d in range(first, x.rank - 1):
                before, after = amounts[2 * (x.rank - 1 - d) :][:2]
                if before != 0 or after != 0:
                    there.put(d, beyond.place(sympy.expand(point[d] - before), x.sizes[d]))
            return there.load(base)

        rows = computed((*result[:-1], n), x.dtype, x.device, row)
        before, after = amounts[:2]
        made = joined(builder, _sides(rows, before, after, n, beyond), x.rank - 1)
        assert base.view is not None
        return replace(made, call=Call(operator, (Ref(base.view), builder.argument(list(padding))), (), result))

    return lowering


def _sides(rows: value.Tensor, before: Size, after: Size, n: Size, beyond: _Beyond) -> list[value.Tensor]:
    """The padding before the rows, the rows, and the padding after them."""

    def piece(width: Size, where: Callable[[Size], Size]) -> list[value.Tensor]:
        return [reindexed(rows, (*rows.sizes[:-1], width), lambda p: (*p[:-1], where(p[-1])))] if width != 0 else []

    return [*piece(before, lambda i: beyond.first(i, n, before)), rows, *piece(after, lambda i: beyond.last(i, n))]


for _rank in (1, 2, 3):
    for _name, _beyond in ((f"reflection_pad{_rank}d", MIRRORED), (f"replication_pad{_rank}d", NEAREST)):
        lowers(*overloads(_name))(_lower(getattr(torch.ops.aten, _name).default, _beyond))
lowers(PAD_CIRCULAR)(_lower(torch.ops.aten._pad_circular.default, AROUND))
