"""A loop under a CPU's schedule: its vectors, caches, threads, passes and barriers as data, which the C++ printers write down.

    LoopKernel ── REWRITES ──► LoopKernel ── a CpuSchedule, STEPS ──► ScheduledLoop ── codegen/cpp/loops.py ──► C++

A step answers one question and leaves what the steps before it have answered. ScheduledLoop.text is what they came to; the option
`debug` shows it from 4 on. softmax as `persistent`, for one:

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
from polytile.ir.program import Axis, Loop, Store
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
"""Nodes of a pass along rows: up to here 4, up to there 2 accumulators break the chain of additions."""
COLUMNS = 4
"""Vectors of columns side by side."""


class Threads(enum.Enum):
    """What the threads of a call divide: the points of all axes in order; a range of one axis, whose owner alone stores there;
    the rows, or tiles of columns; each row, or tile, a share each; nothing, as one thread does everything."""

    POINTS = "points"
    OWNED = "owned"
    ROWS = "rows"
    SHARES = "shares of each row"
    NOTHING = "nothing"


@dataclass(frozen=True)
class Pass:
    """One way through the reduced axes (or the points): the values that it `takes` from the cache and those that it `makes` for
    later passes, its reductions and scans, and its stores at every point. `cut` is the reduced axis that goes in ranges: one for
    each thread that shares a row, or blocks whose running values are added up one by one. `unroll` vectors are under way
    together. After the pass threads that share a row combine what they have, where there is a `barrier`."""

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
        """Whether something runs on from point to point."""
        return bool(self.reduces or self.scans)

    @property
    def works(self) -> bool:
        """Whether there is anything that it is there for."""
        return bool(self.reduces or self.stores)


@dataclass(frozen=True)
class ScheduledLoop:
    """A loop and what its schedule makes of it.

    `nest` is the layout that code is written for, transposed or not; `cached` has the values of a row that wait for later
    passes, with the pass that makes each, and `homes` those of them that wait where a store will go; `streamed` are the
    non-temporal stores; `owner` is the axis that threads own ranges of.
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
        """Vectors of columns that are gone down together: of transposed rows each tile has one."""
        return COLUMNS if self.transposed is None else 1

    @cached_property
    def text(self) -> str:
        """What a person reads. Values have the numbers that the loop's own text gives them."""
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


# before a schedule is chosen -----------------------------------------------------------------------------------------------

REWRITES: tuple[Callable[[Loop], Loop], ...] = (plain_reductions, fuse_axes)
"""What becomes of every loop: reductions of one result each, and neighbouring axes as one."""


def apply_rewrites(kernel: LoopKernel) -> LoopKernel:
    """The kernel in the reductions and axes that schedules are for."""
    loop = kernel.loop
    for rewrite in REWRITES:
        loop = rewrite(loop)
    return replace(kernel, loop=loop)


# what a schedule makes of a loop -------------------------------------------------------------------------------------------


def transpose(loop: ScheduledLoop) -> ScheduledLoop:
    """Which points are lanes, and what is transposed for that (transposing.py)."""
    layout = transposed_layout(loop.nest, loop.schedule.lanes)
    return loop if layout is None else replace(loop, transposed=layout, nest=layout.nest)


def cache(loop: ScheduledLoop) -> ScheduledLoop:
    """Which values of a row wait for later passes, and where (value_cache.py)."""
    cached = cached_values(loop.nest) if loop.schedule.caches else {}
    return replace(loop, cached=cached, homes=cache_stores(loop.kernel, loop.nest) if cached else {})


def stream(loop: ScheduledLoop) -> ScheduledLoop:
    """Which stores pass the caches by (streaming.py)."""
    return replace(loop, streamed=streamable_stores(loop.nest)) if loop.schedule.stores is Stores.STREAMED else loop


def divide(loop: ScheduledLoop) -> ScheduledLoop:
    """What threads divide, so that no two of them store to one element unless they do so atomically (scatter.py)."""
    pointwise, meet = loop.nest.form is Form.POINTWISE, bool(scattered_stores(loop.kernel.loop))
    if loop.schedule.shared:
        return replace(loop, threads=Threads.SHARES)
    if not meet or loop.schedule.stores is Stores.ATOMIC:
        return replace(loop, threads=Threads.POINTS if pointwise else Threads.ROWS)
    owner = owner_axis(loop.kernel.loop, loop.nest.vec) if pointwise else None
    return replace(loop, threads=Threads.NOTHING if owner is None else Threads.OWNED, owner=owner)


def go_through(loop: ScheduledLoop) -> ScheduledLoop:
    """What each pass takes, makes, reduces, scans and stores."""
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
    """The outermost axis of a row, and of a scan; down columns the innermost whose length only the call knows."""
    if nest.form is Form.ROW:
        return nest.inner[0] if nest.inner else nest.vec
    reduced = nest.loop.reduced
    return reduced[0] if scans else max(enumerate(reduced), key=lambda place: (not place[1].size.is_Integer, place[0]))[1]


def _unroll(nest: Nest, k: int) -> int:
    """Vectors along a row that are under way together, each with an accumulator of its own; a scan goes one by one."""
    if nest.form is not Form.ROW or nest.scans_in(k) or not nest.reduces_in(k):
        return 1
    nodes = sum(1 for n in nest.nodes_in(k) if not isinstance(n, Const))
    return 4 if nodes <= SHORT_BODY else 2 if nodes <= LONG_BODY else 1


STEPS: tuple[Callable[[ScheduledLoop], ScheduledLoop], ...] = (transpose, cache, stream, divide, go_through)
"""The way from a loop and its schedule to what is printed, in order."""


def apply_schedule(kernel: LoopKernel, schedule: CpuSchedule) -> ScheduledLoop:
    """A kernel after `apply_rewrites`, under a legal schedule."""
    loop = ScheduledLoop(kernel, schedule, nest_of(kernel.loop))
    for step in STEPS:
        loop = step(loop)
    return loop
