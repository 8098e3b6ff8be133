"""The sorted segment reduction: segment sums (segment_sums.py) of points that a counting sort orders by row. No
atomics, no zeros stored beforehand, and a fixed order of summation.

    launch 0   program (b, c) has chunk c of the points, `many` of them, and counts those in its `rows` rows; the
               programs of all chunks, a cluster, exchange their counts, so that each knows where its own points of a
               row start; comparing its points with each other gives each point's rank within its row
    launch 1   each program has a block of columns of one row: it adds up the row's points, `y` at once, while it loads
               the numbers of the next ones, and stores the sum, or zeros without points

Scratch memory: 0 holds the end of each row's points in 1, which lists them; 2 the points that a program has matched, as
(number in the chunk) times `rows` plus row; 3 the counts that programs exchange: the chunk's number of points before
the rows, and up to each of them.
"""

from __future__ import annotations

import sympy
import torch

from polytile.codegen.triton import text
from polytile.codegen.triton.body import Scope
from polytile.codegen.triton.cluster import BARRIER
from polytile.codegen.triton.kernel import Launch, Scratch, TritonKernel
from polytile.codegen.triton.segment_sums import ROW, Table, begin_program, points_of, table_of
from polytile.codegen.triton.tile import Dim, Tile, blocks
from polytile.codegen.triton.unit import ROWS, Unit
from polytile.ir import sizes
from polytile.ir.loop import Axis
from polytile.problem import Config
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.facts import Facts
from polytile.schedule.gpu.catalogue import pointwise
from polytile.schedule.nest import Nest, nest_of

ENDS, ORDER, MATCHED, COUNTS = range(4)
SORTING, LISTED = 4, 64
"""Warps of a program that sorts; number of its points that it compares with each other at once."""
UNKNOWN = sizes.axis("unknown")
"""Size of axes whose blocks may overhang at any size."""


def sorted_segment_reduction(kernel: LoopKernel, nest: Nest, config: Config, facts: Facts, overlaps: bool) -> TritonKernel:
    """The launches of `kernel` under a config with `rows`, `many` and `chunks`."""
    table = table_of(kernel.loop)
    assert table is not None
    kind, points = torch.int64 if facts.wide else torch.int32, table.points.size
    counts = sympy.expand(blocks(table.rows, int(config["rows"])) * int(config["chunks"]) * (int(config["rows"]) + 1))
    types = {ENDS: kind, ORDER: kind, MATCHED: torch.int32, COUNTS: kind}
    scratch = tuple(Scratch(types[k], {ENDS: table.rows, COUNTS: counts}.get(k, points)) for k in types)
    launches = tuple(part(kernel, nest, config, facts, overlaps, table).build() for part in (PointSort, SegmentReduction))
    return TritonKernel(launches, scratch)


class _Sorted:
    """Builds a launch."""

    def __init__(self, unit: Unit, config: Config, table: Table) -> None:
        self.unit, self.table, self.out = unit, table, unit.out
        self.wide = ".to(tl.int64)" if unit.facts.wide else ""
        self.kind = torch.int64 if unit.facts.wide else torch.int32
        self.points, self.rows = unit.body.index(table.points.size), unit.body.index(table.rows)

    def memory(self, number: int) -> str:
        return self.unit.scratch(number, torch.int32 if number == MATCHED else self.kind)


