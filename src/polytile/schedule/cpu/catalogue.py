"""The schedules of a CPU by their names, simpler ones first. A docstring shows the loop before and after, and says when the
schedule is legal (space.py decides), what it costs, and what others call it.

`each thread` has a range of what it goes through, `by vectors` means L points at a time, one a lane. "Moves" counts how often
memory or a cache brings an element that every pass reads.
"""

from __future__ import annotations

from polytile.schedule.answers import Combine, Hold, Share
from polytile.schedule.cpu.schedule import POINT, ROW, CpuSchedule, Lanes, Stores

PLAIN = CpuSchedule(*POINT)
"""Sweeps of the vector axis.

    for p0 < n0, p1 < n1: o[p0, p1] = f(x[p0, p1])   →   each thread, for points: for p1 by vectors: o[p0, p1] = f(x[p0, p1])

Legal for loops without reduced axes. Where stores may meet, each thread owns a range of an axis that keeps them apart; without
such an axis one thread does everything. Moves everything once.
Halide: vectorize, parallel. TVM: vectorize, parallel. OpenMP: parallel for simd.
"""
TILED = CpuSchedule(*POINT, Lanes.TILED)
"""The same by squares of L × L points, in which operands that lie along another axis are transposed.

    o[p0, p1] = f(x[p1, p0])   →   for blocks: squares of x → registers → tile; for p0, p1 by vectors: o[p0, p1] = f(tile)

Legal for stores that cannot meet, of lanes of 4 bytes or more. Moves everything once. An element costs half a multiply-add on its
way through registers, two where each lane reads a cache line of its own.
Halide: tile and compute_at with a transposed store layout. TVM: cache_read and transform_layout.
"""
SHORT_POINTS = CpuSchedule(*POINT, Lanes.ACROSS)
"""Vectors along another axis than the one that suits memory best, which would leave most lanes empty.

    o[p0, p1 < 3] = f(x[p0, p1])   →   for p0 by squares: x → registers → tile; for p1: vectors of p0; tile → registers → o

Legal as `TILED`. Moves everything once. Costs the transposing, and saves the lanes that a short axis leaves empty.
Halide, TVM: reorder, and vectorize the outer axis.
"""
STREAMED = CpuSchedule(*POINT, stores=Stores.STREAMED)
"""`PLAIN` with non-temporal stores: a line that is written whole is not read first, and none of it stays in a cache.

    o[p0] = f(x[p0])   →   each thread, for p0 by vectors: stream(o[p0], f(x[p0])); then a fence

Legal where some store writes every line whole and the loop does not read its buffer. Takes 0.8 of the time of memory where what
is written fills half of the last-level cache. Costs the next reader of the result, who finds none of it in a cache.
Intel: streaming stores. OpenMP: nontemporal. No name in Halide or TVM.
"""
ATOMIC = CpuSchedule(*POINT, stores=Stores.ATOMIC)
"""`PLAIN` with atomic updates in place of a single thread.

    table[index[p0]] += x[p0]   →   each thread, for p0: atomic_add(table[index[p0]], x[p0])

Legal where all stores that may meet accumulate, and no axis keeps threads apart. Costs an atomic for each element, and the order
of additions, which differs from call to call.
OpenMP: atomic. Halide: atomic. TVM: no name.
"""
PERSISTENT = CpuSchedule(Hold.CACHE, *ROW)
"""A thread has whole rows; what costs much and several passes need is computed once.

    s = sum(exp(x[p0, :]))            →    each thread, for rows: for r by vectors: e[r] = exp(x[p0, r]); acc += e[r]
    o[p0, r0] = exp(x[p0, r0]) / s                                for r by vectors: o[p0, r] = e[r] / sum(acc)

Legal where there is such a value; fits where scratch rows fit in a private cache. `e` stands where the row's result will, or in a
scratch row. Moves everything once where a row fits in a cache, else once a pass.
Halide: compute_at the row. TVM: cache_write.
"""
LOOPED = CpuSchedule(Hold.MEMORY, *ROW)
"""A thread has whole rows, or tiles of columns, and each pass reads and computes them again.

    s = sum(f(x[p0, :]))              →    each thread, for rows: for r by vectors: acc += f(x[p0, r])
    o[p0, r0] = f(x[p0, r0]) / s                                  for r by vectors: o[p0, r] = f(x[p0, r]) / sum(acc)

Legal for any reductions and scans. Moves everything once where a row fits in a cache, else once a pass.
Halide: rfactor over a split RDom. TVM: split and rfactor. OpenMP: simd reduction.
"""
SHORT_ROWS = CpuSchedule(Hold.CACHE, *ROW, Lanes.ACROSS)
"""The lanes of a vector are rows, which are transposed on their way in and out.

    s = sum(x[p0, :5])                →    each thread, for L rows: squares of x → registers → tile; for r: acc += tile[r]
    o[p0, r0] = x[p0, r0] / s                                       for r: out[r] = tile[r] / acc; out → registers → o

Legal for one reduced axis along which operands lie. Moves everything once. Costs the transposing, and saves putting lanes
together and the lanes that a short row leaves empty.
Halide: vectorize over rows. TVM: reorder, and vectorize over rows.
"""
SPLIT = CpuSchedule(Hold.CACHE, Share.CLUSTER, Combine.CLUSTER)
"""All threads together go through each row, or each tile of columns, a share each.

    s = sum(x[p0, :])                 →    for rows, all threads: for r in mine: acc += x[p0, r]; share[me] = acc; barrier
    o[p0, r0] = x[p0, r0] / s                                     s = sum(share); for r in mine: o[p0, r] = x[p0, r] / s

Legal for reductions; for a single scan of one result that is all that the loop does. Moves as `PERSISTENT` does. Costs a barrier
a pass and row. For few long rows.
Halide: rfactor with parallel. OpenMP: reduction. CUB: DeviceReduce, on a GPU.
"""

POINTS, ROWS = (PLAIN, TILED, SHORT_POINTS, STREAMED, ATOMIC), (PERSISTENT, LOOPED, SHORT_ROWS, SPLIT)
"""All schedules of points and of rows (or columns), in canonical order."""
