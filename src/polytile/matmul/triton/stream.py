"""Stream-K: the steps along k of all tiles form one sequence, and each multiprocessor processes an equal share of it.

    blocks     |----- 0 -----|----- 1 -----|----- 2 -----|        5 steps each
    programs   |---- 0 ----|---- 1 ----|---- 2 ----|-- 3 -|       4 steps each

No partial last wave remains, however many tiles there are. A program that has all steps of a tile finishes it. Otherwise it
stores at most two partial tiles, one at the beginning and one at the end of its share. A second launch sums the parts of a tile
in their order along k, so that results are the same at every call.

Legal at any sizes. Moves what `tile` does, and two accumulator tiles per program; costs the second launch. Elsewhere: CUTLASS:
Stream-K.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sympy

from polytile.codegen.triton.kernel import Launch, Scratch, TritonKernel
from polytile.matmul.triton.product import blocks, product, program, unit_of
from polytile.matmul.triton.unit import Chip, Unit, accumulator
from polytile.problem import Config
from polytile.schedule.facts import Facts

if TYPE_CHECKING:
    from polytile.matmul.gemm_kernel import GemmKernel

FINISHED_ROWS = 8
"""Rows of a tile that one program of the second launch sums."""
AHEAD = 4
"""Pipeline depth of the loads of parts in the second launch."""


def stream(kernel: GemmKernel, config: Config, facts: Facts, chip: Chip) -> TritonKernel:
    """Program p stores the part of its first tile at scratch[2 * p] and that of its last tile at scratch[2 * p + 1], each as
    BLOCK_M rows of BLOCK_N accumulators."""
    unit = unit_of(kernel, config, facts, chip)
    unit.constants["PROGRAMS"] = chip.sms
    line, scratch = unit.out.line, unit.sums_scratch()
    _share(unit)
    line(f"number = {program(unit)}")
    line("step = number * share")
    line("end = tl.minimum(step + share, total)")
    with unit.out.indented("while step < end:"):
        line("first = step % steps")
        line("last = tl.minimum(steps, first + end - step)")
        unit.place("step // steps", int(config["group"]))
        product(unit, "first * BLOCK_K", f"tl.minimum(last * BLOCK_K, {unit.number('K')})")
        with unit.out.indented("if last - first == steps:"):
            unit.epilogue("acc")
        with unit.out.indented("else:"):
            line("part = 2 * number + (first == 0).to(tl.int32)")
            inside = "tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]"
            line(f"tl.store({scratch} + part * (BLOCK_M * BLOCK_N) + ({inside}), acc)")
        line("step += last - first")
    block = int(config["m"]) * int(config["n"])
    held = Scratch(accumulator(kernel.in_dtype), sympy.Integer(2 * chip.sms * block))
    shared_out = unit.launch(sympy.Integer(chip.sms))
    if "K" in facts.values:  # K is so small that every tile is one step: no partial sums
        return TritonKernel((shared_out,), (held,))
    return TritonKernel((shared_out, _finished(kernel, config, facts, chip)), (held,))


def _share(unit: Unit) -> None:
    """Emit the number of steps of a tile, of all tiles and of one program."""
    count = f" * {unit.number('batch')}" if unit.kernel.spec.batched else ""
    tiles = f"tl.cdiv({unit.number('M')}, BLOCK_M) * tl.cdiv({unit.number('N')}, BLOCK_N){count}"
    unit.out.line(f"steps = tl.maximum(tl.cdiv({unit.number('K')}, BLOCK_K), 1)")
    unit.out.line(f"total = {tiles} * steps")
    unit.out.line("share = tl.cdiv(total, PROGRAMS)")


def _finished(kernel: GemmKernel, config: Config, facts: Facts, chip: Chip) -> Launch:
    """The launch that sums the parts of tiles that several programs share, some rows per program, and runs the epilogue.

    A tile may have strips past the last row. If 8 divides M, rows need no mask.
    """
    unit = unit_of(kernel, config, facts, chip)
    unit.constants |= {"PROGRAMS": chip.sms, "FINISH_M": FINISHED_ROWS}
    line, scratch = unit.out.line, unit.sums_scratch()
    _share(unit)
    line(f"strip = {program(unit)} % (BLOCK_M // FINISH_M)")
    line(f"block = {program(unit)} // (BLOCK_M // FINISH_M)")
    line("begin = block * steps")
    line("first, last = begin // share, (begin + steps - 1) // share")
    unit.place("block", int(config["group"]))
    with unit.out.indented(f"if (first != last) & (at_m * BLOCK_M + strip * FINISH_M < {unit.number('M')}):"):
        rows = "(strip * FINISH_M + tl.arange(0, FINISH_M))[:, None]"
        line(f"inside = {rows} * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]")
        line(f"acc = tl.zeros([FINISH_M, BLOCK_N], {unit.sums})")
        with unit.out.indented(f"for part in tl.range(first, last + 1, num_stages={AHEAD}):"):
            line("slot = 2 * part + (part * share <= begin).to(tl.int32)")
            line(f"acc += tl.load({scratch} + slot * (BLOCK_M * BLOCK_N) + inside)")
        unit.epilogue("acc", "at_m * BLOCK_M + strip * FINISH_M + tl.arange(0, FINISH_M)", "FINISH_M")
    return unit.launch(blocks(unit) * (int(config["m"]) // FINISHED_ROWS), stages=1)
