"""Uniform random numbers in runs: four consecutive numbers are the words of one counter (see ir/philox.py), computed
once.

A vector's numbers form a run if its lanes advance the offset in steps of 1. So that a register of counters yields whole
vectors, such a loop uses vectors of four registers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from polytile.codegen.cpp import text
from polytile.ir import sizes
from polytile.ir.expr import Index, Node, Op
from polytile.schedule.nest import Form, Nest

if TYPE_CHECKING:
    from polytile.codegen.cpp.body import Body, Scope

WORDS = 4  # numbers per counter
MOST_LANES = 64  # of a C++ vector


def run_lanes(nest: Nest, lanes: int) -> int:
    """Lanes of a loop that runs along its vector axis, for registers of `lanes` lanes."""
    along = nest.form in (Form.POINTWISE, Form.ROW) and not nest.scans
    return min(WORDS * lanes, MOST_LANES) if along and any(_is_run(nest, n) for n in nest.needed) else lanes


def run(body: Body, node: Op, scope: Scope) -> str | None:
    """The value of a run; None for any other operation."""
    if not _is_run(body.nest, node):
        return None
    seed, offset = node.args
    assert isinstance(offset, Index)
    return f"cast<{text.value_type(node.dtype)}>(philox_run<{body.lanes}>({body.scalar(seed, scope)}, {text.index(offset.expr)}))"


def _is_run(nest: Nest, node: Node) -> bool:
    if not isinstance(node, Op) or node.name != "philox_uniform" or not nest.is_vector(node):
        return False
    seed, offset = node.args
    return isinstance(offset, Index) and not nest.is_vector(seed) and sizes.coefficient(offset.expr, nest.vec.symbol) == 1
