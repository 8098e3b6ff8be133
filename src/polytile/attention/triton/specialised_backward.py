"""The backward pass by specialised warps: in each of two launches one warp of a program only loads, the others only compute.

    launch 0   program (head of q, block of rows), each computing warpgroup with 64 rows:    delta = Σ_d grad·out - grad_lse
                   for each block of keys:   s = q·kᵀ - lse, dp = grad·vᵀ - delta;   p = exp(s);   dq += p·dp·k
    launch 1   program (head of k, block of keys), each computing warpgroup with 64 keys:
                   for each head of q that shares it, for each block of rows:
                       sᵀ = k·qᵀ - lse, dpᵀ = v·gradᵀ - delta;   pᵀ = exp(sᵀ);   dv += pᵀ·grad;   dk += pᵀ·dpᵀ·q

No atomics: equal calls give identical bits. The products s and dp start from -lse / scale and -delta, which takes no registers
besides theirs: with more of them, ptxas would have every product wait for the one before. Launch 0 leaves both numbers of each
row in scratch memory, padded to whole blocks, with an infinite one where a row sees no key or does not exist. Such rows add
nothing, and their blocks need no mask. The left operands of the last products stay in registers.

Legal where `warps.py` says and the forward kernel has stored lse. Costs seven tile products, as `backward` does. Elsewhere:
FlashAttention-3, which computes scores once and adds to dq by atomics, or in turns if it has to be deterministic.
"""

from __future__ import annotations

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

LOAD_KEYS = """
@gluon.jit
def load(
    desc_q, desc_grad, desc_k, desc_v, q_tiles, q_ready, grad_tiles, grad_ready, k_tiles, k_ready, k_free, v_tiles, v_ready,
    v_free, p0, p1, kv, start, lo, hi
):
    for member in tl.static_range(MEMBERS):
        copy(desc_q, p0, p1, start + ROWS * member, q_tiles.index(member), q_ready.index(member))
        copy(desc_grad, p0, p1, start + ROWS * member, grad_tiles.index(member), grad_ready.index(member))
    step = 0
    for j in range(lo, hi, BLOCK_N):
        fetch(desc_k, p0, kv, j, k_tiles, k_ready, k_free, step)
        fetch(desc_v, p0, kv, j, v_tiles, v_ready, v_free, step)
        step += 1
"""
LOAD_ROWS = """
@gluon.jit
def load(
    desc_k, desc_v, desc_q, desc_grad, k_tiles, k_ready, v_tiles, v_ready, q_tiles, q_ready, q_free, grad_tiles, grad_ready,
    grad_free, p0, kv, start, lo, hi
):
    for member in tl.static_range(MEMBERS):
        copy(desc_k, p0, kv, start + ROWS * member, k_tiles.index(member), k_ready.index(member))
        copy(desc_v, p0, kv, start + ROWS * member, v_tiles.index(member), v_ready.index(member))
    step = 0
    for member in range(GROUP):
        for i in range(lo, hi, BLOCK_M):
            fetch(desc_q, p0, kv * GROUP + member, i, q_tiles, q_ready, q_free, step)
            fetch(desc_grad, p0, kv * GROUP + member, i, grad_tiles, grad_ready, grad_free, step)
            step += 1
"""
"""The functions of the loading warps of both launches."""
LOGARITHMS, DELTAS = 0, 1
"""The numbers of the scratch buffers."""


def specialised_backward(problem: AttentionProblem, config: Config, facts: Facts, chip: Chip) -> TritonKernel:
    """Both launches, and scratch memory for two numbers per row. Launch 0 has tiles of n rows and steps of m keys, launch 1 tiles
    of n keys and steps of m rows. Raises LoweringError where the facts do not say that the copy engine accepts the tensors."""
    turned: dict[str, Any] = {**dict(config.values), "m": config["n"], "n": config["m"]}
    first = _OfQueries(problem, Config.of(**turned), facts, chip)
    launches = first.whole(), _OfKeys(problem, config, facts, chip).whole()
    count = first.heads * first.padded_rows
    return TritonKernel(launches, (Scratch(torch.float32, count), Scratch(torch.float32, count)))


class _Backward(SpecialisedUnit):
    """A launch of the backward pass."""

    @property
    def padded_rows(self) -> sympy.Expr:
        """The rows of a head in scratch memory."""
        tile = max(self.constants["BLOCK_M"], self.constants["BLOCK_N"])
        return blocks(symbol("Mq"), tile) * tile

    def kept(self, number: int, head: str = "p1") -> str:
        """The address of a head's first row in scratch memory."""
        place = f"(p0.to(tl.int64) * {self.number('Hq')} + {head}) * ({self.index(self.padded_rows)})"
        return f"{self.scratch(number, torch.float32)} + {place}"

    def store(self, name: str, value: str, tile: str, head: str) -> None:
        """Emit the store of a warpgroup's rows of a gradient by way of a tile in shared memory that all have read."""
        line = self.out.line
        line(f"tile = {tile}_tiles.index(MEMBER)")
        line(f"matrix(tile).store(({value}).to({value_type(self.problem.dtype)}))")
        line("fence_async_shared()")
        line(f"tma.async_copy_shared_to_global(desc_{name}, [p0, {head}, start + ROWS * MEMBER, 0], tile)")

    def operand(self, value: str) -> str:
        """A tile of scores as the left operand of a product."""
        return f"tl.convert_layout(({value}).to({value_type(self.problem.dtype)}), WEIGHTS)"


