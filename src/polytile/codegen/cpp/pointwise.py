"""Pointwise loops.

plain      the points of all axes, in order, are divided over threads; each stretch of the vector axis is one sweep
streamed   the same, with non-temporal stores
scattered  stores may collide: each thread owns a range of one axis and iterates over the others in order
"""

from __future__ import annotations

import sympy

from polytile.codegen.cpp import domain, sweeps, text
from polytile.codegen.cpp.body import Scope
from polytile.codegen.cpp.unit import Unit
from polytile.codegen.writer import Writer
from polytile.ir import sizes
from polytile.ir.loop import Axis
from polytile.schedule.cpu.scheduled import Threads


def pointwise(unit: Unit, out: Writer) -> None:
    """Emits the kernel's work, divided over threads."""
    if unit.loop.threads is Threads.POINTS:
        _plain(unit, out)
    elif unit.loop.owner is unit.nest.vec:
        _owned_columns(unit, out)
    else:
        _owned_points(unit, out, unit.loop.owner)


def _plain(unit: Unit, out: Writer) -> None:
    outer = unit.nest.outer
    if not outer:
        out.line(f"const long length = {text.index(unit.nest.vec.size)};")
        with unit.parallel(out):
            out.line("const long first = share<L>(length, thread, workers), last = share<L>(length, thread + 1, workers);")
            _sweep(unit, out)
            _end(unit, out)
        return
    out.line(f"const long length = {text.index(unit.nest.vec.size)}, total = {domain.count(outer)} * length;")
    with unit.parallel(out):
        out.line("long at = share<L>(total, thread, workers), first = at % length;")
        out.line("const long end = share<L>(total, thread + 1, workers);")
        domain.place(out, outer, "at / length")
        with out.block("for (; at < end; first = 0) {"):
            out.line("const long last = smaller(first + (end - at), length);")
            unit.body.row = _in_sequence(unit)
            if unit.body.row is not None:
                out.line("const long row = at - first;")
            _sweep(unit, out)
            out.line("at += last - first;")
            domain.advance(out, outer)
        _end(unit, out)


def _in_sequence(unit: Unit) -> sympy.Expr | None:
    """The index of a row's first element in a result that is stored in the order of the points; None if no result is."""
    axes = (*unit.nest.outer, unit.nest.vec)
    strides = sizes.contiguous_strides([axis.size for axis in axes])
    row = sizes.expand(sympy.Add(*(axis.symbol * n for axis, n in zip(axes[:-1], strides[:-1], strict=True))))
    in_order = any(sizes.equal(store.index, row + unit.nest.vec.symbol) for store in unit.kernel.loop.stores)
    return row if in_order else None


def _end(unit: Unit, out: Writer) -> None:
    """Emits the fence after a thread's last store."""
    if unit.body.streamed:
        out.line("stream_fence();")


def _owned_columns(unit: Unit, out: Writer) -> None:
    """Each thread owns a range of the vector axis."""
    outer = unit.nest.outer
    out.line(f"const long length = {text.index(unit.nest.vec.size)}, total = {domain.count(outer)};")
    with unit.parallel(out):
        out.line("const long first = share<L>(length, thread, workers), last = share<L>(length, thread + 1, workers);")
        out.line("if (first == last) return;")
        _points(unit, out, outer, "total")


def _owned_points(unit: Unit, out: Writer, owner: Axis | None) -> None:
    """Each thread owns a range of an outer axis; without an owner, one thread does everything."""
    rest = tuple(a for a in unit.nest.outer if a is not owner)
    out.line(f"const long first = 0, last = {text.index(unit.nest.vec.size)}, total = {domain.count(rest)};")
    if owner is None:
        out.line("threads = 1;")
    with unit.parallel(out):
        if owner is None:
            _points(unit, out, rest, "total")
            return
        domain.share(out, domain.count([owner]))
        name = owner.symbol
        with out.block(f"for (long {name} = begin; {name} < end; ++{name}) {{"):
            _points(unit, out, rest, "total")


def _points(unit: Unit, out: Writer, axes: tuple[Axis, ...], total: str) -> None:
    """Iterates over all points of `axes` in order, with a sweep of [first, last) at each."""
    domain.place(out, axes, "0")
    with out.block(f"for (long item = 0; item < {total}; ++item) {{"):
        _sweep(unit, out)
        domain.advance(out, axes)


def _sweep(unit: Unit, out: Writer) -> None:
    """Emits the uniform values, then the sweep of [first, last) of the vector axis."""
    state = Scope()
    for node in unit.nest.row_values:
        unit.body.emit(node, state)
    out.extend(state.lines)
    stores = unit.kernel.loop.stores

    def sweep(scope: Scope, first: str, last: str, lanes: str) -> None:
        inside = scope.inner()
        unit.body.stores(stores, inside)
        point = f"auto tail, const long {unit.nest.vec.symbol}, const long n"
        lead = sweeps.lead(unit.body, stores, first, last)
        with out.block(f"each_vector<{lanes}>({first}, {last}, {lead}, [&]({point}) PT_INLINE {{", "});"):
            out.extend(inside.lines)

    sweeps.in_pieces(unit.body, out, state, unit.nest.needed, "first", "last", sweep, apart=True)
