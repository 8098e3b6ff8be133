"""Whole C++ kernels for loops: how the domain is divided over threads, passes and vectors.

    pointwise   for every item (outer point × block of the vector axis), divided over threads: sweep the block
    row         for every row, divided over threads: pass 0, combine lanes, pass 1, ..., last pass
    row split   for every row, by all threads together: each sweeps its share of the row, a barrier between passes
    column      for every tile of columns, divided over threads: the reduced axes run serially, four vectors at a time
"""

from __future__ import annotations

from collections.abc import Iterable

import sympy
from polytile.ir import expr, sizes
from polytile.ir.expr import Node, Part, Reduce, Scan
from polytile.ir.program import Axis
from polytile.kernels.canonical import LoopKernel
from polytile.kernels.cpp import reductions, text
from polytile.kernels.cpp.analysis import Form, Nest, cached_nodes, is_scatter, lane_bytes, nest_of, scatter_axes
from polytile.kernels.cpp.body import Body, Checks, Scope
from polytile.kernels.cpp.unit import preamble
from polytile.kernels.cpp.writer import Writer
from polytile.problem import Config

POINTWISE_BLOCK = 4096  # elements of the vector axis in one work item
COLUMN_BLOCK = 1024  # rows summed before the running values are folded into the totals


def generate(kernel: LoopKernel, config: Config, name: str, vector_bytes: int) -> str:
    """The translation unit of `kernel` under `config` (its `variant`: see `kernels.variants`), entry point `name`, for
    vectors of `vector_bytes` bytes. Raises LoweringError where some operation has no C++ form."""
    return _Unit(kernel, config, name, vector_bytes).source()


