"""Non-temporal stores, which bypass the caches: a fully written cache line need not be read first."""

from __future__ import annotations

import math
from collections.abc import Mapping

from polytile.ir import expr, sizes
from polytile.ir.loop import Store
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.nest import Form, Nest


def streamable_stores(nest: Nest) -> tuple[Store, ...]:
    """The stores of a pointwise loop that fully write every line, to buffers that the loop does not read."""
    if nest.form is not Form.POINTWISE:
        return ()
    read = {load.buffer for load in expr.loads(*nest.loop.roots)}

    def whole(store: Store) -> bool:
        plain = store.mode == "set" and not store.indirect and store.mask is None
        return plain and store.buffer not in read and sizes.coefficient(store.index, nest.vec.symbol) == 1

    return tuple(store for store in nest.loop.stores if whole(store))


def worth_streaming(kernel: LoopKernel, nest: Nest, size: Mapping[str, int], last_level: int) -> bool:
    """Whether the output fills half of the last-level cache (`last_level` bytes), so that its next reader would find
    little of it there anyway."""
    values = {s: size[s.name] for s in kernel.symbols}
    points = math.prod(sizes.evaluate(a.size, values) for a in kernel.loop.axes)
    return points * sum(kernel.storage(s.buffer).itemsize for s in streamable_stores(nest)) >= last_level // 2
