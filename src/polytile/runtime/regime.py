"""Regime keys: what a dispatch table distinguishes about the arguments of a call. `launcher.c` computes the same in C.

A key is a sequence of signed 64-bit words: one for each integer argument that matters, then one for each tensor argument
that matters, in argument order, then the values of the formulas that the kernel asks for (formula.py). As a Python int it
is the words one after another, word 0 lowest.

A regime over which no one candidate holds is split into parts, each with a key of its own: that of the regime with the
finer words of `part` in place of those of `bucket`. Single sizes may be taken out of a regime, split or not, with a key that has
the words of `single` there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polytile.runtime.formula import Formula

IGNORE, BUCKET, EXACT, DIVISIBLE = 0, 1, 2, 3
"""Codes of an integer argument: it does not matter; its regime bucket matters; its value; whether 16 divides it."""

ANY, ALIGNED_64, ALIGNED_16, ALIGNMENT = 0, 1, 2, 3
"""Codes of a tensor argument: nothing about it matters; whether its data starts at a multiple of 64, of 16 bytes; the power
of two up to 16 of which its address is a multiple."""

ALIGNMENTS = {ALIGNED_64: 64, ALIGNED_16: 16}

EXACT_UP_TO = 8
_FIRST_WORD = 16
_PART = 4096
"""More than any word of `bucket`; a word of `part` is that of the regime and a multiple of it."""

_SINGLE = 1 << 62
"""More than any word of `bucket` or `part`, and than any size."""

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


def part(size: int) -> int:
    """The word of a size where its regime is split: itself up to 8; above, the word of its bucket and 4096 * (1 + e), where
    e is the eighth of the octave, in equal steps, that the size is in. A power of two ends its eighth as well."""
    if size <= EXACT_UP_TO:
        return size
    octave = (size - 1).bit_length() - 1
    return bucket(size) + _PART * (1 + ((size - 1 >> octave - 3) & 7))


def single(size: int) -> int:
    """The word of a size that was taken out of its regime: itself up to 8; above, 2^62 and the size."""
    return size if size <= EXACT_UP_TO else _SINGLE | size


def is_part(word: int) -> bool:
    """Whether a word, one of `bucket`, `part` or `single`, is a part's."""
    return _PART <= word < _SINGLE


def is_single(word: int) -> bool:
    """Whether a word, one of `bucket`, `part` or `single`, is that of one size above 8."""
    return word >= _SINGLE


def whole(word: int) -> int:
    """The word by `bucket` of the sizes whose word by `part` or `single` is `word`."""
    if is_single(word):
        return bucket(word & ~_SINGLE)
    return word % _PART if is_part(word) else word


def divisible(word: int) -> bool:
    """Whether 16 divides the sizes of a word above 8 that `bucket`, `part` or `single` has made."""
    return bool(whole(word) % 2)


def bounds(word: int) -> tuple[int, int]:
    """Smallest and largest size (16-divisibility apart) whose word, by `bucket`, `part` or `single`, is `word`."""
    if word <= EXACT_UP_TO:
        return word, word
    if is_single(word):
        return word & ~_SINGLE, word & ~_SINGLE
    eighth, whole = divmod(word, _PART)
    half_octave = (whole - _FIRST_WORD) // 2
    below, high = (math.isqrt(1 << power) for power in (half_octave, half_octave + 1))
    low = max(below, EXACT_UP_TO) + 1
    if eighth:
        step = 1 << half_octave // 2 - 3
        end = (8 + eighth) * step
        low, high = max(low, end - step + 1), min(high, end)
    return low, high


def ends(word: int, alike: Callable[[int], bool] = lambda size: True) -> tuple[int, ...]:
    """Smallest and largest size whose word, by `bucket` or by `part`, is `word`, of those that are `alike`; one number if they
    agree. Whether sizes are alike must not depend on more than their remainder by 16."""
    low, high = bounds(word)
    if word > EXACT_UP_TO:
        near = (*range(low, min(low + 15, high) + 1), *range(max(low, high - 15), high + 1))
        own = [n for n in near if (n % 16 == 0) == divisible(word) and alike(n)]
        low, high = min(own), max(own)
    return (low,) if low == high else (low, high)


def within(
    words: Sequence[int], key: Sequence[int], sizes: Sequence[int], word: Callable[[int], int] = part
) -> tuple[int, ...]:
    """The words of what is a part of the regime that has `words`, or single sizes of it: that which these sizes, one for each
    code in `key` that is BUCKET, are in by `word`."""
    codes = [code for code in key if code != IGNORE]
    left = iter(sizes)
    finer = [word(next(left)) if code == BUCKET else as_is for as_is, code in zip(words, codes, strict=False)]
    return (*finer, *words[len(codes) :])


def holds_single(words: Sequence[int], key: Sequence[int]) -> bool:
    """Whether these are the words of single sizes, taken out of their regime."""
    codes = [code for code in key if code != IGNORE]
    return any(code == BUCKET and is_single(word) for word, code in zip(words, codes, strict=False))


def whole_of(words: Sequence[int], key: Sequence[int]) -> tuple[int, ...]:
    """The words of the regime that these are, or that they are within."""
    codes = [code for code in key if code != IGNORE]
    sizes = [whole(word) if code == BUCKET else word for word, code in zip(words, codes, strict=False)]
    return (*sizes, *words[len(codes) :])


def words_of(
    key: Sequence[int],
    integers: Sequence[int],
    tensor_key: Sequence[int] = (),
    pointers: Sequence[int] = (),
    formulas: Sequence[Formula] = (),
) -> tuple[int, ...]:
    """The words of one call: `key` and `tensor_key` hold the codes, `pointers` the addresses of the tensors' data."""
    words = [word_of(code, n) for code, n in zip(key, integers, strict=True) if code != IGNORE]
    words += [tensor_word(code, p) for code, p in zip(tensor_key, pointers, strict=False) if code != ANY]
    return (*words, *_values(formulas, integers)) if formulas else tuple(words)


def _values(formulas: Sequence[Formula], integers: Sequence[int]) -> list[int]:
    from polytile.runtime.formula import evaluate  # it brings torch, which reading sizes does not need

    return [evaluate(formula, integers) for formula in formulas]


def word_of(code: int, integer: int) -> int:
    """The word of one integer argument with a code other than IGNORE."""
    if code == DIVISIBLE:
        return int(integer % 16 == 0)
    return bucket(integer) if code == BUCKET else integer


def tensor_word(code: int, pointer: int) -> int:
    """The word of a tensor argument with a code other than ANY, whose data is at `pointer`."""
    return math.gcd(pointer, 16) if code == ALIGNMENT else int(pointer % ALIGNMENTS[code] == 0)


def alignment(code: int, word: int) -> int:
    """Of how many bytes the address is known to be a multiple, by the word of its code."""
    return word if code == ALIGNMENT else ALIGNMENTS[code] if word else 1


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


__all__ = ["ALIGNED_16", "ALIGNED_64", "ALIGNMENT", "ANY", "BUCKET", "DIVISIBLE", "EXACT", "IGNORE", "alignment", "bounds",
           "bucket", "count", "divisible", "ends", "holds_single", "is_part", "is_single", "pack", "part", "single",
           "tensor_word", "unpack", "whole", "whole_of", "within", "word_of", "words_of"]  # fmt: skip
