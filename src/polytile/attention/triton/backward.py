"""The backward pass of attention: two launches without atomics, so that equal calls give bitwise equal results.

    launch 0   program (head of q, block of rows):   delta = Σ_d grad·out, to scratch
                   for each block of keys that they see:    p = exp(s - lse);  ds = p·(grad·vᵀ - delta)·slope;  dq += ds·k
    launch 1   program (head of k, block of keys):
                   for each head of q that shares it, for each block of rows that see them:
                       p, ds as above;  dv += pᵀ·grad;  dk += dsᵀ·q

`slope` is the derivative of a score by its product, where the problem has scores as an expression. Launch 0 stores the gradient
of the scores if that is wanted; it then goes through all keys. A gradient of lse is taken
from delta. The rows that see a block of keys are bounded by the mask's expression, as the keys of a block of rows are.

A row that attends to no key has an lse of -inf and no gradient.

Legal where the forward kernel has stored lse. Costs seven tile products where the forward pass has two, as both launches
recompute the scores. FlashAttention-2 computes them once and accumulates dq by atomics.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from polytile.attention.bounds import WHOLE
from polytile.attention.problem import AttentionProblem, symbol
from polytile.attention.triton.dropout import dropped, kept_lines, numbers, scaled
from polytile.attention.triton.flash import order
from polytile.attention.triton.unit import LOG2E, Unit, row_blocks
from polytile.codegen.triton.kernel import Launch, Scratch, TritonKernel
from polytile.codegen.triton.text import value_type
from polytile.codegen.triton.tile import blocks
from polytile.ir import sizes
from polytile.matmul.triton.unit import Chip
from polytile.problem import Config
from polytile.schedule.facts import Facts


def backward(problem: AttentionProblem, config: Config, facts: Facts, chip: Chip) -> TritonKernel:
    """Both launches, and scratch memory for delta, one number per row."""
    first = Unit(problem, config, facts, chip)
    launches = _of_queries(first), _of_keys(Unit(problem, config, facts, chip))
    return TritonKernel(launches, (Scratch(torch.float32, first.heads * first.row_count),))


def _of_queries(unit: Unit) -> Launch:
    line = unit.out.line
    order(unit)
    _rows(unit)
    unit.queries("out", "Dv", "out_block")
    line("delta = tl.sum(grad_block.to(tl.float32) * out_block.to(tl.float32), 1)")
    if unit.problem.lse:
        line(f"delta -= {_of_rows(unit, 'grad_lse')}")
    line(f"tl.store({unit.scratch(0, torch.float32)} + {_row(unit)}, delta, mask=inside)")
    unit.keys_at()
    numbers(unit)
    unit.hoist()
    line("acc_q = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)")
    seen = replace(unit.bounds(), some=WHOLE.some, all=None) if unit.problem.changes else unit.bounds()
    for part in unit.parts(seen):
        with unit.out.indented(f"for j in range({part.first}, {part.last}, BLOCK_N):"):
            line("j = tl.multiple_of(j, BLOCK_N)")
            line(f"k_block = {unit.key_block('k', 'D', part.masked)}")
            line(f"v_block = {unit.key_block('v', 'Dv', part.masked)}")
            _changes(unit, part.masked, kept=unit.problem.changes)
            line(f"acc_q = {unit.dot('ds', 'k_block', 'acc_q')}")
    _store(unit, "dq", "D", f"acc_q * {unit.scale!r}", "p1", "p2", "inside[:, None]")
    return unit.launch((row_blocks(unit) * unit.heads, sizes.ONE, sizes.ONE))


def _of_keys(unit: Unit) -> Launch:
    line, out = unit.out.line, unit.out
    keys, heads = unit.number("Mkv"), unit.number("Hkv")
    tiles = blocks(symbol("Mkv"), unit.constants["BLOCK_N"])
    line(f"tiles = {unit.index(tiles)}")
    line(f"j = {unit.wide('tl.program_id(0) % tiles')} * BLOCK_N")
    line("number = tl.program_id(0) // tiles")
    line(f"p0 = {unit.wide(f'number // {heads}')}")
    line(f"kv = {unit.wide(f'number % {heads}')}")
    unit.sequence()
    unit.keys_at()
    numbers(unit)
    line(f"k_block = {unit.key_block('k', 'D', masked=True)}")
    line(f"v_block = {unit.key_block('v', 'Dv', masked=True)}")
    line("acc_k = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)")
    line("acc_v = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)")
    seen, rows = unit.rows_that_see().some, unit.number("Mq")
    lowest = "0" if seen.low is None else f"tl.maximum({unit.index(seen.low)}, 0) // BLOCK_M * BLOCK_M"
    highest = rows if seen.high is None else f"tl.minimum({rows}, {unit.index(seen.high)})"
    line(f"lowest = {lowest}")
    line(f"highest = {f'tl.where(j < {keys}, {highest}, 0)' if unit.layout.own_keys else highest}")
    with out.indented(f"for member in range({unit.group}):"), out.indented("for i in range(lowest, highest, BLOCK_M):"):
        line("block = tl.full([], 0, tl.int32) + i // BLOCK_M")  # a tensor, under the interpreter too
        unit.place("block", f"(number // {heads}) * {unit.number('Hq')} + (number % {heads}) * {unit.group} + member")
        _rows(unit)
        line(f"delta = tl.load({unit.scratch(0, torch.float32)} + {_row(unit)})")
        _changes(unit, masked=True, once=True)
        weights = f"{dropped(unit, 'p')}.to({value_type(unit.problem.dtype)})"
        line(f"acc_v = {unit.dot(f'tl.trans({weights})', 'grad_block', 'acc_v')}")
        line(f"acc_k = {unit.dot('tl.trans(ds)', 'q_block', 'acc_k')}")
    places, mask = f"(j + {unit.wide('tl.arange(0, BLOCK_N)')})[:, None]", f"(j + tl.arange(0, BLOCK_N) < {keys})[:, None]"
    _store(unit, "dk", "D", f"acc_k * {unit.scale!r}", "kv", places, mask)
    _store(unit, "dv", "Dv", scaled(unit, "acc_v"), "kv", places, mask)
    return unit.launch((tiles * symbol("B") * symbol("Hkv"), sizes.ONE, sizes.ONE))


def _rows(unit: Unit) -> None:
    """Emit loads of a tile's rows of q and of the gradient, and of their log-sum-exps in base 2."""
    unit.queries("q", "D", "q_block")
    unit.queries("grad", "Dv", "grad_block")
    unit.out.line(f"log = {_of_rows(unit, 'saved')}")
    unit.out.line(f'log = tl.where(log == float("-inf"), 0.0, log) * {LOG2E}')


