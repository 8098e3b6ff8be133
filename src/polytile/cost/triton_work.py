"""A loop at concrete sizes, as predictions need it (triton_loops.py): accesses, instructions, reductions."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import sympy

from polytile.codegen.triton.ops import summed_exponentials
from polytile.codegen.triton.tile import Tile, divides, tile_of
from polytile.ir import expr, ops, sizes
from polytile.ir.expr import Load, Node, Op
from polytile.ir.loop import Store, neighbours
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.facts import Facts, index_limit
from polytile.schedule.gpu import vectors
from polytile.schedule.gpu.legality import apply_rewrites
from polytile.schedule.gpu.schedule import GpuSchedule
from polytile.schedule.nest import Form, Nest

FAR = 1 << 40
"""The stride of an index that is not linear in its axis."""
PARTS = {"argmax": 2.0, "argmin": 2.0, "welford": 3.0, "online_softmax": 2.0}
"""Running values per reduction; others have one."""
INSTRUCTIONS = {
    "exp": 10.0, "exp2": 2.0, "log": 26.0, "sqrt": 16.0, "rsqrt": 2.0, "reciprocal": 9.0, "sigmoid": 19.0, "tanh": 23.0,
    "erf": 29.0, "sin": 80.0, "cos": 80.0, "round_bf16": 3.0,
}  # fmt: skip
"""Instructions of an operation per point in sm_90 code, where they differ from the table of operations."""
FAST = {"exp": 3.0, "sigmoid": 12.0, "erf": 22.0, "round_bf16": 1.0}
"""The same if no tensor has elements of more than 16 bits. erf has 15, but two of them use the unit that a multiprocessor has
once."""
UPDATE = {"welford": 6.0, "online_softmax": 7.0}
"""Instructions to add a value to a reduction; one for others."""
MERGE = {"welford": 15.0, "online_softmax": 14.0, "argmax": 3.0, "argmin": 3.0}
"""Instructions to merge two running values; one for others."""


@dataclass(frozen=True)
class Access:
    """One load or store at concrete sizes.

    Attributes
    ----------
    strides
        Stride in elements, by each axis on which the access depends.
    passes
        Number of passes that make the access.
    reach
        Number of elements among which an indirect index selects; 0 for direct accesses.
    """

    buffer: str
    itemsize: int
    strides: Mapping[sympy.Symbol, int]
    passes: int
    store: bool
    reach: int


@dataclass(frozen=True)
class Work:
    """A loop at concrete sizes.

    Attributes
    ----------
    known
        Facts about its integers on which generated code relies.
    arithmetic, cost
        Instructions per point, and a rough cost.
    updates, merges
        Instructions to add a value to the reductions, and to merge two of them.
    running, pairs
        Running values of the reductions, and additional ones per point for online softmax.
    sums
        Bytes of column sums.
    resident, live
        32-bit values per point if rows are resident, and if they are looped over.
    """

    extents: Mapping[sympy.Symbol, int]
    known: Facts
    accesses: tuple[Access, ...]
    arithmetic: float
    cost: float
    updates: float
    merges: float
    passes: int
    reductions: int
    running: float
    pairs: float
    sums: int
    resident: float
    live: float


_nests: dict[tuple[str, bool], tuple[LoopKernel, Nest]] = {}
_works: dict[tuple[str, bool, bool, tuple[tuple[str, int], ...]], Work] = {}
_tiles: dict[tuple[str, GpuSchedule], Tile] = {}


def nest_under(kernel: LoopKernel, schedule: GpuSchedule) -> tuple[LoopKernel, Nest]:
    """The kernel as rewritten for `schedule`, and its layout."""
    key = (kernel.digest, schedule.one_sweep)
    if key not in _nests:
        _nests[key] = apply_rewrites(kernel, schedule.one_sweep)
    return _nests[key]


def tile_at(digest: str, nest: Nest, schedule: GpuSchedule) -> Tile:
    """The tile of a schedule without any facts, remembered by the kernel's digest."""
    key = (digest, schedule)
    if key not in _tiles:
        _tiles[key] = tile_of(nest, schedule, Facts())
    return _tiles[key]


def work_at(kernel: LoopKernel, schedule: GpuSchedule, size: tuple[tuple[str, int], ...]) -> Work:
    """What a kernel under this schedule does at these sizes, remembered."""
    key = (kernel.digest, schedule.one_sweep, schedule.bounded, size)
    if key not in _works:
        own, nest = nest_under(kernel, schedule)
        values = dict(size)
        _works[key] = _measured(own, nest, {s: values[s.name] for s in kernel.symbols}, not schedule.bounded)
    return _works[key]


