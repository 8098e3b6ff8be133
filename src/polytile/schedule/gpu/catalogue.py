"""The schedules by their names in the field, each a function of its blocks (schedule.Blocks) that gives the GpuSchedule.

Where a docstring shows code, `row` is a block of r points and `for p in programs` a launch of a grid. "Moves" counts how often
memory or the L2 cache brings an element that every pass reads.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from polytile.problem import Config
from polytile.schedule.answers import Combine, Hold, Share
from polytile.schedule.gpu.schedule import Blocks, GpuSchedule


def pointwise(**blocks: Any) -> GpuSchedule:
    """A program has a block of points.

        for p0 < n0, p1 < n1:            →    for p in programs:
            o[p0, p1] = f(x[p0, p1])              o[block(p)] = f(x[block(p)])

    Legal for loops without reduced axes, at any size. Moves everything once. Two or three axes make blocks of which loads and
    stores both run along memory, as transposes want them.
    Halide: tile, gpu_blocks, gpu_threads. TVM: split, bind. Triton: an elementwise kernel. CUB: DeviceTransform.
    """
    return GpuSchedule(Hold.REGISTERS, Share.PROGRAM, Combine.NOTHING, Blocks(**blocks))


def persistent(**blocks: Any) -> GpuSchedule:
    """A program holds whole rows in registers (or whole columns of a block).

        for p0 < n0:                     →    for p in programs:
            s = sum(x[p0, r0] for r0)             row = x[p, 0:R]; s = sum(row)
            o[p0, r0] = x[p0, r0] / s             o[p, 0:R] = row / s

    Legal for any reductions and scans; fits where r (and r1) hold the row. Moves everything once. Costs registers: r / threads
    values each, and idle lanes where the row is shorter than r. `resident` limits registers, so that a multiprocessor holds
    several programs of columns.
    Inductor: persistent reduction. Halide: compute_at a block with the row unrolled. TVM: cache_read into "local". CUB:
    BlockReduce over BlockLoad.
    """
    return GpuSchedule(Hold.REGISTERS, Share.PROGRAM, Combine.PROGRAM, Blocks(**blocks))


def looped(**blocks: Any) -> GpuSchedule:
    """A program goes along its rows block after block, once for each pass.

        s = sum(x[p0, r0] for r0)        →    for p in programs:
        o[p0, r0] = x[p0, r0] / s                 for at in range(0, n, R): acc += x[p, at:at+R]
                                                  s = sum(acc)
                                                  for at in range(n - R, -1, -R): o[p, at:at+R] = x[p, at:at+R] / s

    Legal for any reductions and scans, at any size. Moves what k passes read k times, the later ones from the L2 cache as far as
    that holds the rows of all programs at work; every other pass goes backwards for that. `stages` blocks are on their way at
    once.
    Inductor: looped reduction. Halide: rfactor over a split RDom. TVM: split and reorder. CUB: tiles of a persistent block.
    """
    return GpuSchedule(Hold.MEMORY, Share.PROGRAM, Combine.PROGRAM, Blocks(**blocks))


def split(**blocks: Any) -> GpuSchedule:
    """`splits` programs share a row, a chunk each; each pass is a launch.

        s = sum(x[p0, r0] for r0)        →    for p, c in programs: partial[p, c] = sum(x[p, chunk(c)])
        o[p0, r0] = x[p0, r0] / s             for p, c in programs: s = sum(partial[p, :]); o[p, chunk(c)] = x[p, chunk(c)] / s

    Legal for any reductions; for scans that commute where they are all that the loop does (a launch before gives the chunks'
    totals). Moves as `looped` does. Costs a launch a pass, scratch memory of rows × splits, and reading that. Rows are combined
    by the programs of the next launch; values of a row after the last pass, and columns, by the program that arrives last. With
    `finalise` columns are combined by a launch of their own, of so many columns a program: few registers for many splits.
    Inductor: split reduction. Halide: rfactor. TVM: rfactor with cross-block reduction. CUB: DeviceReduce in two passes.
    """
    combine = Combine.LAUNCH if blocks.get("finalise") else Combine.LAST_PROGRAM
    return GpuSchedule(Hold.MEMORY, Share.GRID, combine, Blocks(**blocks))


def cluster(**blocks: Any) -> GpuSchedule:
    """The `splits` programs of a cluster hold a row (or columns) in registers, a share each.

        s = sum(x[p0, r0] for r0)        →    for p, c in clusters: share = x[p, chunk(c)]; partial[p, c] = sum(share)
        o[p0, r0] = x[p0, r0] / s                 cluster barrier; s = sum(partial[p, :]); o[p, chunk(c)] = share / s

    Legal for one reduced axis and two passes or more, scans of rows that `split` takes among them, on devices of compute
    capability 9.0 on; fits where r × splits hold the row. Moves everything once. Costs a cluster barrier a pass, and places:
    programs of a cluster begin together.
    CUDA: thread block clusters. CUTLASS: cluster reduction. No name in Halide, TVM or Triton.
    """
    return GpuSchedule(Hold.REGISTERS, Share.CLUSTER, Combine.CLUSTER, Blocks(**blocks))


def column_reduction(**blocks: Any) -> GpuSchedule:
    """At most `programs` programs go over rows that they hold, and keep the sums of the columns.

        o[p0, r0] = f(x[p0, :])          →    for p in programs:
        c[r0] += g(x[p0, r0])                     for row number p, p + programs, ...: o[...] = f(row); sums += g(row)
                                                  partial[p, :] = sums
                                              for p in programs: c[block(p)] = sum(partial[:, block(p)])

    Legal for one reduced axis along rows; fits where r holds the row. Moves everything once, and programs × columns of partial
    sums. One program stores its sums itself and needs no second launch.
    Triton: LayerNorm's backward pass in its tutorials. Halide: rfactor over rows. CUB: no name.
    """
    return GpuSchedule(Hold.REGISTERS, Share.PROGRAM, Combine.PROGRAM, Blocks(**blocks), _of_columns(blocks))


def blocked_column_reduction(**blocks: Any) -> GpuSchedule:
    """As `column_reduction`, of rows in `parts` blocks of r that each pass reads again; the sums of all parts stay in registers.

        for row in mine:                 →    for part in parts: acc += x[row, part]
            sums += g(x[row, :])              for part in parts: sums[part] += g(x[row, part])

    Legal as `column_reduction`; fits where r × parts hold the row. Moves what k passes read k times, from the L2 cache.
    """
    return GpuSchedule(Hold.MEMORY, Share.PROGRAM, Combine.PROGRAM, Blocks(**blocks), _of_columns(blocks))


def cluster_column_reduction(**blocks: Any) -> GpuSchedule:
    """As `column_reduction`, of rows that the `splits` programs of a cluster hold; reductions go through distributed shared
    memory (DSMEM), so that loads of the next rows are on their way meanwhile.

        s = sum(row)                     →    for each of the cluster: its shared memory[me] = sum(share)
                                              wait for splits values; s = sum(shared memory)

    Legal as `column_reduction` where reductions are single values of 32 bits, 16 at most, of two passes or more, on devices of
    compute capability 9.0 on; fits where r × splits hold the row. Moves everything once.
    CUDA: DSMEM with st.async and an mbarrier. No name in Halide, TVM or Triton.
    """
    return GpuSchedule(Hold.REGISTERS, Share.CLUSTER, Combine.CLUSTER, Blocks(**blocks), _of_columns(blocks))


def column_parallel(**blocks: Any) -> GpuSchedule:
    """A program has a block of r columns, all rows of it, x at a time, and so the whole of its columns' sums.

        s = sum(x[p0, :])                →    for p in programs: for rows: sums += g(rows); partial[rows, p] = sum(rows)
        o[p0, r0] = x[p0, r0] / s             for p in programs: s[p] = sum(partial[p, :])
        c[r0] += g(x[p0, r0])                 for p in programs: o[block(p)] = x[block(p)] / s[rows]

    Legal for sums, maxima and minima of floats that are all of the first pass, and stores at every point. Moves what both passes
    read twice, the second time from the L2 cache as far as that holds it. For few and long rows.
    Halide: reorder the row loop inside, then compute_root. TVM: reorder.
    """
    return GpuSchedule(Hold.MEMORY, Share.GRID, Combine.LAUNCH, Blocks(**blocks), Share.PROGRAM)


def _of_columns(blocks: dict[str, Any]) -> Share:
    """Who shares the columns of programs that go over rows."""
    splits = blocks.get("splits") or 1
    several = (blocks.get("programs") or 1) // splits > 1
    return Share.GRID if several else Share.CLUSTER if splits > 1 else Share.PROGRAM


CONSTRUCTORS = {
    make.__name__: make for make in (pointwise, persistent, looped, split, cluster, column_reduction, column_parallel)
}
"""What a name in a config stands for, where numbers do not say more."""


@lru_cache(maxsize=4096)
def schedule_of(config: Config) -> GpuSchedule:
    """The schedule that a config names. Raises KeyError for a name that names none."""
    values = dict(config.values)
    make = CONSTRUCTORS[str(values.pop("variant"))]
    if make is column_reduction and values.get("splits"):
        make = cluster_column_reduction
    elif make is column_reduction and values.get("parts"):
        make = blocked_column_reduction
    return make(**values)
