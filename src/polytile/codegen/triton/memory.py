"""Loads and stores in Triton: an offset block, the conditions of the access, and a cache hint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from polytile.codegen.triton import text
from polytile.codegen.triton.ops import convert
from polytile.errors import LoweringError
from polytile.ir import sizes
from polytile.ir.dtypes import FLOAT8, compute_dtype
from polytile.ir.expr import Load
from polytile.ir.loop import Store, element_level

if TYPE_CHECKING:
    from polytile.codegen.triton.body import Body, Scope
    from polytile.codegen.triton.tile import Dim

ATOMICS = (torch.float32, torch.float64, torch.float16, torch.int32, torch.int64, torch.uint32, torch.uint64)
"""Types that can be added to memory atomically."""


def load(body: Body, node: Load, scope: Scope) -> str:
    """The value of a load in its compute type; the load itself may have been emitted earlier."""
    if id(node) not in scope.fetched:
        return _computed(body, node, fetch(body, node, scope))
    return _computed(body, node, scope.fetched[id(node)])


def fetch(body: Body, node: Load, scope: Scope) -> str:
    """The load itself, in the storage type."""
    line = body.line_of(node)
    if line is not None and not body.tile.even(line):
        return _along_line(body, node, line, scope)
    conditions = [body.emit(node.mask, scope)] if node.mask is not None else []
    at = body.place(node.index, node.indirect, scope)
    dims = body.place_dims(node.index, node.indirect)
    conditions += body.guards(node.indirect)
    if node.mask is not None:
        dims |= body.dims(node.mask)
        at = _spread(body, at, body.place_dims(node.index, node.indirect), dims)
    masks = " & ".join(conditions + body.tile.masks(dims))
    hint = _eviction(body, node, dims)
    if line is not None:  # as a whole block: each thread loads the values shared by its rows once
        at = _spread(body, at, dims, body.tile.all_dims)
    return f"tl.load({node.buffer} + ({at})" + (f", mask={masks}, {_other(body, node)}" if masks else "") + hint + ")"


def _along_line(body: Body, node: Load, dim: Dim, scope: Scope) -> str:
    """Loads a value that varies along one of several dimensions as a vector, so that the layout conversion for the
    block covers no more than that vector."""
    (axis,) = dim.axes
    line = f"{axis.symbol}_line"
    count = f"tl.arange(0, {dim.name})" + (".to(tl.int64)" if body.facts.wide else "")
    first = body.firsts[dim]
    text = f"{line} = {count if first == '0' else f'{first} + {count}'}"
    if text not in scope.lines:
        scope.lines.append(text)
    at = body.index(sizes.substitute(node.index, {axis.symbol: sizes.axis(line)}))
    mask = f"mask={line} < {body.index(dim.size)}, {_other(body, node)}"
    return f"tl.load({node.buffer} + ({at}), {mask}{_eviction(body, node, frozenset({dim}))}){body.tile.along(dim)}"


def _other(body: Body, node: Load) -> str:
    """The result of a load where its mask does not hold. Triton cannot convert an integer to an 8-bit float."""
    return "other=0.0" if body.kernel.storage(node.buffer) in FLOAT8 else "other=0"


def plain(body: Body, node: Load) -> bool:
    """Whether elements are computed in their storage type."""
    return node.dtype == body.kernel.storage(node.buffer)


def _computed(body: Body, node: Load, loaded: str) -> str:
    """Loaded elements in the node's compute type."""
    if plain(body, node):
        return loaded
    stored = body.kernel.storage(node.buffer)
    bits = node.dtype != compute_dtype(stored) and node.dtype.itemsize == stored.itemsize and stored != torch.bool
    return f"{loaded}.to({text.value_type(node.dtype)}{', bitcast=True' if bits else ''})"


def _eviction(body: Body, node: Load, dims: frozenset[Dim]) -> str:
    """The eviction hint: data that a later pass or other programs read again stays in the cache; the last read of data
    from an earlier pass releases it."""
    if id(node) in body.again or (shared(body, node) and dims and not node.indirect):
        return ', eviction_policy="evict_last"'
    return ', eviction_policy="evict_first"' if body.last and not shared(body, node) else ""


