"""Which blocks CUTLASS's products are made of.

    split     1: blocks that do not fill the last round of programs are shared along k
    m n k     rows and columns of a block of C, steps along k
    stages    steps that are in shared memory at once: as many as fit
    cluster   blocks, one below the other, that share their columns of B
    pingpong  1: two warp groups take turns, a block each; 0: both take half of one
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from polytile.matmul.cutlass.numbers import MOST_SUMS, NUMBERS
from polytile.matmul.scales import Blocks
from polytile.matmul.triton.configs import LARGEST_SCRATCH
from polytile.problem import Config
from polytile.runtime.cuda.device import DeviceFacts

Scales = tuple[Blocks | None, Blocks] | None
"""The blocks of a GemmKernel's operands that share a scale."""

CAPABILITY = 90
"""The compute capability of the kernels with warpgroups: later devices do not run code for sm_90a."""
OLDER = (80, 86, 89)
"""Those of the kernels whose threads copy operands themselves (multistage.h)."""

GROUP_THREADS, GROUP_ROWS = 128, 64
"""The threads of a warpgroup, and the rows of its instructions."""

WARPS = 12
"""The warps of a thread block: one warpgroup loads, two multiply."""

STEP_BYTES = 128
"""The bytes of a run along k: the width of one swizzled copy."""

BARRIERS = 1024
"""Bytes of shared memory beside the operands."""

MOST_STAGES = 8

FEWEST_STEPS = 4
"""Along k, of a part of a block."""

SCALED_SUMS = 64
"""The most sums of a thread beside which it has room for any scales (scalable)."""


@dataclass(frozen=True)
class Block:
    """A row of TABLE."""

    m: int
    n: int
    pingpong: bool
    cluster: int = 1

    @property
    def sums(self) -> int:
        """Elements of C that a thread adds up."""
        return self.m * self.n // (GROUP_THREADS * (1 if self.pingpong else 2))


TABLE = (
    Block(128, 256, False, 2), Block(256, 128, False, 2), Block(128, 256, False), Block(256, 128, False),
    Block(128, 192, False, 2), Block(128, 128, False, 2), Block(128, 128, False), Block(64, 256, True, 2), Block(64, 256, True),
    Block(64, 192, True), Block(128, 128, True, 2), Block(128, 128, True), Block(64, 128, True, 2), Block(64, 128, True),
    Block(128, 64, True), Block(64, 64, True), Block(64, 32, True),
)  # fmt: skip
"""The configs of whole blocks, in canonical order."""

MIXED = (
    Block(256, 128, False), Block(128, 256, False), Block(128, 128, False), Block(64, 256, False), Block(64, 128, False),
    Block(32, 256, False), Block(32, 128, False), Block(16, 256, False), Block(16, 128, False),
)  # fmt: skip
"""Where B is integers of fewer bits, whose columns are the rows of instructions (mixed.h): whole, or split along k."""

SPLIT = (Block(128, 256, False), Block(256, 128, False), Block(128, 192, False), Block(128, 128, False), Block(128, 64, False))
"""Of those that are split along k."""


@dataclass(frozen=True)
class Multistage:
    """A row of MULTISTAGE: `down` and `across`: warps along rows and columns."""

    m: int
    n: int
    down: int
    across: int


MULTISTAGE = (
    Multistage(256, 128, 4, 2), Multistage(128, 256, 2, 4), Multistage(128, 128, 2, 2), Multistage(128, 64, 2, 2),
    Multistage(64, 128, 2, 2), Multistage(64, 64, 2, 2), Multistage(32, 128, 1, 4), Multistage(32, 64, 1, 4),
)  # fmt: skip
"""The configs of devices before Hopper."""
MOST_MULTISTAGES, RUN_BYTES = 5, 64
"""Steps in shared memory at most, and bytes of a step's rows: threads have room for their operands of one such step."""


