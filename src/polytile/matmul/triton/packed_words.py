"""How B's tiles are made from weights of 4 bits that ATen has packed for the tensor cores (`torch._convert_weight_to_int4pack`).

A word of 32 bits has eight elements of one column n: those at k = 32·c + 8·i + 2·j + b are in its bits 16·b + 4·i, for i < 4 and
b < 2. The words of a column at consecutive j and c are neighbours in memory. So a product may take k in any order, if A's columns
are read in the same one:

    for k in blocks: acc += a[at, order(k)] @ elements(words[at, k])

`order` is that of the words, and in a word by i and b; a thread has all elements of the words that it loads, and nothing is
rearranged. The function `ks` of a program's text is this order. Elements are converted without converting integers:

    (word & 15·16ⁱ) | 2²³ as a float  =  2²³ + 16ⁱ·q        →        (that - 2²³ - 16ⁱ·8) · s/16ⁱ + z  =  (q - 8)·s + z

Every step but the last is exact, so the sum is rounded as ATen's kernel rounds it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from polytile.ir.template import PackedInt4
from polytile.matmul.triton.operands import Operand, even_k, rows_line

if TYPE_CHECKING:
    from polytile.matmul.triton.unit import Unit

FLOAT, BITS = 1 << 23, 0x4B000000
"""The float32 whose last bit stands for 1, and its bits."""
MIDDLE = 8
"""The number that stands for 0."""


def reads_words(unit: Unit) -> bool:
    """Whether B's tiles are made of packed words: blocks along k have whole runs of them, and A is in memory."""
    packed, a = unit.kernel.int4, unit.kernel.prologues[0]
    return packed is not None and a is None and unit.constants["BLOCK_K"] % (16 * packed.tiles) == 0


def order(packed: PackedInt4) -> list[str]:
    """Lines that define `ks`, the positions along k of a block's elements in the order of the words."""
    run, tiles = 16 * packed.tiles, packed.tiles
    within = f"ks // 8 % {tiles // 2} * 32 + ks // 2 % 4 * 8 + ks // {4 * tiles} % 4 * 2 + ks % 2"
    return ["ks = tl.arange(0, BLOCK_K)", f"ks = tl.max_contiguous(tl.multiple_of(ks // {run} * {run} + ({within}), 2), 2)"]


def even_words(unit: Unit) -> bool:
    """Whether blocks along k, which have words, divide K."""
    packed, block = unit.kernel.int4, unit.constants["BLOCK_K"]
    return even_k(block, unit.facts) or (packed is not None and block == 16 * packed.tiles)


class Words:
    """Feeds B's tiles from the position `start` along k."""

    def __init__(self, unit: Unit, operand: Operand, start: str) -> None:
        assert unit.kernel.int4 is not None
        self.unit, self.operand, self.start, self.packed = unit, operand, start, unit.kernel.int4
        names = {tensor.dtype: tensor.name for tensor in unit.kernel.inputs[1]}
        self.words, self.scales = names[torch.int32], names[torch.bfloat16]
        self.one_group = self.packed.group % unit.constants["BLOCK_K"] == 0
        """Whether a block along k is within one group."""
        self.even = even_words(unit)

    def before(self) -> Iterable[str]:
        tiles, k = self.packed.tiles, self.unit.number("K")
        yield from rows_line(self.operand, self.unit.facts, self.unit.facts.wide)
        yield "word = tl.arange(0, BLOCK_K // 8)[None, :]"
        at = f"(rows_B // 8 * {k} + rows_B % 8 * {2 * tiles})[:, None]"
        at += f" + (word // {2 * tiles} * {16 * tiles} + word % {2 * tiles})"
        yield f"ptr_words = {self.words} + ({at})" + (f" + {self.start}" if self.start != "0" else "")
        yield f"ptr_scales = {self.scales}.to(tl.pointer_type(tl.int32)) + rows_B[:, None]"
        if not (self.one_group and self.even):
            yield f"chunk = word // {2 * tiles} * {16 * tiles} + word % {tiles // 2} * 32"

    def inside(self, name: str, number: str = "") -> Iterable[str]:
        n, k, group = self.unit.number("N"), self.unit.number("K"), self.packed.group
        mask = "" if self.even else f", mask=chunk < {k} - k, other=0"
        yield f"words = tl.load(ptr_words{mask})"
        k_at = "(k + tl.full([], 0, tl.int64))" if self.unit.facts.wide else "k"
        of_group = f"{k_at} // {group}" if self.one_group else f"({k_at} + chunk) // {group}"
        yield f"pairs = tl.load(ptr_scales + {of_group} * {n}{'' if self.one_group else mask})"
        yield "scale = (pairs << 16).to(tl.float32, bitcast=True)"
        yield "zero = (pairs & -65536).to(tl.float32, bitcast=True)"
        for b, half in enumerate(("words", "words >> 16")):
            yield f"half{b} = {half}"
            for i in range(4):
                whole = f"((half{b} & {15 << 4 * i}) | {BITS}).to(tl.float32, bitcast=True) - {float(FLOAT + (MIDDLE << 4 * i))}"
                yield f"part{i}_{b} = (({whole}) * (scale * {0.0625**i}) + zero).to(tl.bfloat16)"
        halves = [f"tl.join(tl.join(part0_{b}, part2_{b}), tl.join(part1_{b}, part3_{b}))" for b in range(2)]
        yield f"{name} = tl.reshape(tl.join({halves[0]}, {halves[1]}), [{self.operand.block}, BLOCK_K]).T"

    def after(self) -> Iterable[str]:
        return ["ptr_words += BLOCK_K"]
