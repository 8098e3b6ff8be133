"""The analytical cost model of products on a GPU: predicted seconds of a config at given sizes.

    t    = launch + start + |loop, cache, memory| + finish            |x, y, ...| = (xᵖ + yᵖ + ...)^(1/p)
    loop = Σ over rounds of programs: steps · |side by side · work, latency| + overhead

    rounds   waves of programs on the slots that shared memory and registers allow; the last wave has fewer programs per
             multiprocessor, or leaves some multiprocessors idle
    work     of a block along k: its multiply-adds, padding included, at the tensor cores' rate and the share of it that tiles
             of this size reach, the elements that threads load individually, and the work of prologues; without tensor cores,
             several concurrent warps are needed to hide latency
    latency  from requesting a block along k until it arrives, over the copies in flight (`stages - 1`); no copies are in flight
             where threads load individually. At least what a step takes whatever is in flight: a barrier, and instructions that
             wait for each other's sums
    cache    all bytes that programs request, at the bandwidth of the L2 cache; a contiguous run adds a fixed number of bytes
    memory   operands and result once, as far as they do not fit in the L2 cache, and B again for each group of tile rows
    finish   the store of the result; if both loops of persistent programs are flattened (`flat`), only that of the last round.
             For partial sums a second launch, its traffic, and a tile's parts one after another

An operand is loaded element by element (`alone`) if its row pitch is not known to be a multiple of 16 elements. A config that
would then need more registers than there are is expected to spill.

The structure is a roofline with waves; rates are from the data sheets. The constants were fitted to products of bfloat16 and
float32 for which every candidate was measured on an H100, those of 8-bit and converted operands to others on an H200
(product_constants.py, docs/products.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from polytile.cost import roofline
from polytile.cost.product_constants import FITTED, Constants, constants_of
from polytile.cost.roofline import PLAIN_FLOPS
from polytile.matmul.cutlass.configs import shared_out
from polytile.matmul.triton.configs import Kind
from polytile.matmul.triton.schedule import ProductSchedule, schedule_of
from polytile.problem import Config
from polytile.runtime.cuda.device import DeviceFacts

GROUP_ROWS, GROUP_WARPS = 64, 4
"""Minimum number of rows and warps for Hopper's warpgroup instructions."""

