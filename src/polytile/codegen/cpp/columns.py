"""Reductions and scans down columns: each lane owns a column, and the reduced axes run serially.

Work is split into tiles of four vectors of columns; the end of a row is done vector by vector. Lambdas hold the code
for one vector: pass{k} for a point of the reduced axes, state{k} for the code after k passes.

looped   each thread owns tiles
split    all threads share each tile and divide its rows, with a barrier between passes
short    columns are the loop's rows (`short`): tiles are one vector wide, and accesses along rows are transposed
"""

from __future__ import annotations

from functools import cached_property

import sympy
import torch

from polytile.codegen.cpp import domain, memory, reductions, scans, text
from polytile.codegen.cpp.body import Scope, always
from polytile.codegen.cpp.reductions import running
from polytile.codegen.cpp.unit import LEAVE_KERNEL, LEAVE_THREAD, Unit, scratch
from polytile.codegen.writer import Writer
from polytile.ir import expr, sizes
from polytile.ir.expr import Const, Load, Node
from polytile.ir.loop import Store
from polytile.schedule.cpu.scheduled import COLUMNS, Pass, Threads
from polytile.schedule.nest import is_result


def whole_columns(unit: Unit, out: Writer) -> None:
    """Divides the tiles over threads."""
    if unit.loop.threads is Threads.NOTHING:
        out.line("threads = 1;")
    tile = _Tile(unit)
    tile.declare(out)
    with unit.parallel(out):
        domain.share(out, "total")
        _tiles(unit, out, tile, "begin", "end")


def split_columns(unit: Unit, out: Writer) -> None:
    """Divides the rows of each tile over threads. Shared data belongs to the calling thread."""
    tile = _Tile(unit)
    tile.declare(out)
    for one in unit.loop.passes:
        if one.reduces:
            scratch(out, f"Slots<Acc{one.number}, {COLUMNS}>", f"by_thread{one.number}", "2 * threads", LEAVE_KERNEL)
    with unit.parallel(out):
        out.line("long turn = 0;")
        _tiles(unit, out, tile, "0", "total")


def short_rows(unit: Unit, out: Writer) -> None:
    """Divides groups of L rows over threads."""
    tile = _Tile(unit)
    tile.declare(out)
    with unit.parallel(out):
        domain.share(out, "total")
        tile.scratch(out)
        _tiles(unit, out, tile, "begin", "end")


def _tiles(unit: Unit, out: Writer, tile: _Tile, begin: str, end: str) -> None:
    """Iterates over the tiles from `begin` to `end`, numbered through the outer axes."""
    outer = unit.nest.outer
    if outer:
        out.line(f"long number = {begin} % tiles;")
        domain.place(out, outer, f"{begin} / tiles")
    counter = "item" if outer else "number"
    with out.block(f"for (long {counter} = {begin}; {counter} < {end}; ++{counter}) {{"):
        tile.one(out)
        if outer:
            with out.block("if (++number == tiles) {"):
                out.line("number = 0;")
                domain.advance(out, outer)


