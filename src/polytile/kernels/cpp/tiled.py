"""Pointwise loops with operands that lie the other way round: square tiles are turned in registers.

An operand whose stride 1 is along another axis than the vector's would be loaded lane by lane, each lane from a cache line of
its own. Here the loop goes over squares of L × L points of the two axes; each such operand's square is loaded along the axis
that lies in memory, turned, and read back by rows.
"""

from __future__ import annotations

from dataclasses import replace

from polytile.ir import sizes
from polytile.ir.expr import Load
from polytile.ir.program import Axis
from polytile.kernels.cpp import domain, memory, text
from polytile.kernels.cpp.body import Scope, always
from polytile.kernels.cpp.lanes import NARROWEST, lane_bytes
from polytile.kernels.cpp.scatter import scattered
from polytile.kernels.cpp.unit import Unit
from polytile.kernels.nest import Form, Nest
from polytile.kernels.writer import Writer


def turned(nest: Nest) -> tuple[Axis, tuple[Load, ...]] | None:
    """The axis along which the most operands lie that are strided along the vector axis, and these; None where there are
    none, or where tiles would not be squares of registers."""
    if nest.form is not Form.POINTWISE or scattered(nest.loop) or lane_bytes(replace(nest, cutting=False)) < NARROWEST:
        return None
    vec = nest.vec.symbol
    strided = [n for n in nest.needed if isinstance(n, Load) and _strided(n, nest)]
    found = {a: tuple(n for n in strided if sizes.coefficient(n.index, a.symbol) == 1) for a in nest.outer}
    axis = max(found, key=lambda a: len(found[a]), default=None)
    return (axis, found[axis]) if axis is not None and found[axis] and vec not in axis.size.free_symbols else None


def _strided(load: Load, nest: Nest) -> bool:
    return (
        not load.indirect and load.mask is None and sizes.coefficient(load.index, nest.vec.symbol) not in (None, 0, 1)
    )


def tiled(unit: Unit, out: Writer) -> None:
    """Rows of tiles, L points of the other axis each, are divided over threads."""
    found = turned(unit.nest)
    assert found is not None
    axis, loads = found
    rest = tuple(a for a in unit.nest.outer if a is not axis)
    vec = unit.nest.vec
    out.line(
        f"const long length = {text.index(vec.size)}, across = {text.index(axis.size)}, blocks = (across + L - 1) / L;"
    )
    out.line(f"const long total = {domain.count(rest)} * blocks;" if rest else "const long total = blocks;")
    with out.block("parallel(threads, [&](long thread, long workers) {", "});"):
        domain.share(out, "total")
        out.line("long block = begin % blocks;")
        domain.place(out, rest, "begin / blocks")
        with out.block("for (long item = begin; item < end; ++item) {"):
            out.line("const long top = block * L, height = smaller(across - top, L);")
            point = f"auto tail, const long {vec.symbol}, const long n"
            with out.block(f"each_vector<L>(0, length, 0, [&]({point}) PT_INLINE {{", "});"):
                _tile(unit, out, axis, loads)
            with out.block("if (++block == blocks) {"):
                out.line("block = 0;")
                domain.advance(out, rest)


def _tile(unit: Unit, out: Writer, axis: Axis, loads: tuple[Load, ...]) -> None:
    """The squares of all turned operands, then the loop's values row by row."""
    body = unit.body
    for load in loads:
        kind, tile = text.value_type(load.dtype), f"tile_{body.name(load)}"
        start = text.index(load.index.xreplace({axis.symbol: sizes.axis("top")}))
        stride = text.index(sizes.coefficient(load.index, unit.nest.vec.symbol))
        out.line(f"alignas(64) {kind} {tile}[L * L];")
        out.line(f"load_tile<{kind}, L>({tile}, {memory.pointer(body, load)} + {start}, {stride}, height, n);")
        body.made[id(load)] = always(memory.from_tile(load, tile))
    scope = Scope()
    body.stores(unit.kernel.loop.stores, scope)
    with out.block("for (long u = 0; u < height; ++u) {"):
        out.line(f"const long {axis.symbol} = top + u;")
        out.extend(scope.lines)
