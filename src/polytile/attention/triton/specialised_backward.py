"""The backward pass by specialised warps: in each of two launches one warp of a program only loads, the others only compute.

    launch 0   program (head of q, block of rows), each computing warpgroup with 64 rows:    delta = Σ_d grad·out - grad_lse
                   for each block of keys:   s = q·kᵀ - lse, dp = grad·vᵀ - delta;   p = exp(s);   dq += p·dp·k
    launch 1   program (head of k, block of keys), each computing warpgroup with 64 keys:
                   for each head of q that shares it, for each block of rows:
                       sᵀ = k·qᵀ - lse, dpᵀ = v·gradᵀ - delta;   pᵀ = exp(sᵀ);   dv += pᵀ·grad;   dk += pᵀ·dpᵀ·q

No atomics: equal calls give identical bits. The products s and dp start from -lse / scale and -delta, which takes no further
registers. With more registers, ptxas would make every product wait for the previous one. Launch 0 leaves both numbers of each
row in scratch memory, padded to whole blocks, with an infinite one where a row sees no key or does not exist. Such rows add
nothing, and their blocks need no mask. The left operands of the last products stay in registers.

Legal where `warps.py` says and the forward kernel has stored lse. Costs seven tile products, as `backward` does. Elsewhere:
FlashAttention-3, which computes scores once and adds to dq by atomics, or in turns if it has to be deterministic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
import torch

from polytile.attention.problem import AttentionProblem, symbol
from polytile.attention.triton.flash import CACHED, order
from polytile.attention.triton.unit import Part, row_blocks
from polytile.attention.triton.warps import ROWS, SpecialisedUnit
from polytile.codegen.triton.kernel import Launch, Scratch, TritonKernel
from polytile.codegen.triton.text import value_type
from polytile.codegen.triton.tile import blocks
from polytile.matmul.triton.unit import Chip
from polytile.problem import Config
from polytile.schedule.facts import Facts

NARROW, RING = 128, 3
"""Heads up to this size have STAGES tiles of each tensor in flight. Larger ones have this many of both together."""
LARGEST = 128
"""Rows of the largest tile."""
LOGARITHMS, DELTAS = 0, 1
"""The numbers of the scratch buffers."""


def specialised_backward(problem: AttentionProblem, config: Config, facts: Facts, chip: Chip) -> TritonKernel:
    """Both launches, and scratch memory for two numbers per row. Launch 0 has tiles of n rows and steps of m keys, launch 1 tiles
    of n keys and steps of m rows. Raises LoweringError where the facts do not say that the copy engine accepts the tensors."""
    turned: dict[str, Any] = {**dict(config.values), "m": config["n"], "n": config["m"]}
    first = _OfQueries(problem, Config.of(**turned), facts, chip)
    second = _OfKeys(problem, config, facts, chip) if not first.large else _OfFewKeys.of(problem, config, facts, chip)
    launches = first.whole(), second.whole()
    count = first.heads * first.padded_rows
    return TritonKernel(launches, (Scratch(torch.float32, count), Scratch(torch.float32, count)))


class _Backward(SpecialisedUnit):
    """A launch of the backward pass."""

    @property
    def padded_rows(self) -> sympy.Expr:
        """The rows of a head in scratch memory."""
        return blocks(symbol("Mq"), LARGEST) * LARGEST

    @property
    def large(self) -> bool:
        """Whether shared memory is too small for the resident tiles and two tiles in flight of each tensor."""
        return self.constants["BLOCK_D"] > NARROW

    def kept(self, number: int, head: str = "p1") -> str:
        """The address of a head's first row in scratch memory."""
        place = f"(p0.to(tl.int64) * {self.number('Hq')} + {head}) * ({self.index(self.padded_rows)})"
        return f"{self.scratch(number, torch.float32)} + {place}"

    def fetched(self, name: str, head: str, position: str) -> str:
        """A call that has a tile of a tensor copied as soon as there is room for it."""
        tiles, step = self.held(name)
        return f"fetch(desc_{name}, p0, {head}, {position}, {tiles}_tiles, {tiles}_ready, {tiles}_free, {step})"

    def arrived(self, name: str) -> str:
        """The tile of this step, as soon as it has arrived."""
        tiles, step = self.held(name)
        return f"arrived({tiles}_tiles, {tiles}_ready, {step})"

    def released(self, name: str) -> str:
        """A call that gives the tile of this step back."""
        tiles, step = self.held(name)
        return f"release({tiles}_free, {step})"

    def held(self, name: str) -> tuple[str, str]:
        """The tiles among which those of a tensor are, and the number of this step's one."""
        return name, "step"

    def store(self, name: str, value: str, tile: str, head: str, member: str = "MEMBER") -> None:
        """Emit the store of rows number `member` of a gradient through a tile in shared memory that all warps have read."""
        line = self.out.line
        line(f"tile = {tile}_tiles.index({member})")
        line(f"matrix(tile).store(({value}).to({value_type(self.problem.dtype)}))")
        line("fence_async_shared()")
        line(f"tma.async_copy_shared_to_global(desc_{name}, [p0, {head}, start + ROWS * {member}, 0], tile)")

    def operand(self, value: str) -> str:
        """A tile of scores as the left operand of a product."""
        return f"tl.convert_layout(({value}).to({value_type(self.problem.dtype)}), WEIGHTS)"