class _Tile:
    """Generates the code of one tile."""

    def __init__(self, unit: Unit) -> None:
        self.nest, self.body, self.passes = unit.nest, unit.body, unit.loop.passes
        self.split, self.transposed, self.width = unit.loop.schedule.shared, unit.loop.transposed, unit.loop.side_by_side

    # what lives from lambda to lambda ----------------------------------------------------------------------------------

    @cached_property
    def state(self) -> list[Node]:
        """Vector values outside the passes that a later lambda needs: the fields of State."""
        needed: set[int] = set()
        for user, children in self._uses():
            needed |= {id(c) for c in children if user is None or user != self._home(c)}
        return [n for n in self.nest.nodes if id(n) in needed and self._home(n) is not None]

    def _home(self, node: Node) -> int | None:
        """Index k of the lambda state{k} that computes the value; None if none does."""
        outside = not isinstance(node, Const) and not self.nest.in_pass(node) and self.nest.is_vector(node)
        return self.nest.passes_before(node) if outside else None

    def _uses(self) -> list[tuple[int | None, tuple[Node, ...]]]:
        """(k, values needed by state{k}), with k None for a pass."""
        needs = [(None if is_result(n) else self._home(n), n.children) for n in self.nest.nodes]
        needs += [(k, s.roots) for k in range(self.nest.passes + 1) for s in self.nest.row_stores(k)]
        return needs + [(None, s.roots) for one in self.passes for s in one.stores]

    def declare(self, out: Writer) -> None:
        """Emits sizes, accumulators and State."""
        width = f"{self.width} * L"
        out.line(f"const long length = {text.index(self.nest.vec.size)}, tiles = (length + {width} - 1) / ({width});")
        out.line(
            f"const long total = {domain.count(self.nest.outer)} * tiles;" if self.nest.outer else "const long total = tiles;"
        )
        for one in self.passes:
            carries = [line for scan in one.scans for line in scans.carries(self.nest, scan, "L")]
            if one.accumulates:
                out.extend(reductions.accumulator(f"Acc{one.number}", one.reduces, carries))
        fields = [f"  V<{text.value_type(n.dtype)}, L> {self.body.name(n)};" for n in self.state]
        out.extend(["struct State {", *fields, "};"] if fields else ["struct State {};"])

    # one tile ----------------------------------------------------------------------------------------------------------

    def one(self, out: Writer) -> None:
        uniform = Scope()
        for node in self.nest.row_values:
            if not self.nest.is_vector(node):
                self.body.emit(node, uniform)
        out.extend(uniform.lines)
        for one in self.passes:
            self._state(out, uniform, one.number)
            self._pass(out, uniform, one)
        self._state(out, uniform, len(self.passes))
        with out.block("auto tile = [&](auto tail, auto width, const long column, const long n) PT_INLINE {", "};"):
            self._run(out)
        with out.block(
            f"if (const long column = number * {self.width} * L; column + {self.width} * L <= length) {{", "} else {"
        ):
            out.line(f"tile(Full{{}}, Width<{self.width}>{{}}, column, L);")
        out.depth += 1
        if self.transposed is not None:
            out.line("tile(Part{}, Width<1>{}, column, length - column);")
        else:
            out.line(
                "each_vector<L>(column, length, 0, [&](auto tail, long at, long n) PT_INLINE { tile(tail, Width<1>{}, at, n); });"
            )
        out.close()

    def _known(self, uniform: Scope, values: int, results: int, leave: str = "return;") -> Scope:
        """The scope of a column: values of the state lambdas before number `values`, and the results of `results` passes."""
        scope = Scope([], dict(uniform.names), leave)
        for node in self.state:
            passes = self.nest.passes_before(node)
            if passes <= results if is_result(node) else passes < values:
                scope.names[id(node)] = f"s.{self.body.name(node)}"
        return scope

    @property
    def _head(self) -> str:
        return f"auto tail, const long {self.nest.vec.symbol}, const long n, State& s"

    def _pass(self, out: Writer, uniform: Scope, one: Pass) -> None:
        """Emits the lambda pass{k}: the code of a pass at one point of the reduced axes."""
        k = one.number
        scope = self._known(uniform, k + 1, k)
        self._prepare_tiles(k)
        scans.prepare(self.nest, self.body, column=True)
        for r in running(one.reduces):
            reductions.update(r, self.body, scope, masked=False)
        self.body.stores(one.stores, scope)
        self._keep(k, scope)
        self.body.overrides, self.body.destinations = {}, {}
        acc = f", Acc{k}& acc" if one.accumulates else ""
        reduced = "".join(f", const long {a.symbol}" for a in self.nest.loop.reduced)
        with out.block(f"auto pass{k} = [&]({self._head}{acc}{reduced}) PT_INLINE {{", "};"):
            out.extend(scope.lines)

    # transposed rows --------------------------------------------------------------------------------------------------

    def scratch(self, out: Writer) -> None:
        """Allocates a tile for each value that is transposed or cached, rounded up to whole squares. Tiles are
        adjacent: at distances close to a multiple of 4 KiB, a load would stall on an earlier store to another tile."""
        length = text.index(self.nest.loop.reduced[0].size)
        values = [(name, text.value_type(value.dtype)) for name, value in self._tile_values()]
        if not values:
            return
        out.line(f"const long room = ({length} + L - 1) / L * L * L;")
        sizes = " + ".join(f"sizeof({kind})" for _, kind in values)
        scratch(out, "char", "tiles_here", f"({sizes}) * room", LEAVE_THREAD)
        place = "(char*)tiles_here"
        for name, kind in values:
            out.line(f"{kind}* const {name} = ({kind}*)({place});")
            place = f"{name} + room"

    def _tile_values(self) -> list[tuple[str, Node]]:
        if self.transposed is None:
            return []
        tiles = [(self._tile_of(n), n) for n in (*self.transposed.loads, *self.transposed.cached)]
        return tiles + [(self._tile_of(s), s.value) for s in self.transposed.stores]

    def _tile_of(self, what: Node | Store) -> str:
        if isinstance(what, Store):
            assert self.transposed is not None
            return f"out{self.transposed.stores.index(what)}"
        return f"tile_{self.body.name(what)}"

    def _row(self, what: Node | Store) -> str:
        return f"{self._tile_of(what)} + {self.nest.loop.reduced[0].symbol} * L"

    def _prepare_tiles(self, k: int) -> None:
        """Registers the values that are in tiles when pass k runs."""
        if self.transposed is None:
            return
        for node in (*self.transposed.loads, *(n for n, first in self.transposed.cached.items() if first < k)):
            sign = "-" if isinstance(node, Load) and node.dtype == torch.bool else ""
            self.body.overrides[id(node)] = always(f"{sign}load<{text.value_type(node.dtype)}, L>({self._row(node)})")
        self.body.destinations = {id(s): self._row(s) for s in self.transposed.stores}

    def _keep(self, k: int, scope: Scope) -> None:
        for node, first in self.transposed.cached.items() if self.transposed else ():
            if first == k:
                kind = text.value_type(node.dtype)
                scope.lines.append(f"store<{kind}, {kind}, L>({self._row(node)}, {self.body.emit(node, scope)});")

    def _transpose(self, out: Writer, function: str, access: Load | Store) -> None:
        """Emits a call that transposes the elements of `access` between memory and their tile."""
        vec, row = self.nest.vec.symbol, self.nest.loop.reduced[0]
        index = sympy.expand(access.index.xreplace({vec: sympy.Symbol("column", integer=True), row.symbol: sizes.ZERO}))
        value = access if isinstance(access, Load) else access.value
        stride = text.index(sizes.coefficient(access.index, vec))
        base = memory.pointer(self.body, access) if isinstance(access, Load) else access.buffer
        out.line(
            f"{function}<{text.value_type(value.dtype)}, L>({self._tile_of(access)}, {base} + {text.index(index)}, {stride}, "
            f"{text.index(row.size)}, n);"
        )

    # between passes ----------------------------------------------------------------------------------------------------

    def _fields(self, k: int) -> list[Node]:
        """The fields of State that state{k} sets."""
        return [n for n in self.state if self._home(n) == k]

    def _state(self, out: Writer, uniform: Scope, k: int) -> None:
        """Emits the lambda state{k}, unless it would be empty."""
        stores = self.nest.row_stores(k)
        if not self._fields(k) and not stores:
            return
        checked = self._checks(k)
        scope = self._known(uniform, k, k - 1, "return false;" if checked else "return;")
        self._take_results(scope, k)
        for node in self._fields(k):
            if not is_result(node):
                value = self.body.emit(node, scope)
                scope.lines.append(f"s.{self.body.name(node)} = {value};")
        if stores and self.split:
            first, scope.lines = scope.lines, []
            self.body.stores(stores, scope)
            scope.lines = [*first, "if (thread == 0) {", *["  " + line for line in scope.lines], "}"]
        else:
            self.body.stores(stores, scope)
        acc = f", Acc{k - 1}& acc" if k else ""
        with out.block(f"auto state{k} = [&]({self._head}{acc}) PT_INLINE {{", "};"):
            out.extend([*scope.lines, *(["return true;"] if checked else [])])

    def _take_results(self, scope: Scope, k: int) -> None:
        for r in running(self.passes[k - 1].reduces) if k else []:
            for node, value in reductions.results(r, self.nest, "acc", across=False):
                scope.names[id(node)] = value
                if node in self.state:
                    scope.names[id(node)] = f"s.{self.body.name(node)}"
                    scope.lines.append(f"{scope.names[id(node)]} = {value};")

    def _checks(self, k: int) -> bool:
        """Whether state{k} checks an index or a divisor, and so may abandon its columns."""
        return any(expr.is_check(n) and self._home(n) == k for n in self.nest.nodes)

    # the lambdas in turn -----------------------------------------------------------------------------------------------

    def _run(self, out: Writer) -> None:
        for load in self.transposed.loads if self.transposed else ():
            self._transpose(out, "load_tiles", load)
        out.line("Slots<State, width.value> states;")
        self._call_state(out, 0)
        for one in self.passes:
            k = one.number
            with out.block("{"):
                if one.accumulates:
                    out.line(f"Slots<Acc{k}, width.value> totals;")
                self._loops(out, one)
                if self.split and one.reduces:
                    out.line(f"combine_threads(totals, (Slots<Acc{k}, {COLUMNS}>*)by_thread{k}, turn++, thread, workers);")
                self._call_state(out, k + 1)
        for store in self.transposed.stores if self.transposed else ():
            self._transpose(out, "store_tiles", store)

    def _call_state(self, out: Writer, k: int) -> None:
        if not self._fields(k) and not self.nest.row_stores(k):
            return
        both, acc, given = ("states, totals", f", Acc{k - 1}& acc", ", acc") if k else ("states", "", "")
        head, call = f"[&](long u, State& s{acc}) PT_INLINE", f"state{k}(tail, column + u * L, n, s{given})"
        if self._checks(k):
            out.line(f"if (!each_checked({both}, {head} {{ return {call}; }})) return;")
        else:
            out.line(f"each({both}, {head} {{ {call}; }});")

    def _loops(self, out: Writer, one: Pass) -> None:
        """Emits the loops over the reduced axes around a pass. A scan runs in one go, with its carries in the totals.
        Otherwise running values are folded into the totals block by block, along the axis that the pass cuts
        (Pass.cut)."""
        reduced, k = self.nest.loop.reduced, one.number
        cut = next(i for i, axis in enumerate(reduced) if axis is one.cut)
        size, name = domain.count([reduced[cut]]), reduced[cut].symbol
        begin, end = (f"{size} * thread / workers", f"{size} * (thread + 1) / workers") if self.split else ("0", size)
        heads = [f"for (long {a.symbol} = 0; {a.symbol} < {text.index(a.size)}; ++{a.symbol}) {{" for a in reduced]
        closing = ["}"] * len(reduced)
        if one.scans or not one.reduces:
            sets, acc = ("states, totals", f", Acc{k}& acc") if one.accumulates else ("states", "")
            heads[cut] = f"for (long {name} = {begin}; {name} < {end}; ++{name}) {{"
        else:
            sets, acc = "states, part", f", Acc{k}& acc"
            heads[cut] = f"for (long {name} = begin; {name} < end; ++{name}) {{"
            heads.insert(cut, f"fold_rows({begin}, {end}, totals, [&](long begin, long end, auto& part) PT_INLINE {{")
            closing.insert(len(reduced) - cut, "});")
        for head in heads:
            out.open(head)
        points = "".join(f", {a.symbol}" for a in self.nest.loop.reduced)
        call = f"pass{k}(tail, column + u * L, n, s{', acc' if acc else ''}{points});"
        out.line(f"each({sets}, [&](long u, State& s{acc}) PT_INLINE {{ {call} }});")
        for line in closing:
            out.close(line)
