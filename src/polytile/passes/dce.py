"""Removes dead code: stores to temporaries that are never read, operations without effect, unused buffers and constants.

Always kept are the results, writes to inputs, library calls with side effects (random numbers, mutated arguments), assertions,
and calls that define a size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from polytile.ir.attention import Attention
from polytile.ir.buffer import View
from polytile.ir.loop import Loop
from polytile.ir.program import Assert, Extern, Operation, Program
from polytile.ir.template import Template
from polytile.passes.fusion.graph import has_effect


def eliminate_dead_code(program: Program) -> Program:
    """`program` without stores, operations, buffers and constants that nothing depends on."""
    live = program.observed_buffers()
    kept: list[Operation] = []
    for operation in reversed(program.operations):
        needed = _needed(operation, live)
        if needed is not None:
            kept.append(needed)
            live |= needed.reads()
    operations = tuple(reversed(kept))
    used = set(_used(program, operations))
    buffers = {name: b for name, b in program.buffers.items() if name in used or b.role == "input"}
    constants = {name: tensor for name, tensor in program.constants.items() if name in buffers}
    return replace(program, operations=operations, buffers=buffers, constants=constants)


def _needed(operation: Operation, live: set[str]) -> Operation | None:
    """The part of `operation` that is needed if only the buffers in `live` matter afterwards; None if it is dead."""
    match operation:
        case Loop():
            return _with_live_stores(operation, live)
        case Template():
            if operation.epilogue is None:
                return operation if operation.out.buffer in live else None
            epilogue = _with_live_stores(operation.epilogue, live)
            return replace(operation, epilogue=epilogue) if epilogue is not None else None
        case Attention():
            return operation if operation.writes() & live else None
        case Extern():
            effect = has_effect(operation) or operation.symbols or operation.writes() & live
            return operation if effect else None
        case Assert():
            return operation
    return operation


def _with_live_stores(loop: Loop, live: set[str]) -> Loop | None:
    stores = tuple(s for s in loop.stores if s.buffer in live)
    if not stores:
        return None
    return loop if len(stores) == len(loop.stores) else replace(loop, stores=stores)


def _used(program: Program, operations: tuple[Operation, ...]) -> Iterator[str]:
    for operation in operations:
        yield from operation.reads() | operation.writes()
        if isinstance(operation, Template):
            yield operation.out.buffer
    yield from (o.buffer for o in program.outputs if isinstance(o, View))
    yield from program.scalars.values()
