"""Uniform random numbers of whole blocks: four consecutive numbers are the words of one counter, computed once.

Applies where a block's fastest dimension advances the offset in steps of 1 and starts at a multiple of 4 (see
ir/philox.py):

    counters   first // 4 + [0, X / 4)        a quarter of the block
    numbers    [X / 4] counters → [X / 4, 2, 2] words → [X] numbers
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sympy

from polytile.codegen.triton import text
from polytile.codegen.triton.tile import with_facts
from polytile.ir import sizes
from polytile.ir.expr import Index, Op

if TYPE_CHECKING:
    from polytile.codegen.triton.body import Body, Scope

WORDS = 4
"""Numbers per counter."""


def uniforms(body: Body, node: Op, scope: Scope) -> str | None:
    """The value of a `philox_uniform` from counters for a quarter of the block; None if its offset does not allow it."""
    seed, offset = node.args
    if not isinstance(offset, Index) or body.dims(seed) or not body.dims(node):
        return None
    dim, e = body.tile.dims[-1], body.simplified(offset.expr)
    rest = sympy.expand(e - sizes.axis(dim.variable))
    first = body.firsts.get(dim, "")
    if not first or dim.block < WORDS or len(dim.axes) > 1 or sizes.coefficient(e, dim.axes[0].symbol) != 1:
        return None
    if sizes.has_division(rest) or not _multiple(rest, body):
        return None
    at = f"(({first}) // {WORDS} + tl.arange(0, {dim.name} // {WORDS})){body.tile.along(dim)}"
    counters = f"{body.name(node)}_counters"
    scope.lines.append(f"{counters} = tl.cast({at} + ({body.index(rest)}) // {WORDS}, tl.int64)")
    numbers = f"pt_philox_uniforms({body.emit(seed, scope)}, {counters}, {text.value_type(node.dtype)})"
    return f"tl.reshape({numbers}, {body.tile.shape(body.dims(node))})"


def _multiple(e: sympy.Expr, body: Body) -> bool:
    """Whether WORDS divides `e` wherever the facts hold."""
    known = with_facts(e, body.facts)
    return all(term.as_coeff_Mul()[0] % WORDS == 0 for term in sympy.Add.make_args(sympy.expand(known)))
