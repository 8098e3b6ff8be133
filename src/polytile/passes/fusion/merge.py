"""Decides whether two loops may be fused, and builds the fused loop.

In the fused loop, a load of what the first loop stored is replaced by the value itself, so it must read exactly the element that
the same point stores. What each kind of pair requires of the common domain:

    pointwise + pointwise     the same points
    pointwise + reduction     all points (element level) or exactly the reduction's rows (row level)
    reduction + reduction     the same rows and the same reduced axes
    scan                      as a reduction; its one reduced axis is never split; no reductions beside it
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import sympy
import torch

from polytile.ir import expr, levels, sizes
from polytile.ir.buffer import Buffer
from polytile.ir.dtypes import ROUNDING, compute_dtype
from polytile.ir.expr import Index, Load, Node, Op, Reduce, Scan
from polytile.ir.loop import Axis, Loop, Store, element_level
from polytile.passes.fusion.axes import Pair, Shared, Unified, unify
from polytile.passes.loops import Mapped, merged_origins, reindexed

# With more buffers a loop spills pointer registers on every machine; with more nodes it spills values.
MAX_BUFFERS = 16
MAX_NODES = 250
RANDOM = ("philox_uniform", "philox_normal", "philox_int")
MAX_PAIRS = 16  # pairs of loads of one shared buffer to try for unification


class Unfit(Exception):
    """Raised when two operations cannot be fused; the message says why."""


@dataclass(frozen=True)
class Domain:
    """The axes of the fused loop, and each loop's own axes as functions of them."""

    axes: tuple[Axis, ...]
    reduced: tuple[Axis, ...]
    first: Mapped
    second: Mapped


@dataclass(frozen=True)
class Merged:
    """The fused loop, and the buffers that both loops read at the same element."""

    loop: Loop
    common: frozenset[str]


def merge(first: Loop, second: Loop, buffers: Mapping[str, Buffer], droppable: frozenset[str]) -> Merged:
    """Fuse `first` and `second` into one loop, without the stores to `droppable` buffers.

    Raises
    ------
    Unfit
        If the two cannot be fused.
    """
    passed = passed_buffers(first, second)
    domain = _domain(
        unify(first.axes + first.reduced, second.axes + second.reduced, pairs_of(first, second, passed)), first, second
    )
    return join(first, second, domain, buffers, droppable)


def join(first: Loop, second: Loop, domain: Domain, buffers: Mapping[str, Buffer], droppable: frozenset[str]) -> Merged:
    """Fuse the two loops over `domain`. Raises Unfit if they cannot be."""
    if stores_on(first, buffers) != stores_on(second, buffers):
        raise Unfit("they run on different devices")
    one = reindexed(first, domain.axes, domain.reduced, domain.first)
    two = reindexed(second, domain.axes, domain.reduced, domain.second)
    common = frozenset(_common_reads(one, two))
    two = _with_values(two, {s.buffer: s for s in one.stores if s.buffer in passed_buffers(first, second)}, buffers)
    stores = tuple(s for s in one.stores if s.buffer not in droppable) + two.stores
    loop = Loop(second.name, domain.axes, domain.reduced, stores, merged_origins(first.origins, second.origins))
    _check_levels(loop, first, second, droppable)
    _check_limits(loop)
    fault = levels.in_place_fault(loop)
    if fault is not None:
        raise Unfit(fault)
    return Merged(loop, common)


def stores_on(loop: Loop, buffers: Mapping[str, Buffer]) -> set[torch.device]:
    """The devices of the buffers that the loop stores to, that is, where it runs."""
    return {buffers[store.buffer].device for store in loop.stores}


# what passes between the loops ---------------------------------------------------------------------------------------


def passed_buffers(first: Loop, second: Loop) -> set[str]:
    """Buffers that `first` writes and `second` reads. Raises Unfit if one of them cannot be passed as a value."""
    if first.writes() & second.writes():
        raise Unfit(f"both write {', '.join(sorted(first.writes() & second.writes()))}")
    passed = first.writes() & second.reads()
    for store in first.stores:
        if store.buffer in passed and not store.is_plain:
            raise Unfit(f"{store.buffer} is written by a scatter")
    if len([s for s in first.stores if s.buffer in passed]) > len(passed):
        raise Unfit("a buffer is written by several stores")
    return passed


def pairs_of(first: Loop, second: Loop, passed: set[str]) -> tuple[Pair, ...]:
    """Pairs of indices of both loops into the same buffer: first those of passed buffers, then shared reads, then random
    counters."""
    loads = _loads_by_buffer(second)
    pairs = [(s.index, load.index) for s in first.stores if s.buffer in passed for load in loads[s.buffer]]
    for name, mine in _loads_by_buffer(first).items():
        if name not in passed:
            pairs += [(a.index, b.index) for a in mine for b in loads.get(name, ())][:MAX_PAIRS]
    pairs += itertools.product(_counters(first), _counters(second))
    return tuple(dict.fromkeys(pairs))


def _counters(loop: Loop) -> list[sympy.Expr]:
    random = [node for node in expr.walk(*loop.roots) if isinstance(node, Op) and node.name in RANDOM]
    return [below.expr for node in random for below in node.args if isinstance(below, Index)]


