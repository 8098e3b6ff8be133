"""Dropout inside an attention launch: which weights of a tile are kept, by the numbers that eager draws (ir/dropout.py).

Four neighbours share a counter, whose words are computed once, as in loops (codegen/triton/random.py):

    counters   [BLOCK_M, BLOCK_N / 4] → [BLOCK_M, BLOCK_N / 4, 2, 2] words → [BLOCK_M, BLOCK_N] booleans

Rows that begin inside a counter take words of two: twice the work. If the number of weights may be no multiple of four, each
weight computes its counter by itself: four times the work.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import sympy

from polytile.attention.problem import symbol
from polytile.ir.dropout import WORDS

if TYPE_CHECKING:
    from polytile.attention.triton.unit import Unit

NUMBERED = ("B", "Hq", "Mq", "Mkv")
"""The sizes of the tensor whose elements are numbered."""


def numbers(unit: Unit) -> None:
    """Emit the seed, and the number of the first counter."""
    if unit.problem.dropout is not None:
        unit.out.extend(["seed = tl.load(random)", "counter = tl.load(random + 1) >> 2"])


def kept_lines(unit: Unit) -> list[str]:
    """Lines that compute which weights of a tile are `kept`; none without dropout."""
    dropout, facts = unit.problem.dropout, unit.facts
    if dropout is None:
        return []
    row, keys = f"((p0 * {unit.number('Hq')} + p1) * {unit.number('Mq')} + p2)", unit.number("Mkv")
    how = f"{dropout.threads}, {dropout.last}"
    known = math.prod(facts.divisor(name) for name in NUMBERED)
    lines = [f"count = {unit.index(sympy.Mul(*map(symbol, NUMBERED)))}"]
    if known % WORDS:
        lines.append(f"width = tl.minimum(tl.cast(count & -count, tl.int32), {dropout.vector})")
        return [*lines, f"kept = pt_kept(seed, counter, {row} * {keys} + {unit.key_places}, width, {how})"]
    half = f"{dropout.vector // WORDS - 1}"  # whether a step serves the words of two counters
    if known % dropout.vector:
        lines.append(f"half = (count % {dropout.vector} == 0).to(tl.int32)")
        half = "half"
    fours = unit.wide(f"tl.arange(0, BLOCK_N // {WORDS})")
    if facts.divisor("Mkv") % WORDS:
        drawn = f"pt_kept_shifted(seed, counter, {row} * {keys} + j, {fours}[None, :], {half}, {how})"
    else:
        drawn = f"pt_kept_fours(seed, counter, {row} * ({keys} // {WORDS}) + (j // {WORDS} + {fours})[None, :], {half}, {how})"
    return [*(lines if half == "half" else []), f"kept = tl.reshape({drawn}, [BLOCK_M, BLOCK_N])"]


def dropped(unit: Unit, weights: str) -> str:
    """The weights of a tile that are kept, not yet multiplied by dropout's factor."""
    return weights if unit.problem.dropout is None else f"tl.where(kept, {weights}, 0.0)"


def scaled(unit: Unit, value: str) -> str:
    """A sum of weights that are kept, multiplied by dropout's factor."""
    return value if unit.problem.dropout is None else f"{value} * {unit.problem.dropout.factor!r}"