def multistage_configs(dtype: torch.dtype, device: DeviceFacts) -> tuple[Config, ...]:
    """The blocks that fit a device before Hopper."""
    tried = []
    for block in MULTISTAGE:
        stages = min(MOST_MULTISTAGES, device.shared_per_block // (RUN_BYTES * (block.m + block.n)))
        if stages >= 3:
            tried.append(Config.of(
                variant="tile", m=block.m, n=block.n, k=RUN_BYTES // dtype.itemsize, stages=stages,
                warps=block.down * block.across, down=block.down, across=block.across, cluster=1,
            ))  # fmt: skip
    return tuple(tried)


def mixed_configs(dtype: torch.dtype, bits: int, device: DeviceFacts) -> tuple[Config, ...]:
    """The blocks that fit a device, where B has so many bits an element."""
    k = STEP_BYTES // dtype.itemsize
    tried = []
    for split, block in ((split, block) for split in (False, True) for block in MIXED):
        stages = min(MOST_STAGES, (device.shared_per_block - BARRIERS) // _stage_bytes(block.m, block.n, k, dtype.itemsize, bits))
        tried.append(Config.of(
            variant="persistent", pingpong=0, m=block.m, n=block.n, k=k, stages=stages, warps=WARPS, cluster=1,
            split=int(split), bits=bits,
        ))  # fmt: skip
    return tuple(tried)


def configs(dtype: torch.dtype, b_along_k: bool, device: DeviceFacts, scales: Scales = None) -> tuple[Config, ...]:
    """The blocks that fit a device and the registers of its threads, for operands of such elements. A cluster's blocks each
    fetch a part of B's columns, whole runs of them if n is the contiguous axis of B."""
    number, k = NUMBERS[dtype], STEP_BYTES // dtype.itemsize
    width = 8 if b_along_k else k
    tried = []
    for split, block in (*((False, block) for block in TABLE), *((True, block) for block in SPLIT)):
        stages = min(MOST_STAGES, (device.shared_per_block - BARRIERS) // (STEP_BYTES * (block.m + block.n)))
        room = block.sums <= number.most_sums if scales is None else scalable(scales[1][1], block, split)
        if room and stages >= 3 and block.n % (width * block.cluster) == 0:
            tried.append(Config.of(
                variant="persistent", pingpong=int(block.pingpong), m=block.m, n=block.n, k=k, stages=stages, warps=WARPS,
                cluster=block.cluster, split=int(split),
            ))  # fmt: skip
    return tuple(tried)


def scalable(columns: int, block: Block, split: bool) -> bool:
    """Whether a thread has room for its sums, the products of one instruction and scales, and the `columns` that share one begin
    with a block. Beside 128 sums, it has room for one scale of an instruction's columns and those of its rows, and not for one of
    each column, nor for what taking turns with blocks or splitting them needs."""
    small = columns == 1 or split or block.pingpong or block.m > 2 * GROUP_ROWS
    return (block.n % columns == 0 or columns % block.n == 0) and block.sums <= (SCALED_SUMS if small else MOST_SUMS)


def label(config: Config) -> str:
    """A config as a candidate's name: "cutlass pingpong 64x128x64 s6 c2", "cutlass split 128x128x64 s7 c1", "cutlass mixed
    16x128x64 s8 c1", "cutlass multistage 128x128x32 s4 w4"."""
    if config.get("down"):
        return f"cutlass multistage {config['m']}x{config['n']}x{config['k']} s{config['stages']} w{config['warps']}"
    return f"cutlass {how(config)} {config['m']}x{config['n']}x{config['k']} s{config['stages']} c{config['cluster']}"


def how(config: Config) -> str:
    """The word for who multiplies a block."""
    if config.get("down"):
        return "multistage"
    alone = "mixed" if config.get("bits") else "pingpong" if config["pingpong"] else "cooperative"
    return ("mixed split" if config.get("bits") else "split") if config.get("split") else alone


def shared_bytes(config: Config, itemsize: int) -> int:
    """Bytes of shared memory of a thread block, where elements of A have `itemsize` bytes."""
    m, n, k = (int(config[name]) for name in "mnk")
    if config.get("down"):
        return int(config["stages"]) * _stage_bytes(m, n, k, itemsize, 8 * itemsize)
    return int(config["stages"]) * _stage_bytes(m, n, k, itemsize, int(config.get("bits") or 8 * itemsize)) + BARRIERS


def _stage_bytes(m: int, n: int, k: int, itemsize: int, bits: int) -> int:
    """Bytes of a step's operands, where elements of B have `bits`."""
    return (m * itemsize + n * bits // 8) * k


def covers(config: Config, size: Mapping[str, int]) -> bool:
    """Whether a block is no more than twice as large as what it covers."""
    return 2 * size["N"] >= int(config["n"]) and 2 * size["M"] >= int(config["m"])


@dataclass(frozen=True)
class Round:
    """How programs share a config's blocks at some sizes: `full` rounds of whole ones, then `left` blocks, each of them `parts`
    pieces along k (blocks.h)."""

    full: int
    left: int
    parts: int


def shared_out(config: Config, size: Mapping[str, int], sms: int) -> Round:
    """The rounds of a config without clusters."""
    rows, columns, steps = (-(-size[axis] // int(config[axis.lower()])) for axis in "MNK")
    full, left = divmod(size["batch"] * rows * columns, sms)
    parts = min(sms // left, steps // FEWEST_STEPS) if left and config.get("split") else 1
    return Round(full, left, max(1, parts))


def pays(config: Config, size: Mapping[str, int], device: DeviceFacts) -> bool:
    """Whether a split gives work to multiprocessors that whole blocks would leave idle; whole blocks always take part."""
    if not config.get("split"):
        return True
    return shared_out(config, size, device.sms).parts > 1 and scratch(config, device.sms) * 4 <= LARGEST_SCRATCH


def scratch(config: Config, sms: int) -> int:
    """Sums of parts that a split keeps in memory."""
    return sms * int(config["m"]) * int(config["n"])
