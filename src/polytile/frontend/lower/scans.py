"""Lowerings of cumulative operators: one loop each, whose only reduced axis is the scanned one, with a store at every point."""

from __future__ import annotations

from collections.abc import Callable

import torch

from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.overloads import overloads
from polytile.frontend.lower.pointwise import check_dtypes
from polytile.frontend.lower.reductions import converted_first
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.value import Point, Tensor, computed, stored, widen
from polytile.ir import expr, sizes
from polytile.ir.buffer import whole
from polytile.ir.dtypes import compute_dtype
from polytile.ir.expr import Node
from polytile.ir.loop import Axis, Store

Element = Callable[[Node, Point], Node]  # (element, point) → node made of expr.scan


def scan_along(builder: Builder, source: Tensor, dim: int, *outputs: tuple[Element, torch.dtype]) -> tuple[Tensor, ...]:
    """One loop that scans `source` along `dim`, with an output of the same sizes for each (expression, dtype)."""
    check_dtypes(source.dtype, *[dtype for _, dtype in outputs])
    axes = list(builder.axes(source.sizes))
    scanned = axes.pop(dim)
    reduced = Axis(sizes.axis("r0"), scanned.size)
    point = tuple(a.symbol for a in (*axes[:dim], reduced, *axes[dim:]))
    value = source.at(point)
    stores, results = [], []
    for element, dtype in outputs:
        buffer = builder.new_buffer(source.sizes, dtype, source.device)
        stores.append(Store(buffer.name, buffer.index(point), element(value, point)))
        results.append(stored(whole(buffer), source.device))
    builder.loop(tuple(axes), (reduced,), tuple(stores), "scan")
    return tuple(results)


def accumulation_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of running totals of dtype `dtype`: wider than float32 on the CPU, as in eager, since rounding errors accumulate
    along a long prefix."""
    wide = compute_dtype(dtype)
    return torch.float64 if wide == torch.float32 and dtype == wide and device.type == "cpu" else wide


def _lower_total(kind: str) -> Callable[..., Tensor]:
    def lowering(builder: Builder, x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
        out = builder.result().dtype
        x = converted_first(x, dtype)
        check_dtypes(x.dtype, out)
        if x.rank == 0:
            return computed((), out, x.device, lambda _: widen(x.at(()), out))
        wide = accumulation_dtype(out, x.device)

        def element(value: Node, _: Point) -> Node:
            return widen(expr.scan(kind, wide, widen(value, wide)), out)

        return scan_along(builder, x, dim % x.rank, (element, out))[0]

    return lowering


lowers(*overloads("cumsum"))(_lower_total("sum"))
lowers(*overloads("cumprod"))(_lower_total("prod"))
lowers(*overloads("logcumsumexp"))(_lower_total("logsumexp"))


def _lower_extreme(kind: str) -> Callable[..., tuple[Tensor, ...]]:
    def lowering(builder: Builder, x: Tensor, dim: int) -> tuple[Tensor, ...]:
        """(running extreme, index of its last occurrence); bool compares as uint8."""
        if x.rank == 0:
            check_dtypes(x.dtype)
            zero = computed((), torch.int64, x.device, lambda _: expr.const(0, torch.int64))
            return computed((), x.dtype, x.device, x.at), zero
        dim = dim % x.rank

        def both(value: Node, point: Point) -> Node:
            value = widen(value, torch.uint8) if value.dtype == torch.bool else value
            return expr.scan(kind, value.dtype, value, expr.index_value(point[dim]))

        def extreme(value: Node, point: Point) -> Node:
            found = both(value, point)
            return widen(expr.part(found, 0, found.dtype), x.dtype)

        def index(value: Node, point: Point) -> Node:
            return expr.part(both(value, point), 1, torch.int64)

        return scan_along(builder, x, dim, (extreme, x.dtype), (index, torch.int64))

    return lowering


lowers(*overloads("cummax"))(_lower_extreme("max"))
lowers(*overloads("cummin"))(_lower_extreme("min"))
