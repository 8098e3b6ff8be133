"""Fuses pointwise work on a product into its epilogue, which runs on the accumulator before anything is written.

    matmul mm0: buf0 = x @ w                     matmul mm0: buf0 = x @ w
    loop a for p0, p1                      →       epilogue for b, m, n
      out[p0, p1] = maximum buf0[p0, p1] 0           out[m, n] = maximum accumulator 0

A consumer qualifies if it covers exactly the product's points, in any shape, and reads the product (or what an earlier part of
the epilogue stores) only at its own point. The epilogue keeps the axes (batch, m, n). If the consumer splits the batch or m axis,
for example into heads, its indices contain `m // d` and `m % d`, which cost one division per row. If it splits n into parts that
do not recombine in every index, it is not fused: that would cost a division per lane and break vector stores. Reductions are
fused by row_reductions.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import sympy

from polytile.ir import divisions, expr, sizes
from polytile.ir.dtypes import compute_dtype
from polytile.ir.expr import Accumulator
from polytile.ir.loop import Axis, Loop, Store
from polytile.ir.program import Operation, Program
from polytile.ir.template import Template
from polytile.passes.fusion.axes import Unified, unify
from polytile.passes.fusion.graph import Graph
from polytile.passes.fusion.merge import Domain, Unfit, join, pairs_of, passed_buffers
from polytile.passes.loops import linear, merged_origins
from polytile.passes.split_axes import traced_split

log = logging.getLogger("polytile.fusion")
AXES = tuple(sizes.axis(name) for name in ("b", "m", "n"))


def fuse_epilogues(program: Program) -> Program:
    """`program` with pointwise consumers of products, and their pointwise consumers, fused as epilogues."""
    return attached(program, is_pointwise, with_epilogue)


Fuse = Callable[[Template, Loop, Program, frozenset[str]], Template]
"""Takes a product, a loop that reads it, the program, and the buffers that nothing else needs; returns the product with the loop
in its epilogue. Raises Unfit."""


def attached(program: Program, wanted: Callable[[Loop], bool], fuse: Fuse) -> Program:
    """`program` with the `wanted` loops fused into the products that they read, where `fuse` allows it."""
    state = _State(program, fuse)
    for i, operation in enumerate(program.operations):
        if isinstance(operation, Loop) and wanted(operation):
            state.attach(i, operation)
    return replace(program, operations=state.graph.in_order())


class _State:
    """The graph while loops are fused into products. `templates` maps each buffer to the product that writes it."""

    def __init__(self, program: Program, fuse: Fuse) -> None:
        self.program, self.fuse = program, fuse
        self.graph = Graph(program)
        self.observed = program.observed_buffers()
        self.readers: dict[str, set[int]] = {}
        self.templates: dict[str, int] = {}
        for i, operation in enumerate(program.operations):
            self._note(i, operation)

    def _note(self, i: int, operation: Operation) -> None:
        for name in operation.reads():
            self.readers.setdefault(name, set()).add(i)
        if isinstance(operation, Template):
            self.templates.update(dict.fromkeys(operation.writes(), i))

    def attach(self, i: int, loop: Loop) -> None:
        """Fuse loop i into the epilogue of the last product that it reads and that accepts it."""
        reads = loop.reads()
        for j in sorted({self.templates[name] for name in reads if name in self.templates}, reverse=True):
            template = self.graph.operations[j]
            assert isinstance(template, Template)
            if self.graph.ordered(j, i) != (j, i):
                continue
            passed = template.writes() & reads
            droppable = frozenset(n for n in passed if n not in self.observed and self.readers[n] <= {i, j})
            try:
                fused = self.fuse(template, loop, self.program, droppable)
            except Unfit as reason:
                log.debug("%s + %s: %s", template.name, loop.name, reason)
                continue
            for name in reads | template.reads():
                self.readers[name] -= {i, j}
            self._note(self.graph.merge(j, i, fused), fused)
            return


def is_pointwise(loop: Loop) -> bool:
    """Whether the loop has no reduction, gather, scatter or run-time check."""
    return not loop.reduced and is_direct(loop)


def is_direct(loop: Loop) -> bool:
    """Whether the loop has no gather, scatter or run-time check."""
    checked = any((isinstance(n, expr.Load) and n.indirect) or expr.is_check(n) for n in expr.walk(*loop.roots))
    return not checked and all(store.is_plain for store in loop.stores)


def with_epilogue(template: Template, consumer: Loop, program: Program, droppable: frozenset[str]) -> Template:
    """`template` with `consumer` fused into its epilogue. Raises Unfit."""
    if consumer.writes() & template.operand_reads():
        raise Unfit("the consumer overwrites an operand of the product")
    host = template.epilogue or plain_epilogue(template)
    merged = join(host, consumer, hosted(host, consumer), program.buffers, droppable).loop
    return finished_by(template, merged, host.axes[2], consumer.origins)


def finished_by(template: Template, epilogue: Loop, n: Axis, origins: Sequence[str]) -> Template:
    """`template` with this epilogue, part of which comes from `origins`. Raises Unfit."""
    if any(linear(access.index, (n.symbol,)) is None for access in epilogue.accesses()):
        raise Unfit("an index is not linear along n: the n axis would have to be split")
    origins = merged_origins(template.origins, tuple(origins))
    return replace(template, epilogue=replace(epilogue, name=template.name, origins=()), origins=origins)


def plain_epilogue(template: Template) -> Loop:
    """The epilogue that only stores the product. Like those of its consumers, its index omits axes of size 1."""
    axes = tuple(Axis(symbol, size) for symbol, size in zip(AXES, template.out.sizes, strict=True))
    product = expr.make(Accumulator, dtype=compute_dtype(template.out.dtype))
    place = template.out.index(tuple(sizes.ZERO if axis.size == 1 else axis.symbol for axis in axes))
    return Loop(template.name, axes, (), (Store(template.out.buffer, place, product),))


def hosted(host: Loop, consumer: Loop) -> Domain:
    """The domain of `host`, with the consumer's axes, including reduced ones, as functions of (batch, m, n).

    Consumers are matched with a copy of `host` whose axes are split until no index contains a division, so that a
    consumer can follow an earlier part of the epilogue that splits an axis. Raises Unfit if the consumer's points are
    not those of the product.
    """
    split, origin = traced_split(host)
    pairs = pairs_of(split, consumer, passed_buffers(split, consumer))
    unified = unify(split.axes, consumer.axes + consumer.reduced, pairs)
    if any(s.first is None or s.second is None for s in unified.shared):
        raise Unfit("the consumer's points are not the product's")
    pieces = _pieces(unified, split)
    second = {symbol: sizes.substitute(index, pieces) for symbol, index in unified.second.items()}
    back = {symbol: divisions.simplify(sizes.substitute(index, origin), host.ranges) for symbol, index in second.items()}
    return Domain(host.axes, (), {}, back)


def _pieces(unified: Unified, loop: Loop) -> dict[sympy.Symbol, sympy.Expr]:
    """The common axes as functions of the axes of `loop`, which was the first loop in the unification."""
    ranges = loop.ranges
    pieces: dict[sympy.Symbol, sympy.Expr] = {}
    for axis in loop.axes:
        held = [s for s in unified.shared if s.first == axis.symbol]
        weight = sizes.ONE
        for shared in reversed(held):  # innermost piece first
            quotient = divisions.floor_div(axis.symbol, weight, ranges)
            outermost = shared is held[0]
            pieces[shared.axis.symbol] = quotient if outermost else divisions.modulo(quotient, shared.axis.size, ranges)
            weight = sizes.expand(weight * shared.axis.size)
    return pieces
