"""The passes in order, and the instruments around them.

Option `fuse=False` skips the fusions, `verify_ir` runs the verifier after each pass, and `debug` 3 prints the IR after each pass
that changed it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from polytile import debug, options
from polytile.ir import printer
from polytile.ir.program import Program
from polytile.ir.verify import verify
from polytile.passes.dce import eliminate_dead_code
from polytile.passes.duplicates import merge_calls, merge_duplicates
from polytile.passes.fusion.broadcasts import store_broadcasts
from polytile.passes.fusion.columns import fuse_columns
from polytile.passes.fusion.dual_matmul import fuse_dual_matmul
from polytile.passes.fusion.epilogue import fuse_epilogues
from polytile.passes.fusion.horizontal import fuse_horizontally
from polytile.passes.fusion.inline import inline_cheap
from polytile.passes.fusion.prologue import fuse_prologues
from polytile.passes.fusion.row_reductions import fuse_row_reductions
from polytile.passes.fusion.row_values import fuse_row_values
from polytile.passes.fusion.vertical import fuse_vertically
from polytile.passes.inplace import reuse
from polytile.passes.layout import choose_layouts
from polytile.passes.library import remember_calls
from polytile.passes.merge_axes import merge_axes
from polytile.passes.overlap import overlap_collectives
from polytile.passes.overwriting import write_in_place
from polytile.passes.roundings import drop_roundings
from polytile.passes.simplify import simplify
from polytile.passes.split_axes import split_axes
from polytile.passes.strides import plain_strides


@dataclass(frozen=True)
class Pass:
    """A step of the pipeline. Option `fuse=False` skips steps with `fusion` set."""

    name: str
    run: Callable[[Program], Program]
    fusion: bool = False


PASSES: tuple[Pass, ...] = (
    Pass("writing in place", write_in_place),
    Pass("plain strides", plain_strides),
    Pass("equal calls", merge_calls),
    Pass("simplify", simplify),
    Pass("dead code", eliminate_dead_code),
    Pass("split axes", split_axes),
    Pass("epilogues", fuse_epilogues, fusion=True),
    Pass("vertical fusion", fuse_vertically, fusion=True),
    Pass("horizontal fusion", fuse_horizontally, fusion=True),
    Pass("inlining", inline_cheap, fusion=True),
    Pass("broadcasts", store_broadcasts, fusion=True),
    Pass("vertical fusion again", fuse_vertically, fusion=True),
    Pass("layouts", choose_layouts, fusion=True),
    Pass("duplicates", merge_duplicates, fusion=True),
    Pass("simplify again", simplify),
    Pass("dead code again", eliminate_dead_code),
    Pass("prologues", fuse_prologues, fusion=True),
    Pass("dual matmul", fuse_dual_matmul, fusion=True),
    Pass("row reductions", fuse_row_reductions, fusion=True),
    Pass("row values", fuse_row_values, fusion=True),
    Pass("merge axes", merge_axes),
    Pass("columns", fuse_columns, fusion=True),
    Pass("roundings", drop_roundings),
    Pass("library calls", remember_calls),
    Pass("overlap", overlap_collectives),
)


class Optimized(NamedTuple):
    """The optimised program, and which new buffer may reuse the memory of which old one (see `passes.inplace`)."""

    program: Program
    reuse: dict[str, str]


def optimize(program: Program) -> Optimized:
    """Run every pass on `program`.

    Raises
    ------
    IRError
        With option `verify_ir`, if a pass breaks a rule of the IR.
    """
    _inspect(program, "lowering", 0.0, True)
    for step in PASSES:
        if step.fusion and not options.get("fuse"):
            continue
        start, before = time.perf_counter(), program
        program = step.run(program)
        _inspect(program, step.name, time.perf_counter() - start, program.operations != before.operations)
    return Optimized(program, reuse(program))


def _inspect(program: Program, after: str, seconds: float, changed: bool) -> None:
    """Run the verifier, and print what option `debug` asks for."""
    if options.get("verify_ir"):
        verify(program, after)

    def text() -> str:
        ir_text = "\n" + printer.program_text(program) if changed else " (nothing changed)"
        return f"after {after}, {1e3 * seconds:.1f} ms, {len(program.operations)} operations:{ir_text}"

    debug.show(3, text)