def _measured(kernel: LoopKernel, nest: Nest, values: Mapping[sympy.Symbol, int], again: bool) -> Work:
    """The Work of a kernel at these sizes. `again`: each pass recomputes values of earlier ones."""
    axes = [nest.vec, *nest.outer, *nest.inner]
    extents = {a.symbol: sizes.evaluate(a.size, values) for a in axes}
    fast = all(t.dtype.itemsize <= 2 or not t.dtype.is_floating_point for t in kernel.tensors)
    summed = summed_exponentials(nest.nodes, nest.loop.roots)
    passes = [node for k in range(nest.passes) for node in nest.nodes_in(k)]
    pass_counts = Counter(id(node) for node in passes)
    counted = nest.nodes if nest.form is Form.POINTWISE else passes if again else {id(node): node for node in passes}.values()
    accesses = [_access(kernel, n, max(1, pass_counts[id(n)]), extents, values) for n in nest.nodes if isinstance(n, Load)]
    stores = [s for s in kernel.loop.stores if s.indirect or not s.is_segment_sum]
    accesses += [_stored(kernel, each, extents, values) for each in neighbours(stores, nest.vec.symbol)]
    sums = [s.value.dtype.itemsize for s in kernel.loop.stores if s.is_segment_sum and not s.indirect]
    wide = [n for n in nest.nodes if isinstance(n, Load) and nest.in_pass(n)]
    running = sum(PARTS.get(r.kind, 1.0) for r in nest.reduces)
    return Work(
        extents,
        Facts(
            frozenset(s.name for s, n in values.items() if n % 16 == 0),
            powers=vectors.divisors(kernel, {s.name: n for s, n in values.items()}),
        ),
        tuple(accesses),
        arithmetic=sum(_instructions(node, fast or id(node) in summed) for node in counted),
        cost=sum(ops.definition(node.name).cost if isinstance(node, Op) else 1.0 for node in passes),
        updates=sum(UPDATE.get(r.kind, 1.0) for r in nest.reduces) + len(nest.scans),
        merges=sum(MERGE.get(r.kind, 1.0) for r in nest.reduces) + len(nest.scans),
        passes=max(1, nest.passes),
        reductions=len(nest.reduces) + 2 * len(nest.scans),
        running=running,
        pairs=2.0 if any(r.kind == "online_softmax" for r in nest.reduces) else 0.0,
        sums=sum(sums),
        resident=sum(n.dtype.itemsize / 4 for n in wide if pass_counts[id(n)] > 1 or nest.passes < 2) + 1.5 + 1.5 * len(sums),
        live=running + len(wide) + 1.0,
    )


def _instructions(node: Node, fast: bool) -> float:
    """Instructions of an operation per point in sm_90 code."""
    if not isinstance(node, Op):
        return 0.0
    counted = INSTRUCTIONS | FAST if fast else INSTRUCTIONS
    return counted.get(node.name, ops.definition(node.name).cost)


@functools.lru_cache(maxsize=10_000)
def divisible(size: sympy.Expr, by: int, known: Facts) -> bool:
    """Whether generated code knows that `by` divides `size`."""
    return divides(by, size, known)


def _access(
    kernel: LoopKernel,
    place: Load | Store,
    passes: int,
    extents: Mapping[sympy.Symbol, int],
    values: Mapping[sympy.Symbol, int],
) -> Access:
    strides = {}
    below = [place.index.free_symbols, *[e.free_symbols for n in expr.walk(*place.indirect) for e in n.indices]]
    used = set().union(*below)
    for symbol in extents:  # the order matters: the first axis of stride 1 is the contiguous run
        if symbol not in used:
            continue
        stride = sizes.coefficient(place.index, symbol)
        known = stride is not None and stride.free_symbols <= values.keys() and stride != 0
        strides[symbol] = abs(sizes.evaluate(stride, values)) if known else FAR
    reach = max([_limit(node, values) for node in place.indirect], default=0)
    if reach:
        for symbol, stride in strides.items():
            reach *= extents[symbol] if stride != FAR else 1
    store = isinstance(place, Store)
    return Access(place.buffer, kernel.storage(place.buffer).itemsize, strides, passes, store, reach)


def _stored(
    kernel: LoopKernel, group: tuple[Store, ...], extents: Mapping[sympy.Symbol, int], values: Mapping[sympy.Symbol, int]
) -> Access:
    """A store, or two of adjacent elements, which are one of elements twice as wide."""
    one, count = _access(kernel, group[0], 1, extents, values), len(group)
    return replace(one, itemsize=count * one.itemsize, strides={s: stride // count for s, stride in one.strides.items()})


def _limit(node: Node, values: Mapping[sympy.Symbol, int]) -> int:
    limit = index_limit(node)
    known = limit is not None and limit.free_symbols <= values.keys()
    return sizes.evaluate(limit, values) if known else 0