def _of_rows(unit: Unit, name: str) -> str:
    """A load of the number that a tensor has for each row."""
    pointer = f"{unit.base(name, 'p1')} + row * {unit.number(f'{name}_stride_m')}"
    return unit.load(pointer, ["inside"] if unit.layout.own_rows else [])


def _row(unit: Unit) -> str:
    """The indices of the rows among those of all heads."""
    return f"(p0.to(tl.int64) * {unit.number('Hq')} + p1) * {unit.most('Mq')} + row"


def _changes(unit: Unit, masked: bool, once: bool = False, kept: bool = False) -> None:
    """Emit the softmax weights `p` of a tile of scores, and the gradient `ds` of its products.

    With `once`, rows past the end are masked: they repeat the last row, and here no masked store drops what they add. With
    `kept`, the gradient of the scores is stored.
    """
    line = unit.out.line
    line(f"s = {unit.dot('q_block', 'k_block.T')}")
    unit.out.extend(unit.score_lines(masked))
    line(f"p = tl.exp2(s * {unit.unit!r} - log[:, None])")
    if once:
        line("p = tl.where(inside[:, None], p, 0.0)")
    unit.out.extend(kept_lines(unit))
    of_weights = scaled(unit, dropped(unit, unit.dot("grad_block", "v_block.T")))
    line(f"ds = p * ({of_weights} - delta[:, None])")
    if kept:
        line("keys = j + tl.arange(0, BLOCK_N)")
        at = f"{unit.base('dscores', 'p1')} + row[:, None].to(tl.int64) * {unit.number('dscores_stride_m')} + keys[None, :]"
        mask = f"inside[:, None] & (keys < {unit.number('Mkv')})[None, :]"
        line(f"tl.store({at}, ds.to(dscores.dtype.element_ty), mask={mask})")
    slope = " * slope" if unit.scores.slope is not None else ""
    line(f"ds = (ds{slope}).to({value_type(unit.problem.dtype)})")


def _store(unit: Unit, name: str, size: str, value: str, head: str, places: str, mask: str) -> None:
    """Emit the store of a tile's rows of a gradient."""
    along = f"tl.arange(0, {'BLOCK_D' if size == 'D' else 'BLOCK_DV'})[None, :]"
    stride = unit.number(f"{name}_stride_{'m' if name == 'dq' else 'n'}")
    masks = " & ".join([mask, *unit.head_mask(size, along)])
    unit.out.line(f"{name}_at = {unit.base(name, head)} + {places} * {stride} + {along}")
    unit.out.line(f"tl.store({name}_at, ({value}).to({name}.dtype.element_ty), mask={masks})")
