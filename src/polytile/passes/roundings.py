"""Removes roundings that a store repeats. With `buf` in bfloat16:

buf[p0] = round_bf16 t   →   buf[p0] = t

The pass runs after all fusions. Until then a value may still replace its stored copy, and must then be rounded like it.
"""

from __future__ import annotations

from dataclasses import replace

from polytile.ir.attention import SCORES, SLOPES
from polytile.ir.dtypes import ROUNDING
from polytile.ir.expr import Op
from polytile.ir.loop import Loop, Store
from polytile.ir.program import Program
from polytile.passes.loops import map_loops


def drop_roundings(program: Program) -> Program:
    """`program` without a rounding right before a store that rounds anyway."""

    def simpler(store: Store) -> Store:
        if store.buffer in (SCORES, SLOPES):
            return store
        value, rounding = store.value, ROUNDING.get(program.buffers[store.buffer].dtype)
        rounded = store.mode == "set" and isinstance(value, Op) and value.name == rounding
        return replace(store, value=value.children[0]) if rounded else store

    def dropped(loop: Loop) -> Loop:
        return replace(loop, stores=tuple(simpler(store) for store in loop.stores))

    return map_loops(program, dropped, epilogues=True)
