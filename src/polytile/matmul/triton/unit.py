"""One launch of a product under construction: signature, the program's tile, and the epilogue on a finished accumulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sympy
import torch

from polytile.codegen.triton import launch_text, text
from polytile.codegen.triton.body import Body, Scope
from polytile.codegen.triton.kernel import Argument, Descriptor, Kind, Launch
from polytile.codegen.triton.tile import Dim, Tile
from polytile.codegen.writer import Writer
from polytile.ir import expr, sizes
from polytile.ir.expr import Accumulator
from polytile.ir.loop import Axis, Loop, Store
from polytile.matmul.configs.records import AMD
from polytile.matmul.triton import row_epilogue
from polytile.matmul.triton.operands import Operand, operands, second_operands, symbol
from polytile.matmul.triton.schedule import schedule_of
from polytile.matmul.triton.shorter import shorten
from polytile.problem import Config
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.facts import Facts
from polytile.schedule.nest import Form, Nest
from polytile.schedule.rewrite import one_sweep, plain_reductions

if TYPE_CHECKING:
    from polytile.matmul.gemm_kernel import GemmKernel


ROWS = "at_m * BLOCK_M + tl.arange(0, BLOCK_M)"
"""The rows of a tile."""
FINISH_BLOCK = (("BLOCK_M", 8), ("BLOCK_N", 128))
"""Tiles of the launch that sums the partial products of split-K: small, as there may be few of them."""


@dataclass(frozen=True)
class RowsOfGroup(Tile):
    """A tile of rows of one group of a grouped product: the last one may be partial, whatever the sizes are."""

    def even(self, dim: Dim) -> bool:
        return dim.name != "BLOCK_M" and super().even(dim)


@dataclass(frozen=True)
class Chip:
    """The device properties that code depends on: the number of multiprocessors, and whether a launch may start before the one
    ahead of it has finished (programmatic dependent launch)."""

    sms: int
    overlaps: bool = False


class Unit:
    """One launch of `kernel`: `out` collects the lines of its function. The config's tile sizes become constants."""

    def __init__(self, kernel: GemmKernel, config: Config, facts: Facts, chip: Chip) -> None:
        self.kernel, self.config, self.facts, self.chip = kernel, config, facts, chip
        self.a, self.b = operands(kernel)
        self.second = second_operands(kernel)
        self.out = Writer("    ")
        self.constants: dict[str, int] = {}
        self.scratch_types: dict[int, torch.dtype] = {}
        self.described: list[tuple[Argument, Descriptor]] = []
        self.finish = epilogue_kernel(kernel)
        self.error = False
        self.part_of_rows = False
        """Whether tiles cover the `count` rows of A of one group, from `first` up to `end`."""
        self.part_of_k = False
        """Whether the reduction is over k from `first` up to `end`, which are loaded."""
        self.quotients: set[sympy.Symbol] = set()

    def number(self, name: str) -> str:
        """An integer argument as text: its value if the facts know it."""
        return str(self.facts.values.get(name, name))

    @property
    def operands(self) -> tuple[Operand, Operand]:
        return self.a, self.b

    @property
    def swapped(self) -> bool:
        """Whether B is the left operand of the tensor cores: (Bᵀ · Aᵀ)ᵀ. They process rows in steps of 64, and columns in steps
        of 8."""
        return bool(self.config.get("swapped"))

    @property
    def sums(self) -> str:
        """Triton's dtype of the accumulator."""
        return text.value_type(accumulator(self.kernel.in_dtype))

    # the program's block -----------------------------------------------------------------------------------------------

    def place(self, tile: str, group: int) -> None:
        """Emit `item` (of the batch), `at_m` and `at_n` of tile number `tile`.

        `group` rows of tiles are traversed together, column by column, so that concurrent programs share operands in the cache.
        """
        line = self.out.line
        line(f"tiles_m = tl.cdiv({self.number('M')}, BLOCK_M)")
        line(f"tiles_n = tl.cdiv({self.number('N')}, BLOCK_N)")
        line(f"tile = {tile}")
        if self.kernel.spec.batched:
            line("item = tile // (tiles_m * tiles_n)" + (".to(tl.int64)" if self.facts.wide else ""))
            line("tile = tile % (tiles_m * tiles_n)")
        self.walk(group)

    def walk(self, group: int) -> None:
        """Emit `at_m` and `at_n` of tile number `tile` of tiles_m × tiles_n, in the order that `place` describes."""
        line = self.out.line
        line(f"across = {group} * tiles_n")
        line(f"first_m = tile // across * {group}")
        line(f"deep = tl.minimum(tiles_m - first_m, {group})")
        line("at_m = first_m + tile % across % deep")
        line("at_n = tile % across // deep")

    # the epilogue ------------------------------------------------------------------------------------------------------

    def epilogue(
        self,
        sums: str,
        rows: str = ROWS,
        block_m: str = "BLOCK_M",
        columns: str = "at_n * BLOCK_N + tl.arange(0, BLOCK_N)",
        block_n: str = "BLOCK_N",
    ) -> None:
        """Emit the epilogue on an accumulator tile, and its stores. If `block_m` is "", the tile is the single row `rows`."""
        loop, reduces = self.finish.loop, bool(self.finish.loop.reduced)
        b, m, n = loop.axes + loop.reduced
        height = self.constants[block_m] if block_m else 1
        item, down = Dim("P0", (b,), 1), Dim(block_m or "P1", (m,), height)
        across = Dim(block_n, (n,), self.constants[block_n], reduces, self.constants["BLOCK_N"])
        nest = row_epilogue.layout(loop) if reduces else Nest(loop, Form.POINTWISE, n, (b, m), ())
        kind = RowsOfGroup if self.part_of_rows else Tile
        tile = kind(nest, self.facts, (item, down), (across,)) if reduces else kind(nest, self.facts, (item, down, across), ())
        body = Body(self.finish, tile, self.facts)
        for node in tile.nest.nodes:
            if isinstance(node, Accumulator):
                body.overrides[id(node)] = lambda scope: sums
        shorten(body, self.chip.overlaps)
        self.positions(body, rows, down)
        cast = ".to(tl.int64)" if self.facts.wide else ""
        self.out.line(f"{n.symbol} = ({columns}){tile.along(across)}{cast}")
        if not tile.even(across):
            self.out.line(f"{across.mask} = {across.variable} < {body.index(across.size)}")
        scope = Scope()
        if reduces:
            row_epilogue.emit(self, body, scope)
        else:
            body.stores(loop.stores, scope)
        self.finished(body, scope)

    def epilogue_in_parts(self, sums: str, stores: int, rows: str = ROWS) -> None:
        """Emit the epilogue on `stores` parts of the tile's columns in turn; `stores` is a power of two.

        Each part passes through shared memory on its way to global memory. A smaller part leaves space for another stage of the
        loop over k.
        """
        if stores == 1:
            self.epilogue(sums, rows)
            return
        self.constants["STORE_N"] = self.constants["BLOCK_N"] // stores
        names = [sums]
        while len(names) < stores:
            width = f"BLOCK_N // {2 * len(names)}"
            for name in names:
                halves = f"tl.permute(tl.reshape({name}, [BLOCK_M, 2, {width}]), [0, 2, 1])"
                self.out.line(f"{name}_0, {name}_1 = tl.split({halves})")
            names = [f"{name}_{half}" for name in names for half in range(2)]
        for part, name in enumerate(names):
            columns = f"at_n * BLOCK_N + {part} * STORE_N + tl.arange(0, STORE_N)"
            self.epilogue(name, rows, columns=columns, block_n="STORE_N")

    def positions(self, body: Body, rows: str, dim: Dim) -> None:
        """Emit the tile's position in the batch and its `rows`, along `dim`."""
        b, m = self.finish.loop.axes[:2]
        cast = ".to(tl.int64)" if self.facts.wide else ""
        self.out.line(f"{b.symbol} = " + ("item" if self.kernel.spec.batched else "0"))
        self.out.line(f"{m.symbol} = " + (f"({rows}){body.tile.along(dim)}{cast}" if dim.block > 1 else rows))
        if not body.tile.even(dim):
            end = "end" if self.part_of_rows else body.index(dim.size)
            self.out.line(f"{dim.mask} = {dim.variable} < {end}")

    def finished(self, body: Body, scope: Scope) -> None:
        """Emit the lines that an epilogue has collected."""
        self.out.extend(scope.lines)
        self.quotients |= body.quotients
        self.error |= body.error

    @property
    def columns(self) -> int:
        """Number of columns of a tile on which the epilogue runs."""
        return columns(self.config)

    @property
    def shares_rows(self) -> bool:
        """Whether several tiles may share a row that the epilogue reduces."""
        return not holds_rows(self.finish.loop, self.config)

    # text --------------------------------------------------------------------------------------------------------------

    def scratch(self, number: int, dtype: torch.dtype) -> str:
        self.scratch_types[number] = dtype
        return f"scratch{number}"

    def sums_scratch(self) -> str:
        """Scratch memory for partial accumulators; it follows that for partial row reductions."""
        number = row_epilogue.values(self.finish.loop) if self.shares_rows else 0
        return self.scratch(number, accumulator(self.kernel.in_dtype))

    def describe(self, operand: Operand) -> None:
        """Declare the tensor descriptor `desc_A` or `desc_B` of the operand. Its first axis is the batch, if there is
        one, and its last one the contiguous axis."""
        by_k = operand.layout == "k"
        names, apart = ([operand.size, "K"], [operand.rows]) if by_k else (["K", operand.size], ["k"])
        block = [self.constants[f"BLOCK_{name}"] for name in names]
        if operand.batched:
            names, apart, block = ["batch", *names], ["b", *apart], [1, *block]
        element = text.pointer_type(self.kernel.operand_dtypes[operand.size == "N"]).removeprefix("*")
        kind = f"tensordesc<{element}[{','.join(map(str, block))}]>"
        argument = Argument(Kind.DESCRIPTOR, f"desc_{operand.name}", kind, len(self.described))
        strides = tuple(symbol(operand.stride(axis)) for axis in apart)
        self.described.append((argument, Descriptor(operand.name, tuple(map(symbol, names)), strides, tuple(block))))

    def launch(self, grid: sympy.Expr, stages: int | None = None) -> Launch:
        """The finished launch over `grid` programs."""
        kernel, facts, config = self.kernel, self.facts, self.config
        own = [s for prologue_kernel in kernel.prologue_kernels for s in prologue_kernel.symbols]
        lines = launch_text.with_quotients(self.out.lines, (*self.finish.symbols, *own), self.quotients, facts)
        lines = [*launch_text.WAIT, *lines] if self.chip.overlaps else lines
        given = [argument for argument, _ in self.described]
        given += launch_text.arguments(kernel.tensors, kernel.size_names, self.scratch_types, facts, self.error)
        words = launch_text.words(lines)
        return launch_text.launch(
            _comment(kernel, config), lines, [each for each in given if each.name in words], self.constants, facts,
            self.chip.overlaps, num_warps=int(config["warps"]),
            num_stages=stages if stages is not None else int(config["stages"]), grid=(grid, sizes.ONE, sizes.ONE),
            descriptors=tuple(descriptor for _, descriptor in self.described),
            own=tuple((name, int(config[name])) for name in AMD if config.get(name) is not None),
        )  # fmt: skip


