"""Loads and stores in C++: uniform, contiguous, strided, gathered or scattered, masked or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sympy
import torch

from polytile.codegen.cpp import text
from polytile.ir import sizes
from polytile.ir.dtypes import compute_dtype
from polytile.ir.expr import Load
from polytile.ir.loop import Store, element_level
from polytile.schedule.cpu.fused_axes import repeats
from polytile.schedule.nest import Form

if TYPE_CHECKING:
    from polytile.codegen.cpp.body import Body, Scope

SHUFFLED = (-1, 2, 3, 4, 5, 6, 7, 8)
"""Strides served by contiguous vectors and shuffles (support/every.h)."""

PLAIN, ATOMIC = "add_plain", "atomic_add"  # functions that add to one element


def load(body: Body, node: Load, scope: Scope) -> str:
    """The value of a load; a bool becomes a mask."""
    kind = text.value_type(node.dtype)
    if node.mask is not None and body.nest.is_vector(node.mask):
        value = _under_vector_mask(body, node, scope)
    else:
        value = _contiguous_or_not(body, node, scope)
    if node.dtype == torch.bool:
        value = f"-{value}"  # stored as 0 or 1
    condition = None if node.mask is None or body.nest.is_vector(node.mask) else body.mask(node.mask, scope)
    return value if condition is None else f"{condition} ? {value} : V<{kind}, {body.lanes_of(node)}>{{}}"


def _contiguous_or_not(body: Body, node: Load, scope: Scope) -> str:
    kind, lanes = text.value_type(node.dtype), body.lanes_of(node)
    index, vectors = body.indirect(node.indirect, node.index, scope)
    base = pointer(body, node)
    step = None if vectors else sizes.coefficient(index, body.nest.vec.symbol)
    at = f"{base} + {body.element(index)}" if not vectors else ""
    if not body.nest.is_vector(node):
        return f"load<{kind}, 1>({at})"
    if step == 0:
        return f"V<{kind}, {lanes}>(load<{kind}, 1>({at})[0])"
    if step == 1:
        return f"vload<{kind}, {lanes}>(tail, {at}, n)"
    if step in SHUFFLED:
        return f"vload_every<{kind}, {lanes}, {step}>(tail, {at}, n)"
    if step is not None:
        return f"vload_strided<{kind}, {lanes}>(tail, {at}, {text.index(step)}, n)"
    if (times := repeats(body.nest, node)) is not None:
        return f"vload_repeated<{kind}, {lanes}, {times}>(tail, {at}, n)"
    return f"vload_gather<{kind}, {lanes}>(tail, {base}, {body.index_vector(index, vectors)}, n)"


def _under_vector_mask(body: Body, node: Load, scope: Scope) -> str:
    kind = text.value_type(node.dtype)
    assert node.mask is not None
    mask = body.emit(node.mask, scope)
    index, vectors = body.indirect(node.indirect, node.index, scope)
    base = pointer(body, node)
    if not vectors and sizes.coefficient(index, body.nest.vec.symbol) == 1:
        return f"vload_where<{kind}, {body.lanes}>(tail, {base}, {text.index(index)}, {mask}, n)"
    return f"vload_gather_where<{kind}, {body.lanes}>(tail, {base}, {body.index_vector(index, vectors)}, {mask}, n)"


def from_tile(node: Load, tile: str) -> str:
    """The value of a load whose square of points was transposed into `tile`, at row u."""
    return f"{'-' if node.dtype == torch.bool else ''}load<{text.value_type(node.dtype)}, L>({tile} + u * L)"


def pointer(body: Body, node: Load) -> str:
    """The buffer as a pointer to the node's storage type. A load of another type of the same width reinterprets the
    stored bits."""
    stored = body.kernel.storage(node.buffer)
    if node.dtype == compute_dtype(stored) or node.dtype.itemsize != stored.itemsize:
        return node.buffer
    return f"(const {text.storage_type(node.dtype)}*){node.buffer}"


def store(body: Body, store: Store, scope: Scope) -> None:
    """Emits one store, whose values are known in the scope."""
    if id(store) in body.destinations:
        kind, value = text.value_type(store.value.dtype), _value(body, store, body.lanes, scope)
        scope.lines.append(f"store<{kind}, {kind}, {body.lanes}>({body.destinations[id(store)]}, {value});")
        return
    index, vectors = body.indirect(store.indirect, store.index, scope)
    step = None if vectors else sizes.coefficient(index, body.nest.vec.symbol)
    masked = store.mask is not None and body.nest.is_vector(store.mask)
    if step == 0 and not masked and not body.nest.is_vector(store.value) and _once_for_all_lanes(body, store):
        line = _uniform_store(body, store, index, scope)
    elif step is not None and step != 0 and _whole_vector(body, store, step, masked):
        line = _vector_store(body, store, index, step, masked, scope)
    else:
        line = _lane_store(body, store, index, vectors, masked, scope)
    condition = None if masked else body.mask(store.mask, scope)
    scope.lines.append(line if condition is None else f"if ({condition}) {{ {line} }}")


def _whole_vector(body: Body, store: Store, step: sympy.Expr, masked: bool) -> bool:
    """Whether lanes whose elements are `step` apart are stored together."""
    if store.mode != "set":
        return step == 1 and not masked and body.adder != ATOMIC
    return not masked or step == 1


def _once_for_all_lanes(body: Body, store: Store) -> bool:
    """Whether a store of one value to one element may happen once rather than per lane."""
    return store.mode == "set" or (body.nest.form is Form.ROW and not element_level(body.nest.loop, store))


def _value(body: Body, store: Store, lanes: str, scope: Scope) -> str:
    value = body.operand(store.value, lanes, scope)
    return f"({value} & 1)" if store.value.dtype == torch.bool else value


def _storage(body: Body, store: Store) -> str:
    return text.storage_type(body.kernel.storage(store.buffer))


def _uniform_store(body: Body, store: Store, index: sympy.Expr, scope: Scope) -> str:
    value, at = _value(body, store, "1", scope), f"{store.buffer} + {text.index(index)}"
    storage, kind = _storage(body, store), text.value_type(store.value.dtype)
    if store.mode != "set":
        return f"{body.adder}<{storage}, {kind}>({at}, {value}[0]);"
    return f"store<{storage}, {kind}, 1>({at}, {value});"


def _vector_store(body: Body, store: Store, index: sympy.Expr, step: sympy.Expr, masked: bool, scope: Scope) -> str:
    value, at = _value(body, store, body.lanes, scope), f"{store.buffer} + {body.element(index)}"
    form = f"{_storage(body, store)}, {body.lanes}"
    if masked:
        assert store.mask is not None
        return f"vstore_where<{form}>(tail, {store.buffer}, {text.index(index)}, {value}, {body.emit(store.mask, scope)}, n);"
    if step == 1:
        act = "vadd" if store.mode == "add" else "vstream" if id(store) in body.streamed else "vstore"
        return f"{act}<{form}>(tail, {at}, {value}, n);"
    return f"vstore_strided<{form}>(tail, {at}, {value}, {text.index(step)}, n);"


def _lane_store(
    body: Body, store: Store, index: sympy.Expr, vectors: dict[sympy.Symbol, str], masked: bool, scope: Scope
) -> str:
    """Stores lane after lane, in order, since lanes may share an element."""
    lanes, act = body.lanes, "put_plain" if store.mode == "set" else body.adder
    live = body.emit(store.mask, scope) if masked and store.mask is not None else f"splat<i32, {lanes}>(-1)"
    at, value = body.index_vector(index, vectors), _value(body, store, lanes, scope)
    one = f"{act}<{_storage(body, store)}, {text.value_type(store.value.dtype)}>({store.buffer} + at[k], x[k]);"
    return f"each_lane<{lanes}>(tail, {live}, n, [&, at = {at}, x = {value}](long k) PT_INLINE {{ {one} }});"
