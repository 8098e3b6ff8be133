"""The analytical cost model of loops on a GPU: predicted seconds of a config at given sizes.

    t = launch + begun + finish + max(placed, dispatch + ||latency, units|₁.₅, memory, cache|₃)
                                     the p-norm: the longest term, and more if others are close and overlap little

    memory    compulsory traffic, less what the L2 cache has kept since the previous call, plus what later passes read again and
              the cache does not hold for the running programs; at the bandwidth that this many programs can draw
    cache     all bytes that programs request, in sectors of 32 bytes, at the bandwidth of the L2 cache
    units     the busiest multiprocessor: instructions of its warps, four per cycle, or the work of its load/store unit (loads,
              stores, shuffles, shared memory), whichever is more
    latency   programs in waves on the slots that registers and threads allow. A program waits for memory once per iteration,
              for reductions across lanes and warps, and each warp for its own instructions. Prefetching costs extra if the
              cache has the data. A program of a split row also waits for the others' partial results, in a cluster for the
              others themselves
    placed    the time to schedule all programs one after another
    begun     for points: the start of a program's warps, one after another
    finish    for a split row: the next launch waits for the programs of the one before

Instructions, registers and shuffles depend on the layout of tiles in threads (ThreadLayout). Rows that start at odd addresses are
loaded element by element, so that more lanes and warps share a row and reduce across each other.

Columns have a model of their own (triton_columns.py). Shared terms are in triton_estimate.py; numbers of the device come from its
DeviceFacts. docs/cuda-prior.md has the origin of the constants, the errors of predictions, and where the choice is wrong.
Predictions only rank candidates.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polytile.codegen.triton.tile import Dim, Tile
from polytile.cost.roofline import overlapping
from polytile.cost.triton_columns import ClusterColumns, ColumnParallel, Columns
from polytile.cost.triton_estimate import EXCHANGE, LEFT, Constants, Estimate
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

FITTED = Constants(memory_latency=0.5e-6, cache_latency=0.1e-6, dispatch=0.25e-9, finish=0.6e-6, issue=3, base_registers=15)
QUEUE = 9e-9  # s per load or store for which a thread of a loop waits
WARP = 40e-9  # s until the next warp of a pointwise program starts
SCHEDULERS = 4  # per multiprocessor: each issues one warp instruction per cycle
ACCESSED = 4  # cycles of a warp's load or store in the load/store unit; 16 bytes per lane take no longer
SHUFFLE = 65  # cycles to receive and combine another lane's value
BARRIER = 150  # cycles of an exchange between warps through shared memory
PROLOGUE = 30  # instructions of a program besides those of its points
ACCESS = 6.0  # instructions of a load or store: position, mask, conversion
SHUFFLED = 1.7  # instructions of a shuffle, besides combining the values
VALUE, RUNNING, PLACE = 0.9, 0.6, 0.65  # registers per point, per running value of it, and per load or store
NORM, OVERLAP = 1.5, 3  # norms: latency and instructions overlap little, both overlap well with traffic


def cost(kernel: LoopKernel, config: Config, size: Mapping[str, int], device: DeviceFacts) -> float:
    """Predicted seconds of one call, by the module's formula."""
    return predicted(kernel, schedule_of(config), size, device)


def predicted(
    kernel: LoopKernel, schedule: GpuSchedule, size: Mapping[str, int], device: DeviceFacts, begun: float = WARP
) -> float:
    """The same for a schedule. `begun`: seconds until the next warp of a pointwise program starts."""
    estimate = _estimate(kernel, schedule, size, device, begun)
    return device.launch_seconds if estimate is None else estimate.seconds


