"""The cost model of columns: loops that traverse columns, and loops that sum columns along with rows.

    t = launch + finish + max(placed, dispatch + |latency, memory, cache, units|₃)

    units     instructions: loads and stores by vector width, arithmetic by the operations' costs, masked lanes included
    latency   programs in waves on the slots that registers and threads allow; a program waits for memory once per iteration,
              for its warps once per reduction, and each thread for its own instructions
    finish    for split columns, column reductions and column-parallel programs: one or two more launches, or the last
              program's work

Columns held by clusters have a model of their own: memory, and in each wave of concurrent programs the time of their exchange.
The layout of a column tile in threads is not modelled; docs/cuda.md says where that is too coarse.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from polytile.codegen.triton.tile import Dim, Tile
from polytile.codegen.triton.unit import registers
from polytile.cost.roofline import overlapping
from polytile.cost.triton_estimate import SM_SHARE, Constants, Estimate
from polytile.cost.triton_work import Work
from polytile.schedule.answers import Combine, Share
from polytile.schedule.gpu.schedule import GpuSchedule
from polytile.schedule.gpu.vectors import VECTOR
from polytile.schedule.nest import Form

if TYPE_CHECKING:
    from polytile.runtime.cuda.device import DeviceFacts

FITTED = Constants(memory_latency=0.65e-6, cache_latency=0.35e-6, dispatch=0.25e-9, finish=1.1e-6, issue=4, base_registers=24)
REDUCTION, MEETING = 0.06e-6, 0.015e-6  # s to reduce one value, per tile and per warp
COLUMN = 1.2e-9  # s per value that a warp passes to others to combine columns
RECEIVED = 0.25e-6  # s of synchronisation in a cluster that sums columns, besides overlapping loads
CLUSTERS = 4e-6  # additional s to start clusters, and for the next launch to see their sums
ARRIVED = 1.0e-6  # s to store a partial result and find out whether the program is the last one
TAKEN = 20e-9  # s per running value that a thread of the last program combines
LANE_EXCHANGE = 5  # instructions to take another lane's running value
AGREED = 0.8e-6  # s to combine columns in a cluster, times the binary logarithm of its size
LAID = 0.4e-6  # s per column of a thread beyond two
CACHED = 0.6  # factor on memory time for data in the L2 cache
UNPACKED = 40e-9  # s per 16-bit element of a thread, two to a register


class Columns(Estimate):
    """The estimate for loops that traverse columns, or sum columns along with rows."""

    constants = FITTED

    @property
    def seconds(self) -> float:
        own = overlapping(3, self.latency_seconds, self.memory_seconds, self.cache_seconds, self.unit_seconds)
        return self.exposed_launch + self._finish_seconds + max(self._dispatch_seconds + own, self.placement_seconds)

    @property
    def unit_seconds(self) -> float:
        """Instructions of loads, stores and arithmetic, masked lanes included."""
        lanes = self.busy_programs * self.block_points * self.blocks_of_program
        passes = self.work.passes if self.schedule.swept else 1
        arithmetic = lanes * passes * (self.work.cost / max(1, self.work.passes) + 2) / 128
        moving = 0.0
        for access in self.work.accesses:
            each = max(1, self.block_points // self.threads)
            vector = max(1, min(VECTOR // access.itemsize, each, self.contiguous_run(access)))
            together = min(vector, self.vector_width(access))
            moving += self.touched_points(access) / together / 32 * max(1.0, vector * access.itemsize / 4)
        cycles = arithmetic + moving + self._exchanged_values
        return cycles / (min(self.launched_programs, self.device.sms) * self.device.clock) + self.copy_seconds

    @property
    def _exchanged_values(self) -> float:
        """Work of the lanes of a warp to combine columns that several of them have traversed."""
        if self.tile.nest.form is not Form.COLUMN:
            return 0.0
        sharing = self.device.warp * self._loaded_columns / math.prod(d.block for d in self.tile.parallel)
        steps = math.log2(max(1.0, min(self.device.warp, sharing)))
        return self.programs * self.threads * self._loaded_columns * steps * self.work.running * LANE_EXCHANGE / 128

    @functools.cached_property
    def registers(self) -> float:
        """32-bit registers per thread."""
        if self.schedule.blocks.resident:
            return float(registers(self.schedule))
        each = self.work.resident if self.schedule.bounded else self.work.live
        values = max(1.0, self.block_points / self.threads) * (each + self.work.sums / 4 * max(0, self.parts - 1))
        partials = 0.0 if self._finalised else self.partials_per_thread * self.work.running
        return self.constants.base_registers + max(values, partials)

    @property
    def _instruction_seconds(self) -> float:
        each = max(1.0, self.block_points / self.threads) * self.blocks_of_program
        return each * (self.work.cost + 2 * len(self.work.accesses)) * self.constants.issue / self.device.clock

    @property
    def _reduction_seconds(self) -> float:
        warps = self.threads / self.device.warp
        reductions = self.work.running if self.schedule.clustered else self.work.reductions
        return reductions * (REDUCTION + MEETING * warps + COLUMN * self._handed_values)

    @property
    def _handed_values(self) -> float:
        """Values passed between warps: each warp that shares columns with others has a value of every column."""
        if self.tile.nest.form is not Form.COLUMN:
            return 0.0
        columns = math.prod(d.block for d in self.tile.parallel)
        together = min(self.threads / self.device.warp, self.threads * self._loaded_columns / columns)
        return columns * together if together > 1 else 0.0

    @property
    def _loaded_columns(self) -> int:
        """Columns that a thread loads at once."""
        return VECTOR // max((access.itemsize for access in self.work.accesses if not access.store), default=VECTOR)

    @property
    def _waits(self) -> float:
        if self.parts:
            return self.work.passes
        if self.schedule.bounded:  # loads of further waves overlap, in `stages`
            turns = max(1.0, self._turns)
            return (1 + (turns - 1) / self.stages) / turns
        return self.work.passes * self.memory_waits if self.tile.reduced else 1

    @property
    def _turns(self) -> float:
        at_once = self.resident_programs
        programs = self.programs if self._columns else self.busy_programs  # programs without a tile store partial results too
        return programs / (min(self.launched_programs, at_once) if self.work.sums else at_once)

    @property
    def _columns(self) -> bool:
        """Whether the last program of a pass combines columns."""
        return self.schedule.chunked and self.tile.nest.form is Form.COLUMN and not self._finalised

    @property
    def _finalised(self) -> bool:
        """Whether separate launches combine the programs' partial results of a pass."""
        return self.schedule.combine is Combine.LAUNCH

    @property
    def _partial_bytes(self) -> float:
        """Bytes of partial sums, written and read again."""
        return 2.0 * self.launched_programs / self.splits * self.work.sums * math.prod(self.counts[d] for d in self.tile.reduced)

    @property
    def _finish_seconds(self) -> float:
        if self.schedule.chunked:
            taken = TAKEN * self.partials_per_thread * self.work.running if self._columns else 0.0
            return self.work.passes * self.constants.finish * (2 if self._finalised else 1) + taken
        if not self.work.sums or self.launched_programs == 1:
            return 0.0
        begun = CLUSTERS if self.schedule.share is Share.CLUSTER else 0.0
        return self.constants.finish + self._partial_bytes / self.device.l2_bandwidth + begun

    @property
    def _combine_seconds(self) -> float:
        if self.schedule.share is Share.CLUSTER:
            return (self.work.passes - 1) * RECEIVED
        if self._columns:
            return self.work.passes * self.constants.cache_latency + ARRIVED
        return super()._combine_seconds