class _Unit:
    """One translation unit in the making."""

    def __init__(self, kernel: LoopKernel, config: Config, name: str, vector_bytes: int) -> None:
        self.kernel, self.config, self.name = kernel, config, name
        self.loop, self.variant = kernel.loop, str(config["variant"])
        self.nest = nest_of(kernel.loop)
        self.lanes = vector_bytes // lane_bytes(self.nest)
        self.checks = Checks()
        self.body = Body(kernel, self.nest, self.checks)
        self.body.adder = "atomic_add" if self.variant == "atomic" else "add_plain"
        self.cached = dict.fromkeys(n for n, _ in cached_nodes(self.nest)) if self.variant in ("persistent", "split") else {}
        self.made_in = {id(n): k for n, k in cached_nodes(self.nest)}

    def source(self) -> str:
        work = Writer()
        match self.nest.form:
            case Form.POINTWISE:
                self.pointwise(work)
            case Form.ROW:
                (self.split_rows if self.variant == "split" else self.rows)(work)
            case Form.COLUMN:
                (self.split_columns if self.variant == "split" else self.columns)(work)
        out = Writer()
        for line in [f"// {', '.join(sorted(set(self.loop.origins)))}", *self._ir_comment()]:
            out.line(line)
        out.line(f"static constexpr int L = {self.lanes};")
        out.open(f'extern "C" long {self.name}(void* const* ptrs, const long* sizes, long threads) {{')
        self._arguments(out)
        out.extend(work.lines)
        out.line("return error;")
        out.close("}")
        body = out.text()
        return preamble(body) + body

    def _ir_comment(self) -> list[str]:
        return ["//   " + line for line in self.kernel.text.splitlines()]

    def _arguments(self, out: Writer) -> None:
        for k, tensor in enumerate(self.kernel.tensors):
            kind = text.storage_type(tensor.dtype)
            const = "const " if tensor.role == "in" else ""
            out.line(f"{const}{kind}* const {tensor.name} = ({const}{kind}*)ptrs[{k}];")
        for k, symbol in enumerate(self.kernel.symbols):
            out.line(f"const long {symbol.name} = sizes[{k}];")
        out.line("long error = 0;")
        domain = text.index(sizes.product([a.size for a in self.loop.axes]))
        out.line(f"if ({domain} <= 0) return 0;")

    # helpers -----------------------------------------------------------------------------------------------------------

    def product(self, axes: Iterable[Axis]) -> str:
        return text.index(sizes.product([a.size for a in axes]))

    def decode(self, out: Writer, axes: tuple[Axis, ...], flat: str) -> None:
        """Variables of the axes of the flat position `flat`, advanced by `advance`."""
        out.line(f"long at = {flat};")
        for axis in reversed(axes[1:]):
            size = text.index(axis.size)
            out.line(f"long {axis.symbol} = at % ({size}); at /= {size if size.isalnum() else f'({size})'};")
        if axes:
            out.line(f"long {axes[0].symbol} = at;")

    def advance(self, out: Writer, axes: tuple[Axis, ...]) -> None:
        """To the next point of the flattened axes, without division."""
        if not axes:
            return
        depth = 0
        for axis in reversed(axes[1:]):
            out.open(f"if (++{axis.symbol} == {text.index(axis.size)}) {{")
            out.line(f"{axis.symbol} = 0;")
            depth += 1
        out.line(f"++{axes[0].symbol};")
        for _ in range(depth):
            out.close("}")

    def unroll(self) -> int:
        """Independent accumulators of a sweep: more for short bodies, whose chain of additions would otherwise be the limit."""
        nodes = sum(1 for n in expr.walk(*self.loop.roots) if self.nest.in_pass(n) and not isinstance(n, expr.Const))
        return 4 if nodes <= 10 else 2 if nodes <= 24 else 1

    # pointwise ---------------------------------------------------------------------------------------------------------

    def pointwise(self, out: Writer) -> None:
        nest, vec = self.nest, self.nest.vec
        serial_outer = is_scatter(self.loop) and bool(scatter_axes(self.loop)) and self.variant != "atomic"
        out.line(f"const long inner = {text.index(vec.size)};")
        out.line(f"const long chunks = (inner + {POINTWISE_BLOCK - 1}) / {POINTWISE_BLOCK};")
        outer = self.product(nest.outer)
        state, inside = Scope([], {}), None
        self.pointwise_state(state)
        inside = state.inner()
        for store in self.loop.stores:
            self.body.store(store, inside)
        if serial_outer:
            self._scatter_columns(out, state, inside, outer)
            return
        out.line(f"const long total = ({outer}) * chunks;")
        out.open("parallel(threads, [&](long tid, long workers) {")
        out.line("const long begin = total * tid / workers, end = total * (tid + 1) / workers;")
        out.line("if (begin >= end) return;")
        out.line("long chunk = begin % chunks;")
        self.decode(out, nest.outer, "begin / chunks")
        out.open("for (long item = begin; item < end; ++item) {")
        self._block(out, state, inside, f"chunk * {POINTWISE_BLOCK}", f"inner - chunk * {POINTWISE_BLOCK} < {POINTWISE_BLOCK} ? inner : (chunk + 1) * {POINTWISE_BLOCK}")
        out.open("if (++chunk == chunks) {")
        out.line("chunk = 0;")
        self.advance(out, nest.outer)
        out.close("}")
        out.close("}")
        out.close("});")

    def _scatter_columns(self, out: Writer, state: Scope, inside: Scope, outer: str) -> None:
        """Each thread owns a range of the vector axis and runs through all outer points in order: no two threads ever
        accumulate into one element, and the order of additions does not depend on the number of threads."""
        out.open("parallel(threads, [&](long tid, long workers) {")
        out.line("const long vectors = (inner + L - 1) / L;")
        out.line("const long from = vectors * tid / workers * L, upto = vectors * (tid + 1) / workers * L;")
        out.line("const long stop = upto < inner ? upto : inner;")
        out.line("if (from >= stop) return;")
        self.decode(out, self.nest.outer, "0")
        out.open(f"for (long item = 0; item < {outer}; ++item) {{")
        self._block(out, state, inside, "from", "stop")
        self.advance(out, self.nest.outer)
        out.close("}")
        out.close("});")

    def pointwise_state(self, scope: Scope) -> None:
        for node in expr.walk(*self.loop.roots):
            if not isinstance(node, expr.Const) and not self.nest.in_pass(node) and not isinstance(node, Reduce | Part):
                self.body.emit(node, scope)

    def _block(self, out: Writer, state: Scope, inside: Scope, begin: str, end: str) -> None:
        """Row-level values, then the sweep of [begin, end) of the vector axis."""
        out.line("{")
        out.line("const Full tail{}; const long n = L; (void)tail; (void)n;")
        out.extend(state.lines)
        out.open(f"auto step = [&](auto tail, const long {self.nest.vec.symbol}, const long n) PT_INLINE {{")
        out.extend(inside.lines)
        out.close("};")
        out.line(f"long i = {begin};")
        out.line(f"const long e = {end};")
        out.line("for (; i + L <= e; i += L) step(Full{}, i, L);")
        out.line("if (i < e) step(Part{}, i, e - i);")
        out.line("}")

    # rows --------------------------------------------------------------------------------------------------------------

    def caches(self, out: Writer, length: str) -> None:
        """One scratch row for each kept value: the calling thread's (a split row's threads share the caller's)."""
        for k, node in enumerate(self.cached):
            kind = text.value_type(node.dtype)
            out.line(f"static __thread scratch cache{k}_memory;")
            out.line(f"{kind}* const cache{k} = ({kind}*)cache{k}_memory.room(({length}) * (long)sizeof({kind}) + 64);")

    def row_length(self) -> str:
        return self.product((*self.nest.inner, self.nest.vec))

    def rows(self, out: Writer) -> None:
        out.line(f"const long rows = {self.product(self.nest.outer)};")
        out.open("parallel(threads, [&](long tid, long workers) {")
        out.line("const long begin = rows * tid / workers, end = rows * (tid + 1) / workers;")
        out.line("if (begin >= end) return;")
        self.caches(out, self.row_length())
        self.decode(out, self.nest.outer, "begin")
        out.open("for (long row = begin; row < end; ++row) {")
        self._row(out, split=False)
        self.advance(out, self.nest.outer)
        out.close("}")
        out.close("});")

    @staticmethod
    def _shared(out: Writer, k: int, width: int) -> None:
        """Where threads put their running values of pass k for the others to see: two sets, used in turn, so that a fast thread
        in the next row overwrites nothing that a slow one still reads. The memory is the calling thread's."""
        out.line(f"static __thread scratch shared{k}_memory;")
        out.line(f"auto shared{k} = (Acc{k} (*)[{width}])shared{k}_memory.room(sizeof(Acc{k}) * {2 * width} * threads);")

    def split_rows(self, out: Writer) -> None:
        out.line(f"const long rows = {self.product(self.nest.outer)};")
        self.caches(out, self.row_length())
        for k in range(self.nest.passes):
            if self.nest.reduces_in(k):
                self._accumulator(out, k)
                self._shared(out, k, 1)
        if self.nest.scans:
            out.line("static __thread scratch shares_memory;")
            out.line("void* const shares_block = shares_memory.room(sizeof(V<i64, 1>) * 2 * threads);")
        out.open("parallel(threads, [&](long tid, long workers) {")
        self.decode(out, self.nest.outer, "0")
        out.open("for (long row = 0; row < rows; ++row) {")
        self._row(out, split=True)
        self.advance(out, self.nest.outer)
        out.close("}")
        out.close("});")

    def _accumulator(self, out: Writer, k: int) -> None:
        """The struct that holds all running values of pass k."""
        column_scans = self._scans_in(k) if self.nest.form is Form.COLUMN else []
        out.extend(reductions.accumulator(f"Acc{k}", self.nest.reduces_in(k), column_scans))

    def _row(self, out: Writer, split: bool) -> None:
        """One row: row-level values, then pass after pass."""
        scope = Scope([], {})
        out.line("const Full tail{}; const long n = 1; (void)tail; (void)n;")
        for k in range(self.nest.passes + 1):
            self._row_state(out, scope, k, split)
            if k < self.nest.passes:
                self._row_pass(out, scope, k, split)

    def _row_state(self, out: Writer, scope: Scope, level: int, split: bool) -> None:
        for node in expr.walk(*self.loop.roots):
            if isinstance(node, expr.Const | Reduce) or self.nest.in_pass(node) or self.nest.of(node).level != level:
                continue
            if isinstance(node, Part) and isinstance(node.node, Reduce):
                continue
            self.body.emit(node, scope)
        out.extend(scope.lines)
        scope.lines.clear()
        stores = self.nest.row_stores(level)
        if not stores:
            return
        if split:
            out.open("if (tid == 0) {")
        inner = scope.inner()
        for store in stores:
            self.body.store(store, inner)
        out.extend(inner.lines)
        if split:
            out.close("}")

    def _row_pass(self, out: Writer, scope: Scope, k: int, split: bool) -> None:
        nest = self.nest
        reduces, stores = nest.reduces_in(k), nest.stores_in(k)
        if not reduces and not stores:
            return
        scans = self._scans_in(k)
        if not split or not reduces:
            self._accumulator(out, k)
        out.line(f"Acc{k} total{k};")
        for name, kind, initial in reductions.carries(scans):
            out.line(f"V<{kind}, 1> {name}({initial});")
        if scans and split:
            self._scan_prefix(out, scope, k, scans)
        self._sweep(out, k, split, bool(scans), self._pass_lines(scope, k, reduces, stores))
        if reduces:
            if split:
                out.line(f"auto others{k} = shared{k} + (row & 1) * threads;")
                out.line(f"others{k}[tid][0] = total{k};")
                out.line("barrier();")
                out.line(f"total{k} = others{k}[0][0];")
                out.line(f"for (long w = 1; w < workers; ++w) total{k}.merge(others{k}[w][0]);")
            for r, field in reductions.fields(reduces):
                for node, kind, value in reductions.results(r, field, f"total{k}", self._parts(r), horizontal=True):
                    name = self.body.fresh()
                    out.line(f"const V<{kind}, 1> {name} = {value};")
                    scope.names[id(node)] = name

    def _parts(self, r: Reduce) -> list[Part]:
        return [n for n in expr.walk(*self.loop.roots) if isinstance(n, Part) and n.node is r]

    def _scans_in(self, k: int) -> list[Scan]:
        """Scans whose prefix runs in pass k: those that a reduction or a store of pass k needs."""
        roots = [a for r in self.nest.reduces_in(k) for a in r.args] + [x for s in self.nest.stores_in(k) for x in s.roots]
        needed: list[Scan] = []
        stack, seen = list(roots), set()
        while stack:
            node = stack.pop()
            if id(node) in seen or isinstance(node, Reduce):
                continue
            seen.add(id(node))
            if isinstance(node, Scan):
                needed.append(node)
            stack.extend(node.children)
        return [s for s in self.nest.scans if s in needed]

    def _pass_lines(self, scope: Scope, k: int, reduces: list[Reduce], stores: Iterable[object]) -> list[str]:
        inner = scope.inner()
        self.body.special = {}
        for c, node in enumerate(self.cached):
            if self.made_in[id(node)] < k:
                kind = text.value_type(node.dtype)
                self.body.special[id(node)] = f"vload<{kind}, L>(tail, cache{c} + {self._row_position()}, n)"
        column = self.nest.form is Form.COLUMN
        self.body.on_scan = lambda node, part, s: reductions.scan_text(node, part, self.body, s, column)
        for r, field in reductions.fields(reduces):
            reductions.update(r, field, self.body, inner, masked=not column)
        for c, node in enumerate(self.cached):
            if self.made_in[id(node)] == k:
                name = self.body.emit(node, inner)
                inner.lines.append(f"vstore<{text.value_type(node.dtype)}, L>(tail, cache{c} + {self._row_position()}, {name}, n);")
        for store in stores:
            self.body.store(store, inner)  # type: ignore[arg-type]
        self.body.special = {}
        return inner.lines

    def _row_position(self) -> str:
        """Flat position in the row of the current element."""
        position: sympy.Expr = self.nest.vec.symbol
        stride = self.nest.vec.size
        for axis in reversed(self.nest.inner):
            position += axis.symbol * stride
            stride *= axis.size
        return text.index(sympy.expand(position))

    def _sweep(self, out: Writer, k: int, split: bool, sequential: bool, body: list[str]) -> None:
        """Runs pass k over the row: loops over the inner axes, then the sweep of the vector axis. A split row divides its
        outermost inner axis, or the vector axis if that is the only one."""
        inner, vec = self.nest.inner, self.nest.vec
        size = text.index(vec.size)
        first, last = "0", size
        for depth, axis in enumerate(inner):
            count, name = text.index(axis.size), axis.symbol
            if depth == 0 and split:
                out.open(f"for (long {name} = ({count}) * tid / workers; {name} < ({count}) * (tid + 1) / workers; ++{name}) {{")
            else:
                out.open(f"for (long {name} = 0; {name} < {count}; ++{name}) {{")
        if split and not inner:
            first, last = self._share(size)
        out.open(f"auto pass{k} = [&](auto tail, const long {vec.symbol}, const long n, Acc{k}& acc) PT_INLINE {{")
        out.extend(body)
        out.close("};")
        unroll = 1 if sequential else self.unroll()
        out.line(f"sweep<L, {unroll}>({first}, {last}, total{k}, pass{k});")
        for _ in inner:
            out.close("}")

    @staticmethod
    def _share(size: str) -> tuple[str, str]:
        return f"share<L>({size}, tid, workers)", f"share<L>({size}, tid + 1, workers)"

    def _scan_prefix(self, out: Writer, scope: Scope, k: int, scans: list[Scan]) -> None:
        """Before a split scan: every thread totals its share, then takes the total of the shares before its own as carry."""
        assert not self.nest.inner and len(scans) == 1
        s = scans[0]
        kind = text.value_type(s.dtype)
        vec = self.nest.vec
        out.line("{")
        inner = scope.inner()
        value = self.body.emit(s.args[0], inner)
        carry = reductions.carry_name(s)
        out.open(f"auto totals = [&](auto tail, const long {vec.symbol}, const long n, Acc{k}&) PT_INLINE {{")
        out.extend(inner.lines)
        out.line(f"scan_lanes<{kind}, L>({value}, {carry}, n, {reductions.combiner(s)});")
        out.close("};")
        first, last = self._share(text.index(vec.size))
        out.line(f"Acc{k} unused;")
        out.line(f"sweep<L, 1>({first}, {last}, unused, totals);")
        out.line(f"auto shares = (V<{kind}, 1>*)shares_block + (row & 1) * threads;")
        out.line(f"shares[tid] = {carry};")
        out.line("barrier();")
        out.line(f"{carry} = V<{kind}, 1>({reductions.carries([s])[0][2]});")
        out.line(f"auto combine = {reductions.combiner(s)};")
        out.line(f"for (long w = 0; w < tid; ++w) {carry} = combine({carry}, shares[w]);")
        out.line("}")

    # columns -----------------------------------------------------------------------------------------------------------

    def columns(self, out: Writer) -> None:
        nest = self.nest
        out.line(f"const long inner = {text.index(nest.vec.size)};")
        out.line("const long tiles = (inner + 4 * L - 1) / (4 * L);")
        out.line(f"const long total = ({self.product(nest.outer)}) * tiles;")
        self._column_structs(out)
        out.open("parallel(threads, [&](long tid, long workers) {")
        out.line("const long begin = total * tid / workers, end = total * (tid + 1) / workers;")
        out.line("if (begin >= end) return;")
        out.line("long tile = begin % tiles;")
        self.decode(out, nest.outer, "begin / tiles")
        out.open("for (long item = begin; item < end; ++item) {")
        self._tile(out, split=False)
        out.open("if (++tile == tiles) {")
        out.line("tile = 0;")
        self.advance(out, nest.outer)
        out.close("}")
        out.close("}")
        out.close("});")

    def split_columns(self, out: Writer) -> None:
        nest = self.nest
        out.line(f"const long inner = {text.index(nest.vec.size)};")
        out.line("const long tiles = (inner + 4 * L - 1) / (4 * L);")
        out.line(f"const long total = ({self.product(nest.outer)}) * tiles;")
        self._column_structs(out)
        for k in range(nest.passes):
            if nest.reduces_in(k):
                self._shared(out, k, 4)
        out.open("parallel(threads, [&](long tid, long workers) {")
        out.line("long tile = 0, row = 0;")
        self.decode(out, nest.outer, "0")
        out.open("for (long item = 0; item < total; ++item, ++row) {")
        self._tile(out, split=True)
        out.open("if (++tile == tiles) {")
        out.line("tile = 0;")
        self.advance(out, nest.outer)
        out.close("}")
        out.close("}")
        out.close("});")

    def _column_structs(self, out: Writer) -> None:
        self._plan_columns()
        for k in range(self.nest.passes):
            self._accumulator(out, k)
        fields = [f"V<{kind}, L> {name};" for name, kind in self._state_fields.values()]
        out.line("struct State { " + " ".join(fields) + " };")

    def _plan_columns(self) -> None:
        """Names of the vector values that live from one pass to the next, held in State."""
        self._state_fields: dict[int, tuple[str, str]] = {}
        for node in expr.walk(*self.loop.roots):
            if isinstance(node, expr.Const) or self.nest.in_pass(node) or not self.nest.is_vector(node):
                continue
            if isinstance(node, Reduce) and self._parts(node):
                continue
            self._state_fields[id(node)] = (f"v{len(self._state_fields)}", text.value_type(node.dtype))

    def _tile(self, out: Writer, split: bool) -> None:
        """One tile of up to 4·L columns: four full vectors together, else one vector after another."""
        nest = self.nest
        out.line("const Full tail{}; const long n = 1; (void)tail; (void)n;")
        uniform = Scope([], {})
        for node in expr.walk(*self.loop.roots):
            if not isinstance(node, expr.Const) and not nest.in_pass(node) and not nest.is_vector(node):
                self.body.emit(node, uniform)
        out.extend(uniform.lines)
        uniform.lines.clear()
        for node_id, (name, _) in self._state_fields.items():
            uniform.names[node_id] = f"st.{name}"
        for k in range(nest.passes + 1):
            self._column_state(out, uniform, k, split)
            if k < nest.passes:
                self._column_pass(out, uniform, k)
        out.line("const long first = tile * 4 * L;")
        out.open("if (first + 4 * L <= inner) {")
        self._run_tile(out, 4, split)
        out.close("} else {")
        out.depth += 1
        out.open("for (long column = first; column < inner; column += L) {")
        out.open("if (column + L <= inner) {")
        self._run_tile(out, 1, split, "column", "Full{}", "L")
        out.close("} else {")
        out.depth += 1
        self._run_tile(out, 1, split, "column", "Part{}", "inner - column")
        out.close("}")
        if split:
            out.line("++row;")
        out.close("}")
        out.close("}")

    def _column_state(self, out: Writer, uniform: Scope, level: int, split: bool) -> None:
        """The lambda state{level}: results of the pass before, row-level vector values, and stores of this level."""
        acc = f", Acc{level - 1}& acc" if level else ""
        out.open(f"auto state{level} = [&](auto tail, const long {self.nest.vec.symbol}, const long n, State& st{acc}) PT_INLINE {{")
        lines: list[str] = []
        if level:
            for r, field in reductions.fields(self.nest.reduces_in(level - 1)):
                for node, _, value in reductions.results(r, field, "acc", self._parts(r), horizontal=False):
                    lines.append(f"{uniform.names[id(node)]} = {value};")
        known = dict(uniform.names)
        scope = Scope(lines, {key: name for key, name in known.items() if self._ready(key, level)})
        for node in expr.walk(*self.loop.roots):
            if isinstance(node, Reduce) or (isinstance(node, Part) and isinstance(node.node, Reduce)):
                continue
            if id(node) in self._state_fields and self.nest.of(node).level == level:
                name = self.body.emit(node, scope)
                lines.append(f"st.{self._state_fields[id(node)][0]} = {name};")
        stores = self.nest.row_stores(level)
        if stores and split:
            lines.append("if (tid == 0) {")
        for store in stores:
            self.body.store(store, scope)
        if stores and split:
            lines.append("}")
        out.extend(lines)
        out.close("};")

    def _ready(self, key: int, level: int) -> bool:
        """Whether the state value with this id was made before level `level` or is a result of the pass just over."""
        if key not in self._state_fields:
            return True
        for node in expr.walk(*self.loop.roots):
            if id(node) == key:
                made = isinstance(node, Reduce) or (isinstance(node, Part) and isinstance(node.node, Reduce))
                return self.nest.of(node).level < level or (made and self.nest.of(node).level <= level)
        return True

    def _column_pass(self, out: Writer, uniform: Scope, k: int) -> None:
        reduced = "".join(f", const long {a.symbol}" for a in self.loop.reduced)
        out.open(f"auto pass{k} = [&](auto tail, const long {self.nest.vec.symbol}, const long n, State& st, Acc{k}& acc{reduced}) PT_INLINE {{")
        scope = Scope([], {key: name for key, name in uniform.names.items() if self._ready(key, k)})
        out.extend(self._pass_lines(scope, k, self.nest.reduces_in(k), self.nest.stores_in(k)))
        out.close("};")

    def _run_tile(self, out: Writer, width: int, split: bool, column: str = "first", tag: str = "Full{}", live: str = "L") -> None:
        """Calls state and pass lambdas for `width` vectors side by side."""
        names = range(width)
        out.line("State " + ", ".join(f"s{u}" for u in names) + ";")
        place = [f"{column} + {u} * L" if u else column for u in names]
        reduced = ", ".join(str(a.symbol) for a in self.loop.reduced)
        for u in names:
            out.line(f"state0({tag}, {place[u]}, {live}, s{u});")
        for k in range(self.nest.passes):
            out.line("{")
            out.line(f"Acc{k} " + ", ".join(f"c{u}" for u in names) + ";")
            calls = [f"pass{k}({tag}, {place[u]}, {live}, s{u}, " + "b{0}, ".format(u) + f"{reduced});" for u in names]
            self._column_loops(out, k, split, len(names), calls)
            if split and self.nest.reduces_in(k):
                out.line(f"auto others = shared{k} + (row & 1) * threads;")
                for u in names:
                    out.line(f"others[tid][{u}] = c{u};")
                out.line("barrier();")
                for u in names:
                    out.line(f"c{u} = others[0][{u}];")
                    out.line(f"for (long w = 1; w < workers; ++w) c{u}.merge(others[w][{u}]);")
            for u in names:
                out.line(f"state{k + 1}({tag}, {place[u]}, {live}, s{u}, c{u});")
            out.line("}")

    def _column_loops(self, out: Writer, k: int, split: bool, width: int, calls: list[str]) -> None:
        """The loops over the reduced axes around the calls of pass k. Running values are folded into c0, c1, ... after every
        block of rows, so that rounding errors grow with the block and not with the column; a scan's carries stay."""
        first, rest = self.loop.reduced[0], self.loop.reduced[1:]
        count, name = text.index(first.size), first.symbol
        low, high = (f"({count}) * tid / workers", f"({count}) * (tid + 1) / workers") if split else ("0", count)
        block = "last" if self.nest.scans else f"at + {COLUMN_BLOCK} < last ? at + {COLUMN_BLOCK} : last"
        out.line(f"const long last = {high};")
        out.open(f"for (long at = {low}; at < last;) {{")
        out.line(f"const long stop = {block};")
        out.line(f"Acc{k} " + ", ".join(f"b{u}" for u in range(width)) + ";")
        out.open(f"for (long {name} = at; {name} < stop; ++{name}) {{")
        for axis in rest:
            out.open(f"for (long {axis.symbol} = 0; {axis.symbol} < {text.index(axis.size)}; ++{axis.symbol}) {{")
        for call in calls:
            out.line(call)
        for _ in rest:
            out.close("}")
        out.close("}")
        for u in range(width):
            out.line(f"c{u}.merge(b{u});")
        out.line("at = stop;")
        out.close("}")


def uses_threads(kernel: LoopKernel) -> bool:
    """Whether more than one thread can be right: an accumulating loop without a safe axis is serial (or atomic)."""
    return not is_scatter(kernel.loop) or bool(scatter_axes(kernel.loop))




def check_messages(kernel: LoopKernel) -> tuple[str, ...]:
    """What the run-time checks 1, 2, ... of a kernel say when they fail."""
    unit = _Unit(kernel, Config.of(variant="looped" if kernel.loop.reduced else "plain"), "unused", 16)
    unit.source()
    return tuple(message for _, message in unit.checks.found)
