"""Memory planning on lines: an allocation takes over a freed buffer of the same size, type and device (SPEC W2)."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

import sympy
import torch

from polytile.ir.program import Buffer, Extern, Program
from polytile.wrapper.lines import Allocate, Free, Line, Reuse

PoolKey = tuple[sympy.Expr, torch.dtype, torch.device]


def plan(lines: Iterable[Line], program: Program, taken: Set[str] = frozenset()) -> tuple[Line, ...]:
    """The lines with an Allocate of memory that was freed before made a Reuse. Only temporaries of this program are reused, and
    neither those in `taken`, whose memory has gone over to another buffer already, nor one that a library call may have
    returned an alias of."""
    lines = list(lines)
    shared = _maybe_aliased(program) | taken
    free: dict[PoolKey, list[int]] = {}
    replaced: dict[int, tuple[Line, ...]] = {}
    for position, line in enumerate(lines):
        if isinstance(line, Free) and line.name in program.buffers:
            buffer = program.buffers[line.name]
            if buffer.role == "temp" and buffer.name not in shared:
                free.setdefault(_key(buffer), []).append(position)
        elif isinstance(line, Allocate) and (pool := free.get(_key(line.buffer))):
            freed = pool.pop()
            old = lines[freed]
            assert isinstance(old, Free)
            replaced[freed] = ()
            replaced[position] = (Reuse(line.buffer, program.buffers[old.name]), old)
    return tuple(new for k, line in enumerate(lines) for new in replaced.get(k, (line,)))


def _key(buffer: Buffer) -> PoolKey:
    return sympy.expand(buffer.storage_size), buffer.dtype, buffer.device


def _maybe_aliased(program: Program) -> set[str]:
    """Buffers that a library call takes and may give back as (part of) its result, and everything such calls return."""
    found: set[str] = set()
    for op in program.operations:
        if isinstance(op, Extern) and _returns_alias(op.target):
            found |= op.reads() | op.writes()
    return found


def _returns_alias(target: Any) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is None or any(r.alias_info is not None for r in schema.returns)
