"""The analytical cost model of products on a GPU: predicted seconds of a config at given sizes.

    t    = launch + start + |loop, cache, memory| + finish            |x, y, ...| = (xᵖ + yᵖ + ...)^(1/p)
    loop = Σ over rounds of programs: steps · |side by side · work, latency| + overhead

    rounds   waves of programs on the slots that shared memory and registers allow; the last wave has fewer programs per
             multiprocessor, or leaves some multiprocessors idle
    work     of a block along k: its multiply-adds, padding included, at the tensor cores' rate and the share of it that tiles
             of this size reach, the elements that threads load individually, and the work of prologues; without tensor cores,
             several concurrent warps are needed to hide latency
    latency  from requesting a block along k until it arrives, over the copies in flight (`stages - 1`); no copies are in flight
             where threads load individually
    cache    all bytes that programs request, at the bandwidth of the L2 cache; a contiguous run adds a fixed number of bytes
    memory   operands and result once, as far as they do not fit in the L2 cache, and B again for each group of tile rows
    finish   the store of the result; if both loops of persistent programs are flattened (`flat`), only that of the last round.
             For partial sums a second launch, its traffic, and a tile's parts one after another

An operand is loaded element by element (`alone`) if its row pitch is not known to be a multiple of 16 elements. A config that
would then need more registers than there are is expected to spill.

The structure is a roofline with waves; rates are from the data sheets. The constants were fitted to products of bfloat16 and
float32 for which every candidate was measured on an H100 (benchmarks/gpu/prior_fit.py, docs/products.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from polytile.cost import roofline
from polytile.cost.roofline import PLAIN_FLOPS
from polytile.matmul.triton.configs import Kind
from polytile.matmul.triton.schedule import ProductSchedule, schedule_of
from polytile.problem import Config
from polytile.runtime.cuda.device import DeviceFacts

GROUP_ROWS, GROUP_WARPS = 64, 4
"""Minimum number of rows and warps for Hopper's warpgroup instructions."""

REGISTERS, REGISTERS_ALONE, MOST_REGISTERS = 40, 1.5, 255
"""Registers of a thread: besides its accumulators, per individually loaded element, and at most (sm_90 code of 168 configs)."""
MOST_PLACES = 64
"""Maximum number of programs per multiprocessor. The constants were fitted without the device's limit, which only one-warp
programs reach."""
SPILLS_FROM, PLAIN_SPILLS_FROM = 160, 128
"""Accumulators plus individually loaded elements per thread beyond which code spills (from the same configs; of those exactly at
the limit, one in six does). Without tensor cores a tile's operands pass through registers as well."""
LANES = 128
"""Multiply-adds per multiprocessor and cycle outside the tensor cores."""
DESCRIBED_RUN = 128
"""Maximum bytes of a contiguous run that a tensor descriptor copies at once.

With runs as long as tiles, tiles of 128 along k were predicted to take as long as those of 64 with twice the columns, and took 10
% longer.
"""
DRAWN = 3.0
"""A third of the multiprocessors can draw the full memory bandwidth."""
REFUSED = 1e3
"""Penalty factor for a config that is expected to spill, which ranks it last."""


@dataclass(frozen=True)
class Access:
    """How an operand is read.

    Attributes
    ----------
    alone
        Threads load it element by element.
    along_k
        Its rows in memory run along k.
    work
        Work of its prologue per element, in multiply-adds of a thread.
    """

    alone: bool = False
    along_k: bool = False
    work: float = 0.0


Accesses = tuple[Access, Access]
"""The accesses of A and B."""
ROW_MAJOR: Accesses = (Access(along_k=True), Access())


