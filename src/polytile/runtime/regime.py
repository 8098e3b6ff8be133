"""Regime keys: what a dispatch table distinguishes about the arguments of a call. `launcher.c` computes the same in C.

A key is a sequence of signed 64-bit words: one for each integer argument that matters, then one for each tensor argument
that matters, in argument order, then the values of the formulas that the kernel asks for (formula.py). As a Python int it
is the words one after another, word 0 lowest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from polytile.runtime.formula import Formula, evaluate

IGNORE, BUCKET, EXACT, DIVISIBLE = 0, 1, 2, 3
"""Codes of an integer argument: it does not matter; its regime bucket matters; its value; whether 16 divides it."""

ANY, ALIGNED_64, ALIGNED_16 = 0, 1, 2
"""Codes of a tensor argument: nothing about it matters; whether its data starts at a multiple of 64, of 16 bytes."""

ALIGNMENTS = {ALIGNED_64: 64, ALIGNED_16: 16}

EXACT_UP_TO = 8
_FIRST_WORD = 16
_WORD_BITS = 64
_MASK = (1 << _WORD_BITS) - 1


def bucket(size: int) -> int:
    """The word of a size: itself up to 8; above, 16 + 2 * h + d with the half octave h = ceil(2 * log2(size)) - 1 and
    d = 1 if 16 divides the size, else 0.

    A power of two ends its half octave: what holds a whole row of 1024 serves all of the regime that 1024 is in.
    """
    if size <= EXACT_UP_TO:
        return size
    half_octave = (size * size - 1).bit_length() - 1
    return _FIRST_WORD + 2 * half_octave + (size % 16 == 0)


def bounds(word: int) -> tuple[int, int]:
    """Smallest and largest size (16-divisibility apart) whose bucket is `word`, a value of `bucket`."""
    if word <= EXACT_UP_TO:
        return word, word
    half_octave = (word - _FIRST_WORD) // 2
    below, high = (math.isqrt(1 << power) for power in (half_octave, half_octave + 1))
    return max(below, EXACT_UP_TO) + 1, high


def words_of(
    key: Sequence[int],
    integers: Sequence[int],
    tensor_key: Sequence[int] = (),
    pointers: Sequence[int] = (),
    formulas: Sequence[Formula] = (),
) -> tuple[int, ...]:
    """The words of one call: `key` and `tensor_key` hold the codes, `pointers` the addresses of the tensors' data."""
    words = [word_of(code, n) for code, n in zip(key, integers, strict=True) if code != IGNORE]
    words += [int(p % ALIGNMENTS[code] == 0) for code, p in zip(tensor_key, pointers, strict=False) if code != ANY]
    return (*words, *[evaluate(formula, integers) for formula in formulas])


def word_of(code: int, integer: int) -> int:
    """The word of one integer argument with a code other than IGNORE."""
    if code == DIVISIBLE:
        return int(integer % 16 == 0)
    return bucket(integer) if code == BUCKET else integer


def count(key: Sequence[int], tensor_key: Sequence[int] = (), formulas: Sequence[Formula] = ()) -> int:
    """Words in a key made with these codes and formulas."""
    return sum(code != IGNORE for code in key) + sum(code != ANY for code in tensor_key) + len(formulas)


def pack(words: Iterable[int]) -> int:
    """The words as one non-negative int."""
    packed = 0
    for position, word in enumerate(words):
        packed |= (word & _MASK) << (_WORD_BITS * position)
    return packed


def unpack(key: int, length: int) -> tuple[int, ...]:
    """The `length` words of a packed key. Raises OverflowError for an int that no such key packs to."""
    data = key.to_bytes(length * 8, "little")
    return tuple(int.from_bytes(data[i : i + 8], "little", signed=True) for i in range(0, len(data), 8))


__all__ = ["ALIGNED_16", "ALIGNED_64", "ANY", "BUCKET", "DIVISIBLE", "EXACT", "IGNORE", "bounds", "bucket", "count", "pack",
           "unpack", "word_of", "words_of"]  # fmt: skip
