"""The memories of a packaged program over its calls, at given sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sympy

from polytile.ir.buffer import Buffer
from polytile.ir.sizes import evaluate
from polytile.runtime import native
from polytile.wrapper.arena import arena, memories_of
from polytile.wrapper.cpp import known_with_arguments
from polytile.wrapper.lines import CallKernel, CallLibrary, Line

ALIGNMENT = 64
"""Of memories in bytes, as in packages/runtime.c."""


@dataclass(frozen=True)
class Lifetime:
    """A memory by the name of the buffer that it is first for, needed from call `first` until before call `last`. `inside`: it
    may lie in the arena."""

    name: str
    first: int
    last: int
    inside: bool


@dataclass(frozen=True)
class Footprint:
    """Memories at some sizes: the bytes of each, its offset in the arena (None: it is allocated by itself), and the bytes of the
    arena (0: there is none)."""

    bytes: tuple[int, ...]
    offsets: tuple[int | None, ...]
    arena: int


class Footprints:
    """The memories of a program's lines: of its buffers, and of inputs that are given back before the end. `calls` are the names
    of what it calls, in order."""

    def __init__(self, all_lines: Sequence[Line], inputs: Mapping[str, Buffer]) -> None:
        made = arena(all_lines, known_with_arguments(all_lines))
        held = memories_of(all_lines) if made is None else made.memories
        own = [(one, one.buffer if isinstance(one.buffer, Buffer) else inputs[one.buffer]) for one in held]
        calls_before = [0]
        for line in all_lines:
            calls_before.append(calls_before[-1] + isinstance(line, CallKernel | CallLibrary))
        self.calls = tuple(
            line.kernel if isinstance(line, CallKernel) else str(line.target)
            for line in all_lines if isinstance(line, CallKernel | CallLibrary)
        )  # fmt: skip
        self._buffers = [buffer for _, buffer in own]
        self._lives = [(memory.first, memory.last, memory.inside and made is not None) for memory, _ in own]
        self.memories = tuple(
            Lifetime(buffer.name, calls_before[first], max(calls_before[last], calls_before[first] + 1), inside)
            for buffer, (first, last, inside) in zip(self._buffers, self._lives, strict=True)
        )

    def at(self, values: Mapping[sympy.Symbol, int]) -> Footprint:
        """The memories at these sizes."""
        sizes = tuple(_bytes_of(buffer, values) for buffer in self._buffers)
        lives = [(*life, size) for life, size in zip(self._lives, sizes, strict=True)]
        total, offsets = native.module().place_memories(lives)
        inside = [memory.inside and total > 0 for memory in self.memories]
        return Footprint(sizes, tuple(offset if own else None for offset, own in zip(offsets, inside, strict=True)), total)


def _bytes_of(buffer: Buffer, values: Mapping[sympy.Symbol, int]) -> int:
    if any(evaluate(size, values) == 0 for size in buffer.sizes):
        return 0
    size = evaluate(buffer.storage_size, values) * buffer.dtype.itemsize
    return -(-size // ALIGNMENT) * ALIGNMENT
