"""How the blocks of a product are gone through, one function a variant: each gives the launches and the scratch memory. Where
docstrings show code, `at` is a block of rows by columns and `a[at, k]` its rows of A along a block of k.

    tile         a program a block
    split        `splits` programs a block, each over a part of K (split_k.py)
    stream       as many programs as multiprocessors, each an equal share of all steps along k (stream.py)
    persistent   as many programs as multiprocessors, block after block, operands through tensor descriptors (TMA)
    grouped      groups of rows, or of k, whose sizes are known on the device only (grouped.py)
    rows         few rows of A, without tensor cores: a program goes along k for some columns of B
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import sympy
from torch.utils._sympy.functions import Min

from polytile.codegen.triton.kernel import TritonKernel
from polytile.errors import LoweringError
from polytile.matmul.triton import row_epilogue
from polytile.matmul.triton.grouped import grouped
from polytile.matmul.triton.operands import Operand, symbol, widened
from polytile.matmul.triton.product import blocks, ceil_div, dot, product, program, scales_at, unit_of
from polytile.matmul.triton.prologue import feed
from polytile.matmul.triton.split_k import split_k
from polytile.matmul.triton.stream import stream
from polytile.matmul.triton.unit import Chip, Unit
from polytile.problem import Config
from polytile.schedule.facts import Facts

if TYPE_CHECKING:
    from polytile.matmul.gemm_kernel import GemmKernel

MOST_ROWS = 4
"""Rows of A that the variant `rows` takes: beyond, tensor cores win."""


def tile(kernel: GemmKernel, config: Config, facts: Facts, chip: Chip) -> TritonKernel:
    """A program has one block of the result.

        c[m, n] = sum(a[m, k] * b[k, n])   →   for at in programs: for k in blocks: acc += a[at, k] @ b[k, at]
                                                                   c[at] = epilogue(acc)

    Legal at any sizes. Moves A once for each column of blocks and B once for each row of them; `group` rows of blocks run
    together, so that the L2 cache has most of that. Programs that are not a multiple of the places leave places idle.
    CUTLASS: a threadblock tile with a swizzle. Halide, TVM: tile. Triton: its matrix multiplication tutorial.
    """
    unit = unit_of(kernel, config, facts, chip)
    unit.place(program(unit), int(config["group"]))
    product(unit)
    unit.epilogue("acc")
    return TritonKernel((unit.launch(blocks(unit)),))


def persistent(kernel: GemmKernel, config: Config, facts: Facts, chip: Chip) -> TritonKernel:
    """As many programs as multiprocessors, block after block.

        for p in programs: for at in p, p + programs, ...: (as `tile`, operands by TMA copies)

    Legal at any sizes. Moves as `tile` does; saves starting programs, and registers for addresses. Descriptors need 16-byte
    aligned operands whose rows are a multiple of 16 bytes apart, and positions of 32 bits; where the facts do not say so, there
    is a batch or an operand is computed, the same walk loads through pointers. Hardware fills what lies outside with zeros.
    With `flat` both loops are one, and the first loads for a block are under way while the one before it is stored.
    CUTLASS: persistent tile scheduler with TMA loads. Triton: its persistent matmul tutorial.
    """
    unit = unit_of(kernel, config, facts, chip)
    unit.constants["PROGRAMS"] = chip.sms
    simple = not kernel.spec.batched and not facts.wide and not any(kernel.prologues)
    described = simple and all(_describable(operand, facts) for operand in unit.operands)
    for operand in unit.operands if described else ():
        unit.describe(operand)
    total = f"tl.cdiv({unit.number('M')}, BLOCK_M) * tl.cdiv({unit.number('N')}, BLOCK_N)"
    total += f" * {unit.number('batch')}" if kernel.spec.batched else ""
    turns = f"tl.program_id(0), {total}, PROGRAMS"
    with unit.out.indented(f"for turn in {f'tl.range({turns}, flatten=True)' if config.get('flat') else f'range({turns})'}:"):
        unit.place("turn + tl.full([], 0, tl.int64)" if facts.wide else "turn", int(config["group"]))
        if described:
            _described_product(unit)
        else:
            product(unit)
        unit.epilogue_in_parts("acc", int(config.get("stores") or 1))
    return TritonKernel((unit.launch(Min(blocks(unit), sympy.Integer(chip.sms))),))


def _describable(operand: Operand, facts: Facts) -> bool:
    other = next((axis for axis in (operand.rows, "k") if axis != operand.layout), "")
    return operand.layout != "any" and operand.name in facts.aligned and facts.divides(operand.stride(other))


def _described_product(unit: Unit) -> None:
    line = unit.out.line
    unit.out.extend(scales_at(unit))
    line(f"acc = tl.zeros([BLOCK_M, BLOCK_N], {unit.sums})")
    with unit.out.indented(f"for k in range(0, {unit.number('K')}, BLOCK_K):"):
        for operand in unit.operands:
            row = f"(at_{operand.size.lower()} * {operand.block}).to(tl.int32)"
            by_k = operand.layout == "k"
            value = f"desc_{operand.name}.load([{row}, k])" if by_k else f"desc_{operand.name}.load([k, {row}])"
            turned = by_k == (operand.name == "B")
            value = widened(unit.kernel, operand, f"{value}.T" if turned else value)
            line(f"{operand.name.lower()} = {value}")
        unit.out.extend(dot(unit, "a", "b"))


def rows(kernel: GemmKernel, config: Config, facts: Facts, chip: Chip) -> TritonKernel:
    """A program has BLOCK_N columns and all rows, without tensor cores.

        for n in programs: for k in blocks: for m in rows: acc[m] += a[m, k] * b[k, n]
                           c[:, n] = epilogue(sum over lanes of acc)

    Legal for up to MOST_ROWS rows, whose number the regime knows. Moves B once; every program reads A, from the cache. Products
    are added up lane by lane along k in float32 (int32), and over the lanes at the end.
    cuBLAS: gemv. CUTLASS: GemvStridedBatched. Halide, TVM: vectorize the reduction, then rfactor over lanes.
    """
    if "M" not in facts.values:
        raise LoweringError("the number of rows is not known in this regime; the variant 'rows' needs it.")
    unit, count = unit_of(kernel, config, facts, chip), facts.values["M"]
    del unit.constants["BLOCK_M"]
    a, b = unit.operands
    line, sums = unit.out.line, unit.sums
    line(f"at_n = {program(unit)}")
    if kernel.spec.batched:
        line(f"item = at_n // tl.cdiv({unit.number('N')}, BLOCK_N)")
        line(f"at_n = at_n % tl.cdiv({unit.number('N')}, BLOCK_N)")
    feeds = feed(unit, a, single=True), feed(unit, b)
    line("ks = tl.arange(0, BLOCK_K)" + (".to(tl.int64)" if facts.wide else ""))
    for each in feeds:
        unit.out.extend(each.before())
    for row in range(count):
        line(f"acc{row} = tl.zeros([BLOCK_K, BLOCK_N], {sums})")
    stages = int(config["stages"])  # named, or loads that feed no tensor core are not started ahead
    with unit.out.indented(f"for k in tl.range(0, {unit.number('K')}, BLOCK_K, num_stages={stages}):"):
        unit.out.extend(feeds[1].inside("b"))
        line(f"b = b.to({sums})")
        for row in range(count):
            unit.out.extend(feeds[0].inside(f"a{row}", str(row)))
            line(f"acc{row} += a{row}.to({sums})[:, None] * b")
        for each in feeds:
            unit.out.extend(each.after())
    for row in range(count):
        line(f"sums{row} = tl.sum(acc{row}, 0)")
        unit.epilogue(f"sums{row}", str(row), "")
    grid = ceil_div(symbol("N"), unit.constants["BLOCK_N"])
    return TritonKernel((unit.launch(grid * symbol("batch") if kernel.spec.batched else grid),))


Schedule = Callable[["GemmKernel", Config, Facts, Chip], TritonKernel]

SCHEDULES: dict[str, Schedule] = {
    "tile": tile, "split": split_k, "stream": stream, "persistent": persistent, "rows": rows, "grouped": grouped,
}  # fmt: skip


def generate(kernel: GemmKernel, config: Config, facts: Facts, chip: Chip) -> TritonKernel:
    """The launches of `kernel` under `config`, right wherever `facts` hold and the config is valid, for devices like `chip`.
    Raises LoweringError where a type or an operation has no Triton form."""
    launches = SCHEDULES[str(config["variant"])](kernel, config, facts, chip)
    return row_epilogue.completed(Unit(kernel, config, facts, chip), launches)
