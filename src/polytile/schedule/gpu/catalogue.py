"""The GPU schedules by their standard names. Each is a function from its blocks (schedule.Blocks) to the GpuSchedule.

In the code of the docstrings, `row` is a block of r points, and `for p in programs` is a launch of a grid. "Moves"
counts how often memory or the L2 cache delivers an element that every pass reads.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from polytile.problem import Config
from polytile.schedule.answers import Combine, Hold, Share
from polytile.schedule.gpu.schedule import Blocks, GpuSchedule


def pointwise(**blocks: Any) -> GpuSchedule:
    """Each program has a block of points.

        for p0 < n0, p1 < n1:            →    for p in programs:
            o[p0, p1] = f(x[p0, p1])              o[block(p)] = f(x[block(p)])

    Legal for loops without reduced axes, at any size. Moves everything once. With two or three axes, loads and stores
    of a block can both be contiguous, as transposes require.
    Halide: tile, gpu_blocks, gpu_threads. TVM: split, bind. Triton: an elementwise kernel. CUB: DeviceTransform.
    """
    return GpuSchedule(Hold.REGISTERS, Share.PROGRAM, Combine.NOTHING, Blocks(**blocks))


def persistent(**blocks: Any) -> GpuSchedule:
    """Each program holds whole rows in registers (or whole columns of a block).

        for p0 < n0:                     →    for p in programs:
            s = sum(x[p0, r0] for r0)             row = x[p, 0:R]; s = sum(row)
            o[p0, r0] = x[p0, r0] / s             o[p, 0:R] = row / s

    Legal for any reductions and scans; fits if r (and r1) hold the row. Moves everything once. Costs registers,
    r / threads values per thread, and idle lanes if the row is shorter than r. `resident` limits registers, so that a
    multiprocessor holds several programs of columns.
    Inductor: persistent reduction. Halide: compute_at a block with the row unrolled. TVM: cache_read into "local". CUB:
    BlockReduce over BlockLoad.
    """
    return GpuSchedule(Hold.REGISTERS, Share.PROGRAM, Combine.PROGRAM, Blocks(**blocks))


def looped(**blocks: Any) -> GpuSchedule:
    """Each program iterates over its rows block by block, once per pass.

        s = sum(x[p0, r0] for r0)        →    for p in programs:
        o[p0, r0] = x[p0, r0] / s                 for at in range(0, n, R): acc += x[p, at:at+R]
                                                  s = sum(acc)
                                                  for at in range(n - R, -1, -R): o[p, at:at+R] = x[p, at:at+R] / s

    Legal for any reductions and scans, at any size. Moves the input of k passes k times, the later times from the L2
    cache as far as that holds the rows of all running programs; therefore every other pass runs backwards. `stages`
    blocks are in flight at once.
    Inductor: looped reduction. Halide: rfactor over a split RDom. TVM: split and reorder. CUB: tiles of a persistent block.
    """
    return GpuSchedule(Hold.MEMORY, Share.PROGRAM, Combine.PROGRAM, Blocks(**blocks))


def split(**blocks: Any) -> GpuSchedule:
    """`splits` programs share a row, one chunk each; each pass is a launch.

        s = sum(x[p0, r0] for r0)        →    for p, c in programs: partial[p, c] = sum(x[p, chunk(c)])
        o[p0, r0] = x[p0, r0] / s             for p, c in programs: s = sum(partial[p, :]); o[p, chunk(c)] = x[p, chunk(c)] / s

    Legal for any reductions, and for commutative scans if the loop does nothing else (an extra launch computes the
    chunks' totals). Moves as much as `looped`. Costs a launch per pass, scratch memory of rows × splits, and reading
    it. The next launch's programs combine rows; the last program to arrive combines the values of a row after the last
    pass, and columns. With `finalise`, a separate launch combines columns, `finalise` columns per program: few
    registers for many splits.
    Inductor: split reduction. Halide: rfactor. TVM: rfactor with cross-block reduction. CUB: DeviceReduce in two passes.
    """
    combine = Combine.LAUNCH if blocks.get("finalise") else Combine.LAST_PROGRAM
    return GpuSchedule(Hold.MEMORY, Share.GRID, combine, Blocks(**blocks))


def cluster(**blocks: Any) -> GpuSchedule:
    """The `splits` programs of a cluster hold a row (or columns) in registers, one share each.

        s = sum(x[p0, r0] for r0)        →    for p, c in clusters: share = x[p, chunk(c)]; partial[p, c] = sum(share)
        o[p0, r0] = x[p0, r0] / s                 cluster barrier; s = sum(partial[p, :]); o[p, chunk(c)] = share / s

    Legal for one reduced axis and at least two passes, and for the scans of rows that `split` supports, on devices of
    compute capability 9.0 or higher; fits if r × splits hold the row. Moves everything once. Costs a cluster barrier
    per pass, and occupancy: the programs of a cluster must start together.
    CUDA: thread block clusters. CUTLASS: cluster reduction. No name in Halide, TVM or Triton.
    """
    return GpuSchedule(Hold.REGISTERS, Share.CLUSTER, Combine.CLUSTER, Blocks(**blocks))


def column_reduction(**blocks: Any) -> GpuSchedule:
    """At most `programs` programs iterate over rows, which they hold, and accumulate the sums of the columns.

        o[p0, r0] = f(x[p0, :])          →    for p in programs:
        c[r0] += g(x[p0, r0])                     for row number p, p + programs, ...: o[...] = f(row); sums += g(row)
                                                  partial[p, :] = sums
                                              for p in programs: c[block(p)] = sum(partial[:, block(p)])

    Legal for one reduced axis along rows; fits if r holds the row. Moves everything once, plus programs × columns of
    partial sums. A single program stores its sums itself and needs no second launch.
    Triton: LayerNorm's backward pass in its tutorials. Halide: rfactor over rows. CUB: no name.
    """
    return GpuSchedule(Hold.REGISTERS, Share.PROGRAM, Combine.PROGRAM, Blocks(**blocks), _of_columns(blocks))


def blocked_column_reduction(**blocks: Any) -> GpuSchedule:
    """Like `column_reduction`, for rows in `parts` blocks of r that each pass reads again. The sums of all parts stay
    in registers.

        for row in mine:                 →    for part in parts: acc += x[row, part]
            sums += g(x[row, :])              for part in parts: sums[part] += g(x[row, part])

    Legal like `column_reduction`; fits if r × parts hold the row. Moves the input of k passes k times, the later times
    from the L2 cache. Costs registers for the sums of all parts.
    Halide: rfactor over rows, the row split. TVM: split and rfactor. No name in Triton or CUB.
    """
    return GpuSchedule(Hold.MEMORY, Share.PROGRAM, Combine.PROGRAM, Blocks(**blocks), _of_columns(blocks))


def cluster_column_reduction(**blocks: Any) -> GpuSchedule:
    """Like `column_reduction`, for rows held by the `splits` programs of a cluster. Reductions go through distributed shared
    memory (DSMEM), so that the next rows' loads stay in flight.

        s = sum(row)                     →    for each of the cluster: its shared memory[me] = sum(share)
                                              wait for splits values; s = sum(shared memory)

    Legal like `column_reduction` if there are at most 16 reductions, each to a single 32-bit value, and at least two
    passes, on devices of compute capability 9.0 or higher; fits if r × splits hold the row. Moves everything once.
    CUDA: DSMEM with st.async and an mbarrier. No name in Halide, TVM or Triton.
    """
    return GpuSchedule(Hold.REGISTERS, Share.CLUSTER, Combine.CLUSTER, Blocks(**blocks), _of_columns(blocks))


def column_parallel(**blocks: Any) -> GpuSchedule:
    """Each program has a block of r columns with all rows, x at a time, and so the complete sums of its columns.

        s = sum(x[p0, :])                →    for p in programs: for rows: sums += g(rows); partial[rows, p] = sum(rows)
        o[p0, r0] = x[p0, r0] / s             for p in programs: s[p] = sum(partial[p, :])
        c[r0] += g(x[p0, r0])                 for p in programs: o[block(p)] = x[block(p)] / s[rows]

    Legal for float sums, maxima and minima that all belong to the first pass, and for stores at every point. Moves the
    input of both passes twice, the second time from the L2 cache as far as that holds it. For few and long rows.
    Halide: reorder the row loop inside, then compute_root. TVM: reorder.
    """
    return GpuSchedule(Hold.MEMORY, Share.GRID, Combine.LAUNCH, Blocks(**blocks), Share.PROGRAM)


def _of_columns(blocks: dict[str, Any]) -> Share:
    """Who shares the columns among programs that iterate over rows."""
    splits = blocks.get("splits") or 1
    several = (blocks.get("programs") or 1) // splits > 1
    return Share.GRID if several else Share.CLUSTER if splits > 1 else Share.PROGRAM


CONSTRUCTORS = {
    make.__name__: make for make in (pointwise, persistent, looped, split, cluster, column_reduction, column_parallel)
}
"""The schedule of each name in configs, unless its numbers select a variant."""


@lru_cache(maxsize=4096)
def schedule_of(config: Config) -> GpuSchedule:
    """The schedule of a config. Raises KeyError for an unknown name."""
    values = dict(config.values)
    make = CONSTRUCTORS[str(values.pop("variant"))]
    if make is column_reduction and values.get("splits"):
        make = cluster_column_reduction
    elif make is column_reduction and values.get("parts"):
        make = blocked_column_reduction
    return make(**values)
