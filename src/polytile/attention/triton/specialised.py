"""The warp-specialised flash schedule: one warp of a program only loads, the others only compute.

    before (flash)                            after
    for each block of keys:                   loading warp:  for each block of keys:  copy k, v to shared memory (TMA)
        load k, v                             each computing warpgroup, with 64 rows:
        s = q·kᵀ                                  s = q·k₀ᵀ;  p = softmax step of s
        p = softmax step of s                     for each further block:  start s' = q·kᵀ;  start acc += p·v of the block before
        acc = acc·α + p·v                                                  p' = softmax step of s';  acc = acc·α
                                                  acc += p·v of the last block

Copies, products and exponentials thus overlap: products are asynchronous (wgmma), a barrier in shared memory says when a tile has
arrived, another one when all warpgroups have read it. Blocks of keys go from the last to the first, so that the partly masked
ones that end a causal row come first, and the loop over the others needs no mask.

Legal on capability 9.0, for 16-bit dtypes, causal masks and windows, heads of the same padded size, and tensors that the copy
engine accepts: data begins at a multiple of 16 bytes, strides are multiples of 16 elements, and elements of a head are adjacent.
The engine gives zeros for rows past the end, and for the padding of a head. Moves what `flash` does. Elsewhere: FlashAttention-3,
without its turns of warpgroups.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from polytile.attention.problem import AttentionProblem, symbol
from polytile.attention.triton.flash import order
from polytile.attention.triton.unit import Part, Unit, row_blocks
from polytile.codegen.triton import launch_text, text
from polytile.codegen.triton.kernel import Argument, Descriptor, Kind, Launch, TritonKernel
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
LOADING = 24
"""Registers of a thread that loads."""
LAYOUTS = {
    "SCORES": "tl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N.value, 16])",
    "SUMS": "tl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_D.value, 16])",
    "SCORE_ROWS": "tl.SliceLayout(1, SCORES.value)",
    "SUM_ROWS": "tl.SliceLayout(1, SUMS.value)",
    "KEYS": "tl.SliceLayout(0, SCORES.value)",
    "WEIGHTS": "tl.DotOperandLayout(0, SUMS.value, 2)",
}
"""How a warpgroup's threads hold the results of products, their rows, positions of keys, and a left operand."""
SHARED_LAYOUT = "NVMMASharedLayout(128, 16, rank=4)"
"""How a tile lies in shared memory."""
SHARED = ("q_tiles", "q_ready", "k_tiles", "k_ready", "k_free", "v_tiles", "v_ready", "v_free")
"""Tiles in shared memory, and the barriers that say that they have arrived, and that all have read them."""

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
def products(q, k):
    nothing = tl.zeros([ROWS, BLOCK_N], tl.float32, SCORES)
    return warpgroup_mma(q, k.permute((1, 0)), nothing, use_acc=False, is_async=True)


@gluon.jit
def load(
    desc_q, desc_k, desc_v, q_tiles, q_ready, k_tiles, k_ready, k_free, v_tiles, v_ready, v_free, p0, p1, kv, start, lo, steps
):
    for member in tl.static_range(MEMBERS):
        copy(desc_q, p0, p1, start + ROWS * member, q_tiles.index(member), q_ready.index(member))
    for step in range(steps):
        j = lo + (steps - 1 - step) * BLOCK_N
        fetch(desc_k, p0, kv, j, k_tiles, k_ready, k_free, step)
        fetch(desc_v, p0, kv, j, v_tiles, v_ready, v_free, step)


@gluon.jit
def barriers(number: tl.constexpr, count: tl.constexpr):
    made = tl.allocate_shared_memory(tl.int64, [number, 1], mbarrier.MBarrierLayout())
    for k in tl.static_range(number):
        mbarrier.init(made.index(k), count=count)
    return made
