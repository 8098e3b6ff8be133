"""The search space on a GPU: every schedule of a loop that is worth trying, in canonical order.

Blocks are powers of two. The tables below list those of each schedule (catalogue.py). A row is the set of points that
one point of the parallel axes reduces or scans.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from polytile.ir.expr import Load
from polytile.schedule.answers import Combine, Hold, Share
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.gpu.catalogue import (
    blocked_column_reduction,
    cluster,
    cluster_column_reduction,
    column_parallel,
    column_reduction,
    looped,
    persistent,
    pointwise,
    split,
)
from polytile.schedule.gpu.legality import apply_rewrites, has_column_sums, legal
from polytile.schedule.gpu.schedule import GpuSchedule
from polytile.schedule.nest import Form, Nest

if TYPE_CHECKING:
    from polytile.runtime.cuda.device import DeviceFacts

POINTWISE_1 = ((256, 1), (256, 2), (512, 2), (512, 4), (1024, 4), (2048, 4), (2048, 8), (4096, 8))
"""(x, warps) for loops with one axis: 4 to 16 elements per thread, two to eight 16-byte vectors."""
POINTWISE_2 = (
    (256, 1, 2), (512, 1, 4), (1024, 1, 4), (2048, 1, 8), (256, 4, 4), (128, 8, 4), (64, 16, 4), (32, 32, 4), (64, 32, 4),
    (32, 64, 4), (64, 64, 4), (64, 64, 8), (16, 64, 4), (8, 128, 4), (4, 256, 4), (2, 512, 4), (512, 4, 4), (1024, 4, 8),
)  # fmt: skip
"""(x, y, warps) for loops with two or more axes: long rows first, then squares for transposes, then short rows."""
POINTWISE_3 = ((32, 8, 4, 4), (16, 16, 4, 4), (8, 8, 16, 4), (4, 16, 16, 4), (16, 4, 16, 4))
"""(x, y, z, warps) for loops with three or more axes, in addition to POINTWISE_2."""

ROWS = tuple(1 << k for k in range(4, 16))
"""Row lengths r of persistent reductions: up to 32768, 64 values per thread of 16 warps."""
ELEMENTS = (8, 16, 32)
"""Values of a whole row that a thread holds; without the last for several rows. 64 too, if the row leaves no choice."""
LOOPED = ((1, 512, 4), (1, 1024, 4), (1, 2048, 4), (1, 2048, 8), (1, 4096, 8), (1, 4096, 16), (1, 8192, 16), (8, 128, 4))
"""(x, r, warps)"""
AHEAD = ((1024, 4, 3), (2048, 4, 3), (2048, 8, 3), (4096, 8, 3))
"""(r, warps, stages) for split rows that prefetch some blocks into shared memory: 0.87 of the time without in the
gradient of a layer norm of 64×131072."""
LOOPED_2 = (
    (1, 1024, 4), (1, 2048, 8), (2, 512, 4), (4, 256, 4), (8, 128, 4), (16, 64, 4), (64, 16, 4), (4, 1024, 8), (16, 256, 8),
    (64, 64, 8), (256, 16, 8),
)  # fmt: skip
"""(r1, r, warps) for loops with two or more reduced axes."""
COLUMNS = (
    (16, 32, 4), (16, 64, 4), (32, 16, 4), (32, 32, 4), (32, 64, 4), (32, 128, 8), (64, 32, 4), (64, 64, 4), (64, 64, 8),
    (128, 16, 4), (128, 32, 4), (128, 64, 8), (256, 8, 4), (256, 16, 4), (256, 32, 8), (512, 8, 4), (512, 8, 8),
)  # fmt: skip
"""(x, r, warps) for reductions across rows of memory: 4 to 32 values per thread, contiguous runs of at least 32 bytes."""
RESIDENT_COLUMNS = ((16, 512, 8), (32, 512, 8), (64, 512, 16), (16, 1024, 8), (16, 1024, 16), (32, 1024, 16), (16, 2048, 16))
RESIDENT_RUN = 64
"""(x, r, warps) for longer columns held completely, which are read once: 32 or 64 values per thread, the latter in
about 115 registers; and the minimum bytes of a row in a block. With 32, a batch norm of 2048×4096 bfloat16 took 20.3
µs, against 17.8 when shared by programs."""
PACKED_COLUMNS, PACKED_WARPS = ((32, 512, 4), (32, 1024, 8)), 16
"""(x, r, warps) for 16-bit columns held completely and converted to float in each pass, 128 values per thread in 128
registers; and the warps of all programs on a multiprocessor."""
COLUMNS_AHEAD = ((16, 64, 4, 3), (32, 32, 4, 3), (64, 32, 4, 3), (64, 16, 4, 4), (128, 16, 4, 3))
"""(x, r, warps, stages), split or not, with prefetching: 0.85 of the time without in a batch norm of 8192×4096."""
SPLITS = (4, 8, 16, 32, 64, 128, 256)
SPLIT_ROWS = ((1024, 4), (2048, 4), (2048, 8), (4096, 8), (4096, 16))
SPLIT_COLUMNS = ((16, 128, 4), (32, 64, 4), (32, 128, 8), (64, 32, 4), (64, 64, 4), (64, 64, 8), (128, 32, 4), (128, 64, 8),
                 (256, 16, 4))  # fmt: skip
SUM_POINTS, SUM_ELEMENTS, SUM_STAGES = (512, 1024, 2048, 4096, 8192), (8, 16), (1, 3)
"""Points of a block of rows whose columns are added up too, values of each that a thread holds, and blocks in flight.
With 16 values of a row, its weight and two sums, a thread uses 128 registers."""
SUM_WARPS = {8: (16, 32), 16: (16,)}
"""Warps of all programs on a multiprocessor, by the values that a thread holds."""
SUM_PARTS = ((2048, 4, 16), (4096, 2, 16), (2048, 8, 32), (4096, 4, 16), (4096, 4, 32), (8192, 2, 16))
"""(r, parts, warps) for rows that each pass reads again: 16 or 32 values of each sum per thread."""
SUM_SHARE, SUM_CLUSTERS = (8192, 16), ((2, 1.0), (4, 7 / 8), (8, 7 / 8))
"""(r, warps) for longer rows held by clusters: 16 values of a row, its weight and each sum per thread; and (splits,
share of the multiprocessors in use). An H100 can run clusters of four or eight on only 120 of its 132 multiprocessors
at once: the gradient of a layer norm of 512×32768 bfloat16 took 72.5 µs with 128 programs and 51.1 with 112. Clusters
of sixteen take as long as column-parallel programs for 64×131072."""
COLUMN_PARALLEL = ((1, 512, 2), (2, 512, 4), (4, 256, 4), (8, 128, 4), (2, 1024, 4), (4, 512, 4), (8, 256, 4), (16, 128, 4))
"""(x, r, warps)"""
FINALISED_SPLITS, FINALISED = (64, 128, 256, 512), 8
FINALISED_COLUMNS = ((32, 64, 4), (64, 32, 4), (64, 64, 8), (128, 16, 4))
"""(x, r, warps) for columns combined by a finalise launch, FINALISED columns per program. If the last of 256 programs
combines them, batch norms of 131072×64 use 224 registers per thread, which limits a multiprocessor to two programs;
without it, 72."""
CLUSTERS, CLUSTERED = (2, 4, 8, 16), 90
"""Programs per cluster: eight on every device with clusters, sixteen on an H100; and the lowest compute capability with
clusters."""
CLUSTER_ROWS = ((4096, 4), (4096, 8), (8192, 4), (8192, 8), (8192, 16), (16384, 8), (16384, 16))
"""(r, warps): 16 to 64 values per thread."""
CLUSTER_COLUMNS = ((16, 512, 8), (16, 1024, 8), (32, 256, 8), (32, 512, 8), (32, 1024, 8))
CLUSTER_WARPS = {(16, 128): (24,), (16, 256): (16,), (32, 128): (32,), (32, 256): (16,)}
"""(x, r, warps); and warps of all programs on a multiprocessor (at least two programs), by the bits of an element and
the bytes that a thread holds: 80, 128, 64 and 128 registers per thread."""
FINISHED = 64
"""Maximum number of partial results of a row that a thread may hold."""


def schedules(kernel: LoopKernel, nest: Nest, device: DeviceFacts) -> Iterator[GpuSchedule]:
    """All legal schedules of `kernel`, with layout `nest`, whose programs the device can run."""
    most = device.threads_per_block // device.warp
    able: dict[tuple[Hold, Share, Combine], bool] = {}
    for schedule in _tried(kernel, nest, device):
        answers = schedule.hold, schedule.share, schedule.combine
        if answers not in able:
            able[answers] = legal(kernel, schedule)
        if able[answers] and schedule.warps <= most:
            yield schedule


def _tried(kernel: LoopKernel, nest: Nest, device: DeviceFacts) -> Iterator[GpuSchedule]:
    if has_column_sums(kernel.loop):
        yield from _column_reductions(device)
        return
    match nest.form:
        case Form.POINTWISE:
            yield from _points(nest)
            return
        case Form.ROW:
            yield from _rows(nest)
        case Form.COLUMN:
            yield from _columns(nest)
            yield from _resident_columns(kernel, nest)
    if device.capability >= CLUSTERED:
        yield from _clusters(kernel, nest)


def _points(nest: Nest) -> Iterator[GpuSchedule]:
    if len(nest.loop.axes) <= 1:
        yield from (pointwise(x=x, warps=w) for x, w in POINTWISE_1)
        return
    yield from (pointwise(x=x, y=y, warps=w) for x, y, w in POINTWISE_2)
    if len(nest.loop.axes) > 2:
        yield from (pointwise(x=x, y=y, z=z, warps=w) for x, y, z, w in POINTWISE_3)


def _rows(nest: Nest) -> Iterator[GpuSchedule]:
    if nest.inner:
        yield from _nested_rows(nest)
        return
    for r in ROWS:
        for x, warps in whole_rows(r):
            if x == 1 or nest.outer:
                yield persistent(x=x, r=r, warps=warps)
    for x, r, warps in LOOPED:
        if x == 1 or nest.outer:
            yield looped(x=x, r=r, warps=warps)
    for splits, (r, warps) in itertools.product(SPLITS, SPLIT_ROWS):
        yield split(r=r, warps=warps, splits=splits)
    for splits, (r, warps, stages) in itertools.product(SPLITS, AHEAD):
        yield split(r=r, warps=warps, splits=splits, stages=stages)


def _column_reductions(device: DeviceFacts) -> Iterator[GpuSchedule]:
    for r, points, each in itertools.product(ROWS[:-2], SUM_POINTS, SUM_ELEMENTS):
        x, warps = points // r, points // (32 * each)
        if not 1 <= x <= 128 or not 1 <= warps <= 16:
            continue
        for resident, stages in itertools.product(SUM_WARPS[each], SUM_STAGES):
            if warps <= resident:
                programs = device.sms * (resident // warps)
                yield column_reduction(x=x, r=r, warps=warps, programs=programs, stages=stages)
        if points >= 2048:
            yield column_reduction(x=x, r=r, warps=warps, programs=1)
    for r, parts, warps in SUM_PARTS:
        yield blocked_column_reduction(x=1, r=r, parts=parts, warps=warps, programs=device.sms)
    if device.capability >= CLUSTERED:
        yield from _cluster_column_reductions(device)
    for (x, r, warps), stages in itertools.product(COLUMN_PARALLEL, SUM_STAGES):
        yield column_parallel(x=x, r=r, warps=warps, stages=stages)


def _cluster_column_reductions(device: DeviceFacts) -> Iterator[GpuSchedule]:
    r, warps = SUM_SHARE
    for (splits, share), stages in itertools.product(SUM_CLUSTERS, SUM_STAGES):
        programs = int(device.sms * share) // splits * splits
        yield cluster_column_reduction(x=1, r=r, warps=warps, splits=splits, programs=programs, stages=stages)


def whole_rows(r: int) -> Iterator[tuple[int, int]]:
    """(x, warps) for blocks of x whole rows of length r: several rows per program if a row has at most 1024 points."""
    for x in (1, 2, 4, 8, 16, 32, 64, 128) if r <= 1024 else (1,):
        for warps in (1, 2, 4, 8, 16, 32):
            held = x * r // (32 * warps)
            several = held in ELEMENTS[:-1] and 512 <= x * r <= 8192 and warps in (2, 4, 8)
            several = several or (held in ELEMENTS[1:] and 512 <= x * r and warps in (1, 2))
            if several if x > 1 else held in ELEMENTS:
                yield x, warps
    if r == ROWS[-1]:
        yield 1, 16
    if r < 256:
        yield 1, 1


def _clusters(kernel: LoopKernel, nest: Nest) -> Iterator[GpuSchedule]:
    if nest.form is Form.COLUMN:
        yield from _clustered_columns(kernel, apply_rewrites(kernel, one_sweep=True)[1])
        return
    for splits, (r, warps) in itertools.product(CLUSTERS, CLUSTER_ROWS):
        yield cluster(x=1, r=r, warps=warps, splits=splits)


def _clustered_columns(kernel: LoopKernel, nest: Nest) -> Iterator[GpuSchedule]:
    held = _resident_bytes(kernel, nest)
    for splits, (x, r, warps) in itertools.product(CLUSTERS if held else (), CLUSTER_COLUMNS):
        each = x * r * sum(held) // (32 * warps)
        for resident, rest in (divmod(n, warps) for n in CLUSTER_WARPS.get((8 * min(held), each), ())):
            if resident > 1 and not rest and x * min(held) >= RESIDENT_RUN:
                yield cluster(x=x, r=r, warps=warps, splits=splits, resident=resident)


def _nested_rows(nest: Nest) -> Iterator[GpuSchedule]:
    if len(nest.inner) == 1:
        for r1, r in itertools.product((2, 4, 8, 16, 32, 64, 128, 256), (4, 16, 32, 64, 128, 256, 512, 1024, 2048)):
            if 256 <= r1 * r <= 16384:
                yield persistent(r=r, r1=r1, warps=max(1, min(16, r1 * r // 512)))
    for r1, r, warps in LOOPED_2:
        yield looped(r=r, r1=r1, warps=warps)
    around = [f"r{k}" for k in range(2, len(nest.loop.reduced))]
    for along, splits, (r1, r, warps) in itertools.product(("r1", "r", *around), SPLITS, LOOPED_2[:7]):
        yield split(r=r, r1=r1, warps=warps, splits=splits, along=along)


def _columns(nest: Nest) -> Iterator[GpuSchedule]:
    if len(nest.inner) == 1:
        for r, x, each in itertools.product((2, 4, 8, 16, 32, 64, 128, 256, 512), (32, 64, 128, 256, 512, 1024), (16, 32)):
            warps = r * x // (32 * each)
            if 512 <= r * x <= 16384 and warps in (1, 2, 4, 8, 16) and not (each == 16 and warps > 8):
                yield persistent(x=x, r=r, warps=warps)
    for x, r, warps in COLUMNS:
        yield looped(x=x, r=r, warps=warps)
    for x, r, warps, stages in COLUMNS_AHEAD:
        yield looped(x=x, r=r, warps=warps, stages=stages)
    for splits, (x, r, warps) in itertools.product(SPLITS, SPLIT_COLUMNS):
        if splits * x <= 32 * warps * FINISHED:
            yield split(x=x, r=r, warps=warps, splits=splits)
    for splits, (x, r, warps) in itertools.product(FINALISED_SPLITS, FINALISED_COLUMNS):
        yield split(x=x, r=r, warps=warps, splits=splits, finalise=FINALISED)
    for splits, (x, r, warps, stages) in itertools.product(SPLITS, COLUMNS_AHEAD):
        if splits * x <= 32 * warps * FINISHED:
            yield split(x=x, r=r, warps=warps, splits=splits, stages=stages)


def _resident_columns(kernel: LoopKernel, nest: Nest) -> Iterator[GpuSchedule]:
    if len(nest.inner) != 1 or nest.passes == 1:
        return
    held = _resident_bytes(kernel, nest)
    for x, r, warps in RESIDENT_COLUMNS:
        if x * min(held, default=1) >= RESIDENT_RUN:
            yield persistent(x=x, r=r, warps=warps)
    for x, r, warps in PACKED_COLUMNS if held == [2] else ():
        yield persistent(x=x, r=r, warps=warps, resident=PACKED_WARPS // warps)


def _resident_bytes(kernel: LoopKernel, nest: Nest) -> list[int]:
    """Bytes of the elements that are read at every point."""
    return [kernel.storage(n.buffer).itemsize for n in nest.nodes if isinstance(n, Load) and nest.in_pass(n)]


def oversized(nest: Nest, schedule: GpuSchedule, lengths: Sequence[int]) -> bool:
    """Whether blocks of half the length would also hold rows of these lengths (legality.row_lengths) and are tried:
    correct, but never worth its time."""
    held, columns = schedule.held, nest.form is Form.COLUMN
    if not schedule.bounded and not (columns and schedule.swept and schedule.share is Share.PROGRAM):
        return False
    alone = schedule.resident and schedule.share is Share.PROGRAM and schedule.columns is None
    if alone and not (columns and held >= RESIDENT_COLUMNS[0][1]):
        return False
    return lengths[0] <= held // 2 and held > ROWS[0]
