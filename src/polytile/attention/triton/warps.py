"""What the schedules of specialised warps share: functions of their text, and the launch under construction.

One warp of a program only loads: it copies tiles to shared memory (TMA). The others compute, in warpgroups of ROWS rows each, by
asynchronous products (wgmma). A barrier in shared memory says when a tile has arrived, another one when all warpgroups have read
it.

Legal on capability 9.0, for 16-bit dtypes, causal masks and windows, heads of the same padded size, and tensors that the copy
engine accepts: data begins at a multiple of 16 bytes, strides are multiples of 16 elements, and elements of a head are adjacent.
The engine gives zeros for rows past the end, and for the padding of a head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import sympy
import torch

from polytile.attention.problem import AttentionProblem, symbol
from polytile.attention.triton.unit import Unit
from polytile.codegen.triton import launch_text, text
from polytile.codegen.triton.kernel import Argument, Descriptor, Kind, Launch
from polytile.codegen.writer import Writer
from polytile.errors import LoweringError
from polytile.ir import sizes
from polytile.matmul.triton.unit import Chip
from polytile.problem import Config
from polytile.schedule.facts import Facts

ROWS, WARPS = 64, 4
"""Rows of a warpgroup's matrix instruction, and its warps."""
NARROWEST = 64
"""Smallest padded head: rows of 128 bytes, as the copy engine arranges them."""
REGISTERS = {2: 240, 3: 160}
"""Registers of a thread that computes, by the number of such warpgroups."""
LOADING = 32
"""Registers of a thread that loads."""
SHARED_LAYOUT = "NVMMASharedLayout(128, 16, rank=4)"
"""The layout of a tile in shared memory."""

HEADER = """import triton
from triton.experimental import gluon
import triton.experimental.gluon.language as tl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait,
)
"""

FUNCTIONS = """
@gluon.jit
def matrix(tile):
    return tile.reshape([tile.shape[2], tile.shape[3]])


@gluon.jit
def place(step):
    return step % STAGES, step // STAGES & 1


@gluon.jit
def copy(tensor, p0, head, row, tile, ready):
    mbarrier.expect(ready, tensor.block_type.nbytes)
    tma.async_copy_global_to_shared(tensor, [p0, head, row, 0], ready, tile)


@gluon.jit
def fetch(tensor, p0, head, row, tiles, ready, free, step):
    slot, turn = place(step)
    mbarrier.wait(free.index(slot), turn ^ 1)
    copy(tensor, p0, head, row, tiles.index(slot), ready.index(slot))


@gluon.jit
def arrived(tiles, ready, step):
    slot, turn = place(step)
    mbarrier.wait(ready.index(slot), turn)
    return matrix(tiles.index(slot))


@gluon.jit
def release(free, step):
    mbarrier.arrive(free.index(step % STAGES), count=1)


@gluon.jit
def products(a, b):
    nothing = tl.zeros([ROWS, WIDTH], tl.float32, SCORES)
    return warpgroup_mma(a, b.permute((1, 0)), nothing, use_acc=False, is_async=True)


@gluon.jit
def products_from(start, a, b):
    return warpgroup_mma(a, b.permute((1, 0)), tl.zeros([ROWS, WIDTH], tl.float32, SCORES) + start, is_async=True)


@gluon.jit
def sums(p):
    return tl.sum(tl.sum(p.reshape([ROWS, WIDTH // 8, 4, 2]), 3), 1)


@gluon.jit
def over(rows, columns):
    return tl.convert_layout(rows, tl.SliceLayout(1, columns.type.layout))[:, None]


@gluon.jit
def packed(p):
    first, second = p.reshape([ROWS, WIDTH // 2, 2]).split()
    return tl.inline_asm_elementwise(ROUND, "=r,f,f", [first, second], dtype=tl.int32, is_pure=True, pack=1)


@gluon.jit
def unpacked(pairs):
    first, second = tl.inline_asm_elementwise(
        "mov.b32 {$0, $1}, $2;", "=h,=h,r", [pairs], dtype=(WEIGHT.value, WEIGHT.value), is_pure=True, pack=1
    )
    return tl.convert_layout(tl.join(first, second).reshape([ROWS, WIDTH]), WEIGHTS)


@gluon.jit
def barriers(number: tl.constexpr, count: tl.constexpr):
    made = tl.allocate_shared_memory(tl.int64, [number, 1], mbarrier.MBarrierLayout())
    for k in tl.static_range(number):
        mbarrier.init(made.index(k), count=count)
    return made
"""
"""Functions of all warps."""


