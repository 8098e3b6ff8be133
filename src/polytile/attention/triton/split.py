"""The split schedule, for few rows and many keys: `parts` programs share the keys of a tile of rows, and a second launch combines
their partial results in a fixed order, so that equal calls give bitwise equal results.

    launch 0   program (block of rows, part): as flash over its share of the keys; acc / total and log2 of the weights to scratch
    launch 1   program (row, columns of v): out = Σ 2^(log - max log) · acc  /  Σ 2^(log - max log)

`parts` follows from the sizes of the call: enough programs to fill the multiprocessors `waves` times, but at least one tile of
keys per program.

Legal where flash is. Moves keys and values once. Costs a launch, and rows × parts partial sums written and read. Elsewhere:
Flash-Decoding; FlashInfer: split-KV with a merge of states.
"""

from __future__ import annotations

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from polytile.attention.problem import AttentionProblem, symbol
from polytile.attention.triton.flash import lse_at, store
from polytile.attention.triton.unit import LN2, LOG2E, Unit, row_blocks
from polytile.codegen.triton.kernel import Launch, Scratch, TritonKernel
from polytile.ir import sizes
from polytile.matmul.triton.unit import Chip
from polytile.problem import Config
from polytile.schedule.facts import Facts

MOST = 256
"""Maximum number of parts."""
COMBINE_WARPS, STEP, COLUMNS = 4, 32, 64
"""For the second launch: warps per program, parts per iteration, and the maximum number of columns of v."""


def parts(unit: Unit) -> sympy.Expr:
    """The number of programs that share the keys of a tile of rows."""
    places = unit.chip.sms * int(unit.config["waves"])
    programs = sympy.Max(sizes.ONE, row_blocks(unit) * unit.heads)
    shares = FloorDiv(symbol("Mkv"), sympy.Integer(unit.constants["BLOCK_N"]))
    wanted = sympy.Min(FloorDiv(sympy.Integer(places), programs), shares, sympy.Integer(MOST))
    return sympy.Max(sizes.ONE, wanted)


def split(problem: AttentionProblem, config: Config, facts: Facts, chip: Chip) -> TritonKernel:
    """Two launches, and the scratch memory between them: values and log-sums of each row and part."""
    unit = Unit(problem, config, facts, chip)
    count, rows = parts(unit), unit.heads * unit.row_count
    launches = _shares(unit, count), _combine(Unit(problem, config, facts, chip), count)
    values, logs = rows * count * unit.constants["BLOCK_DV"], rows * count
    return TritonKernel(launches, (Scratch(torch.float32, values), Scratch(torch.float32, logs)))


def _place(unit: Unit) -> None:
    unit.out.line(f"tiles = {unit.index(row_blocks(unit))}")
    unit.place("tl.program_id(0) % tiles", "tl.program_id(0) // tiles")


def _shares(unit: Unit, count: sympy.Expr) -> Launch:
    line = unit.out.line
    line("part, parts = tl.program_id(1), tl.num_programs(1)")
    _place(unit)
    unit.queries("q", "D", "q_block")
    unit.loop(split=True)
    values, logs = unit.scratch(0, torch.float32), unit.scratch(1, torch.float32)
    line(f"place = ((tl.program_id(0) // tiles).to(tl.int64) * {unit.index(unit.row_count)} + row) * parts + part")
    line(f"tl.store({logs} + place, {'high' if unit.folded else f'high * {LOG2E}'} + tl.log2(total), mask=inside)")
    line("acc = acc / tl.where(total == 0, 1.0, total)[:, None]")
    line(f"tl.store({values} + place[:, None] * BLOCK_DV + tl.arange(0, BLOCK_DV)[None, :], acc, mask=inside[:, None])")
    return unit.launch((row_blocks(unit) * unit.heads, count, sizes.ONE))


def _combine(unit: Unit, count: sympy.Expr) -> Launch:
    """One program per row and COLUMNS columns of v."""
    line = unit.out.line
    block, rows = unit.constants["BLOCK_DV"], unit.heads * unit.row_count
    columns = min(COLUMNS, block)
    unit.constants |= {"BLOCK_M": 1, "MOST": MOST, "STEP": STEP, "COLUMNS": columns}
    line(f"parts = {unit.index(count)}")
    _place(unit)
    values, logs = unit.scratch(0, torch.float32), unit.scratch(1, torch.float32)
    line("place = tl.program_id(0).to(tl.int64) * parts")
    line("parts_all = tl.arange(0, MOST)")
    line(f'logs = tl.load({logs} + place + parts_all, mask=parts_all < parts, other=float("-inf"))')
    line("high = tl.max(logs, 0)")
    line('high = tl.where(high == float("-inf"), 0.0, high)')
    line("total = tl.sum(tl.exp2(logs - high), 0)")
    line("along = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]")
    line("acc = tl.zeros([COLUMNS], tl.float32)")
    with unit.out.indented("for begin in range(0, parts, STEP):"):
        line("part = begin + tl.arange(0, STEP)")
        line(f'weight = tl.exp2(tl.load({logs} + place + part, mask=part < parts, other=float("-inf")) - high)')
        line(f"value_at = {values} + (place + part)[:, None] * BLOCK_DV + along")
        line("acc += tl.sum(weight[:, None] * tl.load(value_at, mask=(part < parts)[:, None], other=0.0), 0)")
    if unit.problem.lse:
        line(f"logarithm = (high + tl.log2(total) + tl.zeros([1], tl.float32)) * {LN2}")
        line(f"tl.store({lse_at(unit)}, logarithm, mask=inside & (tl.program_id(1) == 0))")
    line(f"total = {unit.divisor}")
    line("acc = (acc / total)[None, :]")
    store(unit, "acc", "along")
    return unit.launch((rows, sympy.Integer(block // columns), sizes.ONE), COMBINE_WARPS)
