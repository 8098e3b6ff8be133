"""The text of one launch of a product in the making: signature, the program's block, the epilogue on finished sums."""

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
from polytile.ir.program import Axis, Loop, Store
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


FINISH_BLOCK = (("BLOCK_M", 8), ("BLOCK_N", 128))
"""Blocks of the launch that adds up what the splits have left: small, as there may be few of them."""


@dataclass(frozen=True)
class RowsOfGroup(Tile):
    """A block of the rows of a grouped product's group: the last one overhangs whatever the sizes are."""

    def even(self, dim: Dim) -> bool:
        return dim.name != "BLOCK_M" and super().even(dim)


@dataclass(frozen=True)
class Chip:
    """What code depends on of a device: how many multiprocessors it has, and whether a launch may start before what runs ahead of
    it has ended."""

    sms: int
    overlaps: bool = False


class Unit:
    """One launch of `kernel`: `out` collects the lines of its function. The blocks of the config become constants."""

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
        """Whether blocks have the `count` rows of A from `first` up to `end`: those of a group."""
        self.part_of_k = False
        """Whether sums are over the k from `first` up to `end`, wherever these are."""
        self.quotients: set[sympy.Symbol] = set()

    def number(self, name: str) -> str:
        """An integer argument as text: its value where the facts know it."""
        return str(self.facts.values.get(name, name))

    @property
    def operands(self) -> tuple[Operand, Operand]:
        return self.a, self.b

    @property
    def swapped(self) -> bool:
        """Whether the tensor cores get B from the left: (Bᵀ · Aᵀ)ᵀ, whose rows they take 64 at a time, whose columns by 8."""
        return bool(self.config.get("swapped"))

    @property
    def sums(self) -> str:
        """Triton's type of the sums."""
        return text.value_type(accumulator(self.kernel.in_dtype))

    # the program's block -----------------------------------------------------------------------------------------------

    def place(self, tile: str, group: int) -> None:
        """`item` (of the batch), `at_m` and `at_n` of block number `tile`: `group` rows of blocks are gone through together,
        column by column, so that programs that run side by side share operands in the cache."""
        line = self.out.line
        line(f"tiles_m = tl.cdiv({self.number('M')}, BLOCK_M)")
        line(f"tiles_n = tl.cdiv({self.number('N')}, BLOCK_N)")
        line(f"tile = {tile}")
        if self.kernel.spec.batched:
            line("item = tile // (tiles_m * tiles_n)" + (".to(tl.int64)" if self.facts.wide else ""))
            line("tile = tile % (tiles_m * tiles_n)")
        self.walk(group)

    def walk(self, group: int) -> None:
        """`at_m` and `at_n` of block number `tile` of tiles_m × tiles_n, which are gone through as `place` says."""
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
        rows: str = "at_m * BLOCK_M + tl.arange(0, BLOCK_M)",
        block_m: str = "BLOCK_M",
        columns: str = "at_n * BLOCK_N + tl.arange(0, BLOCK_N)",
        block_n: str = "BLOCK_N",
    ) -> None:
        """Lines that do the epilogue on a block of sums and store it. With a `block_m` of "" the block is one row, number
        `rows`."""
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

    def epilogue_in_parts(self, sums: str, stores: int) -> None:
        """The epilogue on one part of the block's columns after the other, `stores` in all, a power of two. On its way to memory
        a part passes through shared memory: what a smaller one leaves is room for another stage of the loop over k."""
        if stores == 1:
            self.epilogue(sums)
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
            self.epilogue(name, columns=columns, block_n="STORE_N")

    def positions(self, body: Body, rows: str, dim: Dim) -> None:
        """Lines that define the block's place in the batch and its `rows`, which lie along `dim`."""
        b, m = self.finish.loop.axes[:2]
        cast = ".to(tl.int64)" if self.facts.wide else ""
        self.out.line(f"{b.symbol} = " + ("item" if self.kernel.spec.batched else "0"))
        self.out.line(f"{m.symbol} = " + (f"({rows}){body.tile.along(dim)}{cast}" if dim.block > 1 else rows))
        if not body.tile.even(dim):
            end = "end" if self.part_of_rows else body.index(dim.size)
            self.out.line(f"{dim.mask} = {dim.variable} < {end}")

    def finished(self, body: Body, scope: Scope) -> None:
        """Writes the lines that an epilogue has collected."""
        self.out.extend(scope.lines)
        self.quotients |= body.quotients
        self.error |= body.error

    @property
    def columns(self) -> int:
        """How many columns a block has on which the epilogue is done."""
        return columns(self.config)

    @property
    def shares_rows(self) -> bool:
        """Whether several blocks may have a row that the epilogue reduces."""
        return not holds_rows(self.finish.loop, self.config)

    # text --------------------------------------------------------------------------------------------------------------

    def scratch(self, number: int, dtype: torch.dtype) -> str:
        self.scratch_types[number] = dtype
        return f"scratch{number}"

    def sums_scratch(self) -> str:
        """Scratch memory for parts of sums, which comes after that for parts of rows."""
        number = row_epilogue.values(self.finish.loop) if self.shares_rows else 0
        return self.scratch(number, accumulator(self.kernel.in_dtype))

    def describe(self, operand: Operand) -> None:
        """Has `desc_A` or `desc_B` describe the operand, as rows of its axis of stride 1."""
        names, apart = (operand.size, "K"), operand.rows
        if operand.layout != "k":
            names, apart = ("K", operand.size), "k"
        block = self.constants[f"BLOCK_{names[0]}"], self.constants[f"BLOCK_{names[1]}"]
        element = text.pointer_type(self.kernel.operand_dtypes[operand.size == "N"]).removeprefix("*")
        kind = f"tensordesc<{element}[{block[0]},{block[1]}]>"
        argument = Argument(Kind.DESCRIPTOR, f"desc_{operand.name}", kind, len(self.described))
        shape = symbol(names[0]), symbol(names[1])
        self.described.append((argument, Descriptor(operand.name, shape, symbol(operand.stride(apart)), block)))

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
    """How many columns a block has on which the epilogue is done."""
    return dict(FINISH_BLOCK)["BLOCK_N"] if schedule_of(config).finish_blocks else int(config["n"])


def holds_rows(epilogue: Loop, config: Config) -> bool:
    """Whether one block has all of a row, as far as the epilogue has reductions of rows."""
    return all(axis.size.is_Integer and axis.size <= columns(config) for axis in epilogue.reduced)


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The type of the sums of products of operands of type `dtype`."""
    if dtype == torch.float64:
        return dtype
    return torch.float32 if dtype.is_floating_point else torch.int32


def epilogue_kernel(kernel: GemmKernel) -> LoopKernel:
    """The epilogue as a loop over (p0, p1, p2) = (batch, m, n), or of its rows over (p0, p1) with n reduced; where there is none,
    the store of the sums into C."""
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
