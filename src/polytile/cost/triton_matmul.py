"""The analytical prior for products on a GPU: predicted seconds of a config at given sizes.

    t    = launch + start + |loop, cache, memory| + finish            |x, y, ...| = (xᵖ + yᵖ + ...)^(1/p)
    loop = Σ over rounds of programs: steps · |side by side · work, latency| + overhead

    rounds   programs go to the places that shared memory and registers leave them; the last round has fewer of them side by
             side on a multiprocessor, or leaves some without any
    work     of a block along k: its multiply-adds, overhang included, by the rate of the tensor cores and the share of it that
             blocks of this size reach, the elements of operands that threads load one by one, and what prologues compute;
             without tensor cores it takes several warps side by side to hide what each waits for
    latency  from asking for a block along k until it is there, over the copies under way (`stages - 1`); no copies are under way
             where threads load one by one
    cache    what all programs ask for, by the bandwidth of the L2 cache; a run of it in memory costs so many bytes more
    memory   operands and result once, as far as they find no place in the L2 cache, and B again for each group of rows of blocks
    finish   the result written, where both loops of persistent programs are one (`flat`) that of the last round; of parts that
             meet in memory a second launch, their traffic, a block's parts one after another

An operand is loaded one by one where its rows are not known to be a multiple of 16 elements apart (`alone`). A config that would
then need more registers than there are is expected to be refused.

The structure is that of the roofline with waves; rates are of the data sheets. The constants are fitted on products of bfloat16
and float32 of which every candidate was measured on an H100 (benchmarks/gpu/prior_fit.py, docs/products.md).
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
"""Rows and warps from which Hopper's warp groups multiply."""

REGISTERS, REGISTERS_ALONE, MOST_REGISTERS = 40, 1.5, 255
"""Registers of a thread beside its sums, for each element that it loads by itself, and at most (sm_90 code of 168 configs)."""
MOST_PLACES = 64
"""Programs of a multiprocessor: the constants were fitted without what a device counts, which only programs of one warp reach."""
SPILLS_FROM, PLAIN_SPILLS_FROM = 160, 128
"""Sums of a thread and elements that it loads by itself, together, beyond which its code spills (the same; one in six of those
with as many exactly does). Without tensor cores a block's operands pass through registers as well."""
LANES = 128
"""Multiply-adds of threads that a multiprocessor does in a cycle."""
DESCRIBED_RUN = 128
"""Bytes of a run that a tensor descriptor copies at once, at most: with runs as long as blocks, blocks of 128 along k were
expected to take as long as those of 64 with twice the columns, and took 10 % longer."""
DRAWN = 3.0
"""A third of the multiprocessors draws all of the memory's bandwidth."""
REFUSED = 1e3
"""How many times as long a config is taken to need that is expected to be refused: it comes after all others."""


@dataclass(frozen=True)
class Access:
    """How an operand is read: `alone`, threads load it element by element; `along_k`, its rows in memory run along k; `work`,
    what its prologue computes for each element, in multiply-adds of a thread."""

    alone: bool = False
    along_k: bool = False
    work: float = 0.0


Accesses = tuple[Access, Access]
"""Of A and B."""
ROW_MAJOR: Accesses = (Access(along_k=True), Access())


@dataclass(frozen=True)
class Constants:
    """What no data sheet says; `benchmarks.gpu.prior_fit` fits it."""

    start: float = 0.145e-6
    """s until the first block is there, beside the launch"""
    overhead: float = 0.25e-6
    """s between the loops over k of two blocks on one place, where blocks are not stored in parts"""
    step_latency: float = 0.25e-6
    """s from asking for a block along k until it is there"""
    groups: float = 1.8
    """of the tensor cores' rate that endless blocks would reach with warp groups"""
    warps: float = 0.36
    """the same without them"""
    swapped: float = 0.5
    """the same with B from the left"""
    fed: float = 28.0
    """of a block of side b, 2 · fed / b is what feeding it takes beside multiplying"""
    alone: float = 0.135e-9
    """s of a multiprocessor for each element that a thread loads by itself"""
    plain: float = 0.9
    """of the rate without tensor cores that many sums a thread would reach"""
    plain_half: float = 4.7
    """sums of a thread at which half of that is reached"""
    hiding: float = 2.7
    """warps of a multiprocessor that reach half of that rate"""
    cache: float = 7.9
    """of the bandwidth of the L2 cache on the data sheet"""
    run: float = 270.0
    """bytes that a run of them in memory costs besides its own"""
    kept: float = 1.6
    """of the L2 cache that operands find place in"""
    descriptors: float = 0.6e-6
    """s for tensor descriptors to be fetched; 2.5e-6 where programs made them themselves"""
    second_launch: float = 1.0e-6
    """s of the launch that adds parts up, beside its traffic"""
    part: float = 0.36e-6
    """s that a block waits there for each of its parts"""
    parts: float = 5.6
    """what a byte of parts costs over one of the L2 cache's bandwidth"""
    row_latency: float = 0.33e-6
    """s a step of the variant `rows`, two under way"""
    row_work: float = 2.3
    """what a multiply-add of that variant costs over one at the rate without tensor cores"""
    row_along_k: float = 0.55
    """what of that is left where B's rows in memory run along k"""
    row_load: float = 2.7
    """multiply-adds that loading and converting an element of B is worth there"""
    joined: float = 1.6
    """p: how what goes on at the same time adds up; 1: one after another, many: the longest alone counts"""


