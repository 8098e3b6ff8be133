"""Drops the empty case from the strides of dense tensors: Max(1, n) → n in every index of a buffer that n = 0 leaves empty.

torch writes the stride of a dimension as the product of Max(1, n) over the dimensions inside it. If such an n is 0, the buffer
has no elements and its indices are never used, so n serves as well. Indices become polynomials that fusion can match. The buffers
keep their strides, which the caller can see.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

import sympy
from torch.utils._sympy.functions import Max

from polytile.ir import expr, sizes
from polytile.ir.buffer import Buffer, View
from polytile.ir.expr import Load, Node
from polytile.ir.loop import Loop, Store
from polytile.ir.program import Operation, Program, map_views
from polytile.passes.loops import map_loop

_MAXIMA = (Max, sympy.Max)  # torch's own class and sympy's


def plain_strides(program: Program) -> Program:
    """`program` without Max(1, n) in the indices of loops, epilogues, products and attentions."""
    buffers = program.buffers

    def one(operation: Operation) -> Operation:
        plain = map_views(operation, lambda view: _in_view(view, buffers))
        return map_loop(plain, lambda loop: _in_loop(loop, buffers))

    return replace(program, operations=tuple(one(o) for o in program.operations))


def _in_loop(loop: Loop, buffers: Mapping[str, Buffer]) -> Loop:
    if not any(index.has(*_MAXIMA) for node in expr.walk(*loop.roots) for index in node.indices) and not any(
        store.index.has(*_MAXIMA) for store in loop.stores
    ):
        return loop

    def rule(load: Load) -> Node:
        return expr.rebuild(load, load.children, lambda index: without_max(index, buffers[load.buffer].numel))

    new = loop.map_loads(rule)
    return replace(new, stores=tuple(_in_store(store, buffers) for store in new.stores))


def _in_store(store: Store, buffers: Mapping[str, Buffer]) -> Store:
    return replace(store, index=without_max(store.index, buffers[store.buffer].numel)) if store.buffer in buffers else store


def _in_view(view: View, buffers: Mapping[str, Buffer]) -> View:
    strides = tuple(without_max(s, buffers[view.buffer].numel) for s in view.strides)
    return view if strides == view.strides else replace(view, strides=strides)


@functools.lru_cache(maxsize=20_000)
def without_max(index: sympy.Expr, elements: sympy.Expr) -> sympy.Expr:
    """`index` with Max(1, n) → n wherever n divides the number of `elements` of the buffer."""
    replacements = {}
    for largest in index.atoms(*_MAXIMA):
        others = [a for a in largest.args if a != 1]
        if len(others) == 1 < len(largest.args) and sizes.divide(sizes.expand(elements), others[0]) is not None:
            replacements[largest] = others[0]
    return sizes.expand(index.xreplace(replacements)) if replacements else index
