"""The analytical prior for loops on a GPU: predicted seconds of a config at given sizes.

    t = launch + begun + finish + max(placed, dispatch + ||latency, units|₁.₅, memory, cache|₃)
                                     the p-norm: what takes longest, and more where others are near and overlap little

    memory    the bytes that must come from and go to memory once, but for those that the L2 cache has kept since the call before,
              and again in later passes what of them does not stay there, where programs at work have their shares, by the
              bandwidth that this many programs can draw
    cache     all bytes that programs ask for, in whole sectors of 32 bytes, by the bandwidth of the L2 cache
    units     what the busiest multiprocessor has to do: instructions of its warps, four a cycle, or loads, stores, shuffles and
              what goes through shared memory, which one unit carries out, whichever is more
    latency   programs, one after another on each of the places that registers and threads leave them; a program waits for
              memory once an iteration, for lanes and warps that put their values together, and each warp for its own
              instructions; what is brought ahead though the cache has it costs time of its own; of a split row a program
              then waits for what the others have left, in a cluster for the others themselves
    placed    the programs, one after another as the device places them
    begun     of points: the warps of a program, one after another
    finish    of a split row: the next launch waits for the programs of the one before

Instructions, registers and shuffles are counted as blocks lie in threads (ThreadLayout): rows that begin at odd places are loaded
element by element, so that more lanes and warps share a row, and have to agree on it.

Columns have a prior of their own (triton_columns.py). Numbers of the device are from its DeviceFacts. Where the constants below
come from, how far predictions are off, and a case where the choice is wrong: docs/cuda.md. They rank candidates and nothing more.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polytile.codegen.triton.tile import Dim, Tile
from polytile.cost.roofline import in_turns, overlapping
from polytile.cost.triton_columns import ClusterColumns, ColumnParallel, Columns
from polytile.cost.triton_estimate import EXCHANGE, LEFT, MOST_REGISTERS, Estimate
from polytile.cost.triton_work import Access, Work, nest_under, tile_at, work_at
from polytile.problem import Config
from polytile.schedule.answers import Combine, Share
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.gpu.catalogue import schedule_of
from polytile.schedule.gpu.schedule import GpuSchedule
from polytile.schedule.gpu.vectors import VECTOR
from polytile.schedule.nest import Form

if TYPE_CHECKING:
    from polytile.runtime.cuda.device import DeviceFacts

MEMORY_LATENCY = 0.5e-6  # s of a load from memory
CACHE_LATENCY = 0.1e-6  # s of a load that the L2 cache has
QUEUE = 9e-9  # s for each load or store of a block that a thread of a loop waits for
DISPATCH = 0.25e-9  # s for each program of the first wave until it runs
WARP = 40e-9  # s until the next warp of a pointwise program begins
FINISH = 0.6e-6  # s until the next launch finds what the programs of a split row have left
SCHEDULERS = 4  # of a multiprocessor: each starts an instruction of one warp a cycle
ISSUE = 3  # cycles between two instructions of a warp
ACCESSED = 4  # cycles of a load or store of a warp in the unit for memory; 16 bytes a lane take no longer
SHUFFLE = 65  # cycles until a lane has another's value and has put it together with its own
BARRIER = 150  # cycles in which the warps of a program exchange what each of them has, by way of shared memory
PROLOGUE = 30  # instructions of a program, beside those of its points
ACCESS = 6.0  # instructions of a load or store: position, mask, conversion
SHUFFLED = 1.7  # instructions of a shuffle, beside those that put two values together
BASE_REGISTERS = 15
VALUE, RUNNING, PLACE = 0.9, 0.6, 0.65  # registers for a point, for each running value of it, and for a load or store of a block
NORM, OVERLAP = 1.5, 3  # how little latency and instructions overlap, and how well both with what bytes take


def cost(kernel: LoopKernel, config: Config, size: Mapping[str, int], device: DeviceFacts) -> float:
    """Seconds of one call; see the module's formula."""
    return predicted(kernel, schedule_of(config), size, device)


def predicted(
    kernel: LoopKernel, schedule: GpuSchedule, size: Mapping[str, int], device: DeviceFacts, begun: float = WARP
) -> float:
    """The same of a schedule; `begun`: seconds until the next warp of a pointwise program begins."""
    estimate = _estimate(kernel, schedule, size, device, begun)
    return device.launch_seconds if estimate is None else estimate.seconds


