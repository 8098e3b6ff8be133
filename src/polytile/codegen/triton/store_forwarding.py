"""Store forwarding between passes over a row: a later pass loads a value that an earlier one has stored, instead of
everything it was computed from. After h = x + y is stored, the next pass loads h. A value stored in 16 bits comes back
rounded, as in eager mode."""

from __future__ import annotations

from collections.abc import Iterable

from polytile.ir.dtypes import compute_dtype
from polytile.ir.expr import Load, Node
from polytile.ir.loop import Store
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.nest import Nest


def stored_before(kernel: LoopKernel, nest: Nest, k: int) -> dict[Node, Store]:
    """The values of pass k that earlier passes have stored, where loading them moves fewer bytes."""
    stored: dict[Node, Store] = {}
    for j in range(k):
        for store in nest.stores_in(j):
            value = store.value
            if not _kept(kernel, nest, store) or not any(n is value for n in nest.nodes_in(k, stop=stored)):
                continue
            without = _bytes(kernel, nest.nodes_in(k, stop=[*stored, value]))
            if without + kernel.storage(store.buffer).itemsize < _bytes(kernel, nest.nodes_in(k, stop=stored)):
                stored[value] = store
    return stored


def _kept(kernel: LoopKernel, nest: Nest, store: Store) -> bool:
    """Whether the elements of a store hold its value at every point."""
    plain = store.mode == "set" and not store.indirect and store.mask is None
    alone = sum(other.buffer == store.buffer for other in nest.loop.stores) == 1
    fits = compute_dtype(kernel.storage(store.buffer)) == store.value.dtype
    return plain and alone and fits and not nest.dependence(store.value).scanned


def _bytes(kernel: LoopKernel, nodes: Iterable[Node]) -> int:
    """Bytes that the loads among `nodes` read per point."""
    return sum(kernel.storage(n.buffer).itemsize for n in nodes if isinstance(n, Load))