REGISTERS, REGISTERS_ALONE, MOST_REGISTERS = 40, 1.5, 255
"""Registers of a thread: in addition to its accumulators, per individually loaded element, and at most (sm_90 code of 168
configs)."""
MOST_PLACES = 64
"""Maximum number of programs per multiprocessor. The constants were fitted without the device's limit, which only one-warp
programs reach."""
SPILLS_FROM, PLAIN_SPILLS_FROM = 160, 128
"""Accumulators plus individually loaded elements per thread beyond which code spills (from the same configs; of those exactly at
the limit, one in six does). Without tensor cores a tile's operands pass through registers as well."""
INSTRUCTION_BYTES = 32
"""Bytes along k of an instruction of the tensor cores."""
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
    itemsize
        Bytes per element in memory, if they are not those of the operands.
    """

    alone: bool = False
    along_k: bool = False
    work: float = 0.0
    itemsize: float | None = None


Accesses = tuple[Access, Access]
"""The accesses of A and B."""
ROW_MAJOR: Accesses = (Access(along_k=True), Access())


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

    def bytes_of(self, access: Access) -> float:
        """Bytes of an element of an operand in memory."""
        return self.kind.itemsize if access.itemsize is None else access.itemsize

    @property
    def chain(self) -> float:
        """Seconds of a step that no further copies in flight would save."""
        instructions = 0.0 if self.by_groups else self.block[2] * self.kind.itemsize / INSTRUCTION_BYTES
        return self.constants.barrier + self.constants.chained * instructions

    @property
    def by_groups(self) -> bool:
        """Whether warpgroups multiply."""
        return self.block[0] >= GROUP_ROWS and self.block[4] >= GROUP_WARPS

    @property
    def alone(self) -> bool:
        """Whether any operand passes through registers: threads load it individually, or compute it."""
        return any(access.alone or access.work for access in self.accesses)

    @property
    def asked(self) -> float:
        """Bytes of a block along k requested from the cache, including the cost of contiguous runs."""
        block_m, block_n, block_k = self.block[:3]
        longest, asked = DESCRIBED_RUN if self.described else math.inf, 0.0
        for rows, access in zip((block_m, block_n), self.accesses, strict=True):
            size = self.bytes_of(access)
            run = min(longest, (block_k if access.along_k else rows) * size)
            asked += rows * block_k * size * (1.0 + self.constants.run / run) if run else 0.0  # 0: it is one row for all
        return asked

    @property
    def described(self) -> bool:
        """Whether operands are loaded through tensor descriptors."""
        return self.schedule.described and not self.alone

    @property
    def blocks(self) -> int:
        """Blocks of the result; those of a cluster are one below the other, whether there are rows for them or not."""
        cluster = int(self.config.get("cluster", 1) or 1)
        return max(1, self.batch * cluster * math.ceil(self.m / (cluster * self.block[0])) * math.ceil(self.n / self.block[1]))

    def places(self) -> int:
        """Number of programs that one multiprocessor holds at once (occupancy)."""
        block_m, block_n, block_k, stages, _ = self.block
        if self.schedule.resident:
            return 1
        shared = stages * self.kind.itemsize * (block_m + block_n) * block_k
        own = min(MOST_REGISTERS, REGISTERS + self.sums + REGISTERS_ALONE * self.loaded_alone / self.threads)
        return roofline.places(self.device, self.threads * own, self.threads, shared, most=MOST_PLACES)

    def spills(self) -> bool:
        """Whether the code is expected to spill, because too many elements pass through a thread's registers."""
        held = self.loaded_alone / self.threads
        most = PLAIN_SPILLS_FROM if self.plain else SPILLS_FROM
        return self.schedule.tensor and held > 0 and self.sums + held > most

    def step(self, side_by_side: int) -> float:
        """Seconds of a step along k with `side_by_side` programs per multiprocessor."""
        constants, (block_m, block_n, block_k, stages, warps) = self.constants, self.block
        rate = multiprocessor_rate(self.kind, self.device) * self.share()
        converted = self.computed * (1.0 + constants.converting / (side_by_side * warps))
        work = 2.0 * block_m * block_n * block_k / rate + constants.alone * self.loaded_alone + converted
        work *= 1.0 + constants.hiding / (side_by_side * warps) if self.plain else 1.0
        latency = constants.step_latency / (1 if self.alone and not self.plain else max(1, stages - 1))
        return self.joined(side_by_side * work, max(latency, self.chain))

    def share(self) -> float:
        """Share of the peak rate that a tile reaches.

        Shared memory feeds the tensor cores in proportion to a tile's perimeter over its area; small tiles do without warpgroups.
        Without tensor cores it depends on the accumulators per thread.
        """
        constants, (block_m, block_n) = self.constants, self.block[:2]
        if self.plain:
            return constants.plain * self.sums / (self.sums + constants.plain_half)
        reached = constants.groups if self.by_groups else constants.warps
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

    def memory(self, programs: float = math.inf) -> float:
        """Seconds for traffic that misses the L2 cache, if this many programs request it."""
        b = self.bytes_of(self.accesses[1])
        once = traffic(self.kind, self.batch, self.m, self.n, self.k) + self.batch * self.k * self.n * (b - self.kind.itemsize)
        missed = 1.0 / (1.0 + (self.constants.kept * self.device.l2_bytes / max(once, 1.0)) ** 4)
        groups = math.ceil(self.m / (self.block[0] * int(self.config.get("group", 8) or 8)))
        again = self.batch * (groups - 1) * self.k * self.n * b * 0.5
        drawn = min(1.0, self.constants.drawn * programs / self.device.sms)
        return (once + again) * missed / (self.device.bandwidth * drawn)

    def joined(self, *seconds: float) -> float:
        """|seconds|, the norm of overlapping times."""
        return roofline.overlapping(self.constants.joined, *seconds)

    def meeting(self, parts: float, held: float) -> float:
        """Seconds of the second launch. `parts`: per tile; `held`: bytes of all partial sums."""
        waiting = self.constants.part * parts
        return self.constants.second_launch + waiting + self.constants.parts * 2.0 * held / self.device.l2_bandwidth


def cost(
    kind: Kind, config: Config, size: Mapping[str, int], device: DeviceFacts, accesses: Accesses = ROW_MAJOR,
    constants: Constants | None = None,
) -> float:  # fmt: skip
    """Predicted seconds of one call, by the module's formula and, unless others are given, the kind's constants."""
    batch, m, n, k = (size[name] for name in ("batch", "M", "N", "K"))
    if not (batch and m and n):
        return device.launch_seconds
    constants = constants or constants_of(kind)
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
    product = _Product(kind, config, batch, m, n, k, accesses, device, constants_of(kind))
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
    written = product.batch * product.m * product.n * max(2, product.kind.itemsize)
    return product.constants.stored * written / product.device.l2_bandwidth


