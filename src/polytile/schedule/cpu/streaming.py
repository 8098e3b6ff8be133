"""Non-temporal stores, which bypass the caches: a fully written cache line need not be read first."""

from __future__ import annotations

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


def streamed_bytes(kernel: LoopKernel, nest: Nest) -> int:
    """Bytes that these stores write for each point."""
    return sum(kernel.storage(store.buffer).itemsize for store in streamable_stores(nest))
