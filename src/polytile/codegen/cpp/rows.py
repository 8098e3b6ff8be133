"""Reductions and scans along rows: vectors run along a reduced axis, and lanes are put together at the end of each pass.

looped, persistent   every thread has rows of its own
split                all threads together go through each row, with a barrier between passes
"""

from __future__ import annotations

import sympy

from polytile.codegen.cpp import domain, reductions, scans, sweeps, text
from polytile.codegen.cpp.body import Scope, always
from polytile.codegen.cpp.reductions import running
from polytile.codegen.cpp.unit import Unit
from polytile.codegen.writer import Writer
from polytile.ir.expr import Const, Node
from polytile.schedule.cpu.scatter import scattered

SHORT_BODY, LONG_BODY = 10, 24  # nodes of a pass: up to here 4, up to there 2 accumulators break the chain of additions


def whole_rows(unit: Unit, out: Writer) -> None:
    """Rows divided over threads."""
    if scattered(unit.kernel.loop):
        out.line("threads = 1;")
    with unit.parallel(out):
        domain.share(out, domain.count(unit.nest.outer))
        _cache_rows(unit, out)
        domain.place(out, unit.nest.outer, "begin")
        with out.block("for (long row = begin; row < end; ++row) {"):
            _row(unit, out, split=False)
            domain.advance(out, unit.nest.outer)


def split_rows(unit: Unit, out: Writer) -> None:
    """Each row divided over threads. What they share is the calling thread's."""
    nest = unit.nest
    out.line(f"const long rows = {domain.count(nest.outer)};")
    _cache_rows(unit, out)
    for k in range(nest.passes):
        if nest.reduces_in(k):
            _accumulator(unit, out, k)
            out.line(f"Scratch<Acc{k}> all{k}(2 * threads);")
    for scan in nest.scans:
        name = scans.carry_name(nest, scan)
        out.line(f"Scratch<V<{text.value_type(scan.args[0].dtype)}, 1>> shares_{name}(2 * threads);")
    with unit.parallel(out):
        if not nest.inner:
            size = text.index(nest.vec.size)
            out.line(f"const long first = share<L>({size}, thread, workers), last = share<L>({size}, thread + 1, workers);")
        domain.place(out, nest.outer, "0")
        with out.block("for (long row = 0; row < rows; ++row) {"):
            _row(unit, out, split=True)
            domain.advance(out, nest.outer)


def _cache_rows(unit: Unit, out: Writer) -> None:
    """Room for the cached values of one row."""
    length = domain.count((*unit.nest.inner, unit.nest.vec))
    for node in unit.cached:
        if node not in unit.cache_stores:
            out.line(f"Scratch<{text.value_type(node.dtype)}> {_cached(unit, node)}({length});")


def _cached(unit: Unit, node: Node) -> str:
    return f"row_{unit.body.name(node)}"


def _accumulator(unit: Unit, out: Writer, k: int) -> None:
    out.extend(reductions.accumulator(f"Acc{k}", unit.nest.reduces_in(k)))


def _row(unit: Unit, out: Writer, split: bool) -> None:
    """One row: its own values, then pass after pass."""
    scope = Scope()
    for k in range(unit.nest.passes + 1):
        _row_values(unit, out, scope, k, split)
        if k < unit.nest.passes and unit.nest.roots_in(k):
            _pass(unit, out, scope, k, split)


def _row_values(unit: Unit, out: Writer, scope: Scope, k: int, split: bool) -> None:
    """What is known once k passes are over, and its stores."""
    for node in unit.nest.row_values:
        if unit.nest.passes_before(node) == k:
            unit.body.emit(node, scope)
    out.extend(scope.lines)
    scope.lines.clear()
    stores = unit.nest.row_stores(k)
    if not stores:
        return
    inner = scope.inner()
    unit.body.stores(stores, inner)
    if not split:
        out.extend(inner.lines)
        return
    with out.block("if (thread == 0) {"):
        out.extend(inner.lines)


def _pass(unit: Unit, out: Writer, scope: Scope, k: int, split: bool) -> None:
    nest = unit.nest
    out.line(f"// pass {k}")
    if nest.reduces_in(k):
        if not split:
            _accumulator(unit, out, k)
        out.line(f"Acc{k} total{k};")
    scanned = nest.scans_in(k)
    if not scanned:
        _sweep(unit, out, scope, k, split)
    else:
        with out.block("{"):
            for scan in scanned:
                out.extend(scans.carries(nest, scan, "1"))
            if split:
                _carry_of_share(unit, out, scope)
            _sweep(unit, out, scope, k, split)
    if split and nest.reduces_in(k):
        out.line(f"put_together(total{k}, (Acc{k}*)all{k}, row, thread, workers);")
    for r in running(nest.reduces_in(k)):
        for node, value in reductions.results(r, nest, f"total{k}", across=True):
            name = unit.body.name(node)
            out.line(f"const V<{text.value_type(node.dtype)}, 1> {name} = {value};")
            scope.names[id(node)] = name