class PointSort(_Sorted):
    """Launch 0: `unit` has a block of points."""

    def __init__(self, kernel: LoopKernel, nest: Nest, config: Config, facts: Facts, overlaps: bool, table: Table) -> None:
        points = Axis(sizes.axis("points"), table.points.size)
        loop = table.index_loop("sort", points, kernel.loop.origins)
        self.roots = loop.roots
        tensors = tuple(tensor for tensor in kernel.tensors if tensor.name in loop.reads())
        alone = LoopKernel(loop, tensors, kernel.symbols)
        unit = Unit(alone, nest_of(loop), pointwise(x=int(config["many"]), warps=SORTING), facts, overlaps)
        self.block = Dim("POINTS", (Axis(points.symbol, UNKNOWN),), int(config["many"]))  # the last chunks may be empty
        unit.tile = unit.body.tile = Tile(unit.nest, facts, (self.block,), ())
        unit.constants = {}
        super().__init__(unit, config, table)
        unit.constants |= {"POINTS": int(config["many"]), "ROWS": int(config["rows"]), "CHUNKS": int(config["chunks"])}
        unit.constants["LISTED"] = LISTED

    def build(self) -> Launch:
        unit, out = self.unit, self.out
        out.extend([
            "bucket, chunk = tl.program_id(0) // CHUNKS, tl.program_id(0) % CHUNKS",
            f"row = bucket{self.wide} * ROWS",
            "rows = tl.arange(0, ROWS)",
            f"first = chunk{self.wide} * POINTS",
            f"points = first + tl.arange(0, POINTS){self.wide}",
        ])  # fmt: skip
        unit.wait()
        self._count()
        self._exchange()
        self._list()
        chunks = unit.constants["CHUNKS"]
        buckets = blocks(self.table.rows, unit.constants["ROWS"])
        return unit.launch(grid=(buckets * chunks, sizes.ONE, sizes.ONE), cluster=chunks)

    def _count(self) -> None:
        """Counts the points in each of the program's rows, and in all preceding rows."""
        unit, out, scope = self.unit, self.out, Scope()
        scope.lines.append(f"{self.block.mask} = points < {self.points}")
        segment, *others = [unit.body.emit(root, scope) for root in self.roots]
        inside = [self.block.mask, *others, *unit.body.guards(self.roots[:1])]
        scope.lines.append(f"local_row = {segment}{self.wide or '.to(tl.int32)'} - row")
        unit.flush(scope)
        out.extend([
            f"below = {' & '.join(['(local_row < 0)', *inside])}",
            f"in_bucket = {' & '.join(['(local_row >= 0) & (local_row < ROWS)', *inside])}",
            "local_row = tl.where(in_bucket, local_row, 0).to(tl.int32)",
            "before, count = tl.reduce((below.to(tl.int32), in_bucket.to(tl.int32)), 0, pt_add_two)",
            "up_to_row = before + tl.associative_scan(tl.histogram(local_row, ROWS, mask=in_bucket), 0, pt_add)",
        ])  # fmt: skip

    def _exchange(self) -> None:
        """Publishes the chunk's number of points up to each row, and stores the chunk's own points, from the chunk's
        first place on, after the places for those of preceding rows."""
        out, counts = self.out, self.memory(COUNTS)
        out.extend([
            f"shared = {counts} + tl.program_id(0){self.wide} * (ROWS + 1)",
            "tl.store(shared, before)",
            "tl.store(shared + 1 + rows, up_to_row)",
            "start = first + before",
            "place = start + tl.associative_scan(in_bucket.to(tl.int32), 0, pt_add) - 1",
            f"tl.store({self.memory(MATCHED)} + place, (points - first).to(tl.int32) * ROWS + local_row, mask=in_bucket)",
        ])  # fmt: skip
        out.line(BARRIER if self.unit.constants["CHUNKS"] > 1 else "tl.debug_barrier()")
        out.extend([
            "chunks = tl.arange(0, CHUNKS)[:, None]",
            f"shared = {counts} + (bucket * CHUNKS + chunks){self.wide} * (ROWS + 1)",
        ])  # fmt: skip
        with out.indented("if chunk == 0:"):
            ends = 'tl.sum(tl.load(shared + 1 + rows[None, :], cache_modifier=".cg"), 0)'
            out.line(f"tl.store({self.memory(ENDS)} + row + rows, {ends}, mask=row + rows < {self.rows})")

    def _list(self) -> None:
        """Lists the points: after those of the preceding rows, those of their row in preceding chunks, and those of
        their row earlier in the chunk."""
        out, matched = self.out, f"{self.memory(MATCHED)} + start"
        out.extend([
            "numbers = tl.arange(0, LISTED)[None, :]",
            "earlier = tl.arange(0, LISTED)[:, None]",
            "shared += (chunks < chunk).to(tl.int32)",
        ])  # fmt: skip
        with out.indented("for at in range(0, count, LISTED):"):
            out.extend([
                f"matched = tl.load({matched} + at + numbers, mask=at + numbers < count, other=0)",
                "matched_rows = matched % ROWS",
                'position = tl.sum(tl.load(shared + matched_rows, cache_modifier=".cg"), 0, keep_dims=True)',
            ])  # fmt: skip
            with out.indented("for other in range(0, at + LISTED, LISTED):"):
                out.extend([
                    f"other_rows = tl.load({matched} + other + earlier, mask=other + earlier < count, other=0) % ROWS",
                    "same = (other_rows == matched_rows) & (other + earlier < at + numbers)",
                    "position += tl.sum(same.to(tl.int32), 0, keep_dims=True)",
                ])  # fmt: skip
            out.line(f"tl.store({self.memory(ORDER)} + position, first + matched // ROWS, mask=at + numbers < count)")


