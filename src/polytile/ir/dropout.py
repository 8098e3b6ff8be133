"""Dropout of attention's weights by the numbers that eager's CUDA kernel draws, element by element.

aten::native_dropout draws from Philox 4x32 (philox.py), with the generator's seed as key. Its grid has up to `threads` threads,
each with counters of its own. In a step, a thread serves `width` neighbouring elements: the largest power of two up to `vector`
that divides the number of elements.

    element e             (thread, turn) = (e / width mod threads, e / width / threads)
    width > 1             word e mod width mod 4 of counter (offset / 4 + turn · max(1, width / 4) + e mod width / 4, thread)
    width = 1             word turn mod 4        of counter (offset / 4 + turn / 4, thread)
    kept                  word · 2⁻³² + 2⁻³³ < 1 - p, in float32; it is then divided by 1 - p

A grid of fewer threads has one for each element, so that `threads` may be the device's number for every tensor. A kernel that
knows e knows its number; no order of tiles changes it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from polytile.ir import philox

WORDS = 4
"""Words of a counter."""
VECTORS = (4, 8)
"""How many neighbours a step of eager's kernel serves at most: 16 bytes of a type."""
PIECE = 1 << 22
"""Number of elements whose numbers the reference computes at once."""


@dataclass(frozen=True)
class Dropout:
    """Drops elements with probability `p`, by the stream of a kernel with `threads` threads, which serves up to `vector`
    neighbouring elements per step, one of VECTORS. Raises ValueError for a `p` that keeps all elements or none."""

    p: float
    vector: int
    threads: int

    def __post_init__(self) -> None:
        if not 0 < self.p < 1 or self.last < 0:
            raise ValueError(f"Dropout with probability {self.p} draws no numbers.")
        if self.vector not in VECTORS:
            raise ValueError(f"No kernel of eager's serves {self.vector} neighbours per step.")

    @property
    def factor(self) -> float:
        """What elements that are kept are multiplied by."""
        return 1 / (1 - self.p)

    @property
    def last(self) -> int:
        """The largest word that keeps an element; -1 if none does."""
        return _last_kept(self.p)

    def width(self, count: int) -> int:
        """Number of neighbouring elements that a step serves, of `count` elements."""
        return min(self.vector, count & -count) if count else 1


def advance(count: int, threads: int) -> int:
    """How far a kernel with `threads` threads advances the generator's offset by drawing for `count` elements."""
    return ((count - 1) // (threads * WORDS) + 1) * WORDS if count else 0


@functools.cache
def _last_kept(p: float) -> int:
    """Rounding to float32 preserves the order of words."""
    low, high = -1, (1 << 32) - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if _is_kept(middle, p) else (low, middle - 1)
    return low


def _is_kept(word: int, p: float) -> bool:
    uniform = torch.tensor(word, dtype=torch.int64).to(torch.float32) * 2.0**-32 + 2.0**-33
    return bool(uniform < torch.tensor(1 - p, dtype=torch.float64).to(torch.float32))


def kept(dropout: Dropout, state: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Which elements of a row-major tensor are kept, as booleans; `state` has the seed and the offset, int64 [2]."""
    count = torch.Size(shape).numel()
    booleans = torch.empty(count, dtype=torch.bool, device=state.device)
    for first in range(0, count, PIECE):
        part = booleans[first : first + PIECE]
        part.copy_(kept_from(dropout, state, count, first, part.numel()))
    return booleans.view(tuple(shape))


def kept_from(dropout: Dropout, state: torch.Tensor, count: int, first: int, number: int) -> torch.Tensor:
    """The same for `number` elements, from element `first` of `count`."""
    width, (seed, offset) = dropout.width(count), state.unbind()
    if width % WORDS == first % WORDS == number % WORDS == 0:
        return _fours(dropout, seed, offset >> 2, width // WORDS, torch.arange(first, first + number, WORDS, device=state.device))
    element = torch.arange(first, first + number, device=state.device)
    step = element // width
    thread, turn = step % dropout.threads, step // dropout.threads
    place = element % width if width > 1 else turn % WORDS
    counter = turn * max(1, width // WORDS) + place // WORDS if width > 1 else turn // WORDS
    words = torch.stack(philox.words(seed, (offset >> 2) + counter, thread))
    return words.gather(0, (place % WORDS)[None])[0] <= dropout.last


def _fours(dropout: Dropout, seed: torch.Tensor, first: torch.Tensor, parts: int, element: torch.Tensor) -> torch.Tensor:
    """The same where the four words of a counter belong to an element of `element` and its three neighbours."""
    four = element // WORDS
    step = four // parts
    counter = step // dropout.threads * parts + four % parts
    words = philox.words(seed, first + counter, step % dropout.threads)
    return torch.stack([word <= dropout.last for word in words], -1).flatten()
