"""A loop under a CPU schedule: its vectors, caches, threads, passes and barriers as data, which the C++ printers print.

    LoopKernel ── REWRITES ──► LoopKernel ── a CpuSchedule, STEPS ──► ScheduledLoop ── codegen/cpp/loops.py ──► C++

Each step answers one question and does not change earlier answers. ScheduledLoop.text is the result in readable form;
the option `debug` prints it from level 4. For example, softmax as `persistent`:

    persistent: threads divide rows of p0; vectors along r0
      pass 0: reduces t1; 4 vectors at a time
      pass 1: reduces t4; caches t3 in o; 4 vectors at a time
      pass 2: takes t3; stores o
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from polytile.ir import printer
from polytile.ir.expr import Const, Node, Reduce, Scan
from polytile.ir.loop import Axis, Loop, Store
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.cpu.fused_axes import fuse_axes
from polytile.schedule.cpu.scatter import owner_axis, scattered_stores
from polytile.schedule.cpu.schedule import CpuSchedule, Stores
from polytile.schedule.cpu.streaming import streamable_stores
from polytile.schedule.cpu.transposing import Transposed, transposed_layout
from polytile.schedule.cpu.value_cache import cache_stores, cached_values
from polytile.schedule.nest import Form, Nest, nest_of
from polytile.schedule.rewrite import plain_reductions

SHORT_BODY, LONG_BODY = 10, 24
"""Nodes of a pass along rows: up to the first number, four accumulators break the chain of additions; up to the second, two."""
COLUMNS = 4
"""Number of adjacent vectors of columns."""


class Threads(enum.Enum):
    """What the threads of a call divide: the points of all axes in order; a range of one axis, where only the owner
    stores; rows, or tiles of columns; shares of each row or tile; nothing, since one thread does everything."""

    POINTS = "points"
    OWNED = "owned"
    ROWS = "rows"
    SHARES = "shares of each row"
    NOTHING = "nothing"


@dataclass(frozen=True)
class Pass:
    """One pass over the reduced axes (or the points).

    Attributes
    ----------
    number : int
        Index of the pass.
    nodes : tuple of Node
        The values that it computes.
    takes, makes : tuple of Node
        Values that it reads from the cache, and values that it caches for later passes.
    reduces, scans, stores : tuple
        Its reductions and scans, and its stores at every point.
    cut : Axis or None
        The reduced axis that is cut into ranges: one per thread that shares a row, or blocks whose running values are
        added up one by one.
    unroll : int
        Number of vectors in flight together.
    barrier : bool
        Whether threads that share a row combine their values after the pass.
    """

    number: int
    nodes: tuple[Node, ...]
    takes: tuple[Node, ...]
    makes: tuple[Node, ...]
    reduces: tuple[Reduce, ...]
    scans: tuple[Scan, ...]
    stores: tuple[Store, ...]
    cut: Axis | None
    unroll: int
    barrier: bool

    @property
    def accumulates(self) -> bool:
        """Whether values carry over from point to point."""
        return bool(self.reduces or self.scans)

    @property
    def works(self) -> bool:
        """Whether the pass does anything."""
        return bool(self.reduces or self.stores)


@dataclass(frozen=True)
class ScheduledLoop:
    """A loop and the result of its schedule.

    `nest` is the layout of the generated code, transposed or not. `cached` maps the values of a row that later passes
    reuse to the pass that computes each; `homes` maps those of them that are kept where a store will write. `streamed`
    holds the non-temporal stores. `owner` is the axis of which each thread owns a range.
    """

    kernel: LoopKernel
    schedule: CpuSchedule
    nest: Nest
    transposed: Transposed | None = None
    cached: Mapping[Node, int] = field(default_factory=dict)
    homes: Mapping[Node, Store] = field(default_factory=dict)
    streamed: tuple[Store, ...] = ()
    threads: Threads = Threads.POINTS
    owner: Axis | None = None
    passes: tuple[Pass, ...] = ()

    @property
    def side_by_side(self) -> int:
        """Number of vectors of columns processed together: a tile of transposed rows has one."""
        return COLUMNS if self.transposed is None else 1

    @cached_property
    def text(self) -> str:
        """A readable form. Values have the numbers of the loop's own text."""
        names = printer.value_names(self.kernel.loop.stores)
        lines = [f"{self.schedule.name}: threads divide {self._divided}; vectors along {self.nest.vec.symbol}"]
        if self.transposed is not None:
            buffers = ", ".join(dict.fromkeys(access.buffer for access in self.transposed.accesses))
            lines[0] += f"; {buffers or 'nothing'} transposed"
        return "\n".join([*lines, *(f"  pass {p.number}: {self._pass_text(p, names)}" for p in self.passes)])

    @property
    def _divided(self) -> str:
        if self.owner is not None:
            return f"{self.owner.symbol}, a range each"
        columns = (self.nest.vec,) if self.nest.form is Form.COLUMN else ()
        axes = ", ".join(str(axis.symbol) for axis in (*self.nest.outer, *columns))
        return f"{self.threads.value} of {axes}" if axes and self.threads is not Threads.NOTHING else self.threads.value

    def _pass_text(self, one: Pass, names: Mapping[int, str]) -> str:
        verbs: dict[str, tuple[Node, ...]] = {"takes": one.takes, "reduces": one.reduces, "scans": one.scans}
        parts = [f"{verb} {', '.join(names[id(node)] for node in nodes)}" for verb, nodes in verbs.items() if nodes]
        parts += [f"caches {names[id(n)]} in {self.homes[n].buffer if n in self.homes else 'scratch'}" for n in one.makes]
        parts += [f"{'streams' if store in self.streamed else 'stores'} {store.buffer}" for store in one.stores]
        parts += [f"{one.unroll} vectors at a time"] if one.unroll > 1 else []
        return "; ".join([*parts, "barrier"] if one.barrier else parts)