FITTED = Constants()


@dataclass(frozen=True)
class _Product:
    """A config at some sizes on a device."""

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
        """Whether tensor cores take no part."""
        return self.kind.itemsize == 4 and not self.kind.tf32

    @property
    def sums(self) -> float:
        """Of a thread."""
        return self.block[0] * self.block[1] / self.threads

    @property
    def loaded_alone(self) -> int:
        """Elements of a block along k that threads load one by one."""
        block_m, block_n, block_k, _, _ = self.block
        a, b = self.accesses
        return (block_m * a.alone + block_n * b.alone) * block_k

    @property
    def computed(self) -> float:
        """Seconds that a multiprocessor takes for the prologues of a block along k."""
        block_m, block_n, block_k = self.block[:3]
        a, b = self.accesses
        return (block_m * a.work + block_n * b.work) * block_k / (LANES * self.device.clock)

    @property
    def alone(self) -> bool:
        """Whether any operand passes through registers: threads load it one by one, or compute it."""
        return any(access.alone or access.work for access in self.accesses)

    @property
    def asked(self) -> float:
        """Bytes of a block along k that the cache is asked for, with what their runs in memory cost."""
        block_m, block_n, block_k = self.block[:3]
        size, longest = self.kind.itemsize, DESCRIBED_RUN if self.described else math.inf
        return sum(
            rows * block_k * size * (1.0 + self.constants.run / min(longest, (block_k if access.along_k else rows) * size))
            for rows, access in zip((block_m, block_n), self.accesses, strict=True)
        )

    @property
    def described(self) -> bool:
        """Whether operands come through tensor descriptors."""
        return self.schedule.described and not self.alone

    @property
    def blocks(self) -> int:
        return self.batch * math.ceil(self.m / self.block[0]) * math.ceil(self.n / self.block[1])

    def places(self) -> int:
        """Programs that one multiprocessor holds at once."""
        block_m, block_n, block_k, stages, _ = self.block
        if self.schedule.resident:
            return 1
        shared = stages * self.kind.itemsize * (block_m + block_n) * block_k
        own = min(MOST_REGISTERS, REGISTERS + self.sums + REGISTERS_ALONE * self.loaded_alone / self.threads)
        return roofline.places(self.device, self.threads * own, self.threads, shared, most=MOST_PLACES)

    def spills(self) -> bool:
        """Whether so many elements pass through the registers of a thread that its code is expected to spill."""
        held = self.loaded_alone / self.threads
        most = PLAIN_SPILLS_FROM if self.plain else SPILLS_FROM
        return self.schedule.tensor and held > 0 and self.sums + held > most

    def step(self, side_by_side: int) -> float:
        """Seconds of a step along k with so many programs on a multiprocessor."""
        constants, (block_m, block_n, block_k, stages, warps) = self.constants, self.block
        rate = multiprocessor_rate(self.kind, self.device) * self.share()
        work = 2.0 * block_m * block_n * block_k / rate + constants.alone * self.loaded_alone + self.computed
        work *= 1.0 + constants.hiding / (side_by_side * warps) if self.plain else 1.0
        latency = constants.step_latency / (1 if self.alone and not self.plain else max(1, stages - 1))
        return self.joined(side_by_side * work, latency)

    def share(self) -> float:
        """Of the rate that a block reaches. On tensor cores operands are fed from shared memory by the sides of a block over its
        area, and small blocks do without warp groups; without tensor cores it depends on the sums that a thread has to feed."""
        constants, (block_m, block_n, _, _, warps) = self.constants, self.block
        if self.plain:
            return constants.plain * self.sums / (self.sums + constants.plain_half)
        reached = constants.groups if block_m >= GROUP_ROWS and warps >= GROUP_WARPS else constants.warps
        reached = constants.swapped if self.config.get("swapped") else reached
        return reached / (1.0 + constants.fed * (1.0 / block_m + 1.0 / block_n))

    def loop(self, splits: int) -> float:
        """Seconds of all rounds of programs."""
        steps = math.ceil(math.ceil(self.k / self.block[2]) / splits)
        programs, places, sms = self.blocks * splits, self.places(), self.device.sms
        rounds, left = divmod(programs, sms * places)
        overhead = 0.0 if self.config.get("stores") else self.constants.overhead
        seconds = rounds * (steps * self.step(places) + overhead)
        return seconds + (steps * self.step(math.ceil(left / sms)) + overhead if left else 0.0)

    def cached(self, programs: int, asked: float) -> float:
        """Seconds for `asked` bytes of the L2 cache by so many programs."""
        return asked / (self.constants.cache * self.device.l2_bandwidth * min(1.0, programs / self.device.sms))

    def memory(self) -> float:
        """Seconds for what finds no place in the L2 cache."""
        once = traffic(self.kind, self.batch, self.m, self.n, self.k)
        missed = 1.0 / (1.0 + (self.constants.kept * self.device.l2_bytes / max(once, 1.0)) ** 4)
        groups = math.ceil(self.m / (self.block[0] * int(self.config.get("group", 8) or 8)))
        again = self.batch * (groups - 1) * self.k * self.n * self.kind.itemsize * 0.5
        return (once + again) * missed / self.device.bandwidth

    def joined(self, *seconds: float) -> float:
        """|seconds|: of what goes on at the same time."""
        return roofline.overlapping(self.constants.joined, *seconds)

    def meeting(self, parts: float, held: float) -> float:
        """Seconds of the second launch: `parts` of a block, `held` bytes of all parts written and read."""
        waiting = self.constants.part * parts
        return self.constants.second_launch + waiting + self.constants.parts * 2.0 * held / self.device.l2_bandwidth