def _loads_by_buffer(loop: Loop) -> dict[str, list[Load]]:
    by_buffer: dict[str, list[Load]] = {}
    for load in expr.loads(*loop.roots):
        by_buffer.setdefault(load.buffer, []).append(load)
    return by_buffer


def _common_reads(one: Loop, two: Loop) -> Iterator[str]:
    seen = {id(load) for load in expr.loads(*one.roots)}
    yield from (load.buffer for load in expr.loads(*two.roots) if id(load) in seen)


def stored_value(value: Node, buffer: Buffer) -> Node:
    """The value that a load of `buffer` returns after `value` was stored: converted to its dtype, and rounded if that is narrower
    than the compute dtype."""
    dtype = compute_dtype(buffer.dtype)
    if value.dtype != dtype:
        value = expr.op("cast", dtype, value)
    rounding = ROUNDING.get(buffer.dtype)
    if rounding is None or (isinstance(value, expr.Op) and value.name == rounding):
        return value
    return expr.op(rounding, dtype, value)


def _with_values(loop: Loop, stores: Mapping[str, Store], buffers: Mapping[str, Buffer]) -> Loop:
    """`loop` with loads of stored buffers replaced by the stored values."""

    def rule(load: Load) -> Node:
        if load.buffer not in stores:
            return load
        store = stores[load.buffer]
        if load.indirect or not sizes.equal(load.index, store.index):
            raise Unfit(f"{load.buffer} is stored at {store.index} and read at {load.index}")
        if load.dtype != compute_dtype(buffers[load.buffer].dtype):
            raise Unfit(f"{load.buffer} is read as another type")
        value = stored_value(store.value, buffers[load.buffer])
        return value if load.mask is None else expr.op("where", load.dtype, load.mask, value, expr.const(0, load.dtype))

    return loop.map_loads(rule) if stores else loop


# the common domain ---------------------------------------------------------------------------------------------------


def _domain(unified: Unified, first: Loop, second: Loop) -> Domain:
    reduced = _reduced(unified.shared, first, second)
    symbols: dict[sympy.Symbol, sympy.Expr] = {}
    groups: tuple[list[Axis], list[Axis]] = ([], [])
    for shared in unified.shared:
        group = groups[shared.axis.symbol in reduced]
        axis = Axis(sizes.axis(f"{'r' if group is groups[1] else 'p'}{len(group)}"), shared.axis.size)
        symbols[shared.axis.symbol] = axis.symbol
        group.append(axis)
    if not groups[1] and (first.reduced or second.reduced):
        raise Unfit("the reduced axes have one point and drop out of the domain, which the reduction needs")
    mappings = [{k: sizes.substitute(v, symbols) for k, v in m.items()} for m in (unified.first, unified.second)]
    return Domain(tuple(groups[0]), tuple(groups[1]), mappings[0], mappings[1])


def _reduced(shared: tuple[Shared, ...], first: Loop, second: Loop) -> set[sympy.Symbol]:
    """The common axes that are reduced in the fused loop. Raises Unfit if the domains are incompatible."""
    of_first = {a.symbol for a in first.reduced}
    of_second = {a.symbol for a in second.reduced}
    whole = all(s.first is not None and s.second is not None for s in shared)
    if bool(of_first) == bool(of_second):
        if not whole:
            raise Unfit("the domains differ")
        if any((s.first in of_first) != (s.second in of_second) for s in shared):
            raise Unfit("the reduced axes differ")
        return {s.axis.symbol for s in shared if s.first in of_first}
    held = [(s, s.first in of_first) if of_first else (s, s.second in of_second) for s in shared]
    owned = [s.first if of_first else s.second for s in shared]
    other = [s.second if of_first else s.first for s in shared]
    rows_only = all((o is None) == is_reduced for o, (_, is_reduced) in zip(other, held, strict=True))
    if None in owned or not (whole or rows_only):
        raise Unfit("the points of one loop are neither the other's points nor its rows")
    return {s.axis.symbol for s, is_reduced in held if is_reduced}


def _check_levels(loop: Loop, first: Loop, second: Loop, droppable: frozenset[str]) -> None:
    """Check that every store runs as often as before, at element level or row level of the fused loop."""
    if not loop.reduced:
        return
    kept = [(first, s) for s in first.stores if s.buffer not in droppable] + [(second, s) for s in second.stores]
    for (origin, before), after in zip(kept, loop.stores, strict=True):
        points = origin.axes + (origin.reduced if element_level(origin, before) else ())
        want = sizes.expand(sizes.product([a.size for a in points]))
        now = loop.axes + (loop.reduced if element_level(loop, after) else ())
        if sizes.expand(sizes.product([a.size for a in now])) != want:
            raise Unfit(f"the store to {after.buffer} would run at other points")


def _check_limits(loop: Loop) -> None:
    nodes = list(expr.walk(*loop.roots))
    names = {n.buffer for n in nodes if isinstance(n, Load)} | loop.writes()
    if len(nodes) > MAX_NODES or len(names) > MAX_BUFFERS:
        raise Unfit(f"too large: {len(nodes)} nodes, {len(names)} buffers")
    scans = any(isinstance(n, Scan) for n in nodes)
    if scans and (len(loop.reduced) != 1 or any(isinstance(n, Reduce) for n in nodes)):
        raise Unfit("a scan keeps its one reduced axis and shares no loop with a reduction")