def _persistent(product: _Product) -> Parts:
    if product.config.get("split"):
        return _last_round(product)
    rounds = math.ceil(product.blocks / product.device.sms) if product.config.get("flat") else 1
    parts = _body(product, 1, _written(product) / rounds + (product.constants.descriptors if product.described else 0.0))
    return replace(parts, loop=product.constants.persistent * parts.loop)


def _split(product: _Product) -> Parts:
    splits = int(product.config["splits"])
    return _body(product, splits, product.meeting(splits, splits * product.batch * product.m * product.n * 4.0))


def _body(product: _Product, splits: int, finish: float) -> Parts:
    programs, steps = product.blocks * splits, math.ceil(math.ceil(product.k / product.block[2]) / splits)
    cached = product.cached(programs, programs * steps * product.asked)
    return Parts(product.loop(splits), cached, product.memory(programs), finish)


def _stream(product: _Product) -> Parts:
    """Every multiprocessor has an equal share of all steps; at most two partial tiles of each go through memory."""
    block_m, block_n, block_k, _, _ = product.block
    steps, sms = product.blocks * math.ceil(product.k / block_k), product.device.sms
    loop = math.ceil(steps / sms) * product.step(1) * product.constants.stream + 2 * product.constants.overhead
    finish = product.meeting(math.ceil(sms / product.blocks), 2.0 * sms * block_m * block_n * 4.0)
    return Parts(loop, product.cached(sms, steps * product.asked), product.memory(sms), finish)


def _last_round(product: _Product) -> Parts:
    """Whole blocks, and those that do not fill the last round split along k (CUTLASS's, matmul/cutlass/configs.py)."""
    (block_m, block_n, block_k, _, _), sms = product.block, product.device.sms
    size = {"batch": product.batch, "M": product.m, "N": product.n, "K": product.k}
    shared, steps = shared_out(product.config, size, sms), math.ceil(product.k / block_k)
    longest = shared.full * steps + math.ceil(steps / shared.parts)
    loop = longest * product.step(1) + (shared.full + 1) * product.constants.overhead
    programs = sms if shared.full else shared.left * shared.parts
    held = 4.0 * shared.left * shared.parts * block_m * block_n
    finish = product.meeting(shared.parts, held)
    return Parts(loop, product.cached(programs, product.blocks * steps * product.asked), product.memory(programs), finish)


def _rows(product: _Product) -> Parts:
    """Bound by reading B: loads in flight on all multiprocessors, and multiply-adds outside the tensor cores."""
    constants, device, (_, block_n, block_k, _, _) = product.constants, product.device, product.block
    programs = max(1, product.batch * math.ceil(product.n / block_n))
    steps, busiest = math.ceil(product.k / block_k), math.ceil(programs / device.sms)
    places = max(1, min(8, device.threads_per_sm // product.threads))
    rounds = math.ceil(programs / (device.sms * places))
    work = constants.row_work * 4.0 * (constants.row_load + product.m) * block_n * block_k / (PLAIN_FLOPS * device.clock)
    work *= constants.row_along_k if product.accesses[1].along_k else 1.0
    units = busiest * steps * (work + product.computed + constants.alone * block_n * block_k * product.accesses[1].alone)
    memory = product.memory() / min(1.0, DRAWN * programs / device.sms)
    latency = rounds * steps * constants.row_latency / 2
    return Parts(product.joined(units, latency), product.cached(programs, programs * steps * product.asked), memory, 0.0)


SCHEDULES = {
    "tile": _tile, "persistent": _persistent, "split": _split, "stream": _stream, "rows": _rows, "grouped": _tile,
    "grouped_tma": _tile,
}  # fmt: skip


def multiprocessor_rate(kind: Kind, device: DeviceFacts) -> float:
    """Peak floating-point operations per second of one multiprocessor for this kind of operands."""
    plain = kind.itemsize == 4 and not kind.tf32
    return (PLAIN_FLOPS if plain else roofline.tensor_flops(device, kind.itemsize)) * device.clock


def traffic(kind: Kind, batch: int, m: int, n: int, k: int) -> float:
    """Compulsory traffic in bytes."""
    return batch * ((m * k + k * n) * kind.itemsize + m * n * max(2, kind.itemsize))