@dataclass(frozen=True)
class Constants:
    """Constants that no data sheet states, fitted by `benchmarks.gpu.prior_fit`."""

    start: float = 0.145e-6
    """s until the first block arrives, besides the launch"""
    overhead: float = 0.25e-6
    """s between the loops over k of two tiles in one slot, unless tiles are stored in parts"""
    step_latency: float = 0.25e-6
    """s from requesting a block along k until it arrives"""
    groups: float = 1.8
    """share of the tensor cores' rate that infinitely large tiles would reach with warpgroups"""
    warps: float = 0.36
    """the same without them"""
    swapped: float = 0.5
    """the same with B as the left operand"""
    fed: float = 28.0
    """for a tile of side b, 2 · fed / b is the time to feed the tensor cores relative to multiplying"""
    alone: float = 0.135e-9
    """s per multiprocessor and element that a thread loads individually"""
    plain: float = 0.9
    """share of the rate without tensor cores that many accumulators per thread would reach"""
    plain_half: float = 4.7
    """accumulators per thread at which half of that is reached"""
    hiding: float = 2.7
    """warps per multiprocessor that reach half of that rate"""
    cache: float = 7.9
    """relative to the L2 cache's bandwidth in the data sheet"""
    run: float = 270.0
    """cost of a contiguous run besides its own bytes, in bytes"""
    kept: float = 1.6
    """share of the L2 cache that operands can use"""
    descriptors: float = 0.6e-6
    """s to fetch tensor descriptors; 2.5e-6 when programs created them themselves"""
    second_launch: float = 1.0e-6
    """s of the launch that sums the parts, besides its traffic"""
    part: float = 0.36e-6
    """s that a tile waits there for each of its parts"""
    parts: float = 5.6
    """cost of a byte of partial sums relative to the L2 cache's bandwidth"""
    row_latency: float = 0.33e-6
    """s per step of the variant `rows`, with two in flight"""
    row_work: float = 2.3
    """cost of a multiply-add of that variant relative to the rate without tensor cores"""
    row_along_k: float = 0.55
    """factor on it if B's rows in memory run along k"""
    row_load: float = 2.7
    """cost of loading and converting an element of B there, in multiply-adds"""
    joined: float = 1.6
    """p: the norm by which overlapping times add up; 1 means no overlap, ∞ means that only the longest counts"""


FITTED = Constants()


@dataclass(frozen=True)
class _Product:
    """A config at given sizes on a device."""

    kind: Kind
    config: Config
    batch: int
    m: int
    n: int
    k: int
    accesses: Accesses
    device: DeviceFacts
    constants: Constants

    @cached_property
    def block(self) -> tuple[int, ...]:
        """Rows, columns, elements along k, stages, warps."""
        return tuple(int(self.config[name]) for name in ("m", "n", "k", "stages", "warps"))

    @cached_property
    def schedule(self) -> ProductSchedule:
        return schedule_of(self.config)

    @property
    def threads(self) -> int:
        return self.device.warp * self.block[4]

    @property
    def plain(self) -> bool:
        """Whether the product runs without tensor cores."""
        return self.kind.itemsize == 4 and not self.kind.tf32

    @property
    def sums(self) -> float:
        """Accumulators per thread."""
        return self.block[0] * self.block[1] / self.threads

    @property
    def loaded_alone(self) -> int:
        """Elements of a block along k that threads load individually."""
        block_m, block_n, block_k, _, _ = self.block
        a, b = self.accesses
        return (block_m * a.alone + block_n * b.alone) * block_k

    @property
    def computed(self) -> float:
        """Seconds per multiprocessor for the prologues of a block along k."""
        block_m, block_n, block_k = self.block[:3]
        a, b = self.accesses
        return (block_m * a.work + block_n * b.work) * block_k / (LANES * self.device.clock)

    @property
    def alone(self) -> bool:
        """Whether any operand passes through registers: threads load it individually, or compute it."""
        return any(access.alone or access.work for access in self.accesses)

    @property
    def asked(self) -> float:
        """Bytes of a block along k requested from the cache, including the cost of contiguous runs."""
        block_m, block_n, block_k = self.block[:3]
        size, longest = self.kind.itemsize, DESCRIBED_RUN if self.described else math.inf
        return sum(
            rows * block_k * size * (1.0 + self.constants.run / min(longest, (block_k if access.along_k else rows) * size))
            for rows, access in zip((block_m, block_n), self.accesses, strict=True)
        )

    @property
    def described(self) -> bool:
        """Whether operands are loaded through tensor descriptors."""
        return self.schedule.described and not self.alone

    @property
    def blocks(self) -> int:
        return self.batch * math.ceil(self.m / self.block[0]) * math.ceil(self.n / self.block[1])

    def places(self) -> int:
        """Number of programs that one multiprocessor holds at once (occupancy)."""
        block_m, block_n, block_k, stages, _ = self.block
        if self.schedule.resident:
            return 1
        shared = stages * self.kind.itemsize * (block_m + block_n) * block_k
        own = min(MOST_REGISTERS, REGISTERS + self.sums + REGISTERS_ALONE * self.loaded_alone / self.threads)
        return roofline.places(self.device, self.threads * own, self.threads, shared, most=MOST_PLACES)

    def spills(self) -> bool:
        """Whether so many elements pass through a thread's registers that its code is expected to spill."""
        held = self.loaded_alone / self.threads
        most = PLAIN_SPILLS_FROM if self.plain else SPILLS_FROM
        return self.schedule.tensor and held > 0 and self.sums + held > most

    def step(self, side_by_side: int) -> float:
        """Seconds of a step along k with `side_by_side` programs per multiprocessor."""
        constants, (block_m, block_n, block_k, stages, warps) = self.constants, self.block
        rate = multiprocessor_rate(self.kind, self.device) * self.share()
        work = 2.0 * block_m * block_n * block_k / rate + constants.alone * self.loaded_alone + self.computed
        work *= 1.0 + constants.hiding / (side_by_side * warps) if self.plain else 1.0
        latency = constants.step_latency / (1 if self.alone and not self.plain else max(1, stages - 1))
        return self.joined(side_by_side * work, latency)

    def share(self) -> float:
        """Share of the peak rate that a tile reaches.

        Shared memory feeds the tensor cores in proportion to a tile's perimeter over its area; small tiles do without warpgroups.
        Without tensor cores it depends on the accumulators per thread.
        """
        constants, (block_m, block_n, _, _, warps) = self.constants, self.block
        if self.plain:
            return constants.plain * self.sums / (self.sums + constants.plain_half)
        reached = constants.groups if block_m >= GROUP_ROWS and warps >= GROUP_WARPS else constants.warps
        reached = constants.swapped if self.config.get("swapped") else reached
        return reached / (1.0 + constants.fed * (1.0 / block_m + 1.0 / block_n))

    def loop(self, splits: int) -> float:
        """Seconds of all waves of programs."""
        steps = math.ceil(math.ceil(self.k / self.block[2]) / splits)
        programs, places, sms = self.blocks * splits, self.places(), self.device.sms
        rounds, left = divmod(programs, sms * places)
        overhead = 0.0 if self.config.get("stores") else self.constants.overhead
        seconds = rounds * (steps * self.step(places) + overhead)
        return seconds + (steps * self.step(math.ceil(left / sms)) + overhead if left else 0.0)

    def cached(self, programs: int, asked: float) -> float:
        """Seconds for this many programs to request `asked` bytes from the L2 cache."""
        return asked / (self.constants.cache * self.device.l2_bandwidth * min(1.0, programs / self.device.sms))

    def memory(self) -> float:
        """Seconds for traffic that misses the L2 cache."""
        once = traffic(self.kind, self.batch, self.m, self.n, self.k)
        missed = 1.0 / (1.0 + (self.constants.kept * self.device.l2_bytes / max(once, 1.0)) ** 4)
        groups = math.ceil(self.m / (self.block[0] * int(self.config.get("group", 8) or 8)))
        again = self.batch * (groups - 1) * self.k * self.n * self.kind.itemsize * 0.5
        return (once + again) * missed / self.device.bandwidth

    def joined(self, *seconds: float) -> float:
        """|seconds|, the norm of overlapping times."""
        return roofline.overlapping(self.constants.joined, *seconds)

    def meeting(self, parts: float, held: float) -> float:
        """Seconds of the second launch. `parts`: per tile; `held`: bytes of all partial sums."""
        waiting = self.constants.part * parts
        return self.constants.second_launch + waiting + self.constants.parts * 2.0 * held / self.device.l2_bandwidth