class _OfQueries(_Backward):
    """Launch 0."""

    tiles_of = {
        "q": ("ROWS", "MEMBERS", "ready"), "grad": ("ROWS", "MEMBERS", "ready"), "k": ("BLOCK_N", "STAGES", "ready free"),
        "v": ("BLOCK_N", "STAGES", "ready free"), "dq": ("ROWS", "", ""),
    }  # fmt: skip

    def __init__(self, problem: AttentionProblem, config: Config, facts: Facts, chip: Chip) -> None:
        super().__init__(problem, config, facts, chip)
        if self.large:
            self.tiles_of = {**self.tiles_of, "v": ("BLOCK_N", "", "")}
            self.constants["STAGES"] = RING

    def held(self, name: str) -> tuple[str, str]:
        """In large heads, tiles of k and v take turns."""
        return ("k", f"2 * step + {int(name == 'v')}") if self.large else (name, "step")

    def whole(self) -> Launch:
        """The launch, with one program per tile of rows."""
        order(self)
        parts = self.parts(self.bounds())
        self._load()
        self._compute(parts)
        ends = dict.fromkeys(end for part in parts for end in (part.first, part.last))
        compute = self.named(self.computing, "p0", "p1", "start", *ends)
        load = self.named(self.loading, "p0", "p1", "kv", "start", "lo", "hi")
        self.begin(compute, load)
        return self.finished(compute, load, row_blocks(self) * self.heads)

    def _load(self) -> None:
        """Emit the function of the loading warp."""
        line = self.loading.line
        with self.loading.indented("for member in tl.static_range(MEMBERS):"):
            for name in ("q", "grad"):
                line(f"copy(desc_{name}, p0, p1, start + ROWS * member, {name}_tiles.index(member), {name}_ready.index(member))")
        line("step = 0")
        with self.loading.indented("for j in range(lo, hi, BLOCK_N):"):
            line(self.fetched("k", "kv", "j"))
            line(self.fetched("v", "kv", "j"))
            line("step += 1")

    def _compute(self, parts: list[Part]) -> None:
        """Emit the function of a warpgroup that computes ROWS rows."""
        out, self.out = self.out, self.computing
        line = self.out.line
        line("rows = start + ROWS * MEMBER + tl.arange(0, ROWS, layout=SCORE_ROWS)")
        line("p2 = rows[:, None]")
        self._numbers()
        self.hoist()
        line("mbarrier.wait(q_ready.index(MEMBER), 0)")
        line("q_tile = matrix(q_tiles.index(MEMBER))")
        line("acc = tl.zeros([ROWS, BLOCK_D], tl.float32, layout=SUMS)")
        line("step = 0")
        for part in parts:
            with self.out.indented(f"for j in range({part.first}, {part.last}, BLOCK_N):"):
                self._step(part.masked)
        self.store("dq", f"acc * {self.scale!r}", "q", "p1")
        line("tma.store_wait(0)")
        self.out = out

    def _numbers(self) -> None:
        """Emit the log-sum-exp of each row in base 2, and its delta, and keep both for the other launch."""
        line, rows = self.out.line, self.number("Mq")

        def of_rows(name: str, other: str) -> str:
            at = f"{self.base(name, 'p1')} + rows * {self.number(f'{name}_stride_m')}"
            return f"tl.load({at}, mask=rows < {rows}, other={other})"

        line("log = " + of_rows("saved", 'float("-inf")'))
        nothing = "-inf" if self.scale > 0 else "inf"
        line(f'log = tl.where(log == float("-inf"), float("{nothing}"), log * {-1 / self.scale})')
        line("own = start + ROWS * MEMBER + tl.arange(0, ROWS, layout=tl.SliceLayout(1, BY_ROWS))[:, None]")
        line("along = tl.arange(0, BLOCK_D, layout=tl.SliceLayout(0, BY_ROWS))[None, :]")
        line(f"out_at = {self.base('out', 'p1')} + own * {self.number('out_stride_m')} + along")
        line(f"out_tile = tl.load(out_at, mask=(own < {rows}) & (along < {self.number('Dv')}), other=0.0)")
        line("mbarrier.wait(grad_ready.index(MEMBER), 0)")
        line("grad_tile = matrix(grad_tiles.index(MEMBER))")
        line("delta = -tl.sum(grad_tile.load(BY_ROWS).to(tl.float32) * out_tile.to(tl.float32), 1)")
        line("delta = tl.convert_layout(delta, SCORE_ROWS)")
        if self.problem.lse:
            line(f"delta += {of_rows('grad_lse', '0.0')}")
        line(f"tl.store({self.kept(LOGARITHMS)} + rows, log)")
        line(f"tl.store({self.kept(DELTAS)} + rows, delta)")

    def _step(self, masked: bool) -> None:
        line = self.out.line
        line(f"k_tile = {self.arrived('k')}")
        line("s = products_from(log[:, None], q_tile, k_tile)")
        line(f"dp = products_from(delta[:, None], grad_tile, {self.arrived('v')})")
        line("s = warpgroup_mma_wait(1, deps=(s,))")
        self.out.extend(self.score_lines(masked))
        line(f"p = tl.exp2(s * {self.unit!r})")
        line("dp = warpgroup_mma_wait(0, deps=(dp,))")
        line(self.released("v"))
        line(f"ds = {self.operand('p * dp')}")
        line("acc = warpgroup_mma(ds, k_tile, acc, is_async=True)")
        line("acc = warpgroup_mma_wait(0, deps=(acc,))")
        line(self.released("k"))
        line("step += 1")


