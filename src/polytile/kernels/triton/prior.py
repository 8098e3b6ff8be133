"""The analytical prior for loops on a GPU: predicted seconds of a config at given sizes.

    t = launch + finish + max(placed, dispatch + together · |latency, memory, cache, units|₃)
                                                  the 3-norm: what takes longest, a little more where others are near

    memory    the bytes that must come from and go to memory once, but for those that the L2 cache has kept since the call before,
              and again in later passes what of them does not stay there, where programs at work have their shares, by the
              bandwidth that this many programs can draw
    cache     all bytes that programs ask for, in whole sectors of 32 bytes, by the bandwidth of the L2 cache
    units     instructions: loads and stores by their vectors, arithmetic by the operations' costs, masked lanes included
    latency   programs, or the blocks of programs that go over several, one after another on each of the places that registers and
              threads leave them; a program waits for memory once an iteration and for its warps once a reduction, and each
              thread for its own instructions; what is brought ahead though the cache has it costs time of its own; of a split
              row a program then waits for what the others have left, in a cluster for the others themselves
    placed    the programs, one after another as the device places them
    finish    of a split row, of sums across rows and of stripes: another launch or two, or the last program's turn
    together  1 + TOGETHER · log2(warps) where rows do not begin at whole vectors

Numbers of the device are from its DeviceFacts. Where the constants below come from, how far predictions are off, and a case
where the choice is wrong: docs/cuda.md. They rank candidates and nothing more.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sympy

from polytile.ir import expr, ops, sizes
from polytile.ir.expr import Load, Node, Op
from polytile.ir.program import Store
from polytile.kernels.canonical import LoopKernel
from polytile.kernels.facts import Facts, index_limit
from polytile.kernels.nest import Form, Nest
from polytile.kernels.triton import vectors
from polytile.kernels.triton.generate import nest_for
from polytile.kernels.triton.split import GATHERING
from polytile.kernels.triton.tile import Dim, Tile, divides, tile_of
from polytile.kernels.triton.vectors import VECTOR
from polytile.problem import Config

if TYPE_CHECKING:
    from polytile.runtime.cuda.device import DeviceFacts

MEMORY_LATENCY = 0.65e-6  # s of a load from memory on a busy device
CACHE_LATENCY = 0.35e-6  # s of a load that the L2 cache has
REDUCTION, MEETING = 0.06e-6, 0.015e-6  # s in which a block, and each warp of it, agree on one value
COLUMN = 1.2e-9  # s for each value that one warp hands to others where columns are put together
STAGED = 0.4e-6  # s for each block that comes by way of shared memory and need not have been waited for
STAGED_FIRST = 0.15  # share of that in the first pass, whose loads take longer than those of what was read just now
ITERATION = 0.08e-6  # s for each block that a program goes on to, beside what is done at its points
START = 0.05e-6  # s until a program's first load is under way, beside the launch itself
DISPATCH = 0.25e-9  # s for each program of the first wave until it runs
PLACED = 1.18e-9  # s from one program to the next that the device places
ISSUE = 4  # cycles between two instructions of a thread
FINISH = 1.1e-6  # s in which the last program of a split row, or the next launch, finds what the others have left
MET = 2.0e-6  # s in which the programs of a cluster tell each other what they have
LEFT = 8e-9  # s for each value of that a thread reads
ARRIVED = 1.0e-6  # s in which a program that shares columns leaves what it has and learns whether it is the last
TAKEN = 20e-9  # s for each running value of columns that a thread of the last program puts together
EXCHANGE = 5  # instructions in which a lane takes another's running value
NARROW = 0.05  # for each further block of columns that shares a line of the cache
LARGE = 0.03e-6  # s for each warp beyond four of programs that have a block of points and nothing else
TOGETHER = 0.09  # for each doubling of the warps of a program whose rows are uneven
SM_SHARE = 2.5  # bandwidth that one multiprocessor draws alone, in shares of the whole
SECTOR, LINE = 32, 128  # bytes
GROUPS = 8  # of multiprocessors: a cluster is in one of them
KEPT = 0.6  # of the L2 cache that re-read data finds place in
RESIDENT = 0.8  # of the L2 cache that may be full of a call's data for the next one to find all of it
BASE_REGISTERS, MOST_REGISTERS = 24, 255
PARTS = {"argmax": 2.0, "argmin": 2.0, "welford": 3.0, "online_softmax": 2.0}  # running values of a reduction
WHOLE = ("persistent", "sums", "cluster")  # variants that hold rows whole
FAR = 1 << 40  # the stride of an index that is no linear function of its axis


@dataclass(frozen=True)
class Access:
    """One load or store at concrete sizes: by axis the stride in elements of those that it varies with; `passes`: how many
    passes make it; `reach`: elements that an indirect index picks from, 0 where there is none."""

    buffer: str
    itemsize: int
    strides: Mapping[sympy.Symbol, int]
    passes: int
    store: bool
    reach: int


@dataclass(frozen=True)
class Work:
    """A loop at concrete sizes: its axes, what generated code knows of its integers, accesses, arithmetic (multiply-adds a
    point), passes, reductions, how many 32-bit values a point has in registers where rows are held whole and where they are
    gone through, of them the running values of reductions, and the bytes of its sums across rows."""

    extents: Mapping[sympy.Symbol, int]
    known: Facts
    accesses: tuple[Access, ...]
    arithmetic: float
    passes: int
    reductions: int
    held: float
    live: float
    running: float
    sums: int


def cost(kernel: LoopKernel, config: Config, size: Mapping[str, int], device: DeviceFacts) -> float:
    """Seconds of one call; see the module's formula."""
    variant = str(config["variant"])
    own, nest = _nest(kernel, variant)
    work = _work(kernel, variant, tuple(sorted(size.items())))
    tile = _tile(own.digest, nest, config)
    counts = {d: math.prod(work.extents[a.symbol] for a in d.axes) for d in (*tile.parallel, *tile.reduced)}
    if not all(counts.values()):
        return device.launch_seconds
    kind = Down if variant == "stripes" else Estimate
    return kind(work, tile, counts, config, device).seconds


