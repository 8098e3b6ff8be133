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

from polytile.attention.problem import AttentionProblem
from polytile.attention.triton.flash import order
from polytile.attention.triton.unit import Part, row_blocks
from polytile.attention.triton.warps import SpecialisedUnit
from polytile.codegen.triton import text
from polytile.codegen.triton.kernel import TritonKernel
from polytile.matmul.triton.unit import Chip
from polytile.problem import Config
from polytile.schedule.facts import Facts

LOAD = """
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
"""
"""The function of the loading warp."""


def specialised(problem: AttentionProblem, config: Config, facts: Facts, chip: Chip) -> TritonKernel:
    """One launch, with one program per tile of rows. Raises LoweringError where the facts do not say that the copy engine accepts
    the tensors."""
    unit = _Unit(problem, config, facts, chip)
    order(unit)
    parts = unit.parts(unit.bounds())
    unit.out.line("steps = tl.maximum(tl.cdiv(hi - lo, BLOCK_N), 1)")
    unit.attend(parts)
    ends = dict.fromkeys(end for part in parts for end in (part.first, part.last))
    compute = unit.named("desc_out", "p0", "p1", "start", "steps", "lo", *ends)
    unit.begin(compute, ["desc_q", "desc_k", "desc_v", *unit.shared, "p0", "p1", "kv", "start", "lo", "steps"])
    return TritonKernel((unit.finished(compute, LOAD, row_blocks(unit) * unit.heads),))


class _Unit(SpecialisedUnit):
    """The launch, with the function of its computing warpgroups."""

    tiles_of = {"q": ("ROWS", "MEMBERS"), "k": ("BLOCK_N", "STAGES"), "v": ("BLOCK_N", "STAGES"), "out": ("ROWS", "")}

    # a computing warpgroup -----------------------------------------------------------------------------------------------

    def attend(self, parts: list[Part]) -> None:
        """Emit the function of a warpgroup that computes ROWS rows."""
        out, self.out = self.out, self.computing
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
