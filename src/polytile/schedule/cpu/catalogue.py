"""The CPU schedules by name, simpler ones first. A docstring shows the loop before and after, when the schedule is
legal (space.py decides), what it costs, and its name elsewhere.

`each thread` means that each thread iterates over its range. `by vectors` means L points at a time, one per lane.
"Moves" counts how often memory or a cache delivers an element that every pass reads.
"""

from __future__ import annotations

from polytile.schedule.answers import Combine, Hold, Share
from polytile.schedule.cpu.schedule import POINT, ROW, CpuSchedule, Lanes, Stores

PLAIN = CpuSchedule(*POINT)
"""Sweeps of the vector axis.

    for p0 < n0, p1 < n1: o[p0, p1] = f(x[p0, p1])   →   each thread, for points: for p1 by vectors: o[p0, p1] = f(x[p0, p1])

Legal for loops without reduced axes. If stores may collide, each thread owns a range of an axis that separates them;
without such an axis, one thread does everything. Moves everything once.
Halide: vectorize, parallel. TVM: vectorize, parallel. OpenMP: parallel for simd.
"""
TILED = CpuSchedule(*POINT, Lanes.TILED)
"""The same by squares of L × L points; operands that are contiguous along another axis are transposed.

    o[p0, p1] = f(x[p1, p0])   →   for blocks: squares of x → registers → tile; for p0, p1 by vectors: o[p0, p1] = f(tile)

Legal if stores cannot collide and lanes have at least 4 bytes. Moves everything once. Transposing an element in
registers costs half a multiply-add, against two where each lane reads its own cache line.
Halide: tile and compute_at with a transposed store layout. TVM: cache_read and transform_layout.
"""
SHORT_POINTS = CpuSchedule(*POINT, Lanes.ACROSS)
"""Vectors along another axis than the one with the best memory layout, because that one is too short to fill the lanes.

    o[p0, p1 < 3] = f(x[p0, p1])   →   for p0 by squares: x → registers → tile; for p1: vectors of p0; tile → registers → o

Legal like `TILED`. Moves everything once. Costs the transposition; saves the lanes that a short axis leaves empty.
Halide, TVM: reorder, and vectorize the outer axis.
"""
STREAMED = CpuSchedule(*POINT, stores=Stores.STREAMED)
"""`PLAIN` with non-temporal stores: a fully written cache line is not read first, and does not stay in a cache.

    o[p0] = f(x[p0])   →   each thread, for p0 by vectors: stream(o[p0], f(x[p0])); then a fence

Legal if some store fully writes every line and the loop does not read its buffer. Takes 0.8 of the memory time if the
output fills half of the last-level cache. The next reader of the result finds none of it in a cache.
Intel: streaming stores. OpenMP: nontemporal. No name in Halide or TVM.
"""
ATOMIC = CpuSchedule(*POINT, stores=Stores.ATOMIC)
"""`PLAIN` with atomic updates instead of a single thread.

    table[index[p0]] += x[p0]   →   each thread, for p0: atomic_add(table[index[p0]], x[p0])

Legal if all stores that may collide accumulate, and no axis separates the threads. Costs an atomic per element, and
makes the order of additions vary from call to call.
OpenMP: atomic. Halide: atomic. TVM: no name.
"""
PERSISTENT = CpuSchedule(Hold.CACHE, *ROW)
"""Each thread owns whole rows; expensive values that several passes need are computed once.

    s = sum(exp(x[p0, :]))            →    each thread, for rows: for r by vectors: e[r] = exp(x[p0, r]); acc += e[r]
    o[p0, r0] = exp(x[p0, r0]) / s                                for r by vectors: o[p0, r] = e[r] / sum(acc)

Legal if there is such a value; fits if scratch rows fit in a private cache. `e` is stored where the row's result will
be, or in a scratch row. Moves everything once if a row fits in a cache, else once per pass.
Halide: compute_at the row. TVM: cache_write.
"""
LOOPED = CpuSchedule(Hold.MEMORY, *ROW)
"""Each thread owns whole rows, or tiles of columns; each pass reads and computes them again.

    s = sum(f(x[p0, :]))              →    each thread, for rows: for r by vectors: acc += f(x[p0, r])
    o[p0, r0] = f(x[p0, r0]) / s                                  for r by vectors: o[p0, r] = f(x[p0, r]) / sum(acc)

Legal for any reductions and scans. Moves everything once if a row fits in a cache, else once per pass.
Halide: rfactor over a split RDom. TVM: split and rfactor. OpenMP: simd reduction.
"""
SHORT_ROWS = CpuSchedule(Hold.CACHE, *ROW, Lanes.ACROSS)
"""A vector's lanes are rows, which are transposed on load and store.

    s = sum(x[p0, :5])                →    each thread, for L rows: squares of x → registers → tile; for r: acc += tile[r]
    o[p0, r0] = x[p0, r0] / s                                       for r: out[r] = tile[r] / acc; out → registers → o

Legal for one reduced axis along which operands are contiguous. Moves everything once. Costs the transposition; saves
the horizontal reduction of lanes, and the lanes that a short row leaves empty.
Halide: vectorize over rows. TVM: reorder, and vectorize over rows.
"""
SPLIT = CpuSchedule(Hold.CACHE, Share.CLUSTER, Combine.CLUSTER)
"""All threads share each row, or each tile of columns.

    s = sum(x[p0, :])                 →    for rows, all threads: for r in mine: acc += x[p0, r]; share[me] = acc; barrier
    o[p0, r0] = x[p0, r0] / s                                     s = sum(share); for r in mine: o[p0, r] = x[p0, r] / s

Legal for reductions, and for a single scan with one result if the loop does nothing else. Moves as much as
`PERSISTENT`. Costs a barrier per pass and row. For few long rows.
Halide: rfactor with parallel. OpenMP: reduction. CUB: DeviceReduce, on a GPU.
"""

POINTS, ROWS = (PLAIN, TILED, SHORT_POINTS, STREAMED, ATOMIC), (PERSISTENT, LOOPED, SHORT_ROWS, SPLIT)
"""All schedules of points and of rows (or columns), in canonical order."""