class Estimate:
    """The prediction for one config: `counts` are the points along each dimension."""

    def __init__(
        self, work: Work, tile: Tile, counts: Mapping[Dim, int], config: Config, device: DeviceFacts
    ) -> None:
        self.work, self.tile, self.counts, self.device = work, tile, counts, device
        self.variant, self.threads = str(config["variant"]), device.warp * int(config["warps"])
        self.parts = int(config.get("parts", 0) or 0)
        self.splits, self.stages = int(config.get("splits", 1) or 1), int(config.get("stages", 1) or 1)
        self.block = math.prod(d.block for d in tile.dims)
        self.steps = math.prod(-(-counts[d] // d.block) for d in tile.reduced)
        if self.variant == "cluster":
            self.steps = self.splits
        self.programs = math.prod(-(-counts[d] // d.block) for d in tile.parallel) * self.splits
        self.working = self.programs * min(self.splits, self.steps) // self.splits
        self.dims = {a.symbol: d for d in (*tile.parallel, *tile.reduced) for a in d.axes}
        self.gathers = int(config.get("gathers", 0) or 0)
        self.running = min(self.working, int(config.get("programs", 0) or self.working))

    @property
    def seconds(self) -> float:
        parts = (self.latency, self.memory, self.cache, self.units)
        dispatch = DISPATCH * min(self.running, self.device.sms * self.places)
        own = sum(p**3 for p in parts) ** (1 / 3) * self._together
        placed = PLACED * (self.programs if self.variant == "split" else self.running)
        large = LARGE * max(0.0, self.threads / self.device.warp - 4) if self.variant == "plain" else 0.0
        return self.device.launch_seconds + START + large + self._finish + max(dispatch + own, placed)

    @property
    def _finish(self) -> float:
        if self.variant == "split":
            taken = TAKEN * self._met * self.work.running if self._columns else 0.0
            return self.work.passes * FINISH * (2 if self.gathers else 1) + taken
        return FINISH + self._left / self.device.l2_bandwidth if self.work.sums and self.running > 1 else 0.0

    @property
    def _together(self) -> float:
        """How much longer a program of several warps takes where its rows do not begin at whole vectors."""
        uneven = bool(self.tile.reduced) and not all(self._even(access) for access in self.work.accesses)
        return 1.0 + (TOGETHER * math.log2(self.threads / self.device.warp) if uneven else 0.0)

    @property
    def _left(self) -> float:
        """Bytes of sums that programs leave, and that are read again."""
        return 2.0 * self.running * self.work.sums * math.prod(self.counts[d] for d in self.tile.reduced)

    # traffic ---------------------------------------------------------------------------------------------------------

    @functools.cached_property
    def unique(self) -> float:
        """Bytes that go over the memory's pins at least once."""
        touched: dict[tuple[str, bool], float] = {}
        for access in self.work.accesses:
            points = math.prod(self.work.extents[s] for s in access.strides)
            points = min(points, access.reach) if access.reach and not access.store else points
            key = (access.buffer, access.store)
            touched[key] = max(touched.get(key, 0.0), points * access.itemsize / self._whole_lines(access))
        return sum(touched.values())

    def _whole_lines(self, access: Access) -> float:
        """Useful share of the sectors that are moved: 1 where some axis has stride 1."""
        near = min(access.strides.values(), default=1)
        return 1.0 if near <= 1 or access.reach else max(access.itemsize / SECTOR, 1 / near)

    @property
    def memory(self) -> float:
        again = 0.0
        if self.variant not in WHOLE:
            again = sum(self._asked(a) * (a.passes - 1) / a.passes for a in self.work.accesses if a.passes > 1)
            together = 1.0 if self.variant == "split" else min(1.0, self.places * self.device.sms / self.programs)
            again *= max(0.0, 1.0 - KEPT * self.device.l2_bytes / max(1.0, again * together))
        active = min(self.running, self.device.sms) / self.device.sms
        drawn = self.device.bandwidth * min(1.0, SM_SHARE * active)
        return (self.unique * self._missing + again) * self._narrow / drawn

    @functools.cached_property
    def _narrow(self) -> float:
        """How much longer it takes to bring columns of which a block has less than a line of the cache."""
        if self.tile.nest.form is not Form.COLUMN:
            return 1.0
        runs = [self._run(a) * a.itemsize for a in self.work.accesses if not a.store and len(a.strides) > 1]
        parted = any(self.counts[dim] > dim.block for dim in self.tile.parallel)
        return 1.0 + NARROW * max(0.0, LINE / min(runs) - 1.0) if runs and parted else 1.0

    @functools.cached_property
    def cache(self) -> float:
        active = min(self.running, self.device.sms) / self.device.sms
        return sum(map(self._asked, self.work.accesses)) * self._narrow / (self.device.l2_bandwidth * active)

    def _asked(self, access: Access) -> float:
        """Bytes of the sectors that all programs ask for."""
        return self._points(access) * access.itemsize / self._efficiency(access)

    def _points(self, access: Access) -> float:
        """Elements that all programs touch."""
        touched = 1.0
        varies = {self.dims[s] for s in access.strides}
        for dim in self.tile.parallel:
            touched *= self.counts[dim] if dim in varies else min(self.running, -(-self.counts[dim] // dim.block))
        for dim in self.tile.reduced:
            touched *= self.counts[dim] if dim in varies else 1
        passes = access.passes if self.variant not in WHOLE or self.parts else 1
        return touched * passes

    def _efficiency(self, access: Access) -> float:
        """Useful share of the sectors that one block's access asks for."""
        run = self._run(access) * access.itemsize
        return run / (-(-run // SECTOR) * SECTOR)

    def _run(self, access: Access) -> int:
        """Elements next to each other in memory of one block's access; all where it does not vary in a block."""
        if not access.strides:
            return VECTOR
        for symbol, stride in access.strides.items():
            dim = self.dims[symbol]
            if stride == 1:
                return min(dim.block, self.counts[dim])
        return 1

    def _even(self, access: Access) -> bool:
        """Whether rows begin and end at whole vectors."""
        return self._together_in(access) * access.itemsize >= VECTOR

    def _together_in(self, access: Access) -> int:
        """How many of a thread's neighbouring elements are moved in one instruction: neither a mask nor a row's beginning parts
        them. The lanes of a warp lie a vector apart all the same, and each instruction moves as many sectors."""
        common = math.gcd(VECTOR // access.itemsize, *[stride for stride in access.strides.values() if stride != 1])
        parted = self.tile.reduced or len(self.dims) > 1  # else whole blocks have no masks
        near = [self.dims[symbol] for symbol, stride in access.strides.items() if parted and stride == 1]
        while common > 1 and not all(_divisible(dim.size, common, self.work.known) for dim in near):
            common //= 2
        return common

    # time on the multiprocessors -------------------------------------------------------------------------------------

    @property
    def units(self) -> float:
        """Instructions of loads, stores and arithmetic, masked lanes included."""
        lanes = self.working * self.block * -(-self.steps // self.splits)
        passes = self.work.passes if self.variant in ("looped", "split") else 1
        arithmetic = lanes * passes * (self.work.arithmetic / max(1, self.work.passes) + 2) / 128
        moving = 0.0
        for access in self.work.accesses:
            each = max(1, self.block // self.threads)
            vector = max(1, min(VECTOR // access.itemsize, each, self._run(access)))
            together = min(vector, self._together_in(access))
            moving += self._points(access) / together / 32 * max(1.0, vector * access.itemsize / 4)
        cycles = arithmetic + moving + self._exchanged
        return cycles / (min(self.running, self.device.sms) * self.device.clock)

    @property
    def _exchanged(self) -> float:
        """What the lanes of warps spend on putting together columns that several of them have gone through."""
        if self.tile.nest.form is not Form.COLUMN:
            return 0.0
        sharing = self.device.warp * self._each / math.prod(d.block for d in self.tile.parallel)
        steps = math.log2(max(1.0, min(self.device.warp, sharing)))
        return self.programs * self.threads * self._each * steps * self.work.running * EXCHANGE / 128

    @functools.cached_property
    def registers(self) -> float:
        """32-bit registers a thread needs."""
        each = self.work.held if self.variant in WHOLE else self.work.live
        going = max(1.0, self.block / self.threads) * (each + self.work.sums / 4 * max(0, self.parts - 1))
        return BASE_REGISTERS + max(going, 0.0 if self.gathers else self._met * self.work.running)

    @property
    def _met(self) -> float:
        """Values that a thread of the program that puts a row together reads of each part of what the others have left."""
        if self.variant not in ("split", "cluster"):
            return 0.0
        if self.gathers:
            return self.splits * self.gathers / (GATHERING * self.device.warp)
        return self.splits * math.prod(d.block for d in self.tile.parallel) / self.threads

    @functools.cached_property
    def places(self) -> int:
        """Programs that one multiprocessor holds at a time."""
        registers = -(-min(MOST_REGISTERS, self.registers) // 8) * 8
        by_registers = self.device.registers_per_sm // (registers * self.threads)
        by_shared = self.device.shared_per_sm // max(1.0, self._shared)
        by_threads = self.device.threads_per_sm // self.threads
        return int(max(1, min(by_registers, by_shared, by_threads, self.device.blocks_per_sm)))

    @property
    def _shared(self) -> float:
        """Bytes of shared memory of a program: what its loads have under way."""
        going = set(self.tile.reduced)
        under_way = [a for a in self.work.accesses if not a.store and going & {self.dims[s] for s in a.strides}]
        return self.stages * self.block * sum(a.itemsize for a in under_way) if self.stages > 1 else 0.0

    @property
    def _own(self) -> float:
        """What one thread computes itself, one instruction after another."""
        each = max(1.0, self.block / self.threads) * -(-self.steps // self.splits)
        return each * (self.work.arithmetic + 2 * len(self.work.accesses)) * ISSUE / self.device.clock

    @property
    def _gathering(self) -> float:
        """What a program of a split row spends on what the others have left, pass after pass."""
        if self.variant == "cluster":
            return (self.work.passes - 1) * (MET + LEFT * self._met)
        if self._columns:
            return self.work.passes * CACHE_LATENCY + ARRIVED
        return self.work.passes * (CACHE_LATENCY + LEFT * self._met) if self.variant == "split" else 0.0

    @property
    def _columns(self) -> bool:
        """Whether the last program of a pass puts together columns."""
        return self.variant == "split" and self.tile.nest.form is Form.COLUMN and not self.gathers

    @property
    def _waits(self) -> float:
        """How often a program waits for memory in one pass; blocks that are under way at once are waited for together."""
        return 1 + (-(-self.steps // self.splits) - 1) / self.stages

    @property
    def _going_on(self) -> float:
        """What a program spends between blocks of a row, which it goes through in every pass."""
        return 0.0 if self.variant in WHOLE else ITERATION * self.work.passes * (-(-self.steps // self.splits) - 1)

    @functools.cached_property
    def _missing(self) -> float:
        """Share of all data that the L2 cache has not kept since the call before: none up to RESIDENT of it, then soon all."""
        return min(1.0, max(0.0, (self.unique / self.device.l2_bytes - RESIDENT) / (1.0 - RESIDENT)))

    @property
    def _staged(self) -> float:
        """What a program spends on bringing blocks ahead that the cache has."""
        if self.stages == 1 or self.variant in WHOLE:
            return 0.0
        passes = self.work.passes - 1 + STAGED_FIRST
        return (1.0 - self._missing) * STAGED * passes * -(-self.steps // self.splits)

    @property
    def _meeting(self) -> float:
        """What the warps of a program spend on agreeing."""
        warps = self.threads / self.device.warp
        reductions = self.work.running if self.variant == "cluster" else self.work.reductions
        return reductions * (REDUCTION + MEETING * warps + COLUMN * self._handed)

    @property
    def _handed(self) -> float:
        """Values that go from warp to warp: each that works on the same columns as others has one of every column."""
        if self.tile.nest.form is not Form.COLUMN:
            return 0.0
        columns = math.prod(d.block for d in self.tile.parallel)
        together = min(self.threads / self.device.warp, self.threads * self._each / columns)
        return columns * together if together > 1 else 0.0

    @property
    def _each(self) -> int:
        """Columns that a thread loads at once."""
        return VECTOR // max((access.itemsize for access in self.work.accesses if not access.store), default=VECTOR)

    @property
    def _at_once(self) -> int:
        """Programs that the device holds at a time: of clusters none is parted among groups of multiprocessors."""
        if self.variant != "cluster":
            return self.device.sms * self.places
        return max(1, GROUPS * (self.device.sms // GROUPS * self.places // self.splits)) * self.splits

    @property
    def latency(self) -> float:
        wait = CACHE_LATENCY + self._missing * (MEMORY_LATENCY - CACHE_LATENCY)
        rounds = self.work.passes * self._waits if self.tile.reduced else 1
        at_once = self._at_once
        programs = self.programs if self._columns else self.working  # those without a block leave what they have too
        turns = programs / (min(self.running, at_once) if self.work.sums else at_once)
        if self.variant in WHOLE:
            rounds = (1 + (max(1.0, turns) - 1) / self.stages) / max(1.0, turns)
        if self.parts:
            rounds = self.work.passes
        spilled = max(0.0, self.registers - MOST_REGISTERS) / 64 * CACHE_LATENCY
        one = rounds * wait + self._going_on + self._staged + self._meeting + spilled + self._own + self._gathering
        return one * (1.0 if turns <= 1 else turns + 0.5 * (math.ceil(turns) - turns))


class Down(Estimate):
    """Of programs that have a stripe of columns each and go down all rows, before another launch goes over the points."""

    def __init__(
        self, work: Work, tile: Tile, counts: Mapping[Dim, int], config: Config, device: DeviceFacts
    ) -> None:
        super().__init__(work, tile, counts, config, device)
        self.programs = self.working = self.running = math.prod(-(-counts[d] // d.block) for d in tile.reduced)
        self.steps = math.prod(-(-counts[d] // d.block) for d in tile.parallel)

    @property
    def _finish(self) -> float:
        return 2 * FINISH

    @functools.cached_property
    def registers(self) -> float:
        return BASE_REGISTERS + max(1.0, self.block / self.threads) * self.work.held

    @property
    def latency(self) -> float:
        meeting = self.steps * self.work.reductions * (REDUCTION + MEETING * self.threads / self.device.warp)
        one = (1 + (self.steps - 1) / self.stages) * MEMORY_LATENCY + meeting + self._own
        return one * max(1.0, self.programs / (self.device.sms * self.places))


# a loop's numbers ----------------------------------------------------------------------------------------------------

_nests: dict[tuple[str, str], tuple[LoopKernel, Nest]] = {}
_works: dict[tuple[str, str, tuple[tuple[str, int], ...]], Work] = {}
_tiles: dict[tuple[str, Config], Tile] = {}


def _nest(kernel: LoopKernel, variant: str) -> tuple[LoopKernel, Nest]:
    key = (kernel.digest, variant)
    if key not in _nests:
        _nests[key] = nest_for(kernel, variant)
    return _nests[key]


def _tile(digest: str, nest: Nest, config: Config) -> Tile:
    key = (digest, config)
    if key not in _tiles:
        _tiles[key] = tile_of(nest, config, Facts())
    return _tiles[key]


def _work(kernel: LoopKernel, variant: str, size: tuple[tuple[str, int], ...]) -> Work:
    key = (kernel.digest, variant, size)
    if key not in _works:
        own, nest = _nest(kernel, variant)
        values = dict(size)
        _works[key] = _measured(own, nest, {s: values[s.name] for s in kernel.symbols})
    return _works[key]


def _measured(kernel: LoopKernel, nest: Nest, values: Mapping[sympy.Symbol, int]) -> Work:
    """The Work of a kernel at these sizes."""
    axes = [nest.vec, *nest.outer, *nest.inner]
    extents = {a.symbol: sizes.evaluate(a.size, values) for a in axes}
    made: dict[int, int] = {}
    arithmetic = 0.0
    for k in range(nest.passes):
        for node in nest.nodes_in(k):
            made[id(node)] = made.get(id(node), 0) + 1
            arithmetic += ops.definition(node.name).cost if isinstance(node, Op) else 1.0
    if nest.form is Form.POINTWISE:
        arithmetic = sum(ops.definition(n.name).cost for n in nest.nodes if isinstance(n, Op))
    accesses = [_access(kernel, n, made.get(id(n), 1), extents, values) for n in nest.nodes if isinstance(n, Load)]
    accesses += [_access(kernel, s, 1, extents, values) for s in kernel.loop.stores if s.indirect or not s.sums]
    sums = [s.value.dtype.itemsize for s in kernel.loop.stores if s.sums and not s.indirect]
    wide = [n for n in nest.nodes if isinstance(n, Load) and nest.in_pass(n)]
    again = {id(n) for n in wide if made.get(id(n), 1) > 1}
    held = sum(n.dtype.itemsize / 4 for n in wide if id(n) in again or nest.passes < 2)
    running = sum(PARTS.get(r.kind, 1.0) for r in nest.reduces)
    return Work(
        extents,
        Facts(
            frozenset(s.name for s, n in values.items() if n % 16 == 0),
            powers=vectors.divisors(kernel, {s.name: n for s, n in values.items()}),
        ),
        tuple(accesses),
        arithmetic,
        max(1, nest.passes),
        len(nest.reduces) + 2 * len(nest.scans),
        held + 1.5 + 1.5 * len(sums),
        running + len(wide) + 1.0,
        running,
        sum(sums),
    )


@functools.lru_cache(maxsize=10_000)
def _divisible(size: sympy.Expr, by: int, known: Facts) -> bool:
    """Whether generated code knows that `by` divides `size`."""
    return divides(by, size, known)


def _access(
    kernel: LoopKernel,
    place: Load | Store,
    passes: int,
    extents: Mapping[sympy.Symbol, int],
    values: Mapping[sympy.Symbol, int],
) -> Access:
    strides = {}
    below = [place.index.free_symbols, *[e.free_symbols for n in expr.walk(*place.indirect) for e in n.indices]]
    for symbol in set().union(*below) & extents.keys():
        stride = sizes.coefficient(place.index, symbol)
        known = stride is not None and stride.free_symbols <= values.keys() and stride != 0
        strides[symbol] = abs(sizes.evaluate(stride, values)) if known else FAR
    reach = max([_limit(node, values) for node in place.indirect], default=0)
    if reach:
        for symbol, stride in strides.items():
            reach *= extents[symbol] if stride != FAR else 1
    store = isinstance(place, Store)
    return Access(place.buffer, kernel.storage(place.buffer).itemsize, strides, passes, store, reach)


def _limit(node: Node, values: Mapping[sympy.Symbol, int]) -> int:
    limit = index_limit(node)
    known = limit is not None and limit.free_symbols <= values.keys()
    return sizes.evaluate(limit, values) if known else 0
