"""The search space on a CPU: a loop's legal schedules (schedule.py) and numbers of threads, in canonical order, and the
sizes at which each is worth trying."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from polytile.ir import sizes
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.cpu.catalogue import POINTS, ROWS
from polytile.schedule.cpu.scatter import accumulates, owner_axis, scattered_stores
from polytile.schedule.cpu.schedule import CpuSchedule, Lanes, Stores
from polytile.schedule.cpu.streaming import streamable_stores, streamed_bytes
from polytile.schedule.cpu.transposing import LONGEST, transposed_layout
from polytile.schedule.cpu.value_cache import cache_stores, cached_values
from polytile.schedule.extent import extent
from polytile.schedule.nest import Form, Nest

SCRATCH_LIMIT = 1 << 20
"""Maximum bytes of cached values per thread. Beyond the private caches, caching costs more than recomputing."""

FEWEST = 16
"""Number of rows from which transposing pays."""

NARROW = 16
"""Number of elements of a pointwise row that fill a vector."""

LEAST_POINTS = 1024
"""Number of points from which a second thread pays, and number of points of a row from which sharing it pays."""

MOST_SHARED = 4096
"""Maximum number of rows that threads share."""


def thread_counts(most: int) -> tuple[int, ...]:
    """1, then powers of four, then `most`: few enough to measure, dense enough to be within 2× of the best count."""
    counts = [1]
    while counts[-1] * 4 < most:
        counts.append(counts[-1] * 4)
    return tuple(dict.fromkeys([*counts, most]))


def schedules(nest: Nest, most: int) -> tuple[tuple[CpuSchedule, int], ...]:
    """All schedules of a loop with their numbers of threads, up to `most`, in canonical order: fewer threads first,
    then simpler schedules; last those that need threads, with all of them."""
    able = [schedule for schedule in (ROWS if nest.loop.reduced else POINTS) if legal(nest, schedule)]
    counts = thread_counts(1 if _is_serial(nest) else most)
    whole = [(schedule, threads) for threads in counts for schedule in able if not schedule.needs_threads]
    return (*whole, *((schedule, most) for schedule in able if schedule.needs_threads and most > 1))


def legal(nest: Nest, schedule: CpuSchedule) -> bool:
    """Whether `schedule` applies to this loop, whatever its sizes, and differs from the earlier ones."""
    meeting = scattered_stores(nest.loop)
    if nest.form is Form.POINTWISE:
        match schedule.stores:
            case Stores.STREAMED:
                return not meeting and bool(streamable_stores(nest))
            case Stores.ATOMIC:
                return _is_serial(nest) and accumulates(nest.loop)
        return schedule.lanes is Lanes.ALONG or transposed_layout(nest, schedule.lanes) is not None
    if schedule.shared:
        return not meeting and _can_share(nest)
    if schedule.lanes is Lanes.ACROSS:
        return transposed_layout(nest, schedule.lanes) is not None
    return not schedule.caches or bool(cached_values(nest))


def _is_serial(nest: Nest) -> bool:
    """Whether stores may collide and no axis separates them, so that one thread must make them in order."""
    return bool(scattered_stores(nest.loop)) and (nest.form is not Form.POINTWISE or owner_axis(nest.loop, nest.vec) is None)


def _can_share(nest: Nest) -> bool:
    """Whether threads can share one row. A scan needs a single row axis and a single result."""
    if not nest.scans:
        return True
    one = len(nest.scans) == 1 and nest.scans[0].kind in ("sum", "prod", "logsumexp")
    return nest.form is Form.ROW and not nest.inner and one and nest.passes == 1 and not nest.reduces_in(0)


@dataclass(frozen=True)
class Usefulness:
    """Where legal schedules of a loop make sense, with a last-level cache of `last_level` bytes. What does not depend on the
    sizes is cached, as predictions ask about many sizes."""

    kernel: LoopKernel
    nest: Nest
    last_level: int

    @cached_property
    def _streamed_bytes(self) -> int:
        """Bytes that non-temporal stores write for each point."""
        return streamed_bytes(self.kernel, self.nest)

    @cached_property
    def _scratch_bytes(self) -> int:
        """Bytes of the scratch row for each element of a row."""
        scratch = cached_values(self.nest).keys() - cache_stores(self.kernel, self.nest).keys()
        return sum(node.dtype.itemsize for node in scratch)

    def is_worth_trying(self, schedule: CpuSchedule, threads: int, size: Mapping[str, int]) -> bool:
        """Whether the schedule makes sense at these sizes. The plain or looped schedule on one thread always does."""
        nest = self.nest
        limited = schedule.caches or schedule.stores is Stores.STREAMED or schedule.lanes is Lanes.ACROSS
        if threads == 1 and not limited:
            return True
        e = extent(self.kernel, size)
        if threads > 1 and e.points < LEAST_POINTS:
            return False
        if schedule.stores is Stores.STREAMED:  # its next reader would find little of the output in the cache anyway
            return e.points * self._streamed_bytes >= self.last_level // 2
        if schedule.lanes is Lanes.ACROSS and nest.form is Form.POINTWISE:
            length = sizes.evaluate(nest.vec.size, {s: size[s.name] for s in self.kernel.symbols})
            return length < NARROW and e.points >= FEWEST * length
        if schedule.lanes is Lanes.ACROSS:
            return e.row <= LONGEST and e.rows >= FEWEST
        if schedule.shared:
            return e.row >= LEAST_POINTS and e.rows <= MOST_SHARED
        if schedule.caches:
            return e.row * self._scratch_bytes <= SCRATCH_LIMIT
        return nest.form is Form.POINTWISE or e.rows >= 2
