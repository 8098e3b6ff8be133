"""The counter-based generator behind the `philox_*` operations: Philox 4x32 with 10 rounds.

Key: the 64-bit seed (low word, high word). Counter: (low word, high word, 0, 0) of a 64-bit number, which is the offset. For
uniform numbers it is offset // 4, since four neighbours share a block of words. Every code generator must produce the same words.
Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

    uniform   (w[offset % 4] >> 8) · 2⁻²⁴                                  in [0, 1)
    normal    sqrt(-2·log(u))·cos(2π·v), u = ((w0 >> 8) + 1)·2⁻²⁴, v = (w1 >> 8)·2⁻²⁴   (Box-Muller)
    int       (w1·2³² + w0) mod 2⁶³ for int64, w0 mod 2³¹ for int32          never negative
"""

from __future__ import annotations

import math

import torch

COUNTERS_PER_OPERATOR = 2**40
"""Number of offsets reserved for each operator of a program: operator k starts at offset k times this."""

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF
_ROUNDS = 10


def words(
    seed: torch.Tensor, offset: torch.Tensor, sequence: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The four 32-bit words, as int64 in [0, 2³²), for int64 `seed` and `offset` of broadcastable shapes. `sequence` is the upper
    half of the counter, 0 if it is not given."""
    sequence = torch.zeros_like(offset) if sequence is None else sequence
    seed, offset, sequence = torch.broadcast_tensors(seed, offset, sequence)
    key0, key1 = seed & _WORD, (seed >> 32) & _WORD
    c0, c1 = offset & _WORD, (offset >> 32) & _WORD
    c2, c3 = sequence & _WORD, (sequence >> 32) & _WORD
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ key0, low1, high0 ^ c3 ^ key1, low0
        key0, key1 = (key0 + _WEYL[0]) & _WORD, (key1 + _WEYL[1]) & _WORD
    return c0, c1, c2, c3


def _multiply(word: torch.Tensor, factor: int) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low words of the 64-bit product. int64 arithmetic wraps, which keeps all 64 bits."""
    product = word * factor
    return (product >> 32) & _WORD, product & _WORD


def uniform(seed: torch.Tensor, offset: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Uniform in [0, 1), with 24 random bits."""
    four = torch.stack(words(seed, offset >> 2))
    own = four.gather(0, (offset & 3).expand(four.shape[1:])[None])[0]
    return (own >> 8).to(dtype) * 2.0**-24


def normal(seed: torch.Tensor, offset: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Standard normal."""
    w0, w1, _, _ = words(seed, offset)
    u, v = ((w0 >> 8) + 1).to(dtype) * 2.0**-24, (w1 >> 8).to(dtype) * 2.0**-24
    return torch.sqrt(-2.0 * torch.log(u)) * torch.cos(2.0 * math.pi * v)


def integer(seed: torch.Tensor, offset: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Uniform over the nonnegative values of int32 or int64."""
    w0, w1, _, _ = words(seed, offset)
    return (w0 & 0x7FFFFFFF).to(dtype) if dtype == torch.int32 else ((w1 & 0x7FFFFFFF) << 32) | w0
