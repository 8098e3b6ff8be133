"""Fuses pointwise work on an operand into the product's prologue: it is computed as tiles of the operand are read, and its result
is never in memory.

    loop a for p0, p1                                matmul mm0: out = x @ buf0
      buf0[p0, p1] = w[p0, p1] * scale[p1]     →       prologue for b, k, n
    matmul mm0: out = x @ buf0                           buf0[k, n] = w[k, n] * scale[n]

Typical prologues are casts, scales and zero points of quantised weights, unpacking of small integers, and activations. If indices
depend on the parity of k, as in unpacking two numbers from a byte, the prologue runs over half of k and stores both elements:

    buf0[k, n] = if k % 2 < 1 then w[k // 2, n] & 15 else w[k // 2, n] >> 4
        →   buf0[2*h, n] = w[h, n] & 15;  buf0[2*h + 1, n] = w[h, n] >> 4

A loop qualifies if only one product reads its result, as one whole operand, and nothing between the two writes what the loop
reads. At each call the kernel still decides whether to compute the operand on the fly, once per tile of the other operand, or to
materialise it first (`candidates/materialised_operands.py`).

On a CPU a prologue computes an int8 weight, for example from packed 4-bit numbers, or converts a weight of 8-bit floats. It runs
once, when the weight is packed into panels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv, Mod, ModularIndexing, PythonMod

from polytile.ir import expr, sizes
from polytile.ir.buffer import Buffer, View
from polytile.ir.dtypes import FLOAT8, compute_dtype
from polytile.ir.loop import Axis, Loop, Store
from polytile.ir.program import Operation, Program
from polytile.ir.template import Template
from polytile.passes.fusion.epilogue import hosted, is_pointwise
from polytile.passes.fusion.merge import Unfit
from polytile.passes.loops import indices, merged_origins, node_count, on_gpu, reindexed, touching
from polytile.passes.simplify import simplify_loop

B, M, N, K, H = (sizes.axis(name) for name in "bmnkh")
AXES = ((B, M, K), (B, K, N))
"""The axes of the prologues of A and of B."""
OPERANDS = (torch.float32, torch.bfloat16, torch.float16)
MOST_NODES, MOST_LOADS = 60, 6
"""Limits on the work per element: a tile of the operand is recomputed for each tile of the other operand, at every step of k."""


def fuse_prologues(program: Program) -> Program:
    """`program` with pointwise producers of operands fused as prologues."""
    operations: list[Operation | None] = list(program.operations)
    readers = touching(program.operations)
    observed = program.observed_buffers()
    for j, template in enumerate(program.operations):
        for side in (0, 1) if isinstance(template, Template) and template.grouping is None else ():
            current = operations[j]
            assert isinstance(current, Template)
            view = (current.a, current.b)[side]
            if view.buffer in observed or len(readers[view.buffer]) != 2:
                continue
            i = min(readers[view.buffer])
            producer = operations[i]
            if not isinstance(producer, Loop) or not _computable(view, side, producer, program.buffers):
                continue
            fused = _fused(current, side, producer, operations[i + 1 : j], program.buffers)
            if fused is not None:
                operations[i], operations[j] = _without(producer, view.buffer), fused
    return replace(program, operations=tuple(o for o in operations if o is not None))


def _computable(view: View, side: int, producer: Loop, buffers: Mapping[str, Buffer]) -> bool:
    """Whether generated products on this device accept a computed operand of this dtype."""
    buffer = buffers[view.buffer]
    if not on_gpu(buffer.device):
        read = [buffers[name] for name in producer.reads()]
        packed = len(read) == 1 and read[0].weight is not None and (view.dtype == torch.int8 or read[0].dtype in FLOAT8)
        return side == 1 and view.dtype == buffer.dtype and packed
    return view.dtype == buffer.dtype and view.dtype in OPERANDS


def _fused(
    template: Template, side: int, producer: Loop, between: list[Operation | None], buffers: Mapping[str, Buffer]
) -> Template | None:
    """`template` with the operand on this side computed by what `producer` stores; None if it does not qualify."""
    view, other = (template.a, template.b)[side], (template.a, template.b)[1 - side]
    elsewhere = {other.buffer} | (template.epilogue.reads() if template.epilogue is not None else set())
    stores = [store for store in producer.stores if store.buffer == view.buffer]
    if view.buffer in elsewhere or len(stores) != 1 or not is_pointwise(producer):
        return None
    own = replace(producer, stores=tuple(stores))
    cheap = node_count(*own.roots) <= MOST_NODES and len(list(expr.loads(*own.roots))) <= MOST_LOADS
    changed = template.writes().union(*[operation.writes() for operation in between if operation is not None])
    if not cheap or own.reads() & (changed | producer.writes()):
        return None
    try:
        prologue = _in_pairs(_over_operand(own, view, side), AXES[side].index(K), buffers)
    except Unfit:
        return None
    prologues = (prologue, template.prologues[1]) if side == 0 else (template.prologues[0], prologue)
    return replace(template, prologues=prologues, origins=merged_origins(producer.origins, template.origins))


def _over_operand(loop: Loop, view: View, side: int) -> Loop:
    """The loop over the operand's own axes. Raises Unfit unless its points are exactly the operand's elements."""
    axes = tuple(Axis(symbol, size) for symbol, size in zip(AXES[side], view.sizes, strict=True))
    (store,) = loop.stores
    dtype = compute_dtype(view.dtype)
    host = Loop(loop.name, axes, (), (Store(view.buffer, view.index(AXES[side]), expr.const(0, dtype)),))
    reader = replace(loop, stores=(Store("", store.index, expr.load(dtype, view.buffer, store.index)),))
    return replace(reindexed(loop, axes, (), hosted(host, reader).second), name="operand", origins=())


def _in_pairs(loop: Loop, place: int, buffers: Mapping[str, Buffer]) -> Loop:
    """If indices contain the parity of the axis at `place`, halve that axis and use two stores."""
    k = loop.axes[place]
    half = sizes.divide(k.size, sympy.Integer(2))
    if half is None or not any(_asks_for_parity(index, k.symbol) for index in indices(loop)):
        return loop
    pair = Axis(H, half)
    stores = [loop.substitute({k.symbol: 2 * H + parity}).stores[0] for parity in (0, 1)]
    axes = (*loop.axes[:place], pair, *loop.axes[place + 1 :])
    return simplify_loop(replace(loop, axes=axes, stores=tuple(stores)), buffers)


def _asks_for_parity(index: sympy.Expr, k: sympy.Symbol) -> bool:
    divisions = index.atoms(FloorDiv, Mod, PythonMod, ModularIndexing)
    return any(k in division.free_symbols and division.args[-1] == 2 for division in divisions)


def _without(loop: Loop, buffer: str) -> Loop | None:
    """The loop without its store to `buffer`; None if nothing else is stored."""
    stores = tuple(store for store in loop.stores if store.buffer != buffer)
    return replace(loop, stores=stores) if stores else None
