"""Dropout inside an attention launch: which weights of a tile are kept, by the numbers that eager draws (ir/dropout.py).

Where every row begins with a counter, four neighbouring keys share one, as in loops (codegen/triton/random.py):

    counters   [BLOCK_M, BLOCK_N / 4] → [BLOCK_M, BLOCK_N / 4, 2, 2] words → [BLOCK_M, BLOCK_N] booleans

Elsewhere each element computes its counter by itself, at four times the work.
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
    if dropout.vector % WORDS == 0 == known % dropout.vector and facts.divisor("Mkv") % WORDS == 0:
        places = f"(j // {WORDS} + {unit.wide(f'tl.arange(0, BLOCK_N // {WORDS})')})[None, :]"
        fours = f"{row} * ({keys} // {WORDS}) + {places}"
        drawn = f"pt_kept_fours(seed, counter, {fours}, {dropout.vector // WORDS}, {how})"
        return [f"kept = tl.reshape({drawn}, [BLOCK_M, BLOCK_N])"]
    return [
        f"count = {unit.index(sympy.Mul(*map(symbol, NUMBERED)))}",
        f"width = tl.minimum(tl.cast(count & -count, tl.int32), {dropout.vector})",
        f"kept = pt_kept(seed, counter, {row} * {keys} + {unit.key_places}, width, {how})",
    ]


def dropped(unit: Unit, weights: str) -> str:
    """The weights of a tile that are kept, not yet multiplied by dropout's factor."""
    return weights if unit.problem.dropout is None else f"tl.where(kept, {weights}, 0.0)"


def scaled(unit: Unit, value: str) -> str:
    """A sum of weights that are kept, multiplied by dropout's factor."""
    return value if unit.problem.dropout is None else f"{value} * {unit.problem.dropout.factor!r}"
