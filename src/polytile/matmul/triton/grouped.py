"""Grouped products: group sizes are in memory, and programs find their tiles by reading them.

    along m   one program per multiprocessor, or a small multiple, loops over the tiles of all groups. A tile's group is found by
              counting the row tiles of the groups, GROUPS of them at a time. Rows after the last group form one more group,
              whose result is zero.
    along k   one program per tile of a group's result, over the group's part of k.

With tensor descriptors (`grouped_tma`, along m) a tile that is partly the next group's is loaded whole; its rows are not stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import sympy
from torch.utils._sympy.functions import FloorDiv, Min

from polytile.codegen.triton.kernel import TritonKernel
from polytile.matmul.gemm_kernel import ENDS
from polytile.matmul.triton.operands import symbol
from polytile.matmul.triton.product import blocks, ceil_div, described, described_product, product, program, unit_of
from polytile.matmul.triton.schedule import schedule_of
from polytile.matmul.triton.unit import ROWS, Chip, Unit
from polytile.problem import Config
from polytile.schedule.facts import Facts

if TYPE_CHECKING:
    from polytile.matmul.gemm_kernel import GemmKernel

Product = Callable[[Unit, str, str], None]
"""Emits the loop over k of a tile, between two bounds."""
GROUPS = 128
"""Number of groups whose ends are read at once."""


def grouped(kernel: GemmKernel, config: Config, facts: Facts, chip: Chip) -> TritonKernel:
    """A grouped product.

        c[m, n] = sum(a[m, k] * b[group of m, k, n])
            →   for p in programs: for g, at in blocks p, p + programs, ... of all groups:
                    for k in blocks: acc += a[at, k] @ b[g, k, at]
        c[g, m, n] = sum(a[m, k] * b[k, n] for k in g)
            →   for g, at in programs: for k in blocks of g: acc += a[at, k] @ b[k, at]

    Legal at any sizes. Only a group's last tile may be partial. Moves what `tile` does, group by group. Elsewhere: CUTLASS:
    grouped GEMM with a device-side scheduler; Triton: the grouped GEMM tutorial, with the sizes of one launch in memory.
    """
    unit = unit_of(kernel, config, facts, chip)
    if kernel.spec.grouped == "k":
        _parts_of_k(unit)
        return TritonKernel((unit.launch(blocks(unit)),))
    unit.constants |= {"GROUPS": GROUPS, "PROGRAMS": chip.sms * int(config["places"])}
    by_descriptors = schedule_of(config).described and described(unit)
    _groups_of_rows(unit, described_product if by_descriptors else product)
    rows_of_blocks = FloorDiv(symbol("M"), sympy.Integer(unit.constants["BLOCK_M"])) + symbol("batch") + 1
    most = rows_of_blocks * ceil_div(symbol("N"), unit.constants["BLOCK_N"])
    return TritonKernel((unit.launch(Min(most, sympy.Integer(unit.constants["PROGRAMS"]))),))


def _parts_of_k(unit: Unit) -> None:
    unit.place(program(unit), int(unit.config["group"]))
    if not unit.kernel.spec.batched:
        unit.out.line("item = 0")
    _range(unit, "K")
    unit.part_of_k = True
    product(unit, "first", "end")
    unit.epilogue("acc")


def _range(unit: Unit, length: str) -> None:
    """Emit `first` and `end`, the bounds of group `item` on an axis of this length."""
    line, whole = unit.out.line, unit.number(length)
    line(f"first = tl.load({ENDS} + item - 1, mask=item > 0, other=0)")
    line(f"end = tl.load({ENDS} + item, mask=item < {unit.number('batch')}, other={whole})")
    line(f"first = tl.minimum(tl.maximum(first, 0), {whole})")
    line(f"end = tl.maximum(tl.minimum(end, {whole}), first)")


def _counted(unit: Unit) -> None:
    """Emit `ours`, the number of row tiles of the groups from number `base` on."""
    line, m, groups = unit.out.line, unit.number("M"), unit.number("batch")
    line("at = base + tl.arange(0, GROUPS)")
    line(f"begins = tl.load({ENDS} + at - 1, mask=(at > 0) & (at <= {groups}), other=0)")
    line(f"ends = tl.load({ENDS} + at, mask=at < {groups}, other={m})")
    line(f"begins = tl.where(at > {groups}, {m}, tl.minimum(tl.maximum(begins, 0), {m}))")
    line(f"ends = tl.maximum(tl.minimum(ends, {m}), begins)")
    line("ours = tl.cdiv(ends - begins, BLOCK_M).to(tl.int32)")  # M may have 64 bits


def _groups_of_rows(unit: Unit, multiplied: Product) -> None:
    line, out, groups = unit.out.line, unit.out, unit.number("batch")
    line(f"tiles_n = tl.cdiv({unit.number('N')}, BLOCK_N)")
    line("total = 0")
    with out.indented(f"for base in range(0, {groups} + 1, GROUPS):"):
        _counted(unit)
        line("total += tl.sum(ours, 0)")
    with out.indented("for turn in range(tl.program_id(0), total * tiles_n, PROGRAMS):"):
        line("number = turn // tiles_n")
        line("item = 0")
        line("before = 0")
        line("passed = 0")
        with out.indented(f"for base in range(0, {groups} + 1, GROUPS):"):
            _counted(unit)
            line("behind = tl.cumsum(ours, 0) + passed <= number")
            line("item += tl.sum(behind.to(tl.int32), 0)")
            line("before += tl.sum(tl.where(behind, ours, 0), 0)")
            line("passed += tl.sum(ours, 0)")
        _range(unit, "M")
        line("count = end - first")
        line("tiles_m = tl.cdiv(count, BLOCK_M)")
        line("tile = turn - before * tiles_n")
        unit.walk(int(unit.config["group"]))
        line(f"depth = tl.where(item < {groups}, {unit.number('K')}, 0)")
        line(f"item = tl.minimum(item, {groups} - 1)" + (".to(tl.int64)" if unit.facts.wide else ""))
        unit.part_of_rows = True
        multiplied(unit, "0", "depth")
        unit.epilogue_in_parts("acc", int(unit.config.get("stores") or 1), f"first + {ROWS}")

