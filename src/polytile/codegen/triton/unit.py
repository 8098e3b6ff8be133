"""The text of one launch under construction: signature, positions of the program's block, and the code around the body."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from polytile.codegen.emission import comment
from polytile.codegen.triton import launch_text
from polytile.codegen.triton.body import Body, Scope
from polytile.codegen.triton.kernel import Launch
from polytile.codegen.triton.tile import Dim, Tile, divides, tile_of, with_facts
from polytile.codegen.writer import Writer
from polytile.ir import sizes
from polytile.ir.expr import Node
from polytile.schedule.answers import Share
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.facts import Facts
from polytile.schedule.gpu import vectors
from polytile.schedule.gpu.schedule import GpuSchedule
from polytile.schedule.nest import Nest

Grid = tuple[sympy.Expr, sympy.Expr, sympy.Expr]
ROWS = 1 << 15
"""Programs along the second axis of a grid, which is limited to 65535."""
REGISTERS = 1 << 16
"""Registers of a multiprocessor."""


def registers(schedule: GpuSchedule) -> int:
    """Maximum registers per thread such that a multiprocessor holds `resident` programs."""
    return REGISTERS // (schedule.threads * schedule.blocks.points("resident")) // 8 * 8


@dataclass(frozen=True)
class Chunk:
    """One program's part of a row: the points from `first` (a multiple of the block) to `last` along `dim`."""

    dim: Dim
    first: str
    last: str