# before a schedule is chosen
# -----------------------------------------------------------------------------------------------

REWRITES: tuple[Callable[[Loop], Loop], ...] = (plain_reductions, fuse_axes)
"""Rewrites of every loop: to reductions with one result each, and neighbouring axes fused."""


def apply_rewrites(kernel: LoopKernel) -> LoopKernel:
    """The kernel with the reductions and axes that schedules expect."""
    loop = kernel.loop
    for rewrite in REWRITES:
        loop = rewrite(loop)
    return replace(kernel, loop=loop)


# steps of a schedule
# -------------------------------------------------------------------------------------------------------


def transpose(loop: ScheduledLoop) -> ScheduledLoop:
    """Chooses the lanes, and what is transposed for them (transposing.py)."""
    layout = transposed_layout(loop.nest, loop.schedule.lanes)
    return loop if layout is None else replace(loop, transposed=layout, nest=layout.nest)


def cache(loop: ScheduledLoop) -> ScheduledLoop:
    """Chooses the values of a row to cache for later passes, and their location (value_cache.py)."""
    cached = cached_values(loop.nest) if loop.schedule.caches else {}
    return replace(loop, cached=cached, homes=cache_stores(loop.kernel, loop.nest) if cached else {})


def stream(loop: ScheduledLoop) -> ScheduledLoop:
    """Chooses the stores that bypass the caches (streaming.py)."""
    return replace(loop, streamed=streamable_stores(loop.nest)) if loop.schedule.stores is Stores.STREAMED else loop


def divide(loop: ScheduledLoop) -> ScheduledLoop:
    """Chooses what the threads divide, so that no two of them store to one element except atomically (scatter.py)."""
    pointwise, meet = loop.nest.form is Form.POINTWISE, bool(scattered_stores(loop.kernel.loop))
    if loop.schedule.shared:
        return replace(loop, threads=Threads.SHARES)
    if not meet or loop.schedule.stores is Stores.ATOMIC:
        return replace(loop, threads=Threads.POINTS if pointwise else Threads.ROWS)
    owner = owner_axis(loop.kernel.loop, loop.nest.vec) if pointwise else None
    return replace(loop, threads=Threads.NOTHING if owner is None else Threads.OWNED, owner=owner)


def split_passes(loop: ScheduledLoop) -> ScheduledLoop:
    """Determines what each pass takes, makes, reduces, scans and stores."""
    nest = loop.nest
    if nest.form is Form.POINTWISE:
        only = Pass(0, nest.needed, (), (), (), (), tuple(nest.loop.stores), None, 1, False)
        return replace(loop, passes=(only,))
    return replace(loop, passes=tuple(_pass(loop, k) for k in range(nest.passes)))


def _pass(loop: ScheduledLoop, k: int) -> Pass:
    nest, takes = loop.nest, tuple(n for n, first in loop.cached.items() if first < k)
    reduces, scans = tuple(nest.reduces_in(k)), tuple(nest.scans_in(k))
    makes = tuple(n for n, first in loop.cached.items() if first == k)
    barrier = loop.schedule.shared and bool(reduces or scans)
    nodes = tuple(nest.nodes_in(k, stop=takes))
    return Pass(k, nodes, takes, makes, reduces, scans, tuple(nest.stores_in(k)), _cut(nest, scans), _unroll(nest, k), barrier)


def _cut(nest: Nest, scans: tuple[Scan, ...]) -> Axis:
    """The outermost axis of a row or of a scan; down columns, the innermost axis of dynamic length."""
    if nest.form is Form.ROW:
        return nest.inner[0] if nest.inner else nest.vec
    reduced = nest.loop.reduced
    return reduced[0] if scans else max(enumerate(reduced), key=lambda place: (not place[1].size.is_Integer, place[0]))[1]


def _unroll(nest: Nest, k: int) -> int:
    """Number of vectors in flight along a row, each with its own accumulator; one for a scan."""
    if nest.form is not Form.ROW or nest.scans_in(k) or not nest.reduces_in(k):
        return 1
    nodes = sum(1 for n in nest.nodes_in(k) if not isinstance(n, Const))
    return 4 if nodes <= SHORT_BODY else 2 if nodes <= LONG_BODY else 1


STEPS: tuple[Callable[[ScheduledLoop], ScheduledLoop], ...] = (transpose, cache, stream, divide, split_passes)
"""The steps from a loop and its schedule to what is printed, in order."""


def apply_schedule(kernel: LoopKernel, schedule: CpuSchedule) -> ScheduledLoop:
    """Applies a legal schedule to a kernel after `apply_rewrites`."""
    loop = ScheduledLoop(kernel, schedule, nest_of(kernel.loop))
    for step in STEPS:
        loop = step(loop)
    return loop
