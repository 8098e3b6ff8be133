"""Random arguments for a loop kernel, to measure it without the arguments of a call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from polytile.ir import sizes
from polytile.runtime import noise
from polytile.schedule import examples
from polytile.schedule.canonical import LoopKernel


def make_args(kernel: LoopKernel, size: Mapping[str, int], target: torch.device | None = None) -> Sequence[Any]:
    """Random arguments for the given sizes: tensors (on `target`, or the CPU), then the integers. A tensor that a library call
    takes as it is has its sizes and strides; any other is flat and just large enough, of no elements for a loop without points.
    """
    values = {s: size[s.name] for s in kernel.symbols}
    extents = examples.lengths(kernel, values)
    whole: dict[str, tuple[list[int], list[int]]] = {}
    for call, view in [(each, view) for each in kernel.library for view in each.views()]:
        extent, strides = ([sizes.evaluate(n, values) for n in group] for group in (view.sizes, view.strides))
        if view.buffer in call.whole:
            whole[view.buffer] = extent, strides
        if all(extent):
            last = view.index(tuple(n - 1 for n in view.sizes))
            extents[view.buffer] = max(extents[view.buffer], sizes.evaluate(last, values) + 1)
    divides, ends = examples.divisors(kernel), examples.index_ends(kernel, values)
    flat = [_random(extents[t.name], t.dtype, target, int(t.name in divides), ends.get(t.name, 1)) for t in kernel.tensors]
    named = zip(kernel.tensors, flat, strict=True)
    tensors = [memory.as_strided(*whole[t.name]) if t.name in whole else memory for t, memory in named]
    return [*tensors, *[values[s] for s in kernel.symbols]]


def _random(count: int, dtype: torch.dtype, target: torch.device | None, least: int, end: int) -> torch.Tensor:
    """Random numbers. Integers, which may be indices, are at least `least` and, if `end` is greater, below `end`."""
    if dtype.is_floating_point:
        return noise.normal(count, target).to(dtype)
    if dtype == torch.bool or end <= least + 1:
        return torch.full((count,), least, dtype=dtype, device=target)
    return noise.integers(least, min(end, 1 + torch.iinfo(dtype).max), count, dtype, target)
