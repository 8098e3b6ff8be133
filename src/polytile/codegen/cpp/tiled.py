"""Pointwise loops by square tiles (schedule/cpu/transposing.py): operands that are contiguous along another axis than
the vector's are transposed in registers.

Such an operand would be loaded lane by lane, each lane from its own cache line. Here the loop iterates over blocks of
the two axes. The operand's squares of L × L points are loaded along the axis that is contiguous in memory, transposed,
and read back by rows. Results with such a layout are transposed when they are stored. Accesses along the vector axis
proceed in bands of a few rows, since rows a power of two apart compete for the same set of the first-level cache, which
has as few as eight ways.
"""

from __future__ import annotations

from collections.abc import Sequence

from polytile.codegen.cpp import domain, memory, text
from polytile.codegen.cpp.body import Scope, always
from polytile.codegen.cpp.unit import Unit
from polytile.codegen.writer import Writer
from polytile.ir import sizes
from polytile.ir.expr import Load, Node
from polytile.ir.loop import Store
from polytile.schedule.cpu.transposing import BAND, BLOCK_ROWS, PIECE, Transposed


def tiled(unit: Unit, out: Writer) -> None:
    """Divides strips of L points of the other axis by PIECE points of the vector axis, the former innermost, over
    threads. Each thread takes as many strips at a time as make a block."""
    tile = unit.loop.transposed
    assert tile is not None
    axis, vec = tile.axis, unit.nest.vec
    rest = tuple(a for a in unit.nest.outer if a is not axis)
    columns = tile.block_columns(unit.lanes)
    out.line(f"const long length = {text.index(vec.size)}, across = {text.index(axis.size)};")
    out.line(f"const long pieces = (length + {PIECE - 1}) / {PIECE}, strips = (across + L - 1) / L;")
    out.line(f"const long total = {f'{domain.count(rest)} * ' if rest else ''}pieces * strips;")
    with unit.parallel(out):
        domain.share(out, "total")
        for access in tile.accesses:
            out.line(f"alignas(64) {_kind(access)} {_tile(unit, access)}[{BLOCK_ROWS * columns}];")
        out.line("long strip = begin % strips, piece = begin / strips % pieces;")
        domain.place(out, rest, "begin / strips / pieces")
        with out.block("for (long item = begin, taken; item < end; item += taken) {"):
            out.line(f"taken = smaller(smaller(strips - strip, end - item), {BLOCK_ROWS} / L);")
            out.line("const long top = strip * L, height = smaller(across - top, taken * L);")
            out.line(f"const long first = piece * {PIECE}, last = smaller(first + {PIECE}, length);")
            with out.block(f"for (long left = first; left < last; left += {columns}) {{"):
                out.line(f"const long right = smaller(left + {columns}, last);")
                _block(unit, out, tile)
            with out.block("if ((strip += taken) == strips) {"):
                out.line("strip = 0;")
                with out.block("if (++piece == pieces) {"):
                    out.line("piece = 0;")
                    domain.advance(out, rest)


def _block(unit: Unit, out: Writer, tile: Transposed) -> None:
    """Emits the squares of transposed loads, the loop's values band by band, and the squares of transposed stores."""
    body, vec = unit.body, unit.nest.vec.symbol
    column = f" + ({vec} - left) * {BLOCK_ROWS}"
    for load in tile.loads:
        body.overrides[id(load)] = always(memory.from_tile(load, _tile(unit, load) + column))
    for store in tile.stores:
        body.destinations[id(store)] = f"{_tile(unit, store)}{column} + u * L"
    _transpose(unit, out, tile.loads, "load_tiles", column)
    scope = Scope()
    body.stores(unit.kernel.loop.stores, scope)
    with out.block(f"for (long band = 0; band < height; band += {BAND}) {{"):
        out.line(f"const long below = smaller(band + {BAND}, height);")
        head = f"each_vector<L>(left, right, 0, [&](auto tail, const long {vec}, const long n) PT_INLINE {{"
        with out.block(head, "});"), out.block("for (long u = band; u < below; ++u) {"):
            out.line(f"const long {tile.axis.symbol} = top + u;")
            out.extend(scope.lines)
    _transpose(unit, out, tile.stores, "store_tiles", column)


def _transpose(unit: Unit, out: Writer, accesses: Sequence[Load | Store], function: str, column: str) -> None:
    """Emits the calls that transpose the squares of `accesses` between memory and their tiles."""
    if not accesses:
        return
    assert unit.loop.transposed is not None
    vec = unit.nest.vec.symbol
    with out.block(f"for (long {vec} = left; {vec} < right; {vec} += L) {{"):
        for access in accesses:
            base = memory.pointer(unit.body, access) if isinstance(access, Load) else access.buffer
            start = text.index(access.index.xreplace({unit.loop.transposed.axis.symbol: sizes.axis("top")}))
            stride = text.index(sizes.coefficient(access.index, vec))
            places = f"{_tile(unit, access)}{column}, {base} + {start}"
            out.line(f"{function}<{_kind(access)}, L>({places}, {stride}, height, smaller(right - {vec}, L));")


def _tile(unit: Unit, access: Load | Store) -> str:
    """The array that holds the squares of an access."""
    if isinstance(access, Load):
        return f"tile_{unit.body.name(access)}"
    assert unit.loop.transposed is not None
    return f"out{unit.loop.transposed.stores.index(access)}"


def _value(access: Load | Store) -> Node:
    return access if isinstance(access, Load) else access.value


def _kind(access: Load | Store) -> str:
    return text.value_type(_value(access).dtype)