def terms(kernel: LoopKernel, config: Config, size: Mapping[str, int], device: DeviceFacts) -> dict[str, float]:
    """The terms of `cost` by name (Candidate.terms).

    They are the seconds of the overlapping parts; programs per slot of the device, slots per multiprocessor, tiles per program,
    registers per thread and points per thread of a tile; and facts of the work itself.
    """
    estimate = _estimate(kernel, schedule_of(config), size, device, WARP)
    if estimate is None:
        return {}
    return {
        "latency_s": estimate.latency_seconds,
        "units_s": estimate.unit_seconds,
        "memory_s": estimate.memory_seconds,
        "cache_s": estimate.cache_seconds,
        "placed_s": estimate.placement_seconds,
        "rounds": estimate.programs / max(1, estimate.resident_programs),
        "places": estimate.programs_per_sm,
        "blocks": estimate.blocks_per_pass,
        "registers": estimate.registers,
        "each": estimate.block_points / estimate.threads,
        "missing": estimate.miss_share,
        "work.points": math.prod(estimate.counts.values()),
        "work.row": math.prod(estimate.counts[d] for d in estimate.tile.reduced),
        "work.bytes": estimate.compulsory_bytes,
        "work.arithmetic": estimate.work.arithmetic,
        "work.accesses": len(estimate.work.accesses),
        "work.passes": estimate.work.passes,
        "work.reductions": estimate.work.reductions,
        "work.columns": float(estimate.tile.nest.form is Form.COLUMN),
    }


def _estimate(
    kernel: LoopKernel, schedule: GpuSchedule, size: Mapping[str, int], device: DeviceFacts, begun: float
) -> Rows | Columns | None:
    """The prediction; None if there is nothing to do."""
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
    """The layout of a tile in the threads of a program.

    `lanes` of a warp and `warps` share each reduced value; a thread has a part of `kept` such values. Triton distributes the
    vectors of a row over the lanes of a warp, then over warps, and then starts a new row.
    """

    lanes: int
    warps: int
    kept: float