def _sweep(unit: Unit, out: Writer, scope: Scope, k: int, split: bool) -> None:
    """Runs pass k over the row: loops over the inner axes around the sweep of the vector axis. Threads that share a row
    divide the outermost of these."""
    inner, vec = unit.nest.inner, unit.nest.vec
    for depth, axis in enumerate(inner):
        name, size = axis.symbol, domain.count([axis])
        if split and depth == 0:
            out.open(f"for (long {name} = {size} * thread / workers; {name} < {size} * (thread + 1) / workers; ++{name}) {{")
        else:
            out.open(f"for (long {name} = 0; {name} < {size}; ++{name}) {{")
    first, last = ("first", "last") if split and not inner else ("0", text.index(vec.size))
    unroll, point = _unroll(unit, k), f"auto tail, const long {vec.symbol}, const long n"

    def sweep(known: Scope, first: str, last: str) -> None:
        if unit.nest.reduces_in(k):
            head = f"sweep<L, {unroll}>({first}, {last}, total{k}, [&]({point}, Acc{k}& acc) PT_INLINE {{"
        else:
            lead = sweeps.lead(unit.body, unit.nest.stores_in(k), first, last)
            head = f"each_vector<L>({first}, {last}, {lead}, [&]({point}) PT_INLINE {{"
        with out.block(head, "});"):
            out.extend(_pass_lines(unit, known, k))

    earlier = [n for n, made in unit.cached.items() if made < k]
    sweeps.in_pieces(unit.body, out, scope, unit.nest.nodes_in(k, stop=earlier), first, last, sweep)
    for _ in inner:
        out.close()


def _unroll(unit: Unit, k: int) -> int:
    """Vectors of a sweep that are under way together, each with an accumulator of its own; a scan goes one by one."""
    if unit.nest.scans_in(k):
        return 1
    nodes = sum(1 for n in unit.nest.nodes_in(k) if not isinstance(n, Const))
    return 4 if nodes <= SHORT_BODY else 2 if nodes <= LONG_BODY else 1


def _pass_lines(unit: Unit, scope: Scope, k: int) -> list[str]:
    """What pass k does with one vector."""
    body, inner = unit.body, scope.inner()
    body.made = {id(n): always(_from_row(unit, n)) for n, made in unit.cached.items() if made < k}
    scans.prepare(unit.nest, body, column=False)
    for r in running(unit.nest.reduces_in(k)):
        reductions.update(r, body, inner, masked=True)
    for node, made in unit.cached.items():
        if made == k:
            name = body.emit(node, inner)
            inner.lines.append(f"vstore<{text.value_type(node.dtype)}, L>(tail, {_place(unit, node)}, {name}, n);")
    body.stores(unit.nest.stores_in(k), inner)
    body.made = {}
    return inner.lines


def _from_row(unit: Unit, node: Node) -> str:
    return f"vload<{text.value_type(node.dtype)}, L>(tail, {_place(unit, node)}, n)"


def _place(unit: Unit, node: Node) -> str:
    """Where the cached value of the current element is."""
    home = unit.cache_stores.get(node)
    return f"{_cached(unit, node)} + {_position(unit)}" if home is None else f"{home.buffer} + {text.index(home.index)}"


def _position(unit: Unit) -> str:
    """Flat position in the row of the current element."""
    position: sympy.Expr = unit.nest.vec.symbol
    stride = unit.nest.vec.size
    for axis in reversed(unit.nest.inner):
        position += axis.symbol * stride
        stride *= axis.size
    return text.index(sympy.expand(position))


def _carry_of_share(unit: Unit, out: Writer, scope: Scope) -> None:
    """Before the scan of a split row: every thread totals its share, then starts from the total of the shares before it."""
    (scan,) = unit.nest.scans
    kind, carry = text.value_type(scan.args[0].dtype), scans.carry_name(unit.nest, scan)
    vec = unit.nest.vec.symbol

    def total(known: Scope, first: str, last: str) -> None:
        inner = known.inner()
        value = unit.body.operand(scan.args[0], "L", inner)
        point = f"auto tail, const long {vec}, const long n"
        with out.block(f"each_vector<L>({first}, {last}, 0, [&]({point}) PT_INLINE {{", "});"):
            out.extend(inner.lines)
            out.line(f"scan_lanes<{kind}, L>({value}, {carry}, n, {scans.combiner(scan)});")

    sweeps.in_pieces(unit.body, out, scope, unit.nest.nodes_in(0), "first", "last", total)
    out.line(f"V<{kind}, 1>* const shares = shares_{carry} + (row & 1) * workers;")
    out.line(f"shares[thread] = {carry};")
    out.line("barrier();")
    out.line(f"{carry} = V<{kind}, 1>({scans.start(scan)});")
    out.line(f"const auto combine = {scans.combiner(scan)};")
    out.line(f"for (long w = 0; w < thread; ++w) {carry} = combine({carry}, shares[w]);")
