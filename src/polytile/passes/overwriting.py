"""Updates inputs in place instead of through a copy.

The tracer functionalises a partial update of an input: it copies the input, updates the copy, and copies it back. A key-value
cache would be copied twice per token.

    loop a:  buf0[p0] = arg0[p0]             (nothing)
    loop b:  buf0[arg1[p0]] = arg2[p0]   →   arg0[arg1[p0]] = arg2[p0]
    loop c:  arg0[p0] = buf0[p0]             (nothing; every use of buf0 reads arg0)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from polytile.ir.aliases import maybe_aliased
from polytile.ir.buffer import whole
from polytile.ir.expr import Load
from polytile.ir.loop import Loop
from polytile.ir.program import Operation, Program
from polytile.passes.duplicates import renamed
from polytile.passes.loops import touching


def write_in_place(program: Program) -> Program:
    """`program` without temporaries that copy an input, are updated by loops and copied back, and without copies between such
    updates."""
    while (better := _step(program)) is not None:
        program = better
    return program


def _step(program: Program) -> Program | None:
    for operation in program.operations:
        pair = _copied(operation, program)
        if pair is not None:
            better = (_in_place if pair[1] in program.input_buffers() else _as_one)(program, operation, *pair)
            if better is not None:
                return better
    return None


def _as_one(program: Program, copying: Operation, old: str, copy: str) -> Program | None:
    """Replace the buffer `copy` by the temporary `old` that it copies; None if either has other uses that forbid it."""
    at, here = touching(program.operations), program.operations.index(copying)
    fixed = program.output_buffers() | set(program.scalars.values()) | maybe_aliased(program)
    if (
        {old, copy} & (fixed | program.input_buffers() | program.constants.keys())
        or max(at[old]) > here
        or min(at[copy]) < here
    ):
        return None
    if not all(isinstance(o, Loop) for o in program.operations if copy in o.writes()):
        return None
    return _renamed(program, {copy: old}, (here,))


def _in_place(program: Program, last: Operation, copy: str, old: str) -> Program | None:
    """Replace the buffer `copy` by the input `old`, to which `last` copies it back; None if that would change the result."""
    at = touching(program.operations)
    end = program.operations.index(last)
    start = next((i for i in at[copy] if _copied(program.operations[i], program) == (old, copy)), end)
    changes = [i for i in at[copy] if copy in program.operations[i].writes()]
    fixed = program.output_buffers() | set(program.scalars.values()) | maybe_aliased(program)
    if start == end or copy in fixed or old in maybe_aliased(program) or min(at[copy]) < start:
        return None
    if any(start < i < end for i in at[old]) or any(i > end and old in program.operations[i].writes() for i in at[old]):
        return None  # something reads the input's old value, or writes to it again
    if max(changes) > end or not all(isinstance(program.operations[i], Loop) for i in changes):
        return None
    return _renamed(program, {copy: old}, (start, end))


def _renamed(program: Program, names: Mapping[str, str], without: Collection[int]) -> Program:
    """`program` with buffers renamed, and without the operations at these positions."""
    operations = [o for i, o in enumerate(program.operations) if i not in without]
    touched = [i for i, o in enumerate(operations) if names.keys() & (o.reads() | o.writes())]
    met = renamed(replace(program, operations=tuple(_storing(operations[i], names) for i in touched)), names)
    for i, operation in zip(touched, met.operations, strict=True):
        operations[i] = operation
    buffers = {name: buffer for name, buffer in program.buffers.items() if name not in names}
    return replace(met, operations=tuple(operations), buffers=buffers)


def _copied(operation: Operation, program: Program) -> tuple[str, str] | None:
    """(source, target) of a loop that only copies one whole buffer to another of the same layout; None for other operations."""
    if not isinstance(operation, Loop) or operation.reduced or len(operation.stores) != 1:
        return None
    (store,), point = operation.stores, tuple(a.symbol for a in operation.axes)
    target, value = program.buffers[store.buffer], store.value
    if not isinstance(value, Load) or value.mask is not None or value.indirect or not store.is_plain:
        return None
    source = program.buffers[value.buffer]
    alike = (source.dtype, source.sizes, source.strides) == (target.dtype, target.sizes, target.strides)
    if not alike or tuple(a.size for a in operation.axes) != target.sizes:
        return None
    place = whole(target).index(point)
    return (source.name, target.name) if place == value.index == store.index else None


def _storing(operation: Operation, names: Mapping[str, str]) -> Operation:
    if not isinstance(operation, Loop):
        return operation
    return replace(operation, stores=tuple(replace(s, buffer=names.get(s.buffer, s.buffer)) for s in operation.stores))