class Rows(Estimate):
    """The estimate for rows and for points."""

    constants = FITTED

    def __init__(
        self, work: Work, tile: Tile, counts: Mapping[Dim, int], schedule: GpuSchedule, device: DeviceFacts, begun: float = WARP
    ) -> None:
        super().__init__(work, tile, counts, schedule, device)
        self.next_warp_seconds = begun

    @property
    def seconds(self) -> float:
        alone = overlapping(NORM, self.latency_seconds, self.unit_seconds)
        own = overlapping(OVERLAP, alone, self.memory_seconds, self.cache_seconds)
        finish = self.work.passes * self.constants.finish if self.schedule.chunked else 0.0
        begun = self.next_warp_seconds * self.warps if self.schedule.combine is Combine.NOTHING else 0.0
        return self.exposed_launch + begun + finish + max(self._dispatch_seconds + own, self.placement_seconds)

    # threads ---------------------------------------------------------------------------------------------------------

    @property
    def warps(self) -> int:
        return self.threads // self.device.warp

    @functools.cached_property
    def points_per_thread(self) -> float:
        return max(1.0, self.block_points / self.threads)

    @functools.cached_property
    def layout(self) -> ThreadLayout:
        """The layout of the tile in threads, determined by its widest aligned access."""
        wide = [a for a in self.work.accesses if {self.dims[s] for s in a.strides} >= set(self.tile.dims)]
        vector = max([self._vector_of(access) for access in wide], default=1)
        near = self.tile.dims[-1].block if self.tile.dims else 1
        lanes = max(1, min(self.device.warp, near // vector))
        warps = max(1, min(self.warps, near // (vector * lanes)))
        kept = math.prod(d.block for d in self.tile.parallel) * lanes * warps / self.threads
        return ThreadLayout(lanes, warps, max(1.0, kept))

    def _vector_of(self, access: Access) -> int:
        """Number of contiguous elements per thread."""
        return self._vectors[id(access)]

    @functools.cached_property
    def _vectors(self) -> dict[int, int]:
        accesses = self.work.accesses
        return {id(a): max(1, min(VECTOR // a.itemsize, int(self.points_per_thread), self.vector_width(a))) for a in accesses}

    def _instructions(self, blocks: float) -> float:
        """Instructions of one thread that processes this many tiles in each pass."""
        work = self.points_per_thread * blocks * (self.work.arithmetic + self.work.updates) + ACCESS * self.accesses * blocks
        return self._launches * PROLOGUE + work + self._reduction_instructions

    @functools.cached_property
    def instructions(self) -> float:
        return self._instructions(self.blocks_per_pass)

    @property
    def _launches(self) -> int:
        return self.work.passes if self.schedule.chunked else 1

    @functools.cached_property
    def _reduction_instructions(self) -> float:
        """Instructions to reduce a thread's own values, those of its warp and those of other warps. Programs of a split row
        reduce the partial results of all programs as well."""
        own = 0.0 if self.schedule.bounded else self.work.merges * max(0.0, self.points_per_thread - self.layout.kept)
        return own + self.shuffles * (SHUFFLED + self.work.merges / max(1.0, self.work.running))

    @functools.cached_property
    def accesses(self) -> float:
        """Loads and stores of one thread per tile, over all passes."""
        passes = (a.passes if not self.schedule.bounded else 1 for a in self.work.accesses)
        by_access = zip(self.work.accesses, passes, strict=True)
        return sum(self._thread_elements(a) / self._transaction_width(a) * n for a, n in by_access)

    @functools.cached_property
    def _transactions(self) -> list[tuple[float, int]]:
        """(number per thread, bytes between lanes) of loads and stores that are not masked."""
        threads = self.busy_programs * self.threads
        return [
            (self.touched_points(a) / self._transaction_width(a) / threads, self._vector_of(a) * a.itemsize)
            for a in self.work.accesses
        ]

    def _thread_elements(self, access: Access) -> float:
        """Elements of one tile per thread."""
        varies = {self.dims[s].reduced for s in access.strides if self.dims[s].block > 1}
        if len(varies) != 1:
            return self.points_per_thread if varies else 1.0
        kept = min(self.layout.kept, self.points_per_thread) if self.tile.reduced else 1.0
        return self.points_per_thread / kept if True in varies or not self.tile.reduced else kept

    def _transaction_width(self, access: Access) -> int:
        return min(self._vector_of(access), self.contiguous_run(access))

    @functools.cached_property
    def shuffles(self) -> float:
        """Values that a thread receives from other lanes."""
        layout = self.layout
        steps = layout.kept * math.log2(layout.lanes) + (math.log2(layout.warps) if layout.warps > 1 else 0.0)
        combined = math.log2(self.splits) if self.schedule.chunked else 0.0
        return self.work.running * (steps + combined)

    @property
    def _exchanged_values(self) -> float:
        """Values that a thread passes to or receives from other warps."""
        return 2 * self.work.running * (self.layout.kept + 1) if self.layout.warps > 1 else 0.0

    # time on the multiprocessors -------------------------------------------------------------------------------------

    @property
    def unit_seconds(self) -> float:
        """Instructions, masked lanes included: those issued by a multiprocessor's schedulers, and those of its load/store unit at
        128 bytes per cycle."""
        moved = sum(count * max(ACCESSED, size / 4) for count, size in self._transactions)
        cycles = max(self.instructions / SCHEDULERS, moved + self.shuffles + self._exchanged_values)
        idle = (self.programs - self.busy_programs) * self._instructions(0) / SCHEDULERS
        each = math.ceil(self.busy_programs / self.device.sms) * cycles + idle / self.device.sms
        return each * self.warps / self.device.clock + self.copy_seconds

    @functools.cached_property
    def registers(self) -> float:
        """32-bit registers per thread."""
        running = self.work.running if self.tile.reduced and not self.schedule.bounded else self.work.pairs
        at_once = self.accesses / (1 if self.schedule.bounded else self.work.passes)
        values = VALUE * self.points_per_thread * (1 + RUNNING * running) + PLACE * at_once
        return self.constants.base_registers + max(values, self.partials_per_thread * self.work.running)

    @property
    def _waits(self) -> float:
        return self.work.passes * self.memory_waits if self.schedule.swept else 1

    @property
    def _queue_seconds(self) -> float:
        return QUEUE * self.accesses / self.work.passes if self.schedule.swept else 0.0

    @property
    def _turns(self) -> float:
        return self.programs / self.resident_programs

    @property
    def _instruction_seconds(self) -> float:
        return self.instructions * self.constants.issue / self.device.clock

    @property
    def _reduction_seconds(self) -> float:
        layout = self.layout
        steps = math.log2(layout.lanes * layout.warps)
        reductions = self.work.running if self.schedule.clustered else self.work.reductions
        return reductions * (steps * SHUFFLE + (BARRIER if layout.warps > 1 else 0)) / self.device.clock

    @property
    def _combine_seconds(self) -> float:
        if self.schedule.clustered:
            return max(1, self.work.passes - 1) * (EXCHANGE + LEFT * self.partials_per_thread)
        return super()._combine_seconds