class _OfKeys(_Backward):
    """Launch 1."""

    tiles_of = {
        "k": ("ROWS", "MEMBERS", "ready"), "v": ("ROWS", "MEMBERS", "ready"), "q": ("BLOCK_M", "STAGES", "ready free"),
        "grad": ("BLOCK_M", "STAGES", "ready free"), "dk": ("ROWS", "", ""), "dv": ("ROWS", "", ""),
    }  # fmt: skip
    width = "BLOCK_M"

    @property
    def members(self) -> int:
        return self.constants["BLOCK_N"] // ROWS

    @property
    def key_places(self) -> str:
        return "keys[:, None]"

    def whole(self) -> Launch:
        """The launch, with one program per tile of keys."""
        self.constants["GROUP"] = self.group
        tiles, heads = blocks(symbol("Mkv"), self.constants["BLOCK_N"]), symbol("B") * symbol("Hkv")
        self._place(self.index(tiles), self.index(heads))
        parts = self.parts(self.rows_that_see(), size="Mq", block="BLOCK_M")
        self._load()
        main, self.out = self.out, self.computing
        self.compute(parts)
        self.out.line("tma.store_wait(0)")
        self.out = main
        ends = dict.fromkeys(end for part in parts for end in (part.first, part.last))
        compute = self.named(self.computing, "p0", "kv", "start", *ends)
        load = self.named(self.loading, "p0", "kv", "start", "lo", "hi")
        self.begin(compute, load)
        return self.finished(compute, load, tiles * heads)

    def _load(self) -> None:
        """Emit the function of the loading warp."""
        out, line = self.loading, self.loading.line
        with out.indented(f"for part in tl.static_range({self.constants['BLOCK_N'] // ROWS}):"):
            for name in "kv":
                line(f"copy(desc_{name}, p0, kv, start + ROWS * part, {name}_tiles.index(part), {name}_ready.index(part))")
        line("step = 0")
        with out.indented("for member in range(GROUP):"), out.indented("for i in range(lo, hi, BLOCK_M):"):
            line(self.fetched("q", "kv * GROUP + member", "i"))
            line(self.fetched("grad", "kv * GROUP + member", "i"))
            line("step += 1")

    def _place(self, tiles: str, heads: str) -> None:
        """Emit the position of the program's tile. Those that run together belong to as many heads as fit their rows in the L2
        cache; tiles of the first keys, which most rows of a causal mask see, come first."""
        line, values = self.out.line, self.facts.values
        bytes_of_row = (values["D"] + values["Dv"]) * self.problem.dtype.itemsize * self.group
        line(f"tiles = {tiles}")
        line(f"together = tl.maximum(1, {CACHED // bytes_of_row} // tl.maximum({self.number('Mq')}, 1))")
        line("section = tl.program_id(0) // (together * tiles)")
        line(f"heads = tl.minimum(together, {heads} - section * together)")
        line("number = tl.program_id(0) % (together * tiles)")
        line("j = number // heads * BLOCK_N")
        line("start = j")
        line("head = section * together + number % heads")
        line(f"p0 = head // {self.number('Hkv')}")
        line(f"kv = head % {self.number('Hkv')}")

    def compute(self, parts: list[Part]) -> None:
        """Emit what a warpgroup does, which computes ROWS keys."""
        line = self.out.line
        line("keys = start + ROWS * MEMBER + tl.arange(0, ROWS, layout=SCORE_ROWS)")
        for name in "kv":
            line(f"mbarrier.wait({name}_ready.index(MEMBER), 0)")
            line(f"{name}_tile = matrix({name}_tiles.index(MEMBER))")
        line("acc_k = tl.zeros([ROWS, BLOCK_D], tl.float32, layout=SUMS)")
        line("acc_v = tl.zeros([ROWS, BLOCK_D], tl.float32, layout=SUMS)")
        self.steps(parts, self._step)
        self.store("dk", f"acc_k * {self.scale!r}", "k", "kv")
        self.store("dv", "acc_v", "v", "kv")

    def steps(self, parts: list[Part], step: Callable[[bool], None]) -> None:
        """Emit the loop over all rows that see the program's keys."""
        line = self.out.line
        line("step = 0")
        with self.out.indented("for member in range(GROUP):"):
            line("p1 = kv * GROUP + member")
            line(f"logs = {self.kept(LOGARITHMS)}")
            line(f"deltas = {self.kept(DELTAS)}")
            for part in parts:
                with self.out.indented(f"for i in range({part.first}, {part.last}, BLOCK_M):"):
                    line("rows = i + tl.arange(0, BLOCK_M, layout=COLUMNS)")
                    line("p2 = rows[None, :]")
                    step(part.masked)
                    line("step += 1")

    def exponentials(self, masked: bool) -> None:
        """Emit the weights `p` of the products `s`."""
        self.out.extend(self.score_lines(masked))
        self.out.line(f"p = tl.exp2(s * {self.unit!r})")

    def _step(self, masked: bool) -> None:
        line = self.out.line
        line("log = tl.load(logs + rows)")
        line("delta = tl.load(deltas + rows)")
        line(f"q_tile = {self.arrived('q')}")
        line("s = products_from(log[None, :], k_tile, q_tile)")
        line(f"grad_tile = {self.arrived('grad')}")
        line("dp = products_from(delta[None, :], v_tile, grad_tile)")
        line("s = warpgroup_mma_wait(1, deps=(s,))")
        self.exponentials(masked)
        line("dp = warpgroup_mma_wait(0, deps=(dp,))")
        line(f"weights = {self.operand('p')}")
        line("acc_v = warpgroup_mma(weights, grad_tile, acc_v, is_async=True)")
        line(f"ds = {self.operand('p * dp')}")
        line("acc_k = warpgroup_mma(ds, q_tile, acc_k, is_async=True)")
        line("acc_v = warpgroup_mma_wait(1, deps=(acc_v,))")
        line(self.released("grad"))
        line("acc_k = warpgroup_mma_wait(0, deps=(acc_k,))")
        line(self.released("q"))


