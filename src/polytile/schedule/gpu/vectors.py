"""The integers that limit vector widths where 16 does not divide them: those that determine where rows, and accesses to
part of a tensor, start.

A row of 382 two-byte elements allows four-byte loads, one of 380 allows eight-byte loads. Other integers, such as the
number of rows, are not keyed on, since each distinct answer is a separate kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import sympy

from polytile.ir import expr, sizes
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.nest import nest_of

VECTOR = 16
"""Bytes of the widest load."""


def deciding_integers(kernel: LoopKernel) -> tuple[sympy.Symbol, ...]:
    """The integers at which accesses start, and those that separate the rows along which memory is traversed, in the
    kernel's order; one factor of a product is enough. A single row needs none of the latter: whole blocks of it need no
    masks."""
    chosen = _begins(kernel)
    if not kernel.loop.reduced and len(kernel.loop.axes) <= 1:
        return tuple(chosen)
    for symbols in sorted(_products(kernel), key=len):
        if symbols and not set(symbols) & set(chosen):
            chosen.append(symbols[-1])
    return tuple(s for s in kernel.symbols if s in chosen)


def _begins(kernel: LoopKernel) -> list[sympy.Symbol]:
    """The integers that are a term of a position by themselves (schedule/starts.py)."""
    places = {access.index for access in kernel.loop.accesses()}
    terms = {term for index in places for term in sympy.Add.make_args(index)}
    return [s for s in kernel.symbols if s in terms]


def widest_load(kernel: LoopKernel) -> int:
    """Elements of the smallest dtype that one load moves; at most 8, since 16 has its own flag."""
    return min(8, VECTOR // min(t.dtype.itemsize for t in kernel.tensors))


def divisors(kernel: LoopKernel, values: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """(name, power of two) of the deciding integers, as generated code knows them at these sizes."""
    deciding = [s.name for s in deciding_integers(kernel) if values[s.name] % 16]
    powers = {name: min(widest_load(kernel), math.gcd(values[name], 16)) for name in deciding}
    return tuple((name, by) for name, by in powers.items() if by > 1)


def _products(kernel: LoopKernel) -> Iterator[tuple[sympy.Symbol, ...]]:
    """The integers in each term of the lengths and strides of such rows, without accesses that are constant along a row."""
    nest, axes = nest_of(kernel.loop), kernel.loop.axes + kernel.loop.reduced
    indices = [node.index for node in expr.loads(*kernel.loop.roots)] + [store.index for store in kernel.loop.stores]
    indices = [index for index in indices if nest.vec.symbol in index.free_symbols]
    lengths = {nest.vec.size} | {a.size for a in axes for index in indices if sizes.coefficient(index, a.symbol) == 1}
    strides = {sizes.coefficient(index, a.symbol) for index in indices for a in axes}
    for length in sorted((lengths | strides) - {None}, key=str):
        for term in sympy.Add.make_args(sympy.expand(length)):
            if not sizes.has_division(term):
                yield tuple(s for s in kernel.symbols if s in term.free_symbols)
