"""Regime keys: the properties of a call's arguments that a dispatch table distinguishes. `launcher.c` computes them in
C.

A key is a sequence of signed 64-bit fields, in argument order: one per integer argument that matters, then one per
tensor argument that matters, then the values of the kernel's formulas (formula.py). Packed into a Python int, field 0
is the lowest.

Most sizes enter the key as their bucket, which spans half an octave. A regime in which no single candidate is best
throughout is subdivided: its calls have keys of sub-buckets, each an eighth of an octave. An exact size may have an
entry of its own, in a subdivided regime or not; its key holds the fields of `exact_size`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polytile.runtime.formula import Formula

IGNORE, BUCKET, EXACT, DIVISIBLE = 0, 1, 2, 3
"""Codes of an integer argument: ignored; keyed on its regime bucket; on its value; on whether 16 divides it."""

ANY, ALIGNED_64, ALIGNED_16, ALIGNMENT = 0, 1, 2, 3
"""Codes of a tensor argument: ignored; keyed on whether its data is aligned to 64 bytes; to 16 bytes; on the largest
power of two up to 16 that divides its address."""

ALIGNMENTS = {ALIGNED_64: 64, ALIGNED_16: 16}

EXACT_UP_TO = 8
_FIRST_FIELD = 16
_SUB_BUCKET = 4096
"""Larger than any field of `bucket`. A field of `sub_bucket` is its bucket's field plus a multiple of this."""

_EXACT_SIZE = 1 << 62
"""Larger than any field of `bucket` or `sub_bucket`, and than any size."""

_FIELD_BITS = 64
_MASK = (1 << _FIELD_BITS) - 1


def bucket(size: int) -> int:
    """Field of a size's bucket: the size itself up to 8; above, 16 + 2 * h + d, with the half octave h = ceil(2 *
    log2(size)) - 1 and d = 1 if 16 divides the size, else 0.

    A power of two is the last size of its half octave, so a kernel that holds a whole row of 1024 serves all of 1024's
    regime.
    """
    if size <= EXACT_UP_TO:
        return size
    half_octave = (size * size - 1).bit_length() - 1
    return _FIRST_FIELD + 2 * half_octave + (size % 16 == 0)


def sub_bucket(size: int) -> int:
    """Field of a size's sub-bucket: the size itself up to 8; above, its bucket's field plus 4096 * (1 + e), where e is
    the index of the size's eighth of the octave, in equal steps. A power of two is the last size of its eighth."""
    if size <= EXACT_UP_TO:
        return size
    octave = (size - 1).bit_length() - 1
    return bucket(size) + _SUB_BUCKET * (1 + ((size - 1 >> octave - 3) & 7))


def exact_size(size: int) -> int:
    """Field of a size that has its own entry: the size itself up to 8; above, 2^62 plus the size."""
    return size if size <= EXACT_UP_TO else _EXACT_SIZE | size


def is_sub_bucket(field: int) -> bool:
    """Whether a field of `bucket`, `sub_bucket` or `exact_size` denotes a sub-bucket."""
    return _SUB_BUCKET <= field < _EXACT_SIZE


def is_exact_size(field: int) -> bool:
    """Whether a field of `bucket`, `sub_bucket` or `exact_size` denotes one exact size above 8."""
    return field >= _EXACT_SIZE


def bucket_of(field: int) -> int:
    """Field of the bucket that contains a sub-bucket or an exact size."""
    if is_exact_size(field):
        return bucket(field & ~_EXACT_SIZE)
    return field % _SUB_BUCKET if is_sub_bucket(field) else field


def divisible(field: int) -> bool:
    """Whether 16 divides the sizes denoted by a field above 8 of `bucket`, `sub_bucket` or `exact_size`."""
    return bool(bucket_of(field) % 2)


def bounds(field: int) -> tuple[int, int]:
    """Smallest and largest size with this field of `bucket`, `sub_bucket` or `exact_size`, divisibility by 16 aside."""
    if field <= EXACT_UP_TO:
        return field, field
    if is_exact_size(field):
        return field & ~_EXACT_SIZE, field & ~_EXACT_SIZE
    eighth, own_bucket = divmod(field, _SUB_BUCKET)
    half_octave = (own_bucket - _FIRST_FIELD) // 2
    below, high = (math.isqrt(1 << power) for power in (half_octave, half_octave + 1))
    low = max(below, EXACT_UP_TO) + 1
    if eighth:
        step = 1 << half_octave // 2 - 3
        end = (8 + eighth) * step
        low, high = max(low, end - step + 1), min(high, end)
    return low, high


