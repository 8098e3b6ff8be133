"""Reductions and scans along rows: vectors run along a reduced axis, and lanes are combined at the end of each pass.

looped, persistent   each thread owns rows
split                all threads share each row, with a barrier between passes
"""

from __future__ import annotations

import sympy

from polytile.codegen.cpp import domain, reductions, scans, sweeps, text
from polytile.codegen.cpp.body import Scope, always
from polytile.codegen.cpp.reductions import running
from polytile.codegen.cpp.unit import LEAVE_KERNEL, LEAVE_THREAD, Unit, scratch
from polytile.codegen.writer import Writer
from polytile.ir.expr import Node
from polytile.schedule.cpu.scheduled import Pass, Threads


def whole_rows(unit: Unit, out: Writer) -> None:
    """Divides the rows over threads."""
    if unit.loop.threads is Threads.NOTHING:
        out.line("threads = 1;")
    with unit.parallel(out):
        domain.share(out, domain.count(unit.nest.outer))
        _cache_rows(unit, out, LEAVE_THREAD)
        domain.place(out, unit.nest.outer, "begin")
        with out.block("for (long row = begin; row < end; ++row) {"):
            _row(unit, out)
            domain.advance(out, unit.nest.outer)


def split_rows(unit: Unit, out: Writer) -> None:
    """Divides each row over threads. Shared data belongs to the calling thread."""
    nest = unit.nest
    out.line(f"const long rows = {domain.count(nest.outer)};")
    _cache_rows(unit, out, LEAVE_KERNEL)
    for one in unit.loop.passes:
        if one.reduces:
            _accumulator(out, one)
            scratch(out, f"Acc{one.number}", f"by_thread{one.number}", "2 * threads", LEAVE_KERNEL)
    for scan in nest.scans:
        name = scans.carry_name(nest, scan)
        scratch(out, f"V<{text.value_type(scan.args[0].dtype)}, 1>", f"shares_{name}", "2 * threads", LEAVE_KERNEL)
    with unit.parallel(out):
        if not nest.inner:
            size = text.index(nest.vec.size)
            out.line(f"const long first = share<L>({size}, thread, workers), last = share<L>({size}, thread + 1, workers);")
        domain.place(out, nest.outer, "0")
        with out.block("for (long row = 0; row < rows; ++row) {"):
            _row(unit, out)
            domain.advance(out, nest.outer)


def _cache_rows(unit: Unit, out: Writer, leave: str) -> None:
    """Allocates the buffers for one row's cached values."""
    length = domain.count((*unit.nest.inner, unit.nest.vec))
    for node in unit.loop.cached:
        if node not in unit.loop.homes:
            scratch(out, text.value_type(node.dtype), _cached(unit, node), length, leave)


def _cached(unit: Unit, node: Node) -> str:
    return f"row_{unit.body.name(node)}"


def _accumulator(out: Writer, one: Pass) -> None:
    out.extend(reductions.accumulator(f"Acc{one.number}", one.reduces))


def _row(unit: Unit, out: Writer) -> None:
    """Emits one row: its own values, then the passes."""
    scope = Scope()
    for one in unit.loop.passes:
        _row_values(unit, out, scope, one.number)
        if one.works:
            _pass(unit, out, scope, one)
    _row_values(unit, out, scope, len(unit.loop.passes))


def _row_values(unit: Unit, out: Writer, scope: Scope, k: int) -> None:
    """Emits the row values known after k passes, and their stores."""
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
    if not unit.loop.schedule.shared:
        out.extend(inner.lines)
        return
    with out.block("if (thread == 0) {"):
        out.extend(inner.lines)


def _pass(unit: Unit, out: Writer, scope: Scope, one: Pass) -> None:
    nest, k, split = unit.nest, one.number, unit.loop.schedule.shared
    out.line(f"// pass {k}")
    if one.reduces:
        if not split:
            _accumulator(out, one)
        out.line(f"Acc{k} total{k};")
    if not one.scans:
        _sweep(unit, out, scope, one)
    else:
        with out.block("{"):
            for scan in one.scans:
                out.extend(scans.carries(nest, scan, "1"))
            if split:
                _carry_of_share(unit, out, scope)
            _sweep(unit, out, scope, one)
    if split and one.reduces:
        out.line(f"combine_threads(total{k}, (Acc{k}*)by_thread{k}, row, thread, workers);")
    for r in running(one.reduces):
        for node, value in reductions.results(r, nest, f"total{k}", across=True):
            name = unit.body.name(node)
            out.line(f"const V<{text.value_type(node.dtype)}, 1> {name} = {value};")
            scope.names[id(node)] = name


