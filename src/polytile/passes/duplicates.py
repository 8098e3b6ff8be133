"""Merges duplicate buffers: a loop that stores one value at the same elements of two buffers of the same kind.

    loop a for p0                       loop a for p0
      buf0[p0] = t3                 →     buf0[p0] = t3
      buf1[p0] = t3                     (every use of buf1 reads buf0)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from polytile.ir import expr, sizes
from polytile.ir.aliases import maybe_aliased
from polytile.ir.buffer import Buffer, View
from polytile.ir.expr import Load, Node
from polytile.ir.library_call import Ref, map_refs
from polytile.ir.loop import Loop
from polytile.ir.program import Extern, Operation, Program, map_views
from polytile.ir.template import Template
from polytile.passes.loops import map_loop


def merge_duplicates(program: Program) -> Program:
    """`program` with duplicate temporaries made one. A buffer that anything else writes stays apart, as do two that the caller
    gets: outputs, and what a library call may return as a view."""
    writers: dict[str, int] = {}
    for operation in program.operations:
        for name in operation.writes():
            writers[name] = writers.get(name, 0) + 1
    outputs, scalars = program.output_buffers() | maybe_aliased(program), set(program.scalars.values())
    mapping: dict[str, str] = {}
    for operation in program.operations:
        loop = operation.epilogue if isinstance(operation, Template) else operation
        if isinstance(loop, Loop):
            for name, other in _pairs(loop, program.buffers):
                free = [n for n in (name, other) if writers[n] == 1 and n not in mapping and n not in scalars]
                if len(free) == 2 and not {name, other} <= outputs:
                    kept, gone = (other, name) if other in outputs else (name, other)
                    mapping |= {gone: kept} | {n: kept for n, stand_in in mapping.items() if stand_in == gone}
    return renamed(program, mapping) if mapping else program


def _pairs(loop: Loop, buffers: Mapping[str, Buffer]) -> Iterator[tuple[str, str]]:
    """Pairs of buffers that receive the same values at the same elements of the loop."""
    plain = [store for store in loop.stores if store.is_plain]
    for i, one in enumerate(plain):
        for other in plain[i + 1 :]:
            if one.value is other.value and sizes.equal(one.index, other.index):
                if _alike(buffers[one.buffer], buffers[other.buffer]):
                    yield one.buffer, other.buffer


def _alike(a: Buffer, b: Buffer) -> bool:
    """Whether the two can share a block of memory. Their shapes may differ: the same elements are written at the same offsets."""
    same = (a.dtype, a.device, a.role, b.role) == (b.dtype, b.device, "temp", "temp")
    return same and sizes.equal(a.storage_size, b.storage_size)


def renamed(program: Program, mapping: Mapping[str, str]) -> Program:
    """`program` with buffers renamed, and without stores to the old names."""
    operations = tuple(_renamed_operation(o, mapping) for o in program.operations)
    outputs = tuple(_renamed_view(o, mapping) if isinstance(o, View) else o for o in program.outputs)
    return replace(program, operations=operations, outputs=outputs, trace=program.trace.renamed(mapping))


def _renamed_operation(operation: Operation, mapping: Mapping[str, str]) -> Operation:
    if isinstance(operation, Extern):
        args, kwargs = map_refs(
            (operation.args, operation.kwargs),
            lambda held: Ref(_renamed_view(held, mapping) if isinstance(held, View) else held),
        )
        return replace(operation, args=args, kwargs=kwargs)
    with_views = map_views(operation, lambda view: _renamed_view(view, mapping))
    return map_loop(with_views, lambda loop: _renamed_loop(loop, mapping))


def _renamed_loop(loop: Loop, mapping: Mapping[str, str]) -> Loop:
    def rule(load: Load) -> Node:
        return expr.load(load.dtype, mapping.get(load.buffer, load.buffer), load.index, load.indirect, load.mask)

    new = loop.map_loads(rule)
    return replace(new, stores=tuple(s for s in new.stores if s.buffer not in mapping))


def _renamed_view(view: View, mapping: Mapping[str, str]) -> View:
    return replace(view, buffer=mapping.get(view.buffer, view.buffer))