def ends(field: int, alike: Callable[[int], bool] = lambda size: True) -> tuple[int, ...]:
    """Smallest and largest size with this field of `bucket` or `sub_bucket` that satisfy `alike`; one number if they
    coincide. `alike` may depend only on the size's remainder modulo 16."""
    low, high = bounds(field)
    if field > EXACT_UP_TO:
        near = (*range(low, min(low + 15, high) + 1), *range(max(low, high - 15), high + 1))
        own = [n for n in near if (n % 16 == 0) == divisible(field) and alike(n)]
        low, high = min(own), max(own)
    return (low,) if low == high else (low, high)


def within(
    fields: Sequence[int], key: Sequence[int], sizes: Sequence[int], field: Callable[[int], int] = sub_bucket
) -> tuple[int, ...]:
    """Fields of a call in the regime `fields`, with each bucket replaced by the size's sub-bucket or `exact_size`.
    `sizes` holds one size for each BUCKET code of `key`."""
    codes = [code for code in key if code != IGNORE]
    left = iter(sizes)
    finer = [field(next(left)) if code == BUCKET else as_is for as_is, code in zip(fields, codes, strict=False)]
    return (*finer, *fields[len(codes) :])


def has_exact_size(fields: Sequence[int], key: Sequence[int]) -> bool:
    """Whether these fields are those of exact sizes with their own entry."""
    codes = [code for code in key if code != IGNORE]
    return any(code == BUCKET and is_exact_size(field) for field, code in zip(fields, codes, strict=False))


def buckets_of(fields: Sequence[int], key: Sequence[int]) -> tuple[int, ...]:
    """Fields of the enclosing regime: each sub-bucket or exact size replaced by its bucket."""
    codes = [code for code in key if code != IGNORE]
    sizes = [bucket_of(field) if code == BUCKET else field for field, code in zip(fields, codes, strict=False)]
    return (*sizes, *fields[len(codes) :])


def cell_of(fields: Sequence[int], key: Sequence[int]) -> tuple[int, ...]:
    """Fields of the regime's cell, within which predictions are about equal: the half octave of each size, without
    divisibility, alignment or formulas."""
    codes = [code for code in key if code != IGNORE]
    sizes = [_cell_field(code, field) for field, code in zip(fields, codes, strict=False)]
    return (*sizes, *(0 for _ in fields[len(codes) :]))


def _cell_field(code: int, field: int) -> int:
    if code == BUCKET:
        own = bucket_of(field)
        return own if own <= EXACT_UP_TO else own & ~1
    return 0 if code == DIVISIBLE else field


def fields_of(
    key: Sequence[int],
    integers: Sequence[int],
    tensor_key: Sequence[int] = (),
    pointers: Sequence[int] = (),
    formulas: Sequence[Formula] = (),
) -> tuple[int, ...]:
    """Fields of one call. `key` and `tensor_key` hold the codes, `pointers` the addresses of the tensors' data."""
    fields = [field_of(code, n) for code, n in zip(key, integers, strict=True) if code != IGNORE]
    fields += [tensor_field(code, p) for code, p in zip(tensor_key, pointers, strict=False) if code != ANY]
    return (*fields, *_values(formulas, integers)) if formulas else tuple(fields)


def _values(formulas: Sequence[Formula], integers: Sequence[int]) -> list[int]:
    from polytile.runtime.formula import evaluate  # imports torch, which readers of sizes do not need

    return [evaluate(formula, integers) for formula in formulas]


def field_of(code: int, integer: int) -> int:
    """Field of an integer argument with a code other than IGNORE."""
    if code == DIVISIBLE:
        return int(integer % 16 == 0)
    return bucket(integer) if code == BUCKET else integer


def tensor_field(code: int, pointer: int) -> int:
    """Field of a tensor argument with a code other than ANY and its data at address `pointer`."""
    return math.gcd(pointer, 16) if code == ALIGNMENT else int(pointer % ALIGNMENTS[code] == 0)


def alignment(code: int, field: int) -> int:
    """Known alignment of the address in bytes, from the field and its code."""
    return field if code == ALIGNMENT else ALIGNMENTS[code] if field else 1


def count(key: Sequence[int], tensor_key: Sequence[int] = (), formulas: Sequence[Formula] = ()) -> int:
    """Number of fields in a key with these codes and formulas."""
    return sum(code != IGNORE for code in key) + sum(code != ANY for code in tensor_key) + len(formulas)


def pack(fields: Iterable[int]) -> int:
    """Packs the fields into one non-negative int."""
    packed = 0
    for position, field in enumerate(fields):
        packed |= (field & _MASK) << (_FIELD_BITS * position)
    return packed


def unpack(key: int, length: int) -> tuple[int, ...]:
    """The `length` fields of a packed key. Raises OverflowError for an int that is no such key."""
    data = key.to_bytes(length * 8, "little")
    return tuple(int.from_bytes(data[i : i + 8], "little", signed=True) for i in range(0, len(data), 8))