class SegmentReduction(_Sorted):
    """Launch 1: `unit` has a block of columns, and Y points from a row's list."""

    def __init__(self, kernel: LoopKernel, nest: Nest, config: Config, facts: Facts, overlaps: bool, table: Table) -> None:
        unit = Unit(kernel, nest, points_of(config), facts, overlaps)
        self.listed = Dim("Y", (Axis(table.points.symbol, UNKNOWN),), int(config["y"]))
        self.columns = Dim("X", (table.along,), int(config["x"]))
        unit.tile = unit.body.tile = Tile(nest, facts, (self.listed, self.columns), ())
        unit.constants = {dim.name: dim.block for dim in unit.tile.dims}
        super().__init__(unit, config, table)

    def build(self) -> Launch:
        unit, table, out = self.unit, self.table, self.out
        begin_program(unit, ROW, self.rows, self.columns)
        self._lists()
        self._next(self.listed.variable, "0")
        shape = unit.tile.shape(frozenset({self.columns}))
        out.line(f"total = tl.zeros({shape}, {text.value_type(table.store.value.dtype)})")
        with out.indented("for at in range(0, count, Y):"):
            self._block()
        table.store_total(unit, unit.tile.masks(frozenset({self.columns})))
        count = blocks(table.along.size, self.columns.block)
        planes = blocks(table.rows, ROWS)
        return unit.launch(grid=(count, sympy.Min(table.rows, sympy.Integer(ROWS)), planes))

    def _lists(self) -> None:
        """Emits the location of the row's list."""
        ends = self.memory(ENDS)
        self.out.line(f"begin = tl.load({ends} + {ROW} - 1, mask={ROW} > 0, other=0)")
        self.out.line(f"count = tl.load({ends} + {ROW}) - begin")
        self.out.line("numbers = tl.arange(0, Y)[:, None]")

    def _next(self, name: str, first: str) -> None:
        """Loads the numbers of Y points of the row as `name`, from position `first` on."""
        place = f"{self.memory(ORDER)} + begin + {first} + numbers"
        self.out.line(f"{name} = tl.load({place}, mask={first} + numbers < count, other=0)")

    def _block(self) -> None:
        """Adds the points whose numbers are loaded, while loading the next numbers."""
        unit, inner = self.unit, self.unit.scope.inner()
        self._next("following", "at + Y")
        inner.lines.append(f"{self.listed.mask} = at + numbers < count")
        value = unit.body.full(self.table.store.value, unit.tile.all_dims, inner)
        inner.lines.append(f"total += tl.sum(tl.where({self.listed.mask}, {value}, 0.0), 0, keep_dims=True)")
        inner.lines.append(f"{self.listed.variable} = following")
        unit.flush(inner)