class _OfQueries(_Backward):
    """Launch 0."""

    tiles_of = {
        "q": ("ROWS", "MEMBERS"), "grad": ("ROWS", "MEMBERS"), "k": ("BLOCK_N", "STAGES"), "v": ("BLOCK_N", "STAGES"),
        "dq": ("ROWS", ""),
    }  # fmt: skip

    def whole(self) -> Launch:
        """The launch, with one program per tile of rows."""
        order(self)
        parts = self.parts(self.bounds())
        self._compute(parts)
        ends = dict.fromkeys(end for part in parts for end in (part.first, part.last))
        compute = self.named("desc_dq", "p0", "p1", "start", *ends)
        load = ["desc_q", "desc_grad", "desc_k", "desc_v", *self.shared, "p0", "p1", "kv", "start", "lo", "hi"]
        self.begin(compute, load)
        return self.finished(compute, LOAD_KEYS, row_blocks(self) * self.heads)

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
        line("k_tile = arrived(k_tiles, k_ready, step)")
        line("s = products_from(log[:, None], q_tile, k_tile)")
        line("dp = products_from(delta[:, None], grad_tile, arrived(v_tiles, v_ready, step))")
        line("s = warpgroup_mma_wait(1, deps=(s,))")
        self.out.extend(self.score_lines(masked))
        line(f"p = tl.exp2(s * {self.unit!r})")
        line("dp = warpgroup_mma_wait(0, deps=(dp,))")
        line("release(v_free, step)")
        line(f"ds = {self.operand('p * dp')}")
        line("acc = warpgroup_mma(ds, k_tile, acc, is_async=True)")
        line("acc = warpgroup_mma_wait(0, deps=(acc,))")
        line("release(k_free, step)")
        line("step += 1")


class _OfKeys(_Backward):
    """Launch 1."""

    tiles_of = {
        "k": ("ROWS", "MEMBERS"), "v": ("ROWS", "MEMBERS"), "q": ("BLOCK_M", "STAGES"), "grad": ("BLOCK_M", "STAGES"),
        "dk": ("ROWS", ""), "dv": ("ROWS", ""),
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
        self._compute(parts)
        ends = dict.fromkeys(end for part in parts for end in (part.first, part.last))
        compute = self.named("desc_dk", "desc_dv", "p0", "kv", "start", *ends)
        load = ["desc_k", "desc_v", "desc_q", "desc_grad", *self.shared, "p0", "kv", "start", "lo", "hi"]
        self.begin(compute, load)
        return self.finished(compute, LOAD_ROWS, tiles * heads)

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

    def _compute(self, parts: list[Part]) -> None:
        """Emit the function of a warpgroup that computes ROWS keys."""
        out, self.out = self.out, self.computing
        line = self.out.line
        line("keys = start + ROWS * MEMBER + tl.arange(0, ROWS, layout=SCORE_ROWS)")
        for name in "kv":
            line(f"mbarrier.wait({name}_ready.index(MEMBER), 0)")
            line(f"{name}_tile = matrix({name}_tiles.index(MEMBER))")
        line("acc_k = tl.zeros([ROWS, BLOCK_D], tl.float32, layout=SUMS)")
        line("acc_v = tl.zeros([ROWS, BLOCK_D], tl.float32, layout=SUMS)")
        line("step = 0")
        with self.out.indented("for member in range(GROUP):"):
            line("p1 = kv * GROUP + member")
            line(f"logs = {self.kept(LOGARITHMS)}")
            line(f"deltas = {self.kept(DELTAS)}")
            for part in parts:
                with self.out.indented(f"for i in range({part.first}, {part.last}, BLOCK_M):"):
                    self._step(part.masked)
        self.store("dk", f"acc_k * {self.scale!r}", "k", "kv")
        self.store("dv", "acc_v", "v", "kv")
        line("tma.store_wait(0)")
        self.out = out

    def _step(self, masked: bool) -> None:
        line = self.out.line
        line("rows = i + tl.arange(0, BLOCK_M, layout=COLUMNS)")
        line("p2 = rows[None, :]")
        line("log = tl.load(logs + rows)")
        line("delta = tl.load(deltas + rows)")
        line("q_tile = arrived(q_tiles, q_ready, step)")
        line("s = products_from(log[None, :], k_tile, q_tile)")
        line("grad_tile = arrived(grad_tiles, grad_ready, step)")
        line("dp = products_from(delta[None, :], v_tile, grad_tile)")
        line("s = warpgroup_mma_wait(1, deps=(s,))")
        self.out.extend(self.score_lines(masked))
        line(f"p = tl.exp2(s * {self.unit!r})")
        line("dp = warpgroup_mma_wait(0, deps=(dp,))")
        line(f"weights = {self.operand('p')}")
        line("acc_v = warpgroup_mma(weights, grad_tile, acc_v, is_async=True)")
        line(f"ds = {self.operand('p * dp')}")
        line("acc_k = warpgroup_mma(ds, q_tile, acc_k, is_async=True)")
        line("acc_v = warpgroup_mma_wait(1, deps=(acc_v,))")
        line("release(grad_free, step)")
        line("acc_k = warpgroup_mma_wait(0, deps=(acc_k,))")
        line("release(q_free, step)")
        line("step += 1")