"""
"""What does not depend on the problem: functions of all warps, then those of the loading one."""


def specialised(problem: AttentionProblem, config: Config, facts: Facts, chip: Chip) -> TritonKernel:
    """One launch, with one program per tile of rows. Raises LoweringError where the facts do not say that the copy engine accepts
    the tensors."""
    unit = _Unit(problem, config, replace(facts, wide=False), chip)
    unit.describe()
    order(unit)
    parts = unit.parts(unit.bounds())
    unit.attend(parts)
    unit.begin(parts)
    return TritonKernel((unit.finished(parts),))


class _Unit(Unit):
    """The launch: `out` is the kernel, `attending` the function of a computing warpgroup. Positions need 32 bits, as the copy
    engine computes addresses."""

    def __init__(self, problem: AttentionProblem, config: Config, facts: Facts, chip: Chip) -> None:
        super().__init__(problem, config, facts, chip)
        head = max(NARROWEST, self.constants["BLOCK_D"], self.constants["BLOCK_DV"])
        self.members = int(config["m"]) // ROWS
        self.constants |= {"BLOCK_D": head, "ROWS": ROWS, "MEMBERS": self.members, "STAGES": int(config["stages"])}
        self.described: list[Descriptor] = []
        self.attending = Writer("    ")

    def describe(self) -> None:
        """Describe q, k, v and out to the copy engine."""
        for name in ("q", "k", "v", "out"):
            strides = [f"{name}_stride_{axis}" for axis in self.problem.axes(name)[:-1]]
            if name not in self.facts.aligned or not all(map(self.facts.divides, strides)):
                raise LoweringError(f"{name} is not at a multiple of 16 bytes, or its strides are not multiples of 16 elements")
            shape = tuple(map(symbol, self.problem.extents(name)))
            block = (1, 1, self.constants["BLOCK_N"] if name in "kv" else ROWS, self.constants["BLOCK_D"])
            self.described.append(Descriptor(name, shape, tuple(map(symbol, strides)), block))

    # the kernel: where its tile is, and what it shares --------------------------------------------------------------------

    def place(self, tile: str, head: str) -> None:
        """As in other schedules, but without rows: every warpgroup has its own."""
        heads, rows = self.number("Hq"), self.number("Mq")
        self.out.extend([
            f"p0 = ({head}) // {heads}", f"p1 = ({head}) % {heads}", f"kv = p1 // {self.group}",
            f"start = {tile} * BLOCK_M", "first = start", f"last = tl.minimum(start + BLOCK_M, {rows}) - 1",
        ])  # fmt: skip

    def begin(self, parts: list[Part]) -> None:
        """Emit the kernel's shared memory, and the start of its warps: those of `out` itself attend too."""
        line = self.out.line
        line("steps = tl.maximum(tl.cdiv(hi - lo, BLOCK_N), 1)")
        for name, number, rows in (("q", "MEMBERS", "ROWS"), ("k", "STAGES", "BLOCK_N"), ("v", "STAGES", "BLOCK_N")):
            shape = f"[{number}, 1, 1, {rows}, BLOCK_D], desc_{name}.layout"
            line(f"{name}_tiles = tl.allocate_shared_memory(desc_{name}.dtype, {shape})")
            line(f"{name}_ready = barriers({number}, 1)")
            if name != "q":
                line(f"{name}_free = barriers(STAGES, MEMBERS)")
        line("fence_async_shared()")
        others = self.members - 1
        warps, registers = [*[WARPS] * others, 1], [*[REGISTERS[self.members]] * others, LOADING]
        with self.out.block("tl.warp_specialize([", f"], {warps}, {registers})"):
            for member in range(self.members):
                line(f"(attend, ({', '.join(self._attending(parts))}, {member})),")
            line(f"(load, (desc_q, desc_k, desc_v, {', '.join(SHARED)}, p0, p1, kv, start, lo, steps)),")

    # a computing warpgroup -----------------------------------------------------------------------------------------------

    def attend(self, parts: list[Part]) -> None:
        """Emit the function of a warpgroup that computes ROWS rows."""
        out, self.out = self.out, self.attending
        line = self.out.line
        line("rows = start + ROWS * MEMBER + tl.arange(0, ROWS, layout=SCORE_ROWS)")
        line("p2 = rows[:, None]")
        self.hoist()
        line('high = tl.full([ROWS], float("-inf"), tl.float32, layout=SCORE_ROWS)')
        line("acc = tl.zeros([ROWS, BLOCK_D], tl.float32, layout=SUMS)")
        line("mbarrier.wait(q_ready.index(MEMBER), 0)")
        line("q_tile = matrix(q_tiles.index(MEMBER))")
        line("end = lo + (steps - 1) * BLOCK_N")
        line("j = end")
        line("s = products(q_tile, arrived(k_tiles, k_ready, 0))")
        self._scores(in_flight=0, step="0", masked=True)
        line("total = tl.sum(p, 1)")
        self._keep()
        line("step = 1")
        for part in reversed(parts):
            ends = f"tl.minimum(end, {part.last}) - BLOCK_N, {part.first} - BLOCK_N, -BLOCK_N"
            with self.out.indented(f"for j in range({ends}):"):
                self._step(part.masked)
        self._finish()
        self.out = out

    def _step(self, masked: bool) -> None:
        line = self.out.line
        line("s = products(q_tile, arrived(k_tiles, k_ready, step))")
        line("acc = warpgroup_mma(weights, arrived(v_tiles, v_ready, step - 1), acc, is_async=True)")
        self._scores(in_flight=1, step="step", masked=masked)
        line("total = total * alpha + tl.sum(p, 1)")
        if not masked:  # a barrier that has been passed: ptxas would else have the exponentials wait for the products
            line("arrived(v_tiles, v_ready, step - 1)")
        line("acc, p = warpgroup_mma_wait(0, deps=(acc, p))")
        line("release(v_free, step - 1)")
        line("acc = acc * tl.convert_layout(alpha, SUM_ROWS)[:, None]")
        self._keep()
        line("step += 1")

    def _scores(self, in_flight: int, step: str, masked: bool) -> None:
        """Emit what follows the start of a block's products: their end, scores and weights."""
        self.out.line(f"s = warpgroup_mma_wait({in_flight}, deps=(s,))")
        self.out.line(f"release(k_free, {step})")
        self.out.extend(self.score_lines(masked))
        self.out.extend(self.weights(masked))

    def _keep(self) -> None:
        """Emit what the next step needs of this one: weights in the layout of a left operand, and the maximum."""
        self.out.line(f"weights = tl.convert_layout(p.to({text.value_type(self.problem.dtype)}), WEIGHTS)")
        self.out.line("high = most")

    def _finish(self) -> None:
        """Emit the last products and the stores. A tile of q has been read by then and makes room for that of out."""
        line, problem = self.out.line, self.problem
        line("acc = warpgroup_mma(weights, arrived(v_tiles, v_ready, steps - 1), acc, is_async=True)")
        line("acc = warpgroup_mma_wait(0, deps=(acc,))")
        if problem.lse:
            at = f"lse + (p0.to(tl.int64) * {self.number('Hq')} + p1) * {self.number('Mq')} + rows"
            line(f"tl.store({at}, {self.logarithm}, mask=rows < {self.number('Mq')})")
        line(f"total = {self.divisor}")
        line("acc = acc * tl.convert_layout(1.0 / total, SUM_ROWS)[:, None]")
        line("tile = q_tiles.index(MEMBER)")
        line(f"matrix(tile).store(acc.to({text.value_type(problem.dtype)}))")
        line("fence_async_shared()")
        line("tma.async_copy_shared_to_global(desc_out, [p0, p1, start + ROWS * MEMBER, 0], tile)")
        line("tma.store_wait(0)")

    # text --------------------------------------------------------------------------------------------------------------

    @property
    def key_positions(self) -> str:
        return "tl.arange(0, BLOCK_N, layout=KEYS)"

    @cached_property
    def _given(self) -> list[Argument]:
        """Descriptors, then what other kernels of attention take too."""
        element = text.pointer_type(self.problem.dtype).removeprefix("*")
        described = [
            Argument(Kind.DESCRIPTOR, f"desc_{what.tensor}", f"tensordesc<{element}{list(what.block)},{SHARED_LAYOUT}>", k)
            for k, what in enumerate(self.described)
        ]
        return described + launch_text.arguments(self.problem.tensors, self.problem.size_names, {}, self.facts, error=False)

    def _attending(self, parts: list[Part]) -> list[str]:
        """What a computing warpgroup is given: all that its text names."""
        words = launch_text.words(self.attending.lines)
        ends = dict.fromkeys(end for part in parts for end in (part.first, part.last))
        own = [each.name for each in self._given if each.kind is not Kind.DESCRIPTOR and each.name in words]
        return list(dict.fromkeys(["desc_out", *SHARED, "p0", "p1", "start", "steps", "lo", *ends, *own]))

    def finished(self, parts: list[Part]) -> Launch:
        """The launch, with one program per tile."""
        constants = {name: str(value) for name, value in self.constants.items()} | LAYOUTS
        functions = [
            "\n".join(f"{name} = tl.constexpr({value})" for name, value in constants.items()),
            FUNCTIONS.strip(),
            _function("attend", [*self._attending(parts), "MEMBER: tl.constexpr"], self._with_quotients(self.attending.lines)),
        ]
        lines = [*(launch_text.WAIT if self.chip.overlaps else ()), *self._with_quotients(self.out.lines)]
        words = launch_text.words(lines)
        return launch_text.launch(
            [f"# {line}" for line in f"{self.problem.text}; {self.config}".splitlines()], lines,
            [each for each in self._given if each.name in words], {}, self.facts, self.chip.overlaps,
            header=HEADER, jit="gluon.jit", functions=functions, num_warps=WARPS, num_stages=1,
            grid=(row_blocks(self) * self.heads, sizes.ONE, sizes.ONE), descriptors=tuple(self.described),
        )  # fmt: skip

    def _with_quotients(self, lines: list[str]) -> list[str]:
        return launch_text.with_quotients(lines, self.problem.symbols, self.body.quotients, self.facts)


def _function(name: str, parameters: list[str], lines: list[str]) -> str:
    return "\n".join(["@gluon.jit", f"def {name}({', '.join(parameters)}):", *(f"    {line}" for line in lines)])