def columns(config: Config) -> int:
    """Number of columns of a tile on which the epilogue runs."""
    return dict(FINISH_BLOCK)["BLOCK_N"] if schedule_of(config).finish_blocks else int(config["n"])


def holds_rows(epilogue: Loop, config: Config) -> bool:
    """Whether one tile holds whole rows, if the epilogue reduces rows."""
    return all(axis.size.is_Integer and axis.size <= columns(config) for axis in epilogue.reduced)


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The accumulator dtype for operands of dtype `dtype`."""
    if dtype == torch.float64:
        return dtype
    return torch.float32 if dtype.is_floating_point else torch.int32


def epilogue_kernel(kernel: GemmKernel) -> LoopKernel:
    """The epilogue as a loop over (p0, p1, p2) = (batch, m, n), or over (p0, p1) with n reduced. Without an epilogue, a loop that
    stores the accumulator to C."""
    if kernel.epilogue is not None:
        loop = kernel.epilogue
        spelled = plain_reductions(one_sweep(loop), welford=False) if loop.reduced else loop
        return LoopKernel(spelled, kernel.outer, kernel.symbols)
    axes = tuple(Axis(sizes.axis(f"p{k}"), symbol(name)) for k, name in enumerate(("batch", "M", "N")))
    strides = [sizes.ONE if kernel.spec.c_layout == axis else symbol(f"c_stride_{axis}") for axis in ("b", "m", "n")]
    index = sum((a.symbol * s for a, s in zip(axes, strides, strict=True)), sizes.ZERO)
    value = expr.make(Accumulator, dtype=accumulator(kernel.in_dtype))
    symbols = tuple(symbol(name) for name in ("batch", "M", "N", "c_stride_b", "c_stride_m", "c_stride_n"))
    return LoopKernel(Loop("product", axes, (), (Store("C", index, value),)), kernel.outer, symbols)


def _comment(kernel: GemmKernel, config: Config) -> list[str]:
    spec = kernel.spec
    layout = f"A[{'b, ' if spec.batched else ''}m, k] by {spec.a_layout}, B[k, n] by {spec.b_layout}"
    computed = "".join(f"; {name} computed" for name, by in zip("AB", kernel.prologues, strict=True) if by is not None)
    second = f" + P[m, k] by {kernel.second[0]}, Q[k, n] by {kernel.second[1]}" if kernel.second is not None else ""
    kind = f"product grouped along {spec.grouped}" if spec.grouped else "product"
    return [f"# {spec.dtype} {kind} of {layout}{computed}{second}; {config}"]