def cost(
    kind: Kind, config: Config, size: Mapping[str, int], device: DeviceFacts, accesses: Accesses = ROW_MAJOR,
    constants: Constants = FITTED,
) -> float:  # fmt: skip
    """Predicted seconds of one call, by the module's formula."""
    batch, m, n, k = (size[name] for name in ("batch", "M", "N", "K"))
    if not (batch and m and n):
        return device.launch_seconds
    product = _Product(kind, config, batch, m, n, k, accesses, device, constants)
    parts = SCHEDULES[str(config["variant"])](product)
    seconds = product.joined(parts.loop, parts.cache, parts.memory) + parts.finish
    return device.launch_seconds + constants.start + seconds * (REFUSED if product.spills() else 1.0)


def terms(
    kind: Kind, config: Config, size: Mapping[str, int], device: DeviceFacts, accesses: Accesses = ROW_MAJOR
) -> dict[str, float]:
    """The terms of `cost` by name (Candidate.terms).

    They are the seconds of the four parts; waves of programs, and programs per multiprocessor; steps along k; accumulators per
    thread, and elements that it loads individually; and the share of multiply-adds that is not tile padding.
    """
    batch, m, n, k = (size[name] for name in ("batch", "M", "N", "K"))
    if not (batch and m and n and k):
        return {}
    product = _Product(kind, config, batch, m, n, k, accesses, device, FITTED)
    parts, splits = SCHEDULES[str(config["variant"])](product), int(config.get("splits", 1) or 1)
    block_m, block_n, block_k = product.block[:3]
    steps = math.ceil(k / block_k)
    return {
        "loop_s": parts.loop,
        "cache_s": parts.cache,
        "memory_s": parts.memory,
        "finish_s": parts.finish,
        "rounds": product.blocks * splits / (device.sms * product.places()),
        "places": product.places(),
        "steps": steps / splits,
        "sums": product.sums,
        "alone": product.loaded_alone / product.threads,
        "useful": batch * m * n * k / (product.blocks * block_m * block_n * block_k * steps),
        "spills": float(product.spills()),
    }