def _sweep(unit: Unit, out: Writer, scope: Scope, one: Pass) -> None:
    """Emits a pass over the row: loops over the inner axes around the sweep of the vector axis. Threads that share a
    row own ranges of the axis that the pass cuts (Pass.cut)."""
    inner, vec, split = unit.nest.inner, unit.nest.vec, unit.loop.schedule.shared
    for axis in inner:
        name, size = axis.symbol, domain.count([axis])
        if split and axis is one.cut:
            out.open(f"for (long {name} = {size} * thread / workers; {name} < {size} * (thread + 1) / workers; ++{name}) {{")
        else:
            out.open(f"for (long {name} = 0; {name} < {size}; ++{name}) {{")
    first, last = ("first", "last") if split and vec is one.cut else ("0", text.index(vec.size))
    point, k = f"auto tail, const long {vec.symbol}, const long n", one.number

    def sweep(known: Scope, first: str, last: str, lanes: str) -> None:
        if one.reduces:
            head = f"sweep<L, {one.unroll}>({first}, {last}, total{k}, [&]({point}, Acc{k}& acc) PT_INLINE {{"
        else:
            lead = sweeps.lead(unit.body, one.stores, first, last)
            head = f"each_vector<{lanes}>({first}, {last}, {lead}, [&]({point}) PT_INLINE {{"
        with out.block(head, "});"):
            out.extend(_pass_lines(unit, known, one))

    sweeps.in_pieces(unit.body, out, scope, one.nodes, first, last, sweep)
    for _ in inner:
        out.close()


def _pass_lines(unit: Unit, scope: Scope, one: Pass) -> list[str]:
    """Emits a pass's code for one vector."""
    body, inner = unit.body, scope.inner()
    body.overrides = {id(n): always(_from_row(unit, n)) for n in one.takes}
    scans.prepare(unit.nest, body, column=False)
    for r in running(one.reduces):
        reductions.update(r, body, inner, masked=True)
    for node in one.makes:
        name = body.emit(node, inner)
        inner.lines.append(f"vstore<{text.value_type(node.dtype)}, L>(tail, {_place(unit, node)}, {name}, n);")
    body.stores(one.stores, inner)
    body.overrides = {}
    return inner.lines


def _from_row(unit: Unit, node: Node) -> str:
    return f"vload<{text.value_type(node.dtype)}, L>(tail, {_place(unit, node)}, n)"


def _place(unit: Unit, node: Node) -> str:
    """Address of the current element's cached value."""
    home = unit.loop.homes.get(node)
    return f"{_cached(unit, node)} + {_position(unit)}" if home is None else f"{home.buffer} + {text.index(home.index)}"


def _position(unit: Unit) -> str:
    """Flat position of the current element in its row."""
    position: sympy.Expr = unit.nest.vec.symbol
    stride = unit.nest.vec.size
    for axis in reversed(unit.nest.inner):
        position += axis.symbol * stride
        stride *= axis.size
    return text.index(sympy.expand(position))


def _carry_of_share(unit: Unit, out: Writer, scope: Scope) -> None:
    """Emits the code before the scan of a split row: each thread totals its share, then starts from the total of the
    preceding shares."""
    (only,), (scan,) = unit.loop.passes, unit.nest.scans
    kind, carry = text.value_type(scan.args[0].dtype), scans.carry_name(unit.nest, scan)
    vec = unit.nest.vec.symbol

    def total(known: Scope, first: str, last: str, lanes: str) -> None:
        inner = known.inner()
        value = unit.body.operand(scan.args[0], "L", inner)
        point = f"auto tail, const long {vec}, const long n"
        with out.block(f"each_vector<{lanes}>({first}, {last}, 0, [&]({point}) PT_INLINE {{", "});"):
            out.extend(inner.lines)
            out.line(f"scan_lanes<{kind}, L>({value}, {carry}, n, {scans.combiner(scan)});")

    sweeps.in_pieces(unit.body, out, scope, only.nodes, "first", "last", total)
    out.line(f"V<{kind}, 1>* const shares = shares_{carry} + (row & 1) * workers;")
    out.line(f"shares[thread] = {carry};")
    out.line("barrier();")
    out.line(f"{carry} = V<{kind}, 1>({scans.start(scan)});")
    out.line(f"const auto combine = {scans.combiner(scan)};")
    out.line(f"for (long w = 0; w < thread; ++w) {carry} = combine({carry}, shares[w]);")