def cost(
    kind: Kind, config: Config, size: Mapping[str, int], device: DeviceFacts, accesses: Accesses = ROW_MAJOR,
    constants: Constants = FITTED,
) -> float:  # fmt: skip
    """Seconds of one call; see the module's formula."""
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
    """What `cost` is made of, by name (Candidate.terms): seconds of the four parts; rounds of programs and the programs that a
    multiprocessor holds at once; steps along k; sums of a thread, and elements that it loads by itself; the share of all
    multiply-adds that is none of the blocks' overhang."""
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
    """Whether the config's code is expected to spill, which is then not run."""
    batch, m, n, k = (size[name] for name in ("batch", "M", "N", "K"))
    return _Product(kind, config, batch, m, n, k, accesses, device, FITTED).spills()


@dataclass(frozen=True)
class Parts:
    """Seconds of a product: of multiplying, of the L2 cache and of memory, which go on at the same time, and of what comes
    after."""

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
    """Every multiprocessor has an equal share of all steps; at most two parts of each meet in memory."""
    block_m, block_n, block_k, _, _ = product.block
    steps, sms = product.blocks * math.ceil(product.k / block_k), product.device.sms
    loop = math.ceil(steps / sms) * product.step(1) + 2 * product.constants.overhead
    finish = product.meeting(math.ceil(sms / product.blocks), 2.0 * sms * block_m * block_n * 4.0)
    return Parts(loop, product.cached(sms, steps * product.asked), product.memory(), finish)


def _rows(product: _Product) -> Parts:
    """Bound by reading B: what programs on all multiprocessors have under way, and multiply-adds outside the tensor cores."""
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
    """Floating-point operations a second of one multiprocessor on operands of this kind."""
    plain = kind.itemsize == 4 and not kind.tf32
    return (PLAIN_FLOPS if plain else roofline.tensor_flops(device, kind.itemsize)) * device.clock


def traffic(kind: Kind, batch: int, m: int, n: int, k: int) -> float:
    """Bytes that must move once."""
    return batch * ((m * k + k * n) * kind.itemsize + m * n * max(2, kind.itemsize))