def refused(kind: Kind, config: Config, size: Mapping[str, int], device: DeviceFacts, accesses: Accesses) -> bool:
    """Whether the config's code is expected to spill, so that it is not run."""
    batch, m, n, k = (size[name] for name in ("batch", "M", "N", "K"))
    return _Product(kind, config, batch, m, n, k, accesses, device, FITTED).spills()


@dataclass(frozen=True)
class Parts:
    """Seconds of multiplying, of the L2 cache and of memory, which overlap, and of what follows."""

    loop: float
    cache: float
    memory: float
    finish: float


def _tile(product: _Product) -> Parts:
    return _body(product, 1, _written(product))


def _written(product: _Product) -> float:
    return product.batch * product.m * product.n * max(2, product.kind.itemsize) / product.device.l2_bandwidth


def _persistent(product: _Product) -> Parts:
    rounds = math.ceil(product.blocks / product.device.sms) if product.config.get("flat") else 1
    return _body(product, 1, _written(product) / rounds + (product.constants.descriptors if product.described else 0.0))


def _split(product: _Product) -> Parts:
    splits = int(product.config["splits"])
    return _body(product, splits, product.meeting(splits, splits * product.batch * product.m * product.n * 4.0))


def _body(product: _Product, splits: int, finish: float) -> Parts:
    programs, steps = product.blocks * splits, math.ceil(math.ceil(product.k / product.block[2]) / splits)
    return Parts(product.loop(splits), product.cached(programs, programs * steps * product.asked), product.memory(), finish)


def _stream(product: _Product) -> Parts:
    """Every multiprocessor has an equal share of all steps; at most two partial tiles of each go through memory."""
    block_m, block_n, block_k, _, _ = product.block
    steps, sms = product.blocks * math.ceil(product.k / block_k), product.device.sms
    loop = math.ceil(steps / sms) * product.step(1) + 2 * product.constants.overhead
    finish = product.meeting(math.ceil(sms / product.blocks), 2.0 * sms * block_m * block_n * 4.0)
    return Parts(loop, product.cached(sms, steps * product.asked), product.memory(), finish)


def _rows(product: _Product) -> Parts:
    """Bound by reading B: loads in flight on all multiprocessors, and multiply-adds outside the tensor cores."""
    constants, device, (_, block_n, block_k, _, _) = product.constants, product.device, product.block
    programs = product.batch * math.ceil(product.n / block_n)
    steps, busiest = math.ceil(product.k / block_k), math.ceil(programs / device.sms)
    places = max(1, min(8, device.threads_per_sm // product.threads))
    rounds = math.ceil(programs / (device.sms * places))
    work = constants.row_work * 4.0 * (constants.row_load + product.m) * block_n * block_k / (PLAIN_FLOPS * device.clock)
    work *= constants.row_along_k if product.accesses[1].along_k else 1.0
    units = busiest * steps * (work + product.computed + constants.alone * block_n * block_k * product.accesses[1].alone)
    memory = product.memory() / min(1.0, DRAWN * programs / device.sms)
    latency = rounds * steps * constants.row_latency / 2
    return Parts(product.joined(units, latency), product.cached(programs, programs * steps * product.asked), memory, 0.0)


SCHEDULES = {"tile": _tile, "persistent": _persistent, "split": _split, "stream": _stream, "rows": _rows, "grouped": _tile}


def multiprocessor_rate(kind: Kind, device: DeviceFacts) -> float:
    """Peak floating-point operations per second of one multiprocessor for this kind of operands."""
    plain = kind.itemsize == 4 and not kind.tf32
    return (PLAIN_FLOPS if plain else roofline.tensor_flops(device, kind.itemsize)) * device.clock


def traffic(kind: Kind, batch: int, m: int, n: int, k: int) -> float:
    """Compulsory traffic in bytes."""
    return batch * ((m * k + k * n) * kind.itemsize + m * n * max(2, kind.itemsize))