LAYOUTS = {
    "SCORES": "tl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH.value, 16])",
    "SUMS": "tl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D.value, 16])",
    "SCORE_ROWS": "tl.SliceLayout(1, SCORES.value)",
    "SUM_ROWS": "tl.SliceLayout(1, SUMS.value)",
    "COLUMNS": "tl.SliceLayout(0, SCORES.value)",
    "WEIGHTS": "tl.DotOperandLayout(0, SUMS.value, 2)",
    "BY_ROWS": "tl.BlockedLayout([1, 8], [256 // BLOCK_D.value, BLOCK_D.value // 8], [4, 1], [1, 0])",
}
"""How a warpgroup's threads hold the results of products: scores, ROWS × WIDTH, and sums, ROWS × BLOCK_D; rows and columns of
them; the left operand of a product of scores; a tile of which each row is summed."""


class SpecialisedUnit(Unit):
    """The launch: `out` is the kernel, `computing` the function of a computing warpgroup. Positions need 32 bits, as the copy
    engine computes addresses."""

    tiles_of: Mapping[str, tuple[str, str, str]] = {}
    """For each tensor that the copy engine reads or writes: the rows of its tile, how many tiles are in shared memory, and their
    barriers: "ready" says that a tile has arrived, "free" that it has been read."""
    width = "BLOCK_N"
    """The columns of a tile of scores."""

    def __init__(self, problem: AttentionProblem, config: Config, facts: Facts, chip: Chip) -> None:
        super().__init__(problem, config, replace(facts, wide=False), chip)
        head = max(NARROWEST, self.constants["BLOCK_D"], self.constants["BLOCK_DV"])
        self.constants |= {"BLOCK_D": head, "ROWS": ROWS, "WIDTH": self.constants[self.width]}
        self.constants |= {"MEMBERS": self.members, "STAGES": int(config["stages"])}
        self.described = [self._described(name, rows) for name, (rows, *_) in self.tiles_of.items()]
        self.computing, self.loading = Writer("    "), Writer("    ")

    @property
    def members(self) -> int:
        """The number of computing warpgroups."""
        return self.constants["BLOCK_M"] // ROWS

    def _described(self, name: str, rows: str) -> Descriptor:
        strides = [f"{name}_stride_{axis}" for axis in self.problem.axes(name)[:-1]]
        if name not in self.facts.aligned or not all(map(self.facts.divides, strides)):
            raise LoweringError(f"{name} is not at a multiple of 16 bytes, or its strides are not multiples of 16 elements")
        shape = tuple(map(symbol, self.problem.extents(name)))
        return Descriptor(name, shape, tuple(map(symbol, strides)), (1, 1, self.constants[rows], self.constants["BLOCK_D"]))

    # the kernel: where its tile is, and what it shares --------------------------------------------------------------------

    def place(self, tile: str, head: str) -> None:
        """Emit positions as other schedules do, but without rows: every warpgroup has its own."""
        heads, rows = self.number("Hq"), self.number("Mq")
        self.out.extend([
            f"p0 = ({head}) // {heads}", f"p1 = ({head}) % {heads}", f"kv = p1 // {self.group}",
            f"start = {tile} * BLOCK_M", "first = start", f"last = tl.minimum(start + BLOCK_M, {rows}) - 1",
        ])  # fmt: skip

    @property
    def shared(self) -> list[str]:
        """Tiles in shared memory, and their barriers."""
        kept = {name: barriers for name, (_, number, barriers) in self.tiles_of.items() if number}
        return [f"{name}_{what}" for name, barriers in kept.items() for what in ("tiles", *barriers.split())]

    def begin(self, compute: list[str], load: list[str]) -> None:
        """Emit the kernel's shared memory, and the start of its warps: those of `out` itself compute too. `compute` and `load`
        are what their functions take; the former ends with the warpgroup's number."""
        line = self.out.line
        for name, (rows, number, barriers) in self.tiles_of.items():
            if number:
                line(
                    f"{name}_tiles = tl.allocate_shared_memory("
                    f"desc_{name}.dtype, [{number}, 1, 1, {rows}, BLOCK_D], desc_{name}.layout)"
                )
            if "ready" in barriers:
                line(f"{name}_ready = barriers({number}, 1)")
            if "free" in barriers:  # a warpgroup has tiles of its own, or all share them
                line(f"{name}_free = barriers({number}, {1 if number == 'MEMBERS' else 'MEMBERS'})")
        line("fence_async_shared()")
        others = self.members - 1
        warps, registers = [*[WARPS] * others, 1], [*[REGISTERS[self.members]] * others, LOADING]
        with self.out.block("tl.warp_specialize([", f"], {warps}, {registers})"):
            for member in range(self.members):
                line(f"(compute, ({', '.join(compute)}, {member})),")
            line(f"(load, ({', '.join(load)})),")

    # text --------------------------------------------------------------------------------------------------------------

    @property
    def key_positions(self) -> str:
        return "tl.arange(0, BLOCK_N, layout=COLUMNS)"

    @cached_property
    def given(self) -> list[Argument]:
        """Descriptors, then what other kernels of attention take too."""
        element = text.pointer_type(self.problem.dtype).removeprefix("*")
        described = [
            Argument(Kind.DESCRIPTOR, f"desc_{what.tensor}", f"tensordesc<{element}{list(what.block)},{SHARED_LAYOUT}>", k)
            for k, what in enumerate(self.described)
        ]
        problem = self.problem
        return described + launch_text.arguments(problem.tensors, problem.size_names, self.scratch_types, self.facts, error=False)

    def named(self, function: Writer, *local: str) -> list[str]:
        """What a function of some warps is given: arguments that its text names, shared memory, and the kernel's variables
        `local`."""
        words = launch_text.words(function.lines)
        own = [each.name for each in self.given if each.name in words]
        return list(dict.fromkeys([*self.shared, *local, *own]))

    def finished(self, compute: list[str], load: list[str], grid: sympy.Expr) -> Launch:
        """The launch over `grid` programs. `compute` and `load` are what the functions of both kinds of warps take."""
        constants = {name: str(value) for name, value in self.constants.items()} | LAYOUTS
        short = "bf16x2" if self.problem.dtype == torch.bfloat16 else "f16x2"
        constants |= {"WEIGHT": text.value_type(self.problem.dtype), "ROUND": f'"cvt.rn.{short}.f32 $0, $2, $1;"'}
        functions = [
            "\n".join(f"{name} = tl.constexpr({value})" for name, value in constants.items()),
            FUNCTIONS.strip(),
            _function("load", load, self._with_quotients(self.loading.lines)),
            _function("compute", [*compute, "MEMBER: tl.constexpr"], self._with_quotients(self.computing.lines)),
        ]
        lines = [*(launch_text.WAIT if self.chip.overlaps else ()), *self._with_quotients(self.out.lines)]
        words = launch_text.words(lines)
        return launch_text.launch(
            [f"# {line}" for line in f"{self.problem.text}; {self.config}".splitlines()], lines,
            [each for each in self.given if each.name in words], {}, self.facts, self.chip.overlaps,
            header=HEADER, jit="gluon.jit", functions=functions, num_warps=WARPS, num_stages=1,
            grid=(grid, sizes.ONE, sizes.ONE), descriptors=tuple(self.described),
        )  # fmt: skip

    def _with_quotients(self, lines: list[str]) -> list[str]:
        return launch_text.with_quotients(lines, self.problem.symbols, self.body.quotients, self.facts)


def _function(name: str, parameters: list[str], lines: list[str]) -> str:
    return "\n".join(["@gluon.jit", f"def {name}({', '.join(parameters)}):", *(f"    {line}" for line in lines)])
