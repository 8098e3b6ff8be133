"""How a CPU goes through a loop: the questions of a GPU's schedule (schedule/schedule.py), and two about its vectors.

    hold      where a thread has what several passes over a row need; CACHE: costly values wait in the first-level cache
    share     who shares a row: one thread (PROGRAM), or all threads of the call, which may wait for each other (CLUSTER)
    combine   how the shares of a row become one result
    lanes     which points are the lanes of a vector
    stores    how results are written

| hold      | share   | combine | lanes  | stores   | name       |
| --------- | ------- | ------- | ------ | -------- | ---------- |
| registers | program | nothing | along  | cached   | plain      |
| registers | program | nothing | tiled  | cached   | tiled      |
| registers | program | nothing | across | cached   | short      |
| registers | program | nothing | along  | streamed | streamed   |
| registers | program | nothing | along  | atomic   | atomic     |
| cache     | program | program | along  | cached   | persistent |
| memory    | program | program | along  | cached   | looped     |
| cache     | program | program | across | cached   | short      |
| cache     | cluster | cluster | along  | cached   | split      |

Each call says how many threads there are. The name stands in candidates' names and in stored configs (`variant`); nothing
decides by it. Where docstrings show code, `each thread` has a range of what it goes through.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from polytile.problem import Config
from polytile.schedule.schedule import Combine, Hold, Share


class Lanes(enum.Enum):
    """Which points are the lanes of a vector: neighbours along the axis that suits memory best, with what lies along another axis
    read lane by lane (ALONG) or transposed by square tiles in registers (TILED); or points of another axis, as that one is too
    short, with what lies along it transposed (ACROSS)."""

    ALONG = "along"
    TILED = "tiled"
    ACROSS = "across"


class Stores(enum.Enum):
    """How results are written: through the caches; past them, by non-temporal stores; by atomic updates."""

    CACHED = "cached"
    STREAMED = "streamed"
    ATOMIC = "atomic"


@dataclass(frozen=True)
class CpuSchedule:
    """One way through a loop. Raises ValueError for answers that no code is generated for."""

    hold: Hold
    share: Share
    combine: Combine
    lanes: Lanes = Lanes.ALONG
    stores: Stores = Stores.CACHED

    def __post_init__(self) -> None:
        if self._answers not in NAMES:
            raise ValueError(
                f"a CPU's schedule with {', '.join(answer.value for answer in self._answers)} was asked for; no code is "
                f"generated for it: the table in polytile.schedule.cpu.schedule has those that there are."
            )

    @property
    def _answers(self) -> Answers:
        return self.hold, self.share, self.combine, self.lanes, self.stores

    @property
    def name(self) -> str:
        """Its name in candidates and measurements: among the schedules of points, or of rows, only one has it."""
        return NAMES[self._answers]

    def config(self, threads: int) -> Config:
        """As measurements have it."""
        return Config.of(variant=self.name, threads=threads)

    @property
    def caches(self) -> bool:
        """Whether costly values of a row wait for later passes."""
        return self.hold is Hold.CACHE

    @property
    def shared(self) -> bool:
        """Whether all threads share each row."""
        return self.share is Share.CLUSTER

    @property
    def needs_threads(self) -> bool:
        """Whether it is of no use to one thread: what it costs keeps threads apart."""
        return self.shared or self.stores is Stores.ATOMIC


Answers = tuple[Hold, Share, Combine, Lanes, Stores]
_ROW, _POINT = (Share.PROGRAM, Combine.PROGRAM), (Hold.REGISTERS, Share.PROGRAM, Combine.NOTHING)
NAMES: dict[Answers, str] = {
    (*_POINT, Lanes.ALONG, Stores.CACHED): "plain",
    (*_POINT, Lanes.TILED, Stores.CACHED): "tiled",
    (*_POINT, Lanes.ACROSS, Stores.CACHED): "short",
    (*_POINT, Lanes.ALONG, Stores.STREAMED): "streamed",
    (*_POINT, Lanes.ALONG, Stores.ATOMIC): "atomic",
    (Hold.CACHE, *_ROW, Lanes.ALONG, Stores.CACHED): "persistent",
    (Hold.MEMORY, *_ROW, Lanes.ALONG, Stores.CACHED): "looped",
    (Hold.CACHE, *_ROW, Lanes.ACROSS, Stores.CACHED): "short",
    (Hold.CACHE, Share.CLUSTER, Combine.CLUSTER, Lanes.ALONG, Stores.CACHED): "split",
}
"""The name of a schedule, by its answers."""

PLAIN = CpuSchedule(*_POINT)
"""Sweeps of the vector axis.

    for p0 < n0, p1 < n1: o[p0, p1] = f(x[p0, p1])   →   each thread, for points: for p1 by vectors: o[p0, p1] = f(x[p0, p1])

