"""The memory traffic of a loop in bytes, at stand-in sizes, by which fusions are ranked."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Mapping

import sympy

from polytile.ir import expr, ops, sizes
from polytile.ir.buffer import Buffer
from polytile.ir.expr import Node
from polytile.ir.loop import Loop

STAND_IN = 64  # the value assumed for every symbol; only the order of fusions depends on it
DOUBLINGS = 16  # how often it is doubled where some divisor would be 0
CHEAP = 8.0  # below this many multiply-adds, recomputing beats storing and loading (see OpDef.cost)


@functools.lru_cache(maxsize=50_000)
def estimate(size: sympy.Expr) -> int:
    """A size with every symbol replaced by a stand-in value, the least at which no divisor is 0: n // (s // 128), the size of an
    image's windows, has no value at 64. 1 where there is no such value."""
    for doublings in range(DOUBLINGS):
        with contextlib.suppress(ZeroDivisionError):
            return int(size.xreplace({s: sympy.Integer(STAND_IN << doublings) for s in size.free_symbols}))
    return 1


def touched(index: sympy.Expr, axes: Mapping[sympy.Symbol, int], indirect: bool) -> int:
    """Number of elements that an access touches: the product of the axes in its index, or all of the loop's points if it is
    indirect."""
    own = sizes.symbols(index)
    return math.prod(size for symbol, size in axes.items() if indirect or symbol in own)


def traffic(loop: Loop, buffers: Mapping[str, Buffer]) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes read from and written to each buffer: the elements of every distinct access, at most the whole buffer."""
    axes = {a.symbol: estimate(a.size) for a in loop.axes + loop.reduced}
    reads: dict[str, int] = {}
    writes: dict[str, int] = {}
    accesses = [(reads, n.buffer, touched(n.index, axes, bool(n.indirect))) for n in expr.loads(*loop.roots)]
    accesses += [(writes, store.buffer, touched(store.index, axes, bool(store.indirect))) for store in loop.stores]
    for table, name, elements in accesses:
        whole = max(1, estimate(buffers[name].storage_size))
        table[name] = min(table.get(name, 0) + elements, whole)

    def in_bytes(elements: Mapping[str, int]) -> dict[str, int]:
        return {name: n * buffers[name].dtype.itemsize for name, n in elements.items()}

    return in_bytes(reads), in_bytes(writes)


def compute(*roots: Node) -> float:
    """Cost of computing `roots` once, in multiply-adds of the operation table."""
    return sum(ops.definition(n.name).cost for n in expr.walk(*roots) if isinstance(n, expr.Op))
