"""Pointwise loops by squares (`squares`): what lies along another axis than the vector's is turned in registers.

Such an operand would be loaded lane by lane, each lane from a cache line of its own. Here the loop goes over squares of L × L
points of the two axes: the operand's square is loaded along the axis that lies in memory, turned, and read back by rows.
Results that lie so are turned on their way out.
"""

from __future__ import annotations

from polytile.ir import sizes
from polytile.ir.expr import Load
from polytile.ir.program import Store
from polytile.kernels.cpp import domain, memory, text
from polytile.kernels.cpp.body import Scope, always
from polytile.kernels.cpp.squares import Squares
from polytile.kernels.cpp.unit import Unit
from polytile.kernels.writer import Writer

PIECE = 1024  # elements of the vector axis: few enough that a single row of tiles keeps all threads busy


def tiled(unit: Unit, out: Writer) -> None:
    """Pieces of rows of tiles, L points of the other axis each, are divided over threads."""
    squares = unit.squares
    assert squares is not None
    axis = squares.axis
    rest = tuple(a for a in unit.nest.outer if a is not axis)
    vec = unit.nest.vec
    out.line(
        f"const long length = {text.index(vec.size)}, across = {text.index(axis.size)}, blocks = (across + L - 1) / L;"
    )
    out.line(f"const long pieces = (length + {PIECE - 1}) / {PIECE};")
    out.line(f"const long total = {f'{domain.count(rest)} * ' if rest else ''}blocks * pieces;")
    with out.block("parallel(threads, [&](long thread, long workers) {", "});"):
        domain.share(out, "total")
        out.line("long piece = begin % pieces, block = begin / pieces % blocks;")
        domain.place(out, rest, "begin / pieces / blocks")
        with out.block("for (long item = begin; item < end; ++item) {"):
            out.line("const long top = block * L, height = smaller(across - top, L);")
            out.line(f"const long first = piece * {PIECE}, last = smaller(first + {PIECE}, length);")
            point = f"auto tail, const long {vec.symbol}, const long n"
            with out.block(f"each_vector<L>(first, last, 0, [&]({point}) PT_INLINE {{", "});"):
                _tile(unit, out, squares)
            with out.block("if (++piece == pieces) {"):
                out.line("piece = 0;")
                with out.block("if (++block == blocks) {"):
                    out.line("block = 0;")
                    domain.advance(out, rest)


def _tile(unit: Unit, out: Writer, squares: Squares) -> None:
    """The squares of what is turned on its way in, the loop's values row by row, the squares of what is turned on its way out."""
    body, axis = unit.body, squares.axis.symbol
    for load in squares.loads:
        tile = f"tile_{body.name(load)}"
        _turn(unit, out, "load_tile", load, tile, squares)
        body.made[id(load)] = always(memory.from_tile(load, tile))
    for k, store in enumerate(squares.stores):
        out.line(f"alignas(64) {text.value_type(store.value.dtype)} out{k}[L * L];")
        body.placed[id(store)] = f"out{k} + u * L"
    scope = Scope()
    body.stores(unit.kernel.loop.stores, scope)
    with out.block("for (long u = 0; u < height; ++u) {"):
        out.line(f"const long {axis} = top + u;")
        out.extend(scope.lines)
    for k, store in enumerate(squares.stores):
        _turn(unit, out, "store_tile", store, f"out{k}", squares)


def _turn(unit: Unit, out: Writer, function: str, access: Load | Store, tile: str, squares: Squares) -> None:
    """The call that turns the square of `access` between memory and its tile."""
    value = access if isinstance(access, Load) else access.value
    kind, base = text.value_type(value.dtype), access.buffer
    if isinstance(access, Load):
        out.line(f"alignas(64) {kind} {tile}[L * L];")
        base = memory.pointer(unit.body, access)
    start = text.index(access.index.xreplace({squares.axis.symbol: sizes.axis("top")}))
    stride = text.index(sizes.coefficient(access.index, unit.nest.vec.symbol))
    out.line(f"{function}<{kind}, L>({tile}, {base} + {start}, {stride}, height, n);")
