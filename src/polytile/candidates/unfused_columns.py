"""A loop that adds up columns as well as rows, run as two loops: the column sums, as a loop down the columns, then the rest.

    loop a for p0 over r0              loop b for p0 over r0
      dx[p0, r0] = f(...)                dw[p0] = reduce sum g[r0, p0]·x[r0, p0]
      dw[r0] sum= g·x              →   loop a for p0 over r0
                                         dx[p0, r0] = f(...)

The sums come first, as the rest may overwrite what they read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import sympy
import torch

from polytile.candidates.inner_kernel import Composed, InnerKernel, best_cost
from polytile.ir import expr
from polytile.ir import sizes as algebra
from polytile.ir.buffer import Buffer
from polytile.ir.loop import Axis, Loop, Store
from polytile.problem import digest
from polytile.runtime.formula import encode, evaluate
from polytile.schedule.canonical import CallSite, LoopKernel, canonicalize

Part = tuple[LoopKernel, CallSite]
"""One of the two loops, and which of the whole loop's tensors and integers it takes."""


def parts(kernel: LoopKernel) -> tuple[Part, ...]:
    """The loops that `kernel` is run as, in order; none if it has no column sums."""
    loop = kernel.loop
    sums = tuple(store for store in loop.stores if store.is_segment_sum and not store.indirect)
    if not sums:
        return ()
    columns = [replace(s, mode="set", value=expr.reduce("sum", s.value.dtype, s.value)) for s in sums]
    rest = tuple(store for store in loop.stores if not store.is_segment_sum)
    loops = replace(loop, axes=loop.reduced, reduced=loop.axes, stores=tuple(columns)), replace(loop, stores=rest)
    return tuple(canonicalize(each, _buffers(kernel, each)) for each in loops)


def _buffers(kernel: LoopKernel, loop: Loop) -> dict[str, Buffer]:
    """The tensors of one of the loops. A tensor that is written as a whole is as large as what is written."""
    axes = loop.axes + loop.reduced
    written = {store.buffer: _points(store, axes) for store in loop.stores}
    buffers = {}
    for tensor in kernel.tensors:
        extents = (written[tensor.name],) if tensor.role == "out" and tensor.name in written else ()
        buffers[tensor.name] = Buffer(tensor.name, tensor.dtype, extents, ())
    return buffers


def _points(store: Store, axes: Sequence[Axis]) -> sympy.Expr:
    return algebra.product([axis.size for axis in axes if axis.symbol in store.index.free_symbols])


class Unfused(Composed):
    """Runs the parts in the order of `parts`."""

    name = "unfused"

    def __init__(self, kernel: LoopKernel, run: Sequence[InnerKernel]) -> None:
        self.kernel, self.inner = kernel, tuple(run)
        tensors = {tensor.name: k for k, tensor in enumerate(kernel.tensors)}
        places = {symbol: k for k, symbol in enumerate(kernel.symbols)}
        sites = [site for _, site in parts(kernel)]
        self._tensors = [[tensors[name] for name in site.buffers] for site in sites]
        self._sizes = [[encode(size, places) for size in site.sizes] for site in sites]

    @cached_property
    def source_hash(self) -> str:
        return digest(f"apart {torch.__version__} {self.kernel.text}")

    def cost(self, sizes: Mapping[str, int]) -> float:
        """The sum of the best predictions of the parts."""
        ints = [sizes[symbol.name] for symbol in self.kernel.symbols]
        return sum(best_cost(part, dict(zip(part.spec.size_names, own, strict=True))) for part, own in self._parts(ints))

    def _parts(self, ints: Sequence[int]) -> list[tuple[InnerKernel, list[int]]]:
        return [(part, [evaluate(f, ints) for f in own]) for part, own in zip(self.inner, self._sizes, strict=True)]

    def inner_calls(self, ints: Sequence[int]) -> Iterable[tuple[InnerKernel, Sequence[int]]]:
        return self._parts(ints)

    def _call(self, *args: Any) -> None:
        count = len(self.kernel.tensors)
        for (part, ints), places in zip(self._parts(args[count:]), self._tensors, strict=True):
            part(*[args[k] for k in places], *ints)
