"""Inputs that are changed in part are written in place. The tracer turns such a change into a new tensor, a copy of the old one
with some values replaced, and copies that back: a cache of keys and values would be copied twice for every token.

loop a:  buf0[p0] = arg0[p0]             (nothing)
loop b:  buf0[arg1[p0]] = arg2[p0]   →   arg0[arg1[p0]] = arg2[p0]
loop c:  arg0[p0] = buf0[p0]             (nothing; every use of buf0 reads arg0)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from polytile.ir.aliases import maybe_aliased
from polytile.ir.expr import Load
from polytile.ir.program import Loop, Operation, Program, whole
from polytile.passes.duplicates import renamed
from polytile.passes.loops import touching


def write_in_place(program: Program) -> Program:
    """`program` without temporaries that are copies of an input, changed by loops, and copied back, and without copies between
    the changes."""
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
    """`program` with the temporary `old` in the place of its `copy`; None where one of the two is more than that."""
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
    """`program` with `old` in the place of its `copy`, which `last` copies back; None where that would not be the same."""
    at = touching(program.operations)
    end = program.operations.index(last)
    start = next((i for i in at[copy] if _copied(program.operations[i], program) == (old, copy)), end)
    changes = [i for i in at[copy] if copy in program.operations[i].writes()]
    fixed = program.output_buffers() | set(program.scalars.values()) | maybe_aliased(program)
    if start == end or copy in fixed or old in maybe_aliased(program) or min(at[copy]) < start:
        return None
    if any(start < i < end for i in at[old]) or any(i > end and old in program.operations[i].writes() for i in at[old]):
        return None  # someone reads what the input was before, or writes to it again
    if max(changes) > end or not all(isinstance(program.operations[i], Loop) for i in changes):
        return None
    return _renamed(program, {copy: old}, (start, end))


def _renamed(program: Program, names: Mapping[str, str], without: Collection[int]) -> Program:
    """`program` with other buffers in place of those in `names`, and without the operations of these numbers."""
    operations = [o for i, o in enumerate(program.operations) if i not in without]
    touched = [i for i, o in enumerate(operations) if names.keys() & (o.reads() | o.writes())]
    met = renamed(replace(program, operations=tuple(_storing(operations[i], names) for i in touched)), names)
    for i, operation in zip(touched, met.operations, strict=True):
        operations[i] = operation
    buffers = {name: buffer for name, buffer in program.buffers.items() if name not in names}
    return replace(met, operations=tuple(operations), buffers=buffers)


def _copied(operation: Operation, program: Program) -> tuple[str, str] | None:
    """(source, target) of a loop that copies the whole of one buffer to another that is laid out alike, and does nothing else."""
    if not isinstance(operation, Loop) or operation.reduced or len(operation.stores) != 1:
        return None
    (store,), point = operation.stores, tuple(a.symbol for a in operation.axes)
    target, value = program.buffers[store.buffer], store.value
    if not isinstance(value, Load) or value.mask is not None or store.mask is not None or store.mode != "set":
        return None
    source = program.buffers[value.buffer]
    alike = (source.dtype, source.sizes, source.strides) == (target.dtype, target.sizes, target.strides)
    if not alike or tuple(a.size for a in operation.axes) != target.sizes or value.indirect or store.indirect:
        return None
    place = whole(target).index(point)
    return (source.name, target.name) if place == value.index == store.index else None


def _storing(operation: Operation, names: Mapping[str, str]) -> Operation:
    if not isinstance(operation, Loop):
        return operation
    return replace(operation, stores=tuple(replace(s, buffer=names.get(s.buffer, s.buffer)) for s in operation.stores))
