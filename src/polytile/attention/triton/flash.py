"""The flash schedule: each program has a tile of rows and loops over the keys that they attend to.

    for each head, for each block of rows:
        high, total, acc = -inf, 0, 0
        for each block of keys:   s = q·kᵀ;  p = 2^(s - max(high, s));  total, acc = total·α + Σp, acc·α + p·v
        out = acc / total

Programs are ordered so that those running together belong to as many heads as fit their keys and values in the L2 cache. If rows
attend to different numbers of keys, those with the most keys come first.

Legal for heads that fit in a tile. Moves q and out once, and keys and values once per tile of rows, mostly from the L2 cache. No
scores reach memory. Elsewhere: FlashAttention-2; CUTLASS: fused multi-head attention; Triton: the fused attention tutorial.
"""

from __future__ import annotations

from polytile.attention.problem import AttentionProblem
from polytile.attention.triton.dropout import scaled
from polytile.attention.triton.unit import Unit, row_blocks
from polytile.codegen.triton.kernel import TritonKernel
from polytile.ir import sizes
from polytile.matmul.triton.unit import Chip
from polytile.problem import Config
from polytile.schedule.facts import Facts

CACHED = 16 << 20
"""Bytes of keys and values that concurrent programs share in the L2 cache."""


def flash(problem: AttentionProblem, config: Config, facts: Facts, chip: Chip) -> TritonKernel:
    """One launch, with one program per tile of rows."""
    unit = Unit(problem, config, facts, chip)
    order(unit)
    unit.queries("q", "D", "q_block")
    unit.loop()
    finish(unit)
    return TritonKernel((unit.launch((row_blocks(unit) * unit.heads, sizes.ONE, sizes.ONE)),))


def order(unit: Unit, number: str = "tl.program_id(0)", shorter: str = "") -> None:
    """Emit the code that maps the number of a program, or of one of its turns, to its tile and head.

    With `shorter`, a condition, the number is that of a pair of tiles. One is as far from the longest of their section as the
    other is from the shortest. The condition says which one is meant.
    """
    line, values = unit.out.line, unit.facts.values
    line(f"tiles = {unit.index(row_blocks(unit))}")
    line(f"number = {number}")
    if unit.scores.mask is None:
        unit.place("(number % tiles)", "number // tiles")
        return
    shared, halves = 1 if unit.packed else unit.group, 2 if shorter else 1
    bytes_of_key = (values["D"] + values["Dv"]) * unit.problem.dtype.itemsize
    cached = CACHED // bytes_of_key // halves
    line(f"together = tl.maximum(1, {cached} // tl.maximum({unit.most('Mkv')}, 1)) * {shared * halves}")
    line(f"section = number // (together * tiles // {halves})" if shorter else "section = number // (together * tiles)")
    line(f"heads = tl.minimum(together, {unit.index(unit.heads)} - section * together)")
    line(f"number -= section * (together * tiles // {halves})" if shorter else "number = number % (together * tiles)")
    if shorter:
        line(f"number = tl.where({shorter}, heads * tiles - 1 - number, number)")
    unit.place("(tiles - 1 - number // heads)", "section * together + number % heads")


def finish(unit: Unit) -> None:
    """Emit the code that stores the results of the loop."""
    line, problem = unit.out.line, unit.problem
    if problem.lse:
        line(f"tl.store({lse_at(unit)}, {unit.logarithm}, mask=inside)")
    line(f"total = {unit.divisor}")
    line(f"acc = {scaled(unit, 'acc')} / total[:, None]")
    store(unit, "acc", "tl.arange(0, BLOCK_DV)[None, :]")


def lse_at(unit: Unit) -> str:
    """The addresses of the rows' log-sum-exps."""
    head, query = ("tl.ravel(p1)", "tl.ravel(p2)") if unit.packed else ("p1", "tl.ravel(p2)")
    if unit.layout.own_rows:
        return f"lse + {head}.to(tl.int64) * {unit.number('Tq')} + first_row + {query}"
    return f"lse + (p0.to(tl.int64) * {unit.number('Hq')} + {head}) * {unit.number('Mq')} + {query}"


def store(unit: Unit, value: str, along: str) -> None:
    """Emit the code that stores the tile's rows of `value` in out, in the columns `along`."""
    masks = " & ".join(["inside[:, None]", *unit.head_mask("Dv", along)])
    unit.out.line(f"out_at = {unit.base('out', 'p1')} + p2 * {unit.number('out_stride_m')} + {along}")
    unit.out.line(f"tl.store(out_at, {value}.to(out.dtype.element_ty), mask={masks})")
