"""Finds temporaries that may reuse the memory of a dying buffer: `reuse(program)` → {new buffer: old buffer}.

A buffer may reuse the memory of another if the operation that fills it is the last to use the other, both have the same dtype and
number of elements, and every element is read by the point that writes it, and not later (see `ir.levels`). Inputs keep their
memory. The mapping is only a permission: the wrapper's memory planner decides.
"""

from __future__ import annotations

from collections.abc import Mapping

from polytile.ir import levels, sizes
from polytile.ir.aliases import maybe_aliased
from polytile.ir.buffer import Buffer
from polytile.ir.loop import Loop
from polytile.ir.program import Operation, Program
from polytile.ir.template import Template


def reuse(program: Program) -> dict[str, str]:
    """Map new buffers to old ones. Each old buffer is reused once."""
    last_use, first_write = _lifetimes(program)
    needed_later = program.observed_buffers() | maybe_aliased(program)
    given: dict[str, str] = {}
    for i, operation in enumerate(program.operations):
        loop = _body(operation)
        if loop is None:
            continue
        operands = operation.operand_reads() if isinstance(operation, Template) else set()
        dying = [
            n for n in sorted(loop.reads()) if n not in needed_later | operands and last_use[n] == i and n not in loop.writes()
        ]
        dying = [n for n in dying if program.buffers[n].role != "constant"]
        for store in loop.stores:
            new = program.buffers[store.buffer]
            if new.role != "temp" or first_write[new.name] != i or new.name in given:
                continue
            old = next((n for n in dying if _same_memory(new, program.buffers[n]) and _safe(loop, new.name, n, given)), None)
            if old is not None:
                given[new.name] = old
                dying.remove(old)
    return given


def _body(operation: Operation) -> Loop | None:
    if isinstance(operation, Loop):
        return operation
    return operation.epilogue if isinstance(operation, Template) else None


def _lifetimes(program: Program) -> tuple[dict[str, int], dict[str, int]]:
    """The last operation that uses each buffer, and the first that writes it."""
    last: dict[str, int] = {}
    first: dict[str, int] = {}
    for i, operation in enumerate(program.operations):
        for name in operation.reads() | operation.writes():
            last[name] = i
        for name in operation.writes():
            first.setdefault(name, i)
    return last, first


def _same_memory(new: Buffer, old: Buffer) -> bool:
    """Whether dtype, device and extent agree. Shapes may differ, as long as the same point reads and writes the same offset."""
    like = new.dtype == old.dtype and new.device == old.device
    return like and sizes.equal(new.storage_size, old.storage_size)


def _safe(loop: Loop, new: str, old: str, given: Mapping[str, str]) -> bool:
    """Whether the loop is still correct if `new` overwrites `old`, along with the pairs in `given`."""
    if any(s.buffer == new and s.mask is not None for s in loop.stores):
        return False
    return levels.in_place_fault(loop, {**given, new: old}) is None