class Unit:
    """One launch. `out` collects the lines of its function; `scope` knows the values outside of any loop. `scratch`
    allocates scratch memory."""

    def __init__(self, kernel: LoopKernel, nest: Nest, schedule: GpuSchedule, facts: Facts, overlaps: bool = False) -> None:
        self.kernel, self.nest, self.schedule, self.facts, self.overlaps = kernel, nest, schedule, facts, overlaps
        self.tile: Tile = tile_of(nest, schedule, facts)
        self.body = Body(kernel, self.tile, facts)
        self.body.threads = schedule.threads
        self.out, self.scope = Writer("    "), Scope()
        self.constants: dict[str, int] = {d.name: d.block for d in self.tile.dims}
        self.scratch_types: dict[int, torch.dtype] = {}

    # positions -------------------------------------------------------------------------------------------------------

    def place(self, back: bool = False, number: str = "") -> None:
        """Emits the position of the program's block along every parallel dimension. Blocks are numbered row by row, the
        last dimension fastest.

        Nothing here accesses memory. Then the program waits for the preceding kernel, and lets the next one's programs
        be scheduled. `back`: the first program has the last block. `number` is the block's number if it is not the
        program's.
        """
        dims, tiles = self.tile.parallel, self.tile.tiles
        if self._planes:
            self._numbered(dims[-1:], tiles[-1:], self._program(0))
            rows = self.body.index(sizes.product(tiles[:-1]))
            self.out.line(f"rows_at = {self._program(1)} + {self._program(2)} * {ROWS}")
            with self.out.indented(f"if rows_at >= {rows}:"):
                self.out.line("return")
            self._numbered(dims[:-1], tiles[:-1], "rows_at")
        else:
            self._numbered(dims, tiles, self._wide(number or program(0, back)))
        for dim in dims:
            self.parallel(dim)
        self.wait()

    def wait(self) -> None:
        """Emits the wait for the preceding kernel. Nothing before it accesses memory."""
        if self.overlaps:
            self.out.extend(launch_text.WAIT)

    @property
    def _planes(self) -> bool:
        """Whether the grid has one axis for blocks along the last dimension and two for all others, which saves a
        division. Not where elements are forgotten (Body.forget), which uses the third axis."""
        return len(self.tile.parallel) > 1 and self.schedule.share is Share.PROGRAM and not self.body.recomputed

    def _program(self, axis: int) -> str:
        return self._wide(program(axis, back=False))

    def _wide(self, number: str) -> str:
        return number + (".to(tl.int64)" if self.facts.wide else "")

    def _numbered(self, dims: Sequence[Dim], tiles: Sequence[sympy.Expr], number: str) -> None:
        """Emits the block's position along each of `dims` from its number among all of them."""
        if len(dims) > 1:
            self.out.line(f"at = {number}")
            number = "at"
        for dim, count in list(zip(dims, tiles, strict=True))[:0:-1]:
            self.out.line(f"{dim.name.lower()}_at = at % ({self.body.index(count)})")
            self.out.line(f"at = at // ({self.body.index(count)})")
        if dims:
            self.out.line(f"{dims[0].name.lower()}_at = {number}")

    def _grid(self, splits: int) -> Grid:
        tiles = self.tile.tiles
        if not self._planes:
            return sizes.product(tiles), sympy.Integer(max(1, splits)), sizes.ONE
        rows = sizes.product(tiles[:-1])
        return tiles[-1], sympy.Min(rows, sympy.Integer(ROWS)), FloorDiv(rows + ROWS - 1, sympy.Integer(ROWS))

    def parallel(self, dim: Dim) -> None:
        """Emits the positions along a parallel dimension of the block whose number is known."""
        at = f"{dim.name.lower()}_at"
        if dim.block > 1:
            self.body.firsts[dim] = f"{at} * {dim.name}"
            at = f"({at} * {dim.name} + tl.arange(0, {dim.name})){self.tile.along(dim)}"
        self.out.line(f"{dim.variable} = {at}")
        if not self.tile.even(dim):
            self.out.line(f"{dim.mask} = {dim.variable} < {self.body.index(dim.size)}")
        if len(dim.axes) > 1:
            self._decompose(dim)

    def _decompose(self, dim: Dim) -> None:
        """Emits the axes of a flattened dimension, by one division per axis, outside of any loop."""
        rest = dim.variable
        for axis in dim.axes[:0:-1]:
            size = self.body.index(axis.size)
            self.out.line(f"{axis.symbol} = {rest} % ({size})")
            self.out.line(f"{dim.variable}_rest = {rest} // ({size})")
            rest = f"{dim.variable}_rest"
        self.out.line(f"{dim.axes[0].symbol} = {rest}")

    @property
    def masks_split_vectors(self) -> bool:
        """Whether masks would split the vectors of a loop along one axis, because the known power of two that divides
        its length is too small."""
        (dim, *others), known = self.tile.parallel, self.facts
        if others or self.tile.even(dim) or not known.aligned or with_facts(dim.size, known).is_Integer:
            return False
        return not divides(vectors.widest_load(self.kernel), dim.size, known)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """The code for blocks of the only dimension that do not overhang."""
        (dim,), tile = self.tile.parallel, self.tile
        with self.out.indented(f"if {self.body.firsts[dim]} + {dim.name} <= {self.body.index(dim.size)}:"):
            self.tile = self.body.tile = replace(tile, whole=True)
            yield
            self.tile = self.body.tile = tile

    def resident(self, dim: Dim) -> None:
        """Emits the positions along a reduced dimension that the block covers completely. Known lengths make masks
        unnecessary."""
        self.body.firsts[dim] = "0"
        least = dict(self.facts.least).get(str(dim.size), 0)
        if least and not self.tile.even(dim):
            self.out.line(f"tl.assume({dim.size} >= {least})")
        at = "0" if dim.block == 1 else f"{self._arange(dim)}{self.tile.along(dim)}"
        self.out.extend(self.positions(dim, at))

    @contextmanager
    def block_loop(self, dim: Dim, share: Chunk | None = None, back: bool = False) -> Iterator[None]:
        """A loop over blocks along a reduced dimension, or over a share of them. `back`: from the last to the first."""
        first, end = (share.first, share.last) if share else ("0", self.body.index(dim.size))
        if dim.block == 1:
            with self.out.indented(f"for {dim.variable} in range({first}, {end}):"):
                yield
            return
        at = self.body.firsts[dim] = f"{dim.variable}_at"
        blocks = f"range({first}, {end}, {dim.name})" if not back else f"range(0, {dim.variable}_blocks)"
        if self.schedule.blocks.stages:
            blocks = f"tl.{blocks[:-1]}, num_stages={self.schedule.stages})"
        if back:
            self.out.line(f"{dim.variable}_blocks = tl.cdiv({end} - {first}, {dim.name})")
        with self.out.indented(f"for {at if not back else dim.variable + '_done'} in {blocks}:"):
            if back:
                self.out.line(f"{at} = {first} + ({dim.variable}_blocks - 1 - {dim.variable}_done) * {dim.name}")
            self.out.extend(self.positions(dim, self.block_at(dim, at)))
            yield

    def block_at(self, dim: Dim, first: str) -> str:
        """The positions along `dim` of the block that starts at `first`."""
        return first if dim.block == 1 else f"({first} + {self._arange(dim)}){self.tile.along(dim)}"

    def _arange(self, dim: Dim) -> str:
        return f"tl.arange(0, {dim.name})" + (".to(tl.int64)" if self.facts.wide else "")

    def along(self, dim: Dim, first: str, end: str = "{}") -> None:
        """Emits the positions along a reduced dimension of the block that starts at `first`. `end` gives its end from
        the dimension's length."""
        self.body.firsts[dim] = first
        self.out.extend(self.positions(dim, self.block_at(dim, first), end))

    def positions(self, dim: Dim, at: str, end: str = "{}") -> list[str]:
        """Lines that name the positions `at` along a reduced dimension, and the mask of those inside it."""
        lines = [f"{dim.variable} = {at}"]
        if not self.tile.even(dim):
            lines.append(f"{dim.mask} = {dim.variable} < {end.format(self.body.index(dim.size))}")
        return lines

    @property
    def rows(self) -> sympy.Expr:
        """Number of points of the parallel axes."""
        return sizes.product([d.size for d in self.tile.parallel])

    def row(self) -> str:
        """Flat index of the block's points among those of the parallel axes, row by row."""
        position = sizes.ZERO
        for dim in self.tile.parallel:
            position = position * dim.size + sizes.axis(dim.variable)
        return self.body.index(sympy.expand(position))

    # text ------------------------------------------------------------------------------------------------------------

    def fetch(self, roots: Iterable[Node], scope: Scope) -> None:
        """Emits the loads that `roots` need, ahead of everything computed from them."""
        self.body.fetch(roots, scope)

    def flush(self, scope: Scope) -> None:
        """Writes the lines that `scope` has collected."""
        self.out.extend(scope.lines)
        scope.lines.clear()

    def scratch(self, number: int, dtype: torch.dtype) -> str:
        """The name of scratch memory `number`."""
        self.scratch_types[number] = dtype
        return f"scratch{number}"

    def launch(self, splits: int = 0, grid: Grid | None = None, cluster: int = 1) -> Launch:
        """The finished launch. `splits` programs share each block's rows. `grid` replaces the default of one program
        per block."""
        kernel, facts, schedule = self.kernel, self.facts, self.schedule
        lines = launch_text.with_quotients(self.out.lines, kernel.symbols, self.body.quotients, facts)
        integers = [symbol.name for symbol in kernel.symbols]
        given = launch_text.arguments(kernel.tensors, integers, self.scratch_types, facts, self.body.error)
        own = (("maxnreg", registers(schedule)),) if schedule.blocks.resident else ()
        return launch_text.launch(
            comment(kernel, "#"), lines, given, self.constants, facts, self.overlaps,
            num_warps=schedule.warps, num_stages=schedule.stages, grid=grid or self._grid(splits), cluster=cluster, own=own,
        )  # fmt: skip


def program(axis: int, back: bool) -> str:
    """The program's index along an axis of the grid or, with `back`, the number of programs after it."""
    return f"tl.program_id({axis})" if not back else f"(tl.num_programs({axis}) - 1 - tl.program_id({axis}))"
