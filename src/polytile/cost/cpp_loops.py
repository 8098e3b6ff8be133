"""The analytical cost model of loops on a CPU: predicted seconds of a config at given sizes.

    t = CALL + fork + barriers + (max(compute, bytes / bandwidth) + cuts · CUT) / speedup
    compute = work / rate + sweeps · SWEEP + rows · (reductions · ACROSS + scalars / rate)

`work` is the number of multiply-adds of all vectors in all passes, from the table of operations, plus loads and stores by their
access pattern. `rate` is two vector multiply-adds per cycle. `bytes` is the traffic of each tensor, repeated in each pass unless
the row stays in cache, at the bandwidth of the memory level that holds the footprint. A sweep is one run along the vector axis;
comparisons such as p1 < n0 cut it into pieces. Each reduction across lanes at its end costs ACROSS. `scalars` are the values of a
row outside its passes. `speedup` is the number of threads with work.

docs/cpu-loops.md has the origin of the constants, and where predictions are right and wrong. They only rank candidates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import sympy

from polytile.codegen.cpp.memory import SHUFFLED
from polytile.ir import ops, sizes
from polytile.ir.expr import Load, Node, Op
from polytile.ir.loop import Store
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.cpu.fused_axes import repeats
from polytile.schedule.cpu.schedule import CpuSchedule, Lanes, Stores
from polytile.schedule.cpu.scheduled import COLUMNS
from polytile.schedule.cpu.transposing import Transposed, transposed_layout
from polytile.schedule.cpu.value_cache import cached_values
from polytile.schedule.extent import Extent, extent
from polytile.schedule.nest import Form, Nest

CLOCK = 4.0e9  # Hz; two vector multiply-adds a cycle
CALL = 0.05e-6  # s of an empty kernel
FORK = 3.0e-6  # s to start and join threads
BARRIER = 0.7e-6  # s
SWEEP = 1.5e-9  # s per run along the vector axis, besides its vectors
CUT = 4.0e-9  # s per further piece of a run that a comparison with the axis cuts
ACROSS = 2.5e-9  # s to combine the lanes of one reduction
LEVELS = ((1 << 20, 120e9), (24 << 20, 45e9), (1 << 62, 16e9))  # (footprint in bytes up to, bytes/s of one thread)
LINE = 64  # bytes
STREAMED = 0.8  # factor on memory time if written lines are not read first
BY_LANE = {"strided": 2.0, "transposed": 0.5, "gathered": 4.0, "scattered": 8.0, "atomic": 128.0}
# multiply-adds per lane of a vector
CONTIGUOUS = 1.0  # multiply-adds of a vector


@dataclass(frozen=True)
class Layout:
    """How one pass traverses a loop: runs along the vector axis, vectors in all of them, and work items that are divided among
    threads."""

    sweeps: float
    vectors: float
    items: float


@dataclass(frozen=True)
class Parts:
    """The parts of a prediction: one thread's arithmetic and memory time in seconds, overhead in seconds that threads do not
    divide, and the number of threads with work."""

    layout: Layout
    compute: float
    memory: float
    overhead: float
    speedup: float


@dataclass(frozen=True)
class LoopPrior:
    """The prediction for one schedule of a loop with vectors of `lanes` elements.

    Everything that does not depend on the sizes is cached: walking a loop takes as long as a thousand calls of a small kernel.
    """

    kernel: LoopKernel
    row_nest: Nest
    schedule: CpuSchedule
    lanes: int

    def seconds(self, threads: int, size: Mapping[str, int]) -> float:
        """Predicted seconds of one call on `threads` threads, by the module's formula."""
        parts = self._parts(threads, size)
        return parts.overhead + (max(parts.compute, parts.memory) + parts.layout.sweeps * self._cuts * CUT) / parts.speedup

    def terms(self, threads: int, size: Mapping[str, int]) -> dict[str, float]:
        """The terms of `seconds` by name (Candidate.terms): time of all threads' arithmetic, of memory, and of calls and
        barriers; threads with work; sweeps along the vector axis and vectors; facts of the work itself."""
        parts, e = self._parts(threads, size), extent(self.kernel, size)
        if not e.points:
            return {}
        return {
            "compute_s": parts.compute,
            "memory_s": parts.memory,
            "overhead_s": parts.overhead,
            "speedup": parts.speedup,
            "vectors": parts.layout.vectors / max(1.0, parts.layout.sweeps),
            "items": parts.layout.items,
            "work.points": e.points,
            "work.row": e.row,
            "work.bytes": sum(self._moved(self._axes(size)).values()),
            "work.accesses": sum(map(len, self._touched.values())),
            "work.passes": self.row_nest.passes,
            "work.reductions": len(self.row_nest.reduces),
            "work.columns": float(self.row_nest.form is Form.COLUMN),
            "work.lanes": self.lanes,
        }

    def _axes(self, size: Mapping[str, int]) -> dict[sympy.Symbol, int]:
        values = {s: size[s.name] for s in self.kernel.symbols}
        return {a.symbol: sizes.evaluate(a.size, values) for a in self.kernel.loop.axes + self.kernel.loop.reduced}

    def _parts(self, threads: int, size: Mapping[str, int]) -> Parts:
        nest, axes = self.nest, self._axes(size)
        e, length = extent(self.kernel, size), axes.get(nest.vec.symbol, 1)
        layout = self._layout(e, axes, length)
        work = layout.vectors * self._work + self._transposed_vectors(e, axes) * BY_LANE["transposed"] * self.lanes
        compute = work / (2 * CLOCK) + max(1, nest.passes) * layout.sweeps * SWEEP
        if nest.form is Form.ROW and self._rows is None:
            compute += e.rows * (len(nest.reduces) * ACROSS + self._scalars / (2 * CLOCK))
        items = max(1.0, layout.items)
        overhead = CALL + (FORK if threads > 1 else 0.0)
        if self.schedule.shared:
            overhead += (e.rows if nest.form is Form.ROW else layout.sweeps) * nest.passes * BARRIER
        speedup = max(1.0, min(items / -(-items // threads), threads))
        return Parts(layout, compute, self._memory_seconds(e, axes), overhead, speedup)

    # what does not depend on the sizes ---------------------------------------------------------------------------------

    @cached_property
    def _transposed(self) -> Transposed | None:
        """The layout for accesses that are transposed on load or store; None if there are none."""
        return transposed_layout(self.row_nest, self.schedule.lanes)

    @property
    def _rows(self) -> Transposed | None:
        """The layout if lanes process one row each; None otherwise."""
        return self._transposed if self.row_nest.form is Form.ROW else None

    @property
    def _tile(self) -> Transposed | None:
        """The layout if points are processed in transposing tiles; None otherwise."""
        return self._transposed if self.row_nest.form is Form.POINTWISE else None

    @cached_property
    def nest(self) -> Nest:
        """The layout whose passes are counted."""
        return self._tile.nest if self._tile is not None else self.row_nest

    @cached_property
    def _cuts(self) -> int:
        """Number of places at which a run along the vector axis is cut."""
        return len({(cut.offset, id(cut.operand), cut.step) for cut in self.nest.cuts.values()})

    @cached_property
    def _work(self) -> float:
        atomics = sum(store.mode != "set" for store in self.kernel.loop.stores) if self.schedule.stores is Stores.ATOMIC else 0
        return pass_work(self.nest, self.schedule.caches, self.lanes, self._tile) + atomics * self.lanes * BY_LANE["atomic"]

    @cached_property
    def _scalars(self) -> float:
        """Multiply-adds of values that are computed once per row."""
        return sum(ops.definition(n.name).cost for n in self.nest.row_values if isinstance(n, Op))

    @cached_property
    def _touched(self) -> dict[str, list[frozenset[sympy.Symbol]]]:
        """For each tensor, the axes on which the index of each access depends."""
        own = {a.symbol for a in self.kernel.loop.axes + self.kernel.loop.reduced}
        axes_by_buffer: dict[str, list[frozenset[sympy.Symbol]]] = {}
        for access in self.kernel.loop.accesses():
            axes_by_buffer.setdefault(access.buffer, []).append(frozenset(access.index.free_symbols & own))
        return axes_by_buffer

    @cached_property
    def _items(self) -> dict[str, int]:
        """Element size of each tensor in bytes."""
        return {buffer: self.kernel.storage(buffer).itemsize for buffer in self._touched}

    @cached_property
    def _strided(self) -> tuple[str, ...]:
        """Tensors of which each lane loads an element from a different cache line."""
        plain = self.schedule.lanes is Lanes.ALONG and self.schedule.stores is Stores.CACHED
        tile = transposed_layout(self.nest, Lanes.TILED) if plain else None
        return tuple(load.buffer for load in tile.loads) if tile is not None else ()

    # what does ---------------------------------------------------------------------------------------------------------

    def _layout(self, e: Extent, axes: Mapping[sympy.Symbol, int], length: int) -> Layout:
        vectors, others = -(-length // self.lanes), e.points / max(1, length)
        if self._rows is not None:
            along = axes[self._rows.nest.vec.symbol]
            groups = -(-along // self.lanes) * e.rows / max(1, along)
            return Layout(groups, groups * e.row, groups)
        if self.nest.form is Form.COLUMN:
            tiles = -(-vectors // COLUMNS) * e.rows / max(1, length)
            return Layout(tiles, vectors * others, e.points // 1024 if self.schedule.shared else tiles)
        whole = self.nest.form is Form.ROW and not self.schedule.shared
        return Layout(others, vectors * others, e.rows if whole else e.points // 1024)

    def _transposed_vectors(self, e: Extent, axes: Mapping[sympy.Symbol, int]) -> float:
        """Vectors in all transposed squares. A square that an axis only partly fills is transposed as a whole."""
        if self._transposed is None:
            return 0.0
        across, along = axes[self._transposed.axis.symbol], axes.get(self._transposed.nest.vec.symbol, 1)
        squares = -(-along // self.lanes) * -(-across // self.lanes) * e.points / max(1, across * along)
        return len(self._transposed.accesses) * squares * self.lanes

    def _moved(self, axes: Mapping[sympy.Symbol, int]) -> dict[str, int]:
        """Bytes touched in each tensor."""
        touched = self._touched.items()
        return {b: self._items[b] * max(math.prod(axes[a] for a in s) for s in accesses) for b, accesses in touched}

    def _memory_seconds(self, e: Extent, axes: Mapping[sympy.Symbol, int]) -> float:
        """Time of memory traffic. Every pass rereads what does not fit in the private cache, and a strided lane loads a whole
        cache line."""
        items, moved = self._items, self._moved(axes)
        footprint = sum(moved.values())
        if self.nest.form is not Form.POINTWISE:
            again = 0 if e.row * 4 <= LEVELS[0][0] else self.nest.passes - 1
            return footprint * (1 + again) / bandwidth(footprint)
        if footprint > LEVELS[0][0]:
            footprint += sum(moved[b] * (LINE // items[b] - 1) for b in self._strided)
        return footprint / bandwidth(footprint) * (STREAMED if self.schedule.stores is Stores.STREAMED else 1.0)


def bandwidth(footprint: float) -> float:
    """Bandwidth of one thread in bytes/s for a footprint of this many bytes."""
    return next(rate for limit, rate in LEVELS if footprint <= limit)


def pass_work(nest: Nest, caches: bool, lanes: int, tile: Transposed | None = None) -> float:
    """Multiply-adds per vector over all passes. Each pass recomputes values unless the schedule `caches` them. Transposed
    accesses use tiles."""
    cached = set(cached_values(nest)) if caches else set()
    tiles = {*tile.loads, *tile.stores} if tile else set[Node | Store]()
    total, before = 0.0, set[Node]()
    for k in range(max(1, nest.passes)):
        stores = nest.stores_in(k) if nest.loop.reduced else nest.loop.stores
        available = cached & before
        nodes = set(nest.nodes_in(k, stop=available)) if nest.loop.reduced else set(nest.needed)
        total += sum(CONTIGUOUS if n in available or n in tiles else _operation(nest, n, lanes) for n in nodes)
        total += sum(CONTIGUOUS if s in tiles else _access(nest, s, lanes) for s in stores)
        total += len(nest.reduces_in(k))
        before |= nodes
    return total


def _operation(nest: Nest, node: Node, lanes: int) -> float:
    if not nest.is_vector(node):
        return 0.0
    if isinstance(node, Load):
        return _access(nest, node, lanes)
    return ops.definition(node.name).cost if isinstance(node, Op) else 1.0


def _access(nest: Nest, access: Load | Store, lanes: int) -> float:
    """The cost of a load or store of one vector, in multiply-adds."""
    stride = sizes.coefficient(access.index, nest.vec.symbol)
    if isinstance(access, Load) and stride is None and repeats(nest, access) is not None:
        return 2 * CONTIGUOUS
    if stride is None or any(nest.is_vector(i) for i in access.indirect):
        return lanes * BY_LANE["gathered" if isinstance(access, Load) else "scattered"]
    if isinstance(access, Load) and stride in SHUFFLED:
        return 2 * abs(int(stride)) * CONTIGUOUS
    return CONTIGUOUS if stride in (0, 1) else lanes * BY_LANE["strided"]