Legal for loops without reduced axes. Where stores may meet, each thread owns a range of an axis that keeps them apart; without
such an axis one thread does everything. Moves everything once.
Halide: vectorize, parallel. TVM: vectorize, parallel.
"""
TILED = CpuSchedule(*_POINT, Lanes.TILED)
"""The same by squares of L × L points, in which operands that lie along another axis are transposed.

    o[p0, p1] = f(x[p1, p0])   →   for blocks: squares of x → registers → tile; for p0, p1 by vectors: o[p0, p1] = f(tile)

Legal for stores that cannot meet, of lanes of 4 bytes or more. An element costs half a multiply-add on its way through registers,
two where each lane reads a cache line of its own. Halide: tile and compute_at with a transposed store layout.
"""
SHORT_POINTS = CpuSchedule(*_POINT, Lanes.ACROSS)
"""Vectors along another axis than the one that suits memory best, which would leave most lanes empty.

    o[p0, p1 < 3] = f(x[p0, p1])   →   for p0 by squares: x → registers → tile; for p1: vectors of p0; tile → registers → o

Legal as `TILED`. Halide: reorder, vectorize the outer axis.
"""
STREAMED = CpuSchedule(*_POINT, stores=Stores.STREAMED)
"""`PLAIN` with non-temporal stores: a line that is written whole is not read first, and none of it stays in a cache.

Legal where some store writes every line whole and the loop does not read its buffer. Takes 0.8 of the time of memory where what
is written fills half of the last-level cache. Intel: streaming stores.
"""
ATOMIC = CpuSchedule(*_POINT, stores=Stores.ATOMIC)
"""`PLAIN` with atomic updates in place of a single thread.

Legal where all stores that may meet accumulate, and no axis keeps threads apart. OpenMP: atomic.
"""
PERSISTENT = CpuSchedule(Hold.CACHE, *_ROW)
"""A thread has whole rows; what costs much and several passes need is computed once.

    s = sum(exp(x[p0, :]))            →    each thread, for rows: for r by vectors: e[r] = exp(x[p0, r]); acc += e[r]
    o[p0, r0] = exp(x[p0, r0]) / s                                for r by vectors: o[p0, r] = e[r] / sum(acc)

Legal where there is such a value; fits where scratch rows fit in a private cache. `e` stands where the row's result will, or in a
scratch row. Moves everything once. Halide: compute_at the row. TVM: cache_write.
"""
LOOPED = CpuSchedule(Hold.MEMORY, *_ROW)
"""A thread has whole rows, or tiles of columns, and each pass reads and computes them again.

    s = sum(f(x[p0, :]))              →    each thread, for rows: for r by vectors: acc += f(x[p0, r])
    o[p0, r0] = f(x[p0, r0]) / s                                  for r by vectors: o[p0, r] = f(x[p0, r]) / sum(acc)

Legal for any reductions and scans. Moves everything once where a row fits in a cache. Halide: rfactor over a split RDom.
"""
SHORT_ROWS = CpuSchedule(Hold.CACHE, *_ROW, Lanes.ACROSS)
"""The lanes of a vector are rows, which are transposed on their way in and out.

    s = sum(x[p0, :5])                →    each thread, for L rows: squares of x → registers → tile; for r: acc += tile[r]
    o[p0, r0] = x[p0, r0] / s                                       for r: out[r] = tile[r] / acc; out → registers → o

Legal for one reduced axis along which operands lie. Saves putting lanes together, and lanes that a short row leaves empty; costs
the transposing. Halide: vectorize over rows.
"""
SPLIT = CpuSchedule(Hold.CACHE, Share.CLUSTER, Combine.CLUSTER)
"""All threads together go through each row, or each tile of columns, a share each.

    s = sum(x[p0, :])                 →    for rows, all threads: for r in mine: acc += x[p0, r]; share[me] = acc; barrier
    o[p0, r0] = x[p0, r0] / s                                     s = sum(share); for r in mine: o[p0, r] = x[p0, r] / s

Legal for reductions; for a single scan of one result that is all that the loop does. Costs a barrier a pass and row. For few
long rows. Halide: rfactor with parallel. OpenMP: reduction.
"""

POINTS, ROWS = (PLAIN, TILED, SHORT_POINTS, STREAMED, ATOMIC), (PERSISTENT, LOOPED, SHORT_ROWS, SPLIT)
"""All schedules of points and of rows (or columns), in canonical order."""
