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

Legal where `warps.py` says. Moves what `flash` does. Elsewhere: FlashAttention-3, without its turns of warpgroups.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sympy

from polytile.attention.problem import AttentionProblem
from polytile.attention.triton.flash import order
from polytile.attention.triton.unit import Part, row_blocks
from polytile.attention.triton.warps import SpecialisedUnit
from polytile.codegen.triton import text
from polytile.codegen.triton.kernel import Launch, TritonKernel
from polytile.matmul.triton.unit import Chip
from polytile.problem import Config
from polytile.schedule.facts import Facts

ROOMY = 128
"""Heads up to this size leave shared memory for tiles of out."""


def specialised(problem: AttentionProblem, config: Config, facts: Facts, chip: Chip) -> TritonKernel:
    """One launch, with one program per tile of rows, or per multiprocessor. Raises LoweringError where the facts do not say that
    the copy engine accepts the tensors."""
    return TritonKernel((_Unit(problem, config, facts, chip).whole(),))


class _Unit(SpecialisedUnit):
    """The launch, with the functions of its warps.

    A program that ends leaves its multiprocessor idle until the next one has loaded its first tiles. Resident programs load the
    next tile's while the last one ends. But who gets which tile is fixed then. Under a mask they take pairs of a long and a short
    tile, which all see equally many keys (`_pairs`).
    """

    tiles_of = {
        "q": ("ROWS", "MEMBERS", "ready free"), "k": ("BLOCK_N", "STAGES", "ready free"),
        "v": ("BLOCK_N", "STAGES", "ready free"), "out": ("ROWS", "MEMBERS", ""),
    }  # fmt: skip

    def __init__(self, problem: AttentionProblem, config: Config, facts: Facts, chip: Chip) -> None:
        super().__init__(problem, config, facts, chip)
        if self.constants["BLOCK_D"] > ROOMY:
            self.tiles_of = {**self.tiles_of, "out": ("ROWS", "", "")}

    @property
    def resident(self) -> bool:
        """Whether there are no more programs than multiprocessors, and each takes tiles in turn. Its warpgroups then take turns
        in starting products, so that exponentials of one run beside products of another; otherwise they would fall into step."""
        return bool(self.config.get("resident"))

    @property
    def out_apart(self) -> bool:
        """Whether tiles of out have memory of their own, so that q of the next tile may arrive before out has left."""
        return bool(self.tiles_of["out"][1])

    def whole(self) -> Launch:
        """The launch."""
        main, count = self.out, row_blocks(self) * self.heads
        self._load(count)
        self._compute(count)
        self.out = main
        compute, load = self.named(self.computing), self.named(self.loading)
        self.begin(compute, load)
        return self.finished(compute, load, sympy.Min(count, sympy.Integer(self.chip.sms)) if self.resident else count)

    @contextmanager
    def _turns(self, count: sympy.Expr) -> Iterator[list[Part]]:
        """Emit the loop over a program's tiles, of `count` in all, and the position of each. Yields the runs of its keys."""
        self.out.line("step = 0")
        self.out.line("visit = 0")
        with self._pairs(count) if self.in_pairs else self._singles(count):
            parts = self.parts(self.bounds())
            self.out.line("steps = tl.maximum(tl.cdiv(hi - lo, BLOCK_N), 1)")
            yield parts
            self.out.line("visit += 1")

    @property
    def in_pairs(self) -> bool:
        """Whether tiles differ in their keys, and resident programs have to share them equally."""
        return self.resident and self.scores.mask is not None

    @contextmanager
    def _singles(self, count: sympy.Expr) -> Iterator[None]:
        with self.out.indented(f"for turn in range(tl.program_id(0), {self.index(count)}, tl.num_programs(0)):"):
            order(self, "turn")
            yield

    @contextmanager
    def _pairs(self, count: sympy.Expr) -> Iterator[None]:
        """Emit rounds of as many pairs as there are programs. In each, the longer tiles of all pairs go to programs in their
        order, and the shorter ones in the opposite order: in full rounds a program gets a pair. In the last one, tiles of few
        pairs spread over all programs."""
        line, here, programs = self.out.line, "tl.program_id(0)", "tl.num_programs(0)"
        line(f"tiles_in_all = {self.index(count)}")
        with self.out.indented(f"for ahead in range(0, tl.cdiv(tiles_in_all, 2), {programs}):"):
            line(f"left = tl.minimum(2 * {programs}, tiles_in_all - 2 * ahead)")
            line(f"own = tl.where({here} < left, 1, 0) + tl.where(2 * {programs} - 1 - {here} < left, 1, 0)")
            with self.out.indented("for half in range(own):"):
                line(f"place = tl.where(half == 0, {here}, 2 * {programs} - 1 - {here})")
                line("shorter = place >= tl.cdiv(left, 2)")
                order(self, "ahead + tl.where(shorter, left - 1 - place, place)", shorter="shorter")
                yield

    def _load(self, count: sympy.Expr) -> None:
        """Emit the function of the loading warp. The first keys of a tile may arrive before the tile ahead has ended."""
        self.out = self.loading
        line = self.out.line
        fetched = {name: f"fetch(desc_{name}, p0, kv, j, {name}_tiles, {name}_ready, {name}_free, step)" for name in "kv"}
        with self._turns(count):
            line("j = lo + (steps - 1) * BLOCK_N")
            line(fetched["k"])
            with self.out.indented("for member in tl.static_range(MEMBERS):"):
                line("mbarrier.wait(q_free.index(member), visit & 1 ^ 1)")
                line("copy(desc_q, p0, p1, start + ROWS * member, q_tiles.index(member), q_ready.index(member))")
            line(fetched["v"])
            line("step += 1")
            with self.out.indented("for j in range(j - BLOCK_N, lo - BLOCK_N, -BLOCK_N):"):
                line(fetched["k"])
                line(fetched["v"])
                line("step += 1")

    # a computing warpgroup -----------------------------------------------------------------------------------------------

    def _compute(self, count: sympy.Expr) -> None:
        """Emit the function of a warpgroup that computes ROWS rows of each tile."""
        self.out = self.computing
        with self._turns(count) as parts:
            self._attend(parts)
        self.out.line("tma.store_wait(0)")

    def _attend(self, parts: list[Part]) -> None:
        line = self.out.line
        line("rows = start + ROWS * MEMBER + tl.arange(0, ROWS, layout=SCORE_ROWS)")
        line("p2 = rows[:, None]")
        self.hoist()
        line('high = tl.full([ROWS], float("-inf"), tl.float32, layout=SCORE_ROWS)')
        line("acc = tl.zeros([ROWS, BLOCK_D], tl.float32, layout=SUMS)")
        line("mbarrier.wait(q_ready.index(MEMBER), visit & 1)")
        line("q_tile = matrix(q_tiles.index(MEMBER))")
        line("end = lo + (steps - 1) * BLOCK_N")
        line("j = end")
        line("k_tile = arrived(k_tiles, k_ready, step)")
        self._turn("begin")
        line("s = products(q_tile, k_tile)")
        self._turn("end")
        self._scores(in_flight=0, masked=True)
        line(f"total = {self._summed}")
        self._keep()
        line("step += 1")
        for part in reversed(parts):
            ends = f"tl.minimum(end, {part.last}) - BLOCK_N, {part.first} - BLOCK_N, -BLOCK_N"
            with self.out.indented(f"for j in range({ends}):"):
                self._step(part.masked)
        self._finish()

    def _step(self, masked: bool) -> None:
        line = self.out.line
        line("k_tile = arrived(k_tiles, k_ready, step)")
        line("v_tile = arrived(v_tiles, v_ready, step - 1)")
        self._turn("begin")
        line("s = products(q_tile, k_tile)")
        line("acc = warpgroup_mma(unpacked(pairs), v_tile, acc, is_async=True)")
        self._turn("end")
        self._scores(in_flight=1, masked=masked)
        line(f"total = total * {'over(alpha, total)' if self.sums_apart else 'alpha'} + {self._summed}")
        if not masked:  # a barrier that has been passed: ptxas would else have the exponentials wait for the products
            line("arrived(v_tiles, v_ready, step - 1)")
        line("acc, p = warpgroup_mma_wait(0, deps=(acc, p))")
        line("release(v_free, step - 1)")
        line("acc = acc * tl.convert_layout(alpha, SUM_ROWS)[:, None]")
        self._keep()
        line("step += 1")

    def _turn(self, what: str) -> None:
        """Emit the wait for the warpgroup's turn, or the end of it."""
        if self.resident and what == "begin":
            self.out.line("mbarrier.wait(turns.index(MEMBER), step & 1 ^ (1 if MEMBER == 0 else 0))")
        elif self.resident:
            self.out.line("mbarrier.arrive(turns.index((MEMBER + 1) % MEMBERS), count=1)")

    @property
    def sums_apart(self) -> bool:
        """Whether a row's weights are summed by each thread that has some of them, and over threads in the end only. That spares
        exchanges at each step, but takes registers, of which three warpgroups have none left."""
        return self.members == 2

    @property
    def _summed(self) -> str:
        return "sums(p)" if self.sums_apart else "tl.sum(p, 1)"

    @property
    def shared(self) -> list[str]:
        return [*super().shared, *(["turns"] if self.resident else [])]

    def begin(self, compute: list[str], load: list[str]) -> None:
        if self.resident:
            self.out.line("turns = barriers(MEMBERS, 1)")
        super().begin(compute, load)

    def _scores(self, in_flight: int, masked: bool) -> None:
        """Emit what follows the start of a block's products: their end, scores and weights."""
        self.out.line(f"s = warpgroup_mma_wait({in_flight}, deps=(s,))")
        self.out.line("release(k_free, step)")
        self.out.extend(self.score_lines(masked))
        self.out.extend(self.weights(masked))

    def _keep(self) -> None:
        """Emit what the next step needs of this one: weights in the layout of a left operand, and the maximum."""
        self.out.line("pairs = packed(p)")
        self.out.line("high = most")

    def _finish(self) -> None:
        """Emit the last products and the stores. The tile of q has been read by then, and makes room for that of out if this has
        none."""
        line, problem = self.out.line, self.problem
        left = "mbarrier.arrive(q_free.index(MEMBER), count=1)"
        if self.out_apart:
            line(left)
        line("acc = warpgroup_mma(unpacked(pairs), arrived(v_tiles, v_ready, step - 1), acc, is_async=True)")
        line("acc = warpgroup_mma_wait(0, deps=(acc,))")
        line("release(v_free, step - 1)")
        if self.sums_apart:
            line("total = tl.convert_layout(tl.sum(total, 1), SCORE_ROWS)")
        if problem.lse:
            at = f"lse + (p0.to(tl.int64) * {self.number('Hq')} + p1) * {self.number('Mq')} + rows"
            line(f"tl.store({at}, {self.logarithm}, mask=rows < {self.number('Mq')})")
        line(f"total = {self.divisor}")
        line("acc = acc * tl.convert_layout(1.0 / total, SUM_ROWS)[:, None]")
        line(f"tile = {'out' if self.out_apart else 'q'}_tiles.index(MEMBER)")
        if self.out_apart:
            line("tma.store_wait(0)")
        line(f"matrix(tile).store(acc.to({text.value_type(problem.dtype)}))")
        line("fence_async_shared()")
        line("tma.async_copy_shared_to_global(desc_out, [p0, p1, start + ROWS * MEMBER, 0], tile)")
        if not self.out_apart:
            line("tma.store_wait(0)")
            line(left)
