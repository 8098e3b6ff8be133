"""Legality of schedules: a schedule that is `legal` for a loop is correct at all sizes at which it `fits`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from polytile.ir import expr, sizes
from polytile.ir.expr import Scan
from polytile.ir.loop import Axis, Loop, element_level
from polytile.schedule import rewrite
from polytile.schedule.answers import Combine, Share
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.gpu.schedule import GpuSchedule
from polytile.schedule.nest import Form, Nest, nest_of

COMMUTATIVE = ("sum", "prod", "logsumexp")
"""Scans whose chunks can be combined in any order."""
EXCHANGED = 16
"""Maximum number of values per program in one DSMEM exchange: the capacity of its buffer."""
EXCHANGES = ("sum", "prod", "max", "min")
"""Reductions whose shares can be exchanged: those with a single value."""
REDUCED_ALIKE = ("sum", "max", "min")
"""Reductions whose partial results are combined by the same reduction."""


def apply_rewrites(kernel: LoopKernel, one_sweep: bool) -> tuple[LoopKernel, Nest]:
    """The kernel with the reductions that are generated (rewrite.py), with as few passes over a row as possible if
    `one_sweep` (GpuSchedule.one_sweep), and its layout."""
    if one_sweep:
        loop = rewrite.plain_reductions(rewrite.one_sweep(kernel.loop), welford=False)
    else:
        loop = rewrite.plain_reductions(kernel.loop)
    return replace(kernel, loop=loop), replace(nest_of(loop), cutting=False)


def legal(kernel: LoopKernel, schedule: GpuSchedule) -> bool:
    """Whether `schedule` applies to this loop, whatever its sizes and blocks."""
    loop = kernel.loop
    if has_column_sums(loop) != (schedule.columns is not None) or bool(loop.reduced) != (schedule.combine is not Combine.NOTHING):
        return False
    if schedule.columns is None and schedule.share is Share.PROGRAM:
        return True
    _, nest = apply_rewrites(kernel, schedule.one_sweep)
    if schedule.columns is not None:
        return _reduces_columns(nest, schedule)
    return splittable(nest) if schedule.share is Share.GRID else clustered(nest)


def _reduces_columns(nest: Nest, schedule: GpuSchedule) -> bool:
    if nest.form is not Form.ROW or nest.inner:
        return False
    match schedule.share:
        case Share.GRID:
            return is_column_parallel(nest)
        case Share.CLUSTER:
            return can_exchange(nest)
    return True


def has_column_sums(loop: Loop) -> bool:
    """Whether the loop adds up columns in addition to its rows."""
    return any(store.is_segment_sum for store in loop.stores)


def splittable(nest: Nest) -> bool:
    """Whether programs can share rows: for any reductions, or for scans if the loop does nothing else along its rows."""
    if nest.form is Form.POINTWISE:
        return False
    if not nest.scans:
        return True
    nested = any(isinstance(below, Scan) for scan in nest.scans for below in expr.walk(*scan.args))
    alone = not nest.reduces and len(nest.loop.reduced) == 1 and not nested
    return alone and all(scan.kind in COMMUTATIVE for scan in nest.scans)


def clustered(nest: Nest) -> bool:
    """Whether programs can hold rows or columns together, and this saves a second pass. A scan has a second pass too:
    in a split, a chunk needs the total of all chunks before it."""
    if nest.scans:
        return nest.form is Form.ROW and splittable(nest)
    return nest.form is not Form.POINTWISE and len(nest.loop.reduced) == 1 and nest.passes > 1


def can_exchange(nest: Nest) -> bool:
    """Whether DSMEM exchanges support the reductions: single 32-bit values, at most EXCHANGED."""
    fit = all(r.kind in EXCHANGES and r.dtype == torch.float32 for r in nest.reduces)
    return clustered(nest) and not nest.scans and fit and len(nest.reduces) <= EXCHANGED


def is_column_parallel(nest: Nest) -> bool:
    """Whether the launches after the first one are loops: all reductions belong to the first pass, and all stores
    except the sums need them at every point."""
    stores = [store for store in nest.loop.stores if not store.is_segment_sum]
    reduces = all(r.kind in REDUCED_ALIKE and r.dtype.is_floating_point and nest.passes_before(r) == 1 for r in nest.reduces)
    points = all(element_level(nest.loop, store) and nest.passes_before(store.value) == 1 for store in stores)
    return reduces and points and bool(stores) and len(nest.loop.reduced) == 1 and nest.passes == 2


def row_axes(nest: Nest) -> list[Axis]:
    """The reduced axes, innermost first, as covered by the blocks r, r1, ...."""
    return list(reversed((*nest.inner, *((nest.vec,) if nest.form is Form.ROW else ()))))


def fits(schedule: GpuSchedule, lengths: Sequence[int]) -> bool:
    """Whether the blocks of `schedule` hold rows of these lengths (row_lengths); always true for rows in memory."""
    blocks = [schedule.held, schedule.blocks.points("r1")] + [1] * len(lengths)
    return not schedule.bounded or all(n <= block for n, block in zip(lengths, blocks, strict=False))


def row_lengths(kernel: LoopKernel, nest: Nest, size: Mapping[str, int]) -> list[int]:
    """Points of the reduced axes at these sizes, innermost first."""
    values = {s: size[s.name] for s in kernel.symbols}
    return [sizes.evaluate(axis.size, values) for axis in row_axes(nest)]
