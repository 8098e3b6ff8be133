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
    """Random flat arguments for the given sizes: tensors just large enough (on `target`, or the CPU), of no elements for a loop
    without points, then the integers."""
    values = {s: size[s.name] for s in kernel.symbols}
    extents = examples.lengths(kernel, values)
    for view in [view for call in kernel.library for view in call.views()]:
        if all(sizes.evaluate(n, values) for n in view.sizes):
            last = view.index(tuple(n - 1 for n in view.sizes))
            extents[view.buffer] = max(extents[view.buffer], sizes.evaluate(last, values) + 1)
    divides, ends = examples.divisors(kernel), examples.index_ends(kernel, values)
    tensors = [_random(extents[t.name], t.dtype, target, int(t.name in divides), ends.get(t.name, 1)) for t in kernel.tensors]
    return [*tensors, *[values[s] for s in kernel.symbols]]


def _random(count: int, dtype: torch.dtype, target: torch.device | None, least: int, end: int) -> torch.Tensor:
    """Random numbers. Integers, which may be indices, are at least `least` and, if `end` is greater, below `end`."""
    if dtype.is_floating_point:
        return noise.normal(count, target).to(dtype)
    if dtype == torch.bool or end <= least + 1:
        return torch.full((count,), least, dtype=dtype, device=target)
    return noise.integers(least, min(end, 1 + torch.iinfo(dtype).max), count, dtype, target)