def terms(kernel: LoopKernel, config: Config, size: Mapping[str, int], device: DeviceFacts) -> dict[str, float]:
    """What `cost` is made of, by name (Candidate.terms): seconds of the parts that go on at the same time; programs for each
    place on the device, places of a multiprocessor, blocks that a program goes through, registers of a thread and points of a
    block that it has; facts of the work itself."""
    estimate = _estimate(kernel, schedule_of(config), size, device, WARP)
    if estimate is None:
        return {}
    return {
        "latency_s": estimate.latency,
        "units_s": estimate.units,
        "memory_s": estimate.memory,
        "cache_s": estimate.cache,
        "placed_s": estimate.placed,
        "rounds": estimate.programs / max(1, estimate.at_once),
        "places": estimate.places,
        "blocks": estimate.blocks,
        "registers": estimate.registers,
        "each": estimate.block / estimate.threads,
        "missing": estimate.missing,
        "work.points": math.prod(estimate.counts.values()),
        "work.row": math.prod(estimate.counts[d] for d in estimate.tile.reduced),
        "work.bytes": estimate.unique,
        "work.arithmetic": estimate.work.arithmetic,
        "work.accesses": len(estimate.work.accesses),
        "work.passes": estimate.work.passes,
        "work.reductions": estimate.work.reductions,
        "work.columns": float(estimate.tile.nest.form is Form.COLUMN),
    }


def _estimate(
    kernel: LoopKernel, schedule: GpuSchedule, size: Mapping[str, int], device: DeviceFacts, begun: float
) -> Rows | Columns | None:
    """The prediction; None where there is nothing to do."""
    own, nest = nest_under(kernel, schedule)
    work = work_at(kernel, schedule, tuple(sorted(size.items())))
    tile = tile_at(own.digest, nest, schedule)
    counts = {d: math.prod(work.extents[a.symbol] for a in d.axes) for d in (*tile.parallel, *tile.reduced)}
    if not all(counts.values()):
        return None
    if nest.form is not Form.COLUMN and not work.sums:
        return Rows(work, tile, counts, schedule, device, begun)
    kind = ClusterColumns if schedule.clustered else Columns
    if schedule.columns is not None and schedule.share is Share.GRID:
        kind = ColumnParallel
    return kind(work, tile, counts, schedule, device)


@dataclass(frozen=True)
class ThreadLayout:
    """How a block lies in the threads of a program: `lanes` of a warp and `warps` share what becomes one value; a thread has a
    part of `kept` such values. Triton deals out the vectors of a row to the lanes of a warp, then to warps, then begins a new
    row."""

    lanes: int
    warps: int
    kept: float


