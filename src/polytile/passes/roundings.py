"""Roundings that a store does by itself. `buf` is bfloat16:

buf[p0] = round_bf16 t   →   buf[p0] = t

Runs after all fusions: until then a value may still be read in place of its stored copy, and then has to be rounded like it.
"""

from __future__ import annotations

from dataclasses import replace

from polytile.ir.expr import Op
from polytile.ir.program import ROUNDING, SCORES, Loop, Program, Store
from polytile.passes.loops import map_loops


def drop_roundings(program: Program) -> Program:
    """`program` with nothing rounded twice on its way to memory."""

    def simpler(store: Store) -> Store:
        if store.buffer == SCORES:
            return store
        value, rounding = store.value, ROUNDING.get(program.buffers[store.buffer].dtype)
        rounded = store.mode == "set" and isinstance(value, Op) and value.name == rounding
        return replace(store, value=value.children[0]) if rounded else store

    def dropped(loop: Loop) -> Loop:
        return replace(loop, stores=tuple(simpler(store) for store in loop.stores))

    return map_loops(program, dropped, epilogues=True)
