"""Pads that repeat what they surround, mirrored or its outermost elements.

They are padded whole, by one loop. Where a result has its channels last, or amounts are negative or known only at run time, each
element's place is looked up instead, by a rule that applies while the graph is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import sympy
import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from polytile.frontend.lower import value
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.joins import joined
from polytile.frontend.lower.overloads import overloads
from polytile.frontend.lower.positions import Place
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.value import Call, Point, computed
from polytile.frontend.lower.views import reindexed
from polytile.ir import expr
from polytile.ir.expr import Node
from polytile.ir.program import Ref
from polytile.ir.sizes import ZERO, Size


def _looked_up(x: Tensor, padding: list[int], mirrored: bool) -> Tensor:
    """Each element by its place along every padded dimension. `padding` holds (before, after) for the last dimension first."""
    layout = suggest_memory_format(x) if x.device.type == "cpu" else torch.contiguous_format
    if _is_whole(x, padding, layout):
        return NotImplemented
    places: list[Tensor | None] = [None] * x.ndim
    for k in range(len(padding) // 2):
        place = _places(x.shape[-1 - k], padding[2 * k], padding[2 * k + 1], mirrored, x.device)
        places[-1 - k] = place.view(-1, *[1] * k)
    return torch.ops.aten._unsafe_index(x, places).contiguous(memory_format=layout)


def _is_whole(x: Tensor, padding: list[int], layout: torch.memory_format) -> bool:
    """Whether `x` is padded by a loop of its own: its result is row-major, and no element is looked for where there is none."""
    plain = layout == torch.contiguous_format and not x.is_complex()
    return plain and all(isinstance(n, int) and n >= 0 for n in padding) and not any(map(free_unbacked_symbols, x.shape))


def _places(n: int, before: int, after: int, mirrored: bool, device: torch.device) -> Tensor:
    """Which of the n elements of a dimension stands at each of its places once padded."""
    place = torch.arange(-before, n + after, device=device)
    return n - 1 - (n - 1 - place.abs()).abs() if mirrored else place.clamp(0, n - 1)


KINDS = {"reflection": True, "replication": False}
"""Whether a kind of pad mirrors at the outermost elements, which are not repeated then."""
OPERATORS = {f"{kind}_pad{rank}d": mirrored for kind, mirrored in KINDS.items() for rank in (1, 2, 3)}

DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    f"{name}.default": partial(_looked_up, mirrored=mirrored) for name, mirrored in OPERATORS.items()
}


# whole ----------------------------------------------------------------------------------------------------------------


def _lower(name: str, mirrored: bool) -> Callable[..., value.Tensor]:
    place = _mirrored if mirrored else _nearest

    def lowering(builder: Builder, x: value.Tensor, padding: Sequence[int]) -> value.Tensor:
        """Rows looked up one by one, each of three pieces."""
        base, result, rank = builder.realize(x), builder.result_sizes(), len(padding) // 2
        first, n = x.rank - rank, x.sizes[-1]

        def row(point: Point) -> Node:
            there = Place([*point])
            for d in range(first, x.rank - 1):
                before, after = padding[2 * (x.rank - 1 - d) :][:2]
                if before or after:
                    there.put(d, place(sympy.expand(point[d] - before), x.sizes[d]))
            return there.load(base)

        rows = computed((*result[:-1], n), x.dtype, x.device, row)
        before, after = padding[:2]
        made = joined(builder, _sides(rows, before, after, n, mirrored), x.rank - 1)
        assert base.view is not None
        operator = getattr(torch.ops.aten, name).default
        return replace(made, call=Call(operator, (Ref(base.view), list(padding)), (), result))

    return lowering


def _sides(rows: value.Tensor, before: int, after: int, n: Size, mirrored: bool) -> list[value.Tensor]:
    """What stands before the rows, they themselves, and what stands behind them."""

    def piece(width: int, where: Callable[[Size], Size]) -> list[value.Tensor]:
        shape = (*rows.sizes[:-1], sympy.Integer(width))
        return [reindexed(rows, shape, lambda p: (*p[:-1], where(p[-1])))] if width else []

    if mirrored:
        return [*piece(before, lambda i: before - i), rows, *piece(after, lambda i: n - 2 - i)]
    return [*piece(before, lambda i: ZERO), rows, *piece(after, lambda i: n - 1)]


def _mirrored(i: Size, n: Size) -> Node:
    """n - 1 - |n - 1 - |i||."""
    last = expr.index_value(sympy.expand(n - 1))
    inside = expr.op("abs", torch.int64, expr.index_value(i))
    beyond = expr.op("abs", torch.int64, expr.op("sub", torch.int64, last, inside))
    return expr.op("sub", torch.int64, last, beyond)


def _nearest(i: Size, n: Size) -> Node:
    last, zero = expr.index_value(sympy.expand(n - 1)), expr.const(0, torch.int64)
    return expr.op("minimum", torch.int64, expr.op("maximum", torch.int64, expr.index_value(i), zero), last)


for _name, _is_mirrored in OPERATORS.items():
    lowers(*overloads(_name))(_lower(_name, _is_mirrored))
