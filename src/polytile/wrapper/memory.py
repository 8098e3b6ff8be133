"""Memory planning on lines: an allocation reuses a freed buffer of the same size, dtype and device.

A buffer that awaits reuse stays allocated, while freeing it would have made its memory available to others. So a buffer
is reused only where that does not raise the program's peak, at the sizes that the tracer saw.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import sympy
import torch

from polytile.ir.aliases import maybe_aliased
from polytile.ir.buffer import Buffer
from polytile.ir.program import Program
from polytile.wrapper.lines import Allocate, FindPackedWeight, Free, Line, PickOutput, Reuse

UNKNOWN_SIZE = 256
"""Stands for a size known only at run time. The plan is correct for any value; only its peak may be higher."""

PoolKey = tuple[sympy.Expr, frozenset[sympy.Expr], torch.dtype, torch.device]


def plan(
    lines: Sequence[Line], program: Program, traced: Mapping[sympy.Symbol, int], taken: Set[str] = frozenset()
) -> tuple[Line, ...]:
    """Replaces Allocates by Reuses of memory freed before. Only temporaries of this program are reused. Excluded are
    those in `taken`, whose memory has already passed to another buffer, those that a library call may have returned an
    alias of, and computed weights, which are kept between calls."""
    kept = {line.name for line in lines if isinstance(line, FindPackedWeight)}
    shared = maybe_aliased(program) | taken | kept
    held = _Held(lines, program, traced)
    pools: dict[PoolKey, list[int]] = {}
    replaced: dict[int, tuple[Line, ...]] = {}
    for position, line in enumerate(lines):
        if isinstance(line, Free) and line.name in program.buffers:
            buffer = program.buffers[line.name]
            if buffer.role == "temp" and buffer.name not in shared:
                pools.setdefault(_key(buffer), []).append(position)
        elif isinstance(line, Allocate) and (pool := pools.get(_key(line.buffer))):
            freed = pool.pop()  # the latest: still in the cache, and held for the shortest time
            old = lines[freed]
            assert isinstance(old, Free)
            if held.keep(line.buffer, freed, position):
                replaced[freed] = ()
                replaced[position] = (Reuse(line.buffer, program.buffers[old.name]), old)
    return tuple(new for k, line in enumerate(lines) for new in replaced.get(k, (line,)))


class _Held:
    """Bytes that the program's own buffers hold after each line, and their peak."""

    def __init__(self, lines: Sequence[Line], program: Program, traced: Mapping[sympy.Symbol, int]) -> None:
        self.traced = traced
        self.after: list[int] = []
        alive: dict[str, int] = {}
        total = 0
        for line in lines:
            if isinstance(line, Allocate | PickOutput):
                alive[line.buffer.name] = self.bytes(line.buffer)
                total += alive[line.buffer.name]
            elif isinstance(line, Reuse):  # in place: one memory under two names
                alive[line.buffer.name] = alive.pop(line.old.name, 0)
            elif isinstance(line, Free):
                total -= alive.pop(line.name, 0)
            self.after.append(total)
        self.peak = max(self.after, default=0)

    def bytes(self, buffer: Buffer) -> int:
        size = buffer.storage_size
        values = {s: sympy.Integer(self.traced.get(s, UNKNOWN_SIZE)) for s in size.free_symbols}
        return max(0, int(size.xreplace(values))) * buffer.dtype.itemsize

    def keep(self, buffer: Buffer, start: int, end: int) -> bool:
        """Whether memory freed at line `start` can be held until `buffer` reuses it at line `end` without a higher
        peak. If so, it counts as held from now on."""
        size = self.bytes(buffer)
        if any(self.after[k] + size > self.peak for k in range(start, end)):
            return False
        for k in range(start, end):
            self.after[k] += size
        return True


def _key(buffer: Buffer) -> PoolKey:
    return sympy.expand(buffer.storage_size), buffer.emptied_by, buffer.dtype, buffer.device