class ColumnParallel(Columns):
    """The estimate for programs that each traverse all rows of one tile of columns, before another launch processes the
    points."""

    def __init__(self, work: Work, tile: Tile, counts: Mapping[Dim, int], schedule: GpuSchedule, device: DeviceFacts) -> None:
        super().__init__(work, tile, counts, schedule, device)
        self.programs = self.busy_programs = self.launched_programs = math.prod(-(-counts[d] // d.block) for d in tile.reduced)
        self.row_blocks = self.blocks_of_program = math.prod(-(-counts[d] // d.block) for d in tile.parallel)

    @property
    def _finish_seconds(self) -> float:
        return 2 * self.constants.finish

    @functools.cached_property
    def registers(self) -> float:
        return self.constants.base_registers + max(1.0, self.block_points / self.threads) * self.work.resident

    @property
    def latency_seconds(self) -> float:
        meeting = self.row_blocks * self.work.reductions * (REDUCTION + MEETING * self.threads / self.device.warp)
        one = (1 + (self.row_blocks - 1) / self.stages) * self.constants.memory_latency + meeting + self._instruction_seconds
        return one * max(1.0, self.programs / (self.device.sms * self.programs_per_sm))


class ClusterColumns(Columns):
    """The estimate for clusters whose programs hold a tile of columns together.

    A wave of concurrent programs loads its parts, exchanges values, and stores. The exchange takes longer the larger the cluster
    is and the more columns a thread has. 16-bit elements are converted to floats again after each exchange.

    Of six times of batch norms in float32 on an H100, four are within 5 % of the prediction; 13.5 µs are predicted as 11.0, 5.3
    as 7.2. Of eight in bfloat16, five are within 11 %; 33.6 are predicted as 40.0, 17.8 as 21.6, and 58.1 as 42.7, where splits
    take 38.9.
    """

    @property
    def seconds(self) -> float:
        at_once = min(self.programs, self.resident_programs)
        turns = math.ceil(self.programs / at_once)
        drawn = self.device.bandwidth * min(1.0, SM_SHARE * at_once / self.programs_per_sm / self.device.sms)
        missed = self.compulsory_bytes * max(self.miss_share, CACHED)
        moved = missed * self._narrow_factor * turns * at_once / self.programs / drawn
        exchange = AGREED * math.log2(self.splits) + LAID * (self._loaded_columns - 2)
        turn = (self.work.passes - 1) * exchange + self._unpack_seconds
        return self.exposed_launch + self.constants.memory_latency + moved + turns * turn

    @property
    def _unpack_seconds(self) -> float:
        """Seconds per wave to unpack 16-bit elements."""
        packed = any(not a.store and len(a.strides) > 1 and a.itemsize == 2 for a in self.work.accesses)
        return UNPACKED * self.block_points / self.threads if packed else 0.0