class Rows(Estimate):
    """Of rows and of points."""

    def __init__(
        self, work: Work, tile: Tile, counts: Mapping[Dim, int], schedule: GpuSchedule, device: DeviceFacts, begun: float = WARP
    ) -> None:
        super().__init__(work, tile, counts, schedule, device)
        self.begun = begun

    @property
    def seconds(self) -> float:
        dispatch = DISPATCH * min(self.running, self.device.sms * self.places)
        alone = overlapping(NORM, self.latency, self.units)
        own = overlapping(OVERLAP, alone, self.memory, self.cache)
        finish = self.work.passes * FINISH if self.schedule.chunked else 0.0
        begun = self.begun * self.warps if self.schedule.combine is Combine.NOTHING else 0.0
        return self.launching + begun + finish + max(dispatch + own, self.placed)

    # threads ---------------------------------------------------------------------------------------------------------

    @property
    def warps(self) -> int:
        return self.threads // self.device.warp

    @functools.cached_property
    def each(self) -> float:
        """Points of a block that a thread has."""
        return max(1.0, self.block / self.threads)

    @functools.cached_property
    def layout(self) -> ThreadLayout:
        """How the block lies in threads: as its widest aligned access wants it."""
        wide = [a for a in self.work.accesses if {self.dims[s] for s in a.strides} >= set(self.tile.dims)]
        vector = max([self._vector(access) for access in wide], default=1)
        near = self.tile.dims[-1].block if self.tile.dims else 1
        lanes = max(1, min(self.device.warp, near // vector))
        warps = max(1, min(self.warps, near // (vector * lanes)))
        kept = math.prod(d.block for d in self.tile.parallel) * lanes * warps / self.threads
        return ThreadLayout(lanes, warps, max(1.0, kept))

    def _vector(self, access: Access) -> int:
        """Elements that lie side by side in a thread."""
        return self._vectors[id(access)]

    @functools.cached_property
    def _vectors(self) -> dict[int, int]:
        accesses = self.work.accesses
        return {id(a): max(1, min(VECTOR // a.itemsize, int(self.each), self.together_in(a))) for a in accesses}

    def _instructions(self, blocks: float) -> float:
        """Instructions of one thread that goes through so many blocks in each pass."""
        work = self.each * blocks * (self.work.arithmetic + self.work.updates) + ACCESS * self.accesses * blocks
        return self._launches * PROLOGUE + work + self._agreeing

    @functools.cached_property
    def instructions(self) -> float:
        return self._instructions(self.blocks)

    @property
    def _launches(self) -> int:
        return self.work.passes if self.schedule.chunked else 1

    @functools.cached_property
    def _agreeing(self) -> float:
        """Instructions in which a thread's own values, those of its warp and those of other warps become one; programs of a
        split row do so again with what all have left."""
        own = 0.0 if self.schedule.bounded else self.work.merges * max(0.0, self.each - self.layout.kept)
        return own + self.shuffles * (SHUFFLED + self.work.merges / max(1.0, self.work.running))

    @functools.cached_property
    def accesses(self) -> float:
        """Loads and stores of one thread in one block of each pass."""
        passes = (a.passes if not self.schedule.bounded else 1 for a in self.work.accesses)
        return sum(self._of_thread(a) / self._parts(a) * n for a, n in zip(self.work.accesses, passes, strict=True))

    @functools.cached_property
    def _moved(self) -> list[tuple[float, int]]:
        """(how many a thread, bytes between lanes) of loads and stores that masks let through."""
        threads = self.working * self.threads
        return [(self.points(a) / self._parts(a) / threads, self._vector(a) * a.itemsize) for a in self.work.accesses]

    def _of_thread(self, access: Access) -> float:
        """Elements that one thread has of one block."""
        varies = {self.dims[s].reduced for s in access.strides if self.dims[s].block > 1}
        if len(varies) != 1:
            return self.each if varies else 1.0
        kept = min(self.layout.kept, self.each) if self.tile.reduced else 1.0
        return self.each / kept if True in varies or not self.tile.reduced else kept

    def _parts(self, access: Access) -> int:
        return min(self._vector(access), self.run(access))

    @functools.cached_property
    def shuffles(self) -> float:
        """Values that a thread takes from other lanes."""
        layout = self.layout
        steps = layout.kept * math.log2(layout.lanes) + (math.log2(layout.warps) if layout.warps > 1 else 0.0)
        combined = math.log2(self.splits) if self.schedule.chunked else 0.0
        return self.work.running * (steps + combined)

    @property
    def _exchanged(self) -> float:
        """Values that a thread hands to other warps, or takes."""
        return 2 * self.work.running * (self.layout.kept + 1) if self.layout.warps > 1 else 0.0

    # time on the multiprocessors -------------------------------------------------------------------------------------

    @property
    def units(self) -> float:
        """Instructions, masked lanes included: those that a multiprocessor's schedulers start, and those that its one unit for
        memory and shuffles carries out, 128 bytes a cycle."""
        moved = sum(count * max(ACCESSED, size / 4) for count, size in self._moved)
        cycles = max(self.instructions / SCHEDULERS, moved + self.shuffles + self._exchanged)
        idle = (self.programs - self.working) * self._instructions(0) / SCHEDULERS
        each = math.ceil(self.working / self.device.sms) * cycles + idle / self.device.sms
        return each * self.warps / self.device.clock + self.copying

    @functools.cached_property
    def registers(self) -> float:
        """32-bit registers a thread needs."""
        running = self.work.running if self.tile.reduced and not self.schedule.bounded else self.work.pairs
        at_once = self.accesses / (1 if self.schedule.bounded else self.work.passes)
        going = VALUE * self.each * (1 + RUNNING * running) + PLACE * at_once
        return BASE_REGISTERS + max(going, self.combined * self.work.running)

    @property
    def latency(self) -> float:
        wait = CACHE_LATENCY + self.missing * (MEMORY_LATENCY - CACHE_LATENCY)
        if self.schedule.swept:
            wait += QUEUE * self.accesses / self.work.passes
        rounds = self.work.passes * self.waits if self.schedule.swept else 1
        spilled = max(0.0, self.registers - MOST_REGISTERS) / 64 * CACHE_LATENCY
        one = rounds * wait + self.block_loop + self.staged + self._meeting + spilled + self._own + self._combining
        return in_turns(one, self.programs / self.at_once)

    @property
    def _own(self) -> float:
        """What one warp computes itself, one instruction after another."""
        return self.instructions * ISSUE / self.device.clock

    @property
    def _meeting(self) -> float:
        """What the warps of a program spend on agreeing, beside the instructions."""
        layout = self.layout
        steps = math.log2(layout.lanes * layout.warps)
        reductions = self.work.running if self.schedule.clustered else self.work.reductions
        return reductions * (steps * SHUFFLE + (BARRIER if layout.warps > 1 else 0)) / self.device.clock

    @property
    def _combining(self) -> float:
        """What a program of a split row spends on what the others have left, pass after pass."""
        if self.schedule.clustered:
            return max(1, self.work.passes - 1) * (EXCHANGE + LEFT * self.combined)
        return self.work.passes * (CACHE_LATENCY + LEFT * self.combined) if self.schedule.chunked else 0.0
