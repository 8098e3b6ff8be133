"""Merges duplicates: a loop that stores one value at the same elements of two buffers of the same kind, and equal library calls.

    loop a for p0                       loop a for p0
      buf0[p0] = t3                 →     buf0[p0] = t3
      buf1[p0] = t3                     (every use of buf1 reads buf0)

    buf0 = aten.view_as_complex(x)      buf0 = aten.view_as_complex(x)
    buf1 = aten.view_as_complex(x)  →   (every use of buf1 reads buf0)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from polytile.ir import expr, sizes
from polytile.ir.aliases import maybe_aliased, maybe_returned
from polytile.ir.buffer import Buffer, View
from polytile.ir.expr import Load, Node
from polytile.ir.library_call import Ref, map_refs
from polytile.ir.loop import Loop
from polytile.ir.program import Extern, Operation, Program, map_views
from polytile.ir.template import Template
from polytile.passes.fusion.graph import has_effect
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


def merge_calls(program: Program) -> Program:
    """`program` with equal calls of ATen made one. Apart stay results that the caller gets, or of which either may be written
    again; calls before and after a write to memory that was there before; and a call that defines a size."""
    again, outputs = _written_again(program), maybe_returned(program)
    there = {name for name, buffer in program.buffers.items() if buffer.role != "temp"}
    firsts: dict[Hashable, Extern] = {}
    mapping: dict[str, str] = {}
    operations: list[Operation] = []
    for operation in program.operations:
        if operation.writes() & there:
            firsts.clear()
        there |= operation.writes()
        if isinstance(operation, Extern) and _is_repeatable(operation):
            call = _renamed_call(operation, mapping)
            first = firsts.setdefault(_key((call.target, call.args, call.kwargs)), call)
            if first is not call and (stand_ins := _stand_ins(first, call, again, outputs)) is not None:
                mapping |= stand_ins
                continue
        operations.append(operation)
    return renamed(replace(program, operations=tuple(operations)), mapping) if mapping else program


def _written_again(program: Program) -> set[str]:
    """Buffers that more than one operation writes, and all that may share memory if one of these is among them."""
    writers = Counter(name for operation in program.operations for name in operation.writes())
    again, aliased = {name for name, count in writers.items() if count > 1}, maybe_aliased(program)
    return again | aliased if again & aliased else again


def _stand_ins(first: Extern, second: Extern, again: set[str], outputs: set[str]) -> dict[str, str] | None:
    """For each result of a call that of an equal earlier one; None if the second has to be made as well."""
    pairs = {gone: kept for kept, gone in zip(first.outputs, second.outputs, strict=True) if gone is not None}
    known = {gone: kept for gone, kept in pairs.items() if kept is not None and gone not in outputs and not {gone, kept} & again}
    return known if len(known) == len(pairs) and not second.symbols else None


def _is_repeatable(call: Extern) -> bool:
    """Whether calls with equal arguments give equal results, and do nothing else."""
    return getattr(call.target, "namespace", "") == "aten" and not has_effect(call)


def _key(value: Any) -> Hashable:
    """Equal for equal arguments; 1, 1.0 and True are three."""
    if isinstance(value, tuple | list):
        return type(value), *map(_key, value)
    return type(value), value


def renamed(program: Program, mapping: Mapping[str, str]) -> Program:
    """`program` with buffers renamed, and without stores to the old names."""
    operations = tuple(_renamed_operation(o, mapping) for o in program.operations)
    outputs = tuple(_renamed_view(o, mapping) if isinstance(o, View) else o for o in program.outputs)
    return replace(program, operations=operations, outputs=outputs, trace=program.trace.renamed(mapping))


def _renamed_operation(operation: Operation, mapping: Mapping[str, str]) -> Operation:
    if isinstance(operation, Extern):
        return _renamed_call(operation, mapping)
    with_views = map_views(operation, lambda view: _renamed_view(view, mapping))
    return map_loop(with_views, lambda loop: _renamed_loop(loop, mapping))


def _renamed_call(call: Extern, mapping: Mapping[str, str]) -> Extern:
    args, kwargs = map_refs(
        (call.args, call.kwargs),
        lambda held: Ref(_renamed_view(held, mapping) if isinstance(held, View) else held),
    )
    return replace(call, args=args, kwargs=kwargs)


def _renamed_loop(loop: Loop, mapping: Mapping[str, str]) -> Loop:
    def rule(load: Load) -> Node:
        return expr.load(load.dtype, mapping.get(load.buffer, load.buffer), load.index, load.indirect, load.mask)

    new = loop.map_loads(rule)
    return replace(new, stores=tuple(s for s in new.stores if s.buffer not in mapping))


def _renamed_view(view: View, mapping: Mapping[str, str]) -> View:
    return replace(view, buffer=mapping.get(view.buffer, view.buffer))