class _OfFewKeys(_OfKeys):
    """Launch 1 for heads whose sums of both gradients would not fit in a warpgroup's registers: both warpgroups have the same
    ROWS keys. The first computes p and dv, and hands p to the second, which computes dp and dk."""

    tiles_of = {**_OfKeys.tiles_of, "k": ("ROWS", "1", "ready"), "v": ("ROWS", "1", "ready")}

    @classmethod
    def of(cls, problem: AttentionProblem, config: Config, facts: Facts, chip: Chip) -> _OfFewKeys:
        values: dict[str, Any] = {**dict(config.values), "n": ROWS}
        return cls(problem, Config.of(**values), facts, chip)

    @property
    def members(self) -> int:
        return 2

    @property
    def shared(self) -> list[str]:
        return [*super().shared, "p_tiles", "p_ready", "p_free"]

    def begin(self, compute: list[str], load: list[str]) -> None:
        """The layout of tiles of p: threads of a warp, each with two elements of a row, write to all banks."""
        line = self.out.line
        line("p_tiles = tl.allocate_shared_memory(tl.float32, [STAGES, ROWS, BLOCK_M], tl.SwizzledSharedLayout(8, 1, 8, [1, 0]))")
        line("p_ready = barriers(STAGES, 1)")
        line("p_free = barriers(STAGES, 1)")
        super().begin(compute, load)

    def compute(self, parts: list[Part]) -> None:
        line = self.out.line
        line("keys = start + tl.arange(0, ROWS, layout=SCORE_ROWS)")
        line("acc = tl.zeros([ROWS, BLOCK_D], tl.float32, layout=SUMS)")
        for number, (name, step, gradient, value) in enumerate(
            (("k", self._of_values, "dv", "acc"), ("v", self._of_keys, "dk", f"acc * {self.scale!r}"))
        ):
            with self.out.indented(f"if MEMBER == {number}:"):
                line(f"mbarrier.wait({name}_ready.index(0), 0)")
                line(f"{name}_tile = matrix({name}_tiles.index(0))")
                self.steps(parts, step)
                self.store(gradient, value, name, "kv", "0")

    def _of_values(self, masked: bool) -> None:
        line = self.out.line
        line("log = tl.load(logs + rows)")
        line(f"s = products_from(log[None, :], k_tile, {self.arrived('q')})")
        line("s = warpgroup_mma_wait(0, deps=(s,))")
        line(self.released("q"))
        self.exponentials(masked)
        line(f"weights = {self.operand('p')}")
        line(f"acc = warpgroup_mma(weights, {self.arrived('grad')}, acc, is_async=True)")
        line("slot, turn = place(step)")
        line("mbarrier.wait(p_free.index(slot), turn ^ 1)")
        line("p_tiles.index(slot).store(p)")
        line("mbarrier.arrive(p_ready.index(slot), count=1)")
        line("acc = warpgroup_mma_wait(0, deps=(acc,))")
        line(self.released("grad"))

    def _of_keys(self, masked: bool) -> None:
        line = self.out.line
        line("delta = tl.load(deltas + rows)")
        line(f"dp = products_from(delta[None, :], v_tile, {self.arrived('grad')})")
        line("dp = warpgroup_mma_wait(0, deps=(dp,))")
        line(self.released("grad"))
        line("slot, turn = place(step)")
        line("mbarrier.wait(p_ready.index(slot), turn)")
        line("p = p_tiles.index(slot).load(SCORES)")
        line("mbarrier.arrive(p_free.index(slot), count=1)")
        line(f"ds = {self.operand('p * dp')}")
        line(f"acc = warpgroup_mma(ds, {self.arrived('q')}, acc, is_async=True)")
        line("acc = warpgroup_mma_wait(0, deps=(acc,))")
        line(self.released("q"))
