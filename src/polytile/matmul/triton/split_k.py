"""Split-K: `splits` programs share a tile of the result, each over a part of K; a second launch sums the parts.

    for at, part in programs: for k in part: acc += a[at, k] @ b[k, at]; scratch[part, at] = acc
    for at in programs: c[at] = epilogue(sum(scratch[:, at]))

Legal at any sizes. Costs a launch, and splits × M × N partial sums written and read. For few tiles and a long K
(`configs.Space._split_pays`). Elsewhere: CUTLASS: parallel split-K; Halide, TVM: rfactor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polytile.codegen.triton.kernel import Launch, Scratch, TritonKernel
from polytile.matmul.triton.operands import symbol
from polytile.matmul.triton.product import blocks, product, program, unit_of
from polytile.matmul.triton.unit import FINISH_BLOCK, Chip, Unit, accumulator
from polytile.problem import Config
from polytile.schedule.facts import Facts

if TYPE_CHECKING:
    from polytile.matmul.gemm_kernel import GemmKernel

AT_ONCE = 8
"""Number of parts whose loads overlap, to hide the memory latency."""
PLACES = "m = at_m * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]", "n = at_n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]"
"""Lines with the rows and columns of a program's tile."""


def split_k(kernel: GemmKernel, config: Config, facts: Facts, chip: Chip) -> TritonKernel:
    """Parts are whole blocks along K; a part past the end stores zeros. The accumulator of part s is at scratch[s, batch, m,
    n]."""
    unit, splits = unit_of(kernel, config, facts, chip), int(config["splits"])
    unit.constants["SPLITS"] = splits
    line, m, n = unit.out.line, unit.number("M"), unit.number("N")
    line(f"part = {program(unit)} % SPLITS")
    unit.place(f"{program(unit)} // SPLITS", int(config["group"]))
    line(f"length = tl.cdiv(tl.cdiv({unit.number('K')}, BLOCK_K), SPLITS) * BLOCK_K")
    line("start = part * length")
    line(f"end = tl.minimum(start + length, {unit.number('K')})")
    product(unit, "start", "end")
    scratch = unit.sums_scratch()
    count = unit.number("batch") if kernel.spec.batched else "1"
    unit.out.extend(PLACES)
    at = f"part * {count} + item" if kernel.spec.batched else "part"
    line(f"tl.store({scratch} + ((({at}) * {m} + m) * {n} + n), acc, mask=(m < {m}) & (n < {n}))")
    first = unit.launch(blocks(unit) * splits)
    size = splits * symbol("batch") * symbol("M") * symbol("N")
    return TritonKernel((first, _added_up(kernel, config, facts, chip)), (Scratch(accumulator(kernel.in_dtype), size),))


def _added_up(kernel: GemmKernel, config: Config, facts: Facts, chip: Chip) -> Launch:
    """The launch that sums the parts, always in the same order, and runs the epilogue."""
    unit, splits = Unit(kernel, config, facts, chip), int(config["splits"])
    unit.constants = {**dict(FINISH_BLOCK), "SPLITS": splits}
    line, m, n = unit.out.line, unit.number("M"), unit.number("N")
    scratch = unit.sums_scratch()
    unit.place(program(unit), 1)
    count = unit.number("batch") if kernel.spec.batched else "1"
    unit.out.extend(PLACES)
    base = f"(item * {m} + m)" if kernel.spec.batched else "m"
    line(f"from_part = {scratch} + ({base} * {n} + n)")
    line(f"acc = tl.zeros([BLOCK_M, BLOCK_N], {unit.sums})")
    unit.constants["AT_ONCE"] = min(AT_ONCE, splits)
    with unit.out.indented("for _ in range(0, SPLITS, AT_ONCE):"), unit.out.indented("for _ in tl.static_range(AT_ONCE):"):
        line(f"acc += tl.load(from_part, mask=(m < {m}) & (n < {n}), other=0)")
        line(f"from_part += {count} * {m} * {n}")
    unit.epilogue("acc")
    return unit.launch(blocks(unit), stages=1)
