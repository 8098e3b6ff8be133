"""Pointwise loops.

plain      every item (a point of the outer axes × a block of the vector axis) is swept by one thread
scattered  stores may meet: each thread owns a range of one axis and goes through the others in order
"""

from __future__ import annotations

from polytile.ir.program import Axis
from polytile.kernels.cpp import domain, text
from polytile.kernels.cpp.body import Scope
from polytile.kernels.cpp.scatter import owner_axis, scattered
from polytile.kernels.cpp.unit import Unit
from polytile.kernels.writer import Writer

BLOCK = 4096  # elements of the vector axis in one item


def pointwise(unit: Unit, out: Writer) -> None:
    """The kernel's work; with the variant `atomic`, stores that meet are atomic and threads divide everything."""
    if not scattered(unit.kernel.loop) or unit.variant == "atomic":
        _plain(unit, out)
        return
    owner = owner_axis(unit.kernel.loop, unit.nest.vec)
    if owner is unit.nest.vec:
        _owned_columns(unit, out)
    else:
        _owned_points(unit, out, owner)


def _plain(unit: Unit, out: Writer) -> None:
    outer = unit.nest.outer
    blocks = f"const long length = {text.index(unit.nest.vec.size)}, blocks = (length + {BLOCK - 1}) / {BLOCK}"
    out.line(f"{blocks}, total = {domain.count(outer)} * blocks;" if outer else f"{blocks};")
    with out.block("parallel(threads, [&](long thread, long workers) {", "});"):
        domain.share(out, "total" if outer else "blocks")
        if not outer:
            with out.block("for (long block = begin; block < end; ++block) {"):
                _block(unit, out)
            return
        out.line("long block = begin % blocks;")
        domain.place(out, outer, "begin / blocks")
        with out.block("for (long item = begin; item < end; ++item) {"):
            _block(unit, out)
            with out.block("if (++block == blocks) {"):
                out.line("block = 0;")
                domain.advance(out, outer)


def _block(unit: Unit, out: Writer) -> None:
    out.line(f"const long first = block * {BLOCK}, last = smaller(first + {BLOCK}, length);")
    _sweep(unit, out, "first", "last")


def _owned_columns(unit: Unit, out: Writer) -> None:
    """Each thread owns a range of the vector axis."""
    outer = unit.nest.outer
    out.line(f"const long length = {text.index(unit.nest.vec.size)}, total = {domain.count(outer)};")
    with out.block("parallel(threads, [&](long thread, long workers) {", "});"):
        out.line("const long first = share<L>(length, thread, workers), last = share<L>(length, thread + 1, workers);")
        out.line("if (first == last) return;")
        _points(unit, out, outer, "total")


def _owned_points(unit: Unit, out: Writer, owner: Axis | None) -> None:
    """Each thread owns a range of an outer axis; without an owner one thread does everything."""
    rest = tuple(a for a in unit.nest.outer if a is not owner)
    out.line(f"const long first = 0, last = {text.index(unit.nest.vec.size)}, total = {domain.count(rest)};")
    if owner is None:
        out.line("threads = 1;")
    with out.block("parallel(threads, [&](long thread, long workers) {", "});"):
        if owner is None:
            _points(unit, out, rest, "total")
            return
        domain.share(out, domain.count([owner]))
        name = owner.symbol
        with out.block(f"for (long {name} = begin; {name} < end; ++{name}) {{"):
            _points(unit, out, rest, "total")


def _points(unit: Unit, out: Writer, axes: tuple[Axis, ...], total: str) -> None:
    """All points of `axes` in order, each with a sweep of [first, last)."""
    domain.place(out, axes, "0")
    with out.block(f"for (long item = 0; item < {total}; ++item) {{"):
        _sweep(unit, out, "first", "last")
        domain.advance(out, axes)


def _sweep(unit: Unit, out: Writer, first: str, last: str) -> None:
    """Values that are the same for all lanes, then the sweep of [first, last) of the vector axis."""
    state = Scope()
    for node in unit.nest.row_values:
        unit.body.emit(node, state)
    inside = state.inner()
    unit.body.stores(unit.kernel.loop.stores, inside)
    out.extend(state.lines)
    with out.block(
        f"each_vector<L, 1>({first}, {last}, [&](auto tail, const long {unit.nest.vec.symbol}, const long n) PT_INLINE {{",
        "});",
    ):
        out.extend(inside.lines)
