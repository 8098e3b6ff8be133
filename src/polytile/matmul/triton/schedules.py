"""The schedules of a product's tiles, one function per variant; each returns the launches and the scratch memory. In the code of
docstrings, `at` is a tile of rows by columns, and `a[at, k]` its rows of A along a block of k.

    tile         one program per tile
    split        `splits` programs per tile, each over a part of K (split_k.py)
    stream       one program per multiprocessor, each with an equal share of all steps along k (stream.py)
    persistent   one program per multiprocessor, which loops over tiles; operands through tensor descriptors (TMA)
    grouped      groups of rows, or of k, whose sizes are known only on the device (grouped.py)
    grouped_tma  the same, operands through tensor descriptors
    rows         few rows of A, without tensor cores: a program reduces along k for some columns of B
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
from polytile.matmul.triton.operands import symbol
from polytile.matmul.triton.product import blocks, ceil_div, described, described_product, product, program, unit_of
from polytile.matmul.triton.prologue import feed, positions
from polytile.matmul.triton.split_k import split_k
from polytile.matmul.triton.stream import stream
from polytile.matmul.triton.unit import Chip, Unit
from polytile.problem import Config
from polytile.schedule.facts import Facts

if TYPE_CHECKING:
    from polytile.matmul.gemm_kernel import GemmKernel

MOST_ROWS = 4
"""Maximum number of rows of A for the variant `rows`; beyond, tensor cores win."""


def tile(kernel: GemmKernel, config: Config, facts: Facts, chip: Chip) -> TritonKernel:
    """One program per tile of the result.

        c[m, n] = sum(a[m, k] * b[k, n])   →   for at in programs: for k in blocks: acc += a[at, k] @ b[k, at]
                                                                   c[at] = epilogue(acc)

    Legal at any sizes. Moves A once per column of tiles and B once per row of tiles; `group` rows of tiles run together, so that
    the L2 cache serves most of that. If the number of programs is not a multiple of the resident slots, the last wave leaves some
    idle (wave quantisation). Elsewhere: CUTLASS: a threadblock tile with a swizzle; Halide, TVM: tile; Triton: the matrix
    multiplication tutorial.
    """
    unit = unit_of(kernel, config, facts, chip)
    unit.place(program(unit), int(config["group"]))
    product(unit)
    unit.epilogue("acc")
    return TritonKernel((unit.launch(blocks(unit)),))


def persistent(kernel: GemmKernel, config: Config, facts: Facts, chip: Chip) -> TritonKernel:
    """One program per multiprocessor, which loops over tiles.

        for p in programs: for at in p, p + programs, ...: (as `tile`, operands by TMA copies)

    Legal at any sizes. Moves what `tile` does; saves program starts, and registers for addresses. Descriptors need 16-byte
    aligned operands, a row pitch that is a multiple of 16 bytes, and 32-bit positions. If the facts do not guarantee that, or
    there is a batch or a computed operand, the same loop loads through pointers. Hardware fills out-of-bounds elements with
    zeros. With `flat`, both loops are flattened into one, so that the first loads of a tile overlap with the store of the one
    before it. Elsewhere: CUTLASS: persistent tile scheduler with TMA loads; Triton: the persistent matmul tutorial.
    """
    unit = unit_of(kernel, config, facts, chip)
    unit.constants["PROGRAMS"] = chip.sms
    multiplied = product if kernel.spec.batched or not described(unit) else described_product
    total = f"tl.cdiv({unit.number('M')}, BLOCK_M) * tl.cdiv({unit.number('N')}, BLOCK_N)"
    total += f" * {unit.number('batch')}" if kernel.spec.batched else ""
    turns = f"tl.program_id(0), {total}, PROGRAMS"
    with unit.out.indented(f"for turn in {f'tl.range({turns}, flatten=True)' if config.get('flat') else f'range({turns})'}:"):
        unit.place("turn + tl.full([], 0, tl.int64)" if facts.wide else "turn", int(config["group"]))
        multiplied(unit)
        unit.epilogue_in_parts("acc", int(config.get("stores") or 1))
    return TritonKernel((unit.launch(Min(blocks(unit), sympy.Integer(chip.sms))),))


def rows(kernel: GemmKernel, config: Config, facts: Facts, chip: Chip) -> TritonKernel:
    """A program has BLOCK_N columns and all rows, without tensor cores.

        for n in programs: for k in blocks: for m in rows: acc[m] += a[m, k] * b[k, n]
                           c[:, n] = epilogue(sum over lanes of acc)

    Legal for up to MOST_ROWS rows, whose number the regime must know. Moves B once; every program reads A from the cache.
    Products are accumulated per lane along k in float32 (int32), and across lanes at the end. Elsewhere: cuBLAS: gemv; CUTLASS:
    GemvStridedBatched; Halide, TVM: vectorize the reduction, then rfactor over lanes.
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
    unit.out.extend(positions(unit))
    for each in feeds:
        unit.out.extend(each.before())
    for row in range(count):
        line(f"acc{row} = tl.zeros([BLOCK_K, BLOCK_N], {sums})")
    stages = int(config["stages"])  # explicit, or Triton does not pipeline loads that feed no tensor core
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
    "grouped_tma": grouped,
}  # fmt: skip


def generate(kernel: GemmKernel, config: Config, facts: Facts, chip: Chip) -> TritonKernel:
    """The launches of `kernel` under `config` for devices like `chip`, correct wherever `facts` hold and the config is valid.

    Raises
    ------
    LoweringError
        If a dtype or an operation has no Triton form.
    """
    launches = SCHEDULES[str(config["variant"])](kernel, config, facts, chip)
    return row_epilogue.completed(Unit(kernel, config, facts, chip), launches)
