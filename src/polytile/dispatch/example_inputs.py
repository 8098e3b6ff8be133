"""Random arguments for a loop kernel, to measure it on where no call's own are at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch

from polytile.ir import expr, sizes
from polytile.runtime import noise
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.facts import index_limit


def make_args(kernel: LoopKernel, size: Mapping[str, int], target: torch.device | None = None) -> Sequence[Any]:
    """Random flat arguments for the given sizes: tensors just large enough (on `target`, or the CPU), of no elements for a loop
    without points, then the integers."""
    values = {s: size[s.name] for s in kernel.symbols}
    ranges = {a.symbol: sizes.evaluate(a.size, values) for a in kernel.loop.axes + kernel.loop.reduced}
    empty = not all(ranges[a.symbol] for a in kernel.loop.axes)
    extents: dict[str, int] = {t.name: 0 if empty else 1 for t in kernel.tensors}
    for access in () if empty else kernel.loop.accesses():
        top = {s: max(0, ranges[s] - 1) for s in access.index.free_symbols if s in ranges}
        for k, node in enumerate(access.indirect):
            top[expr.indirect_symbol(k)] = max(0, _index_limit(node, values) - 1)
        extents[access.buffer] = max(extents[access.buffer], sizes.evaluate(access.index, {**values, **top}) + 1)
    for view in [view for call in kernel.library for view in call.views()]:
        last = view.index(tuple(n - 1 for n in view.sizes))
        extents[view.buffer] = max(extents[view.buffer], sizes.evaluate(last, values) + 1)
    divides = {load.buffer for n in expr.walk(*kernel.loop.roots) if expr.is_check(n) for load in _divisors(n)}
    ends = _ends(kernel, values)
    tensors = [_random(extents[t.name], t.dtype, target, int(t.name in divides), ends.get(t.name, 1)) for t in kernel.tensors]
    return [*tensors, *[values[s] for s in kernel.symbols]]


def _ends(kernel: LoopKernel, values: Mapping[sympy.Symbol, int]) -> dict[str, int]:
    """The tensors whose elements are indices, and below what they must lie."""
    ends: dict[str, int] = {}
    for node in expr.walk(*kernel.loop.roots):
        if isinstance(node, expr.Op) and node.name == "check_index":
            read, limit = expr.loads(node.args[0]), max(1, _index_limit(node, values))
            as_it_is = all(below.name in UNCHANGED for below in expr.walk(node.args[0]) if isinstance(below, expr.Op))
            if len(read) == 1 and as_it_is:
                ends[read[0].buffer] = min(limit, ends.get(read[0].buffer, limit))
    return ends


UNCHANGED = ("where", "lt", "ne", "cast")
"""Operations by which an index that is not negative stays what it is, on its way to its check."""


def _divisors(check: expr.Op) -> list[expr.Load]:
    return expr.loads(check) if check.name == "check_divisor" else []


def _index_limit(node: expr.Node, values: Mapping[sympy.Symbol, int]) -> int:
    """The size that an indirect index is checked against; 1 where there is none to see."""
    limit = index_limit(node)
    return 1 if limit is None else sizes.evaluate(limit, values)


def _random(count: int, dtype: torch.dtype, target: torch.device | None, least: int, end: int) -> torch.Tensor:
    """Numbers; of integers, which may be indices, from `least` on and, where `end` lies above it, below that."""
    if dtype.is_floating_point:
        return noise.normal(count, target).to(dtype)
    if dtype == torch.bool or end <= least + 1:
        return torch.full((count,), least, dtype=dtype, device=target)
    return noise.integers(least, min(end, 1 + torch.iinfo(dtype).max), count, dtype, target)