def shared(body: Body, node: Load) -> bool:
    """Whether several points of the loop share an element of the load."""
    loop = body.kernel.loop
    return not {a.symbol for a in loop.axes + loop.reduced} <= node.index.free_symbols


def _spread(body: Body, at: str, have: frozenset[Dim], want: frozenset[Dim]) -> str:
    """Expands an offset that varies along `have` to a block that is full along `want`."""
    if have == want or not want:
        return at
    return f"({at}) + tl.zeros({body.tile.shape(want)}, tl.int32)"


def store(body: Body, store: Store, scope: Scope) -> None:
    """Emits one store, whose values are known in the scope. An accumulating store is made at every point; a plain one
    is made once along dimensions that it does not vary with. Raises LoweringError for an accumulating store to a type
    that has no atomics."""
    at = body.place(store.index, store.indirect, scope)
    own = body.place_dims(store.index, store.indirect)
    dims = own | body.dims(store.value) | (body.dims(store.mask) if store.mask is not None else frozenset())
    if store.mode != "set":
        dims = body.tile.all_dims if element_level(body.kernel.loop, store) else body.tile.parallel_dims
    conditions = [body.emit(store.mask, scope)] if store.mask is not None else []
    conditions += body.guards(store.indirect) + body.tile.masks(dims)
    condition = text.masked(conditions)
    place = f"{store.buffer} + ({_spread(body, at, own, dims)})"
    storage = body.kernel.storage(store.buffer)
    value = convert(scope.names[id(store.value)], store.value.dtype, storage)
    if store.mode == "set":
        scope.lines.append(f"tl.store({place}, {value}{condition})")
        return
    if body.dims(store.value) != dims:
        value = f"tl.broadcast_to({value}, {body.tile.shape(dims)})"
    if storage not in ATOMICS:
        raise LoweringError(f"a GPU cannot add to memory of type {storage}; the operator runs as a library call.")
    scope.lines.append(f'tl.atomic_add({place}, {value}{condition}, sem="relaxed")')


def joins(body: Body, low: Store, high: Store) -> bool:
    """Whether stores of adjacent elements (ir.loop.neighbours) can be one: their values are blocks that are full along the
    dimensions with which the index varies, and the last of these is the axis itself."""
    last, own = body.tile.dims[-1], body.place_dims(low.index, ())
    alone = last in own and len(last.axes) == 1 and last.axes[0].symbol == body.tile.nest.vec.symbol and last in body.firsts
    return alone and own == body.dims(low.value) == body.dims(high.value)


def store_pair(body: Body, low: Store, high: Store, scope: Scope) -> None:
    """Emits two stores of adjacent elements as one of a block that is twice as long, so that a thread stores a whole vector.
    For addresses that are two elements apart Triton's analysis finds no order, and would place lanes along another axis."""
    last, storage = body.tile.dims[-1], body.kernel.storage(low.buffer)
    (axis,) = last.axes
    both = f"{axis.symbol}_both"
    first = "" if body.firsts[last] == "0" else f"2 * ({body.firsts[last]}) + "
    count = f"tl.arange(0, 2 * {last.name})" + (".to(tl.int64)" if body.facts.wide else "")
    scope.lines.append(f"{both} = ({first}{count}){body.tile.along(last)}")
    at = body.index(sizes.expanded(low.index - 2 * axis.symbol) + sizes.axis(both))
    own = body.place_dims(low.index, ())
    masks = [mask for mask in body.tile.masks(own) if mask != last.mask]
    masks += [] if body.tile.even(last) else [f"({both} < {body.index(2 * last.size)})"]
    condition = text.masked(masks)
    pair = ", ".join(convert(scope.names[id(store.value)], store.value.dtype, storage) for store in (low, high))
    scope.lines.append(f"tl.store({low.buffer} + ({at}), tl.interleave({pair}){condition})")
