"""What the predictions of all configs share (triton_loops.py): the number of programs, their memory traffic, and occupancy."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polytile.codegen.triton.split import FINALISE_WARPS
from polytile.codegen.triton.tile import Dim, Tile
from polytile.cost import roofline
from polytile.cost.roofline import in_turns
from polytile.cost.triton_work import Access, Work, divisible
from polytile.schedule.answers import Share
from polytile.schedule.gpu.schedule import GpuSchedule
from polytile.schedule.gpu.vectors import VECTOR
from polytile.schedule.nest import Form

if TYPE_CHECKING:
    from polytile.runtime.cuda.device import DeviceFacts

START = 0.05e-6  # s until a program's first load is in flight, besides the launch
HIDDEN = 0.85e-6  # s of a launch that overlap with the previous kernel
PLACED = 1.18e-9  # s to schedule one more program
STAGED = 0.4e-6  # s per tile that is staged in shared memory without need
STAGED_FIRST = 0.15  # factor on that in the first pass, whose loads take longer than rereads
WIDE_COPY, NARROW_COPY = 16, 4  # bytes per lane of an asynchronous copy: the best and the minimum
COPIED = 22  # cycles of a warp's narrowest asynchronous copy; twice the bytes count half
ITERATION = 0.08e-6  # s of loop overhead per further tile
EXCHANGE = 0.6e-6  # s of an exchange between the programs of a cluster
LEFT = 8e-9  # s per value of it that a thread reads
NARROW = 0.05  # slowdown per further tile of columns that shares a cache line
SM_SHARE = 2.5  # bandwidth of one multiprocessor alone, in multiples of its share
SECTOR, LINE = 32, 128  # bytes
GROUPS = 8  # groups of multiprocessors (GPCs); a cluster is inside one
KEPT = 0.6  # share of the L2 cache available to reread data
MOST_REGISTERS = 255


@dataclass(frozen=True)
class Constants:
    """Constants that no data sheet states, fitted for each kind of loop to times on an H100 (docs/cuda-prior.md).

    memory_latency, cache_latency   s of a load from memory, and of an L2 cache hit
    dispatch         s per program of the first wave until it runs
    finish           s until the next launch, or the last program, sees the partial results of a split row
    issue            cycles between two dependent instructions
    base_registers   registers of a thread besides those of its points
    """

    memory_latency: float
    cache_latency: float
    dispatch: float
    finish: float
    issue: float
    base_registers: int


class Estimate(ABC):
    """The prediction for one config. `counts` are the points along each dimension. Subclasses have `constants`, and model the
    time of computation, reductions and combining."""

    constants: Constants

    def __init__(self, work: Work, tile: Tile, counts: Mapping[Dim, int], schedule: GpuSchedule, device: DeviceFacts) -> None:
        self.work, self.tile, self.counts, self.schedule, self.device = work, tile, counts, schedule, device
        self.threads, self.parts = device.warp * schedule.warps, schedule.blocks.parts or 0
        self.splits, self.stages = schedule.splits, schedule.stages
        self.block_points = math.prod(d.block for d in tile.dims)
        self.row_blocks = math.prod(-(-counts[d] // d.block) for d in tile.reduced)
        if schedule.share is Share.CLUSTER:
            self.row_blocks = self.splits
        self.programs = math.prod(-(-counts[d] // d.block) for d in tile.parallel) * self.splits
        divided = tile.divided(schedule)
        own = -(-counts[divided] // divided.block) if divided is not None else self.row_blocks
        chunk = -(-own // self.splits)
        self.blocks_of_program = self.row_blocks // own * chunk
        """Number of tiles of its row that a busy program processes."""
        self.busy_programs = self.programs // self.splits * -(-own // chunk)
        self.dims = {a.symbol: d for d in (*tile.parallel, *tile.reduced) for a in d.axes}
        self.launched_programs = min(self.busy_programs, schedule.blocks.programs or self.busy_programs)

    @property
    @abstractmethod
    def seconds(self) -> float:
        """Predicted seconds of one call."""

    @property
    @abstractmethod
    def registers(self) -> float:
        """32-bit registers per thread."""

    @property
    def exposed_launch(self) -> float:
        """Seconds of launch overhead that are not hidden by the previous launch."""
        return self.device.launch_seconds + START - HIDDEN

    @property
    def placement_seconds(self) -> float:
        """Seconds until the last program is scheduled."""
        return PLACED * (self.programs if self.schedule.chunked else self.launched_programs)

    @property
    def blocks_per_pass(self) -> int:
        """Number of tiles of its row that a program processes in each pass."""
        return self.blocks_of_program if not self.schedule.bounded else 1

    @property
    def latency_seconds(self) -> float:
        """Seconds of programs in waves on their slots. Each waits for its memory accesses, which it does not overlap with
        computation, then for its instructions, reductions and combining."""
        constants = self.constants
        wait = constants.cache_latency + self.miss_share * (constants.memory_latency - constants.cache_latency)
        spilled = max(0.0, self.registers - MOST_REGISTERS) / 64 * constants.cache_latency
        waiting = self._waits * (wait + self._queue_seconds) + self.loop_seconds + self.staging_seconds
        one = waiting + self._reduction_seconds + spilled + self._instruction_seconds + self._combine_seconds
        return in_turns(one, self._turns)

    @property
    def _dispatch_seconds(self) -> float:
        return self.constants.dispatch * min(self.launched_programs, self.device.sms * self.programs_per_sm)

    @property
    @abstractmethod
    def _waits(self) -> float:
        """How often a program waits for memory."""

    @property
    def _queue_seconds(self) -> float:
        """Additional latency per wait when many loads and stores are in flight."""
        return 0.0

    @property
    @abstractmethod
    def _turns(self) -> float:
        """Number of waves: programs per slot of the device."""

    @property
    @abstractmethod
    def _instruction_seconds(self) -> float:
        """Seconds of dependent instructions."""

    @property
    @abstractmethod
    def _reduction_seconds(self) -> float:
        """Seconds for the warps of a program to combine their values, without the instructions."""

    @property
    def _combine_seconds(self) -> float:
        """Seconds for a program of a split row to combine the others' partial results, in all passes."""
        if not self.schedule.chunked:
            return 0.0
        return self.work.passes * (self.constants.cache_latency + LEFT * self.partials_per_thread)

    # traffic ---------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def compulsory_bytes(self) -> float:
        """Bytes that must be transferred from or to memory at least once."""
        touched: dict[tuple[str, bool], float] = {}
        for access in self.work.accesses:
            points = math.prod(self.work.extents[s] for s in access.strides)
            points = min(points, access.reach) if access.reach and not access.store else points
            key = (access.buffer, access.store)
            touched[key] = max(touched.get(key, 0.0), points * access.itemsize / self._used_share_of_lines(access))
        return sum(touched.values())

    def _used_share_of_lines(self, access: Access) -> float:
        """Useful share of the transferred sectors: 1 if some axis has stride 1."""
        near = min(access.strides.values(), default=1)
        return 1.0 if near <= 1 or access.reach else max(access.itemsize / SECTOR, 1 / near)

    @functools.cached_property
    def memory_seconds(self) -> float:
        again = 0.0
        if not self.schedule.bounded:
            again = sum(self.requested_bytes(a) * (a.passes - 1) / a.passes for a in self.work.accesses if a.passes > 1)
            together = 1.0 if self.schedule.chunked else min(1.0, self.programs_per_sm * self.device.sms / self.programs)
            again *= max(0.0, 1.0 - KEPT * self.device.l2_bytes / max(1.0, again * together))
        active = min(self.launched_programs, self.device.sms) / self.device.sms
        drawn = self.device.bandwidth * min(1.0, SM_SHARE * active)
        return (self.compulsory_bytes * self.miss_share + again) * self._narrow_factor / drawn

    @functools.cached_property
    def _narrow_factor(self) -> float:
        """Slowdown for columns of which a tile has less than a cache line."""
        if self.tile.nest.form is not Form.COLUMN:
            return 1.0
        runs = [self.contiguous_run(a) * a.itemsize for a in self.work.accesses if not a.store and len(a.strides) > 1]
        parted = any(self.counts[dim] > dim.block for dim in self.tile.parallel)
        return 1.0 + NARROW * max(0.0, LINE / min(runs) - 1.0) if runs and parted else 1.0

    @functools.cached_property
    def cache_seconds(self) -> float:
        active = min(self.launched_programs, self.device.sms) / self.device.sms
        return sum(map(self.requested_bytes, self.work.accesses)) * self._narrow_factor / (self.device.l2_bandwidth * active)

    def requested_bytes(self, access: Access) -> float:
        """Bytes of the sectors that all programs request."""
        return self.touched_points(access) * access.itemsize / self._used_share_of_sectors(access)

    def touched_points(self, access: Access) -> float:
        """Elements that all programs touch."""
        touched = 1.0
        varies = {self.dims[s] for s in access.strides}
        for dim in self.tile.parallel:
            touched *= self.counts[dim] if dim in varies else min(self.launched_programs, -(-self.counts[dim] // dim.block))
        for dim in self.tile.reduced:
            touched *= self.counts[dim] if dim in varies else 1
        passes = access.passes if not self.schedule.resident else 1
        return touched * passes

    def _used_share_of_sectors(self, access: Access) -> float:
        """Useful share of the sectors that the access of one tile requests."""
        run = self.contiguous_run(access) * access.itemsize
        return run / (-(-run // SECTOR) * SECTOR)

    def contiguous_run(self, access: Access) -> int:
        """Number of contiguous elements in one tile's access; a full vector if it does not vary within a tile."""
        if not access.strides:
            return VECTOR
        for symbol, stride in access.strides.items():
            dim = self.dims[symbol]
            if stride == 1:
                return min(dim.block, self.counts[dim])
        return 1

    def vector_width(self, access: Access) -> int:
        """Number of a thread's neighbouring elements per instruction, as far as neither masks nor row starts separate them.

        The lanes of a warp are a vector apart regardless, and each instruction transfers as many sectors.
        """
        common = math.gcd(VECTOR // access.itemsize, *[stride for stride in access.strides.values() if stride != 1])
        parted = self.tile.reduced or len(self.dims) > 1  # otherwise full tiles have no masks
        near = [self.dims[symbol] for symbol, stride in access.strides.items() if parted and stride == 1]
        while common > 1 and not all(divisible(dim.size, common, self.work.known) for dim in near):
            common //= 2
        return common

    # programs --------------------------------------------------------------------------------------------------------

    @property
    def partials_per_thread(self) -> float:
        """Number of values that a thread of the combining program reads per running value."""
        if not self.schedule.chunked and not self.schedule.clustered:
            return 0.0
        if (columns := self.schedule.blocks.finalise) is not None:
            return self.splits * columns / (FINALISE_WARPS * self.device.warp)
        return self.splits * math.prod(d.block for d in self.tile.parallel) / self.threads

    @functools.cached_property
    def programs_per_sm(self) -> int:
        """Number of programs that one multiprocessor holds at once (occupancy)."""
        registers = -(-min(MOST_REGISTERS, self.registers) // 8) * 8
        return roofline.places(self.device, registers * self.threads, self.threads, self._shared)

    @property
    def _shared(self) -> float:
        """Bytes of shared memory per program for loads in flight."""
        looped = set(self.tile.reduced)
        under_way = [a for a in self.work.accesses if not a.store and looped & {self.dims[s] for s in a.strides}]
        return self.stages * self.block_points * sum(a.itemsize for a in under_way) if self.stages > 1 else 0.0

    @property
    def memory_waits(self) -> float:
        """How often a program waits for memory in one pass; overlapping loads are waited for together."""
        return 1 + (self.blocks_per_pass - 1) / self.stages

    @property
    def loop_seconds(self) -> float:
        """Seconds of loop overhead between the tiles of a row, in all passes."""
        return ITERATION * self.work.passes * (self.blocks_per_pass - 1)

    @functools.cached_property
    def miss_share(self) -> float:
        """Share of all data that the L2 cache has not kept since the previous call."""
        return roofline.missing(self.compulsory_bytes, self.device)

    @property
    def staging_seconds(self) -> float:
        """Seconds that a program spends on prefetching tiles that are in the cache anyway."""
        if self.stages == 1 or self.schedule.bounded:
            return 0.0
        passes = self.work.passes - 1 + STAGED_FIRST
        return (1.0 - self.miss_share) * STAGED * passes * self.blocks_per_pass

    @functools.cached_property
    def copy_seconds(self) -> float:
        """Seconds that multiprocessors spend on prefetching by asynchronous copies narrower than WIDE_COPY, for example if rows
        start unaligned.

        Accesses narrower than NARROW_COPY are loaded as without stages. Column sums of 128×4096×4095 float32 took 23 cycles per
        copy with tiles of 16×128, 35 with 16×64 and 67 with 32×64 (H200); RMS norms of 33×306322 bfloat16 took 21 (H100).
        """
        if self.stages == 1 or self.schedule.bounded:
            return 0.0
        looped, cycles = set(self.tile.reduced), 0.0
        for access in self.work.accesses:
            together = self.vector_width(access)
            size = together * access.itemsize
            if not access.store and looped & {self.dims[s] for s in access.strides} and NARROW_COPY <= size < WIDE_COPY:
                cycles += self.touched_points(access) / together / self.device.warp * COPIED * NARROW_COPY / size
        return cycles / (min(self.launched_programs, self.device.sms) * self.device.clock)

    @property
    def resident_programs(self) -> int:
        """Number of programs that the device holds at once. A cluster does not span groups of multiprocessors."""
        if self.schedule.share is not Share.CLUSTER:
            return self.device.sms * self.programs_per_sm
        return max(1, GROUPS * (self.device.sms // GROUPS * self.programs_per_sm // self.splits)) * self.splits
