"""A loop under a GPU schedule: its launches as data, which the Triton printers print.

    LoopKernel, a GpuSchedule ── apply_rewrites ──► Nest ── LAUNCHES ──► ScheduledLoop ── codegen/triton/generate.py ──►
    Triton

A launch states what its programs iterate over, which passes they make, what they leave in scratch memory for others,
and who combines that. ScheduledLoop.text is the readable form; the option `debug` prints it from level 4. For example,
the norm of columns as `split`:

    split: r=512 splits=8 variant=split warps=4 x=32
      launch 0: pass 0 over shares of rows; leaves t1; the last program combines what all have left
      launch 1: pass 1 over shares of rows, backwards
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from polytile.ir import printer
from polytile.ir.expr import Node
from polytile.schedule.answers import Combine, Share
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.gpu.legality import apply_rewrites
from polytile.schedule.gpu.schedule import GpuSchedule
from polytile.schedule.nest import Form, Nest


class Over(enum.Enum):
    """What the programs of a launch iterate over: one block of points, or of whole rows or columns, each; blocks of
    rows in turn, adding up columns; a share of each row; blocks of columns with all rows; the partial results of
    others."""

    BLOCKS = "blocks"
    TURNS = "blocks of rows in turn"
    SHARES = "shares of rows"
    COLUMNS = "blocks of columns"
    LEFT = "what was left"


class Last(enum.Enum):
    """What the last program to arrive does, of those that share rows."""

    NOTHING = ""
    COMBINES = "the last program combines what all have left"
    STORES = "the last program stores the rows' values"


@dataclass(frozen=True)
class ScheduledLaunch:
    """One launch. `passes` are the passes that it makes, or whose results it combines. `back`: it starts with the data
    that the preceding launch read last. `leaves` are the values whose partial results go to scratch memory."""

    over: Over
    passes: tuple[int, ...] = ()
    back: bool = False
    leaves: tuple[Node, ...] = ()
    last: Last = Last.NOTHING


@dataclass(frozen=True)
class ScheduledLoop:
    """A loop with the reductions that `schedule` requires, the layout of its axes, and its launches in order."""

    kernel: LoopKernel
    nest: Nest
    schedule: GpuSchedule
    launches: tuple[ScheduledLaunch, ...]

    @cached_property
    def text(self) -> str:
        """A readable form. Values have the numbers of the loop's own text."""
        names = printer.value_names(self.kernel.loop.stores)
        lines = [f"  launch {k}: {_text(launch, names)}" for k, launch in enumerate(self.launches)]
        return "\n".join([f"{self.schedule.name}: {self.schedule.config}", *lines])


def _text(launch: ScheduledLaunch, names: dict[int, str]) -> str:
    passes = f"pass{'es' if len(launch.passes) > 1 else ''} {', '.join(map(str, launch.passes))}" if launch.passes else "totals"
    if launch.over is Over.LEFT:
        return f"combines what {passes} left"
    parts = [f"{passes} over {launch.over.value}{', backwards' if launch.back else ''}"]
    parts += [f"leaves {', '.join(names[id(node)] for node in launch.leaves)}"] if launch.leaves else []
    return "; ".join([*parts, launch.last.value] if launch.last is not Last.NOTHING else parts)


def goes_back(nest: Nest, k: int) -> bool:
    """Whether pass k traverses its row from the end: every other pass does, since the cache still holds what the
    preceding one read last."""
    return k % 2 == 1 and not nest.scans


def _alone(nest: Nest, schedule: GpuSchedule) -> Iterator[ScheduledLaunch]:
    """Programs, or clusters of them, that share no points or rows with others."""
    over = Over.SHARES if schedule.share is Share.CLUSTER else Over.BLOCKS
    yield ScheduledLaunch(over, tuple(range(nest.passes)))


def _split(nest: Nest, schedule: GpuSchedule) -> Iterator[ScheduledLaunch]:
    """Programs all over the grid share a row, with one launch per pass.

    Each program of the next launch combines the partial results of the rows it needs. Columns, of which a block has
    many, are combined once by the last program or by a finalise launch. The last program also stores the values of a
    row after the last pass. A scan has an extra first launch for the chunks' totals.
    """
    if nest.scans:
        yield ScheduledLaunch(Over.SHARES, leaves=nest.scans)
    for k in range(nest.passes):
        if not nest.roots_in(k):
            continue
        reduces, last = tuple(nest.reduces_in(k)), Last.NOTHING
        finalised = schedule.combine is Combine.LAUNCH and bool(reduces)
        if not finalised and k == nest.passes - 1 and nest.row_stores(nest.passes):
            last = Last.STORES
        elif not finalised and reduces and nest.form is Form.COLUMN:
            last = Last.COMBINES
        yield ScheduledLaunch(Over.SHARES, (k,), goes_back(nest, k), reduces, last)
        if finalised:
            yield ScheduledLaunch(Over.LEFT, (k,))


def _column_reduction(nest: Nest, schedule: GpuSchedule) -> Iterator[ScheduledLaunch]:
    """Programs, or clusters, iterate over rows in turn. If there are several, they leave their column sums to a
    finalise launch."""
    passes, several = tuple(range(nest.passes)), schedule.columns is Share.GRID
    sums = tuple(store.value for store in nest.loop.stores if store.is_segment_sum)
    yield ScheduledLaunch(Over.TURNS, passes, leaves=sums if several else ())
    if several:
        yield ScheduledLaunch(Over.LEFT, passes[-1:])


def _column_parallel(nest: Nest, schedule: GpuSchedule) -> Iterator[ScheduledLaunch]:
    """One launch for the column sums, one that combines the partial results of rows, and one for every point."""
    yield ScheduledLaunch(Over.COLUMNS, (0,), back=True, leaves=nest.reduces)
    yield ScheduledLaunch(Over.LEFT, (0,))
    yield ScheduledLaunch(Over.BLOCKS, (1,))


LAUNCHES: dict[tuple[Share, bool], Callable[[Nest, GpuSchedule], Iterator[ScheduledLaunch]]] = {
    (Share.PROGRAM, False): _alone,
    (Share.CLUSTER, False): _alone,
    (Share.GRID, False): _split,
    (Share.PROGRAM, True): _column_reduction,
    (Share.CLUSTER, True): _column_reduction,
    (Share.GRID, True): _column_parallel,
}
"""The launches of a loop, by who shares a row and whether columns are added up."""


def apply_schedule(kernel: LoopKernel, schedule: GpuSchedule) -> ScheduledLoop:
    """Applies a legal schedule to `kernel`."""
    own, nest = apply_rewrites(kernel, schedule.one_sweep)
    launches = LAUNCHES[schedule.share, schedule.columns is not None](nest, schedule)
    return ScheduledLoop(own, nest, schedule, tuple(launches))
