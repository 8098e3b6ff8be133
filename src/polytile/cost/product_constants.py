"""The constants of the cost model of products on a GPU (triton_matmul.py) that no data sheet states, as data.

FITTED holds for 16-bit and 32-bit operands: products of bfloat16 and float32 on an H100 of which every candidate was measured
(benchmarks/gpu/prior_fit.py). The others were fitted to 138 quantised products on an H200 of which every candidate of every
source was measured (benchmarks/gpu/unseen_products.py); unseen_judge.py says how good they are at sizes that took no part. Steps
of few bytes are short, so that what does not shrink with the bytes counts: barriers, instructions that wait for each other's
sums, the store.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polytile.matmul.triton.configs import Kind


@dataclass(frozen=True)
class Constants:
    """Constants that no data sheet states, fitted by `benchmarks.gpu.prior_fit`."""

    start: float = 0.145e-6
    """s until the first block arrives, in addition to the launch"""
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
    """cost of a contiguous run in addition to its own bytes, in bytes"""
    kept: float = 1.6
    """share of the L2 cache that operands can use"""
    descriptors: float = 0.6e-6
    """s to fetch tensor descriptors; 2.5e-6 when programs created them themselves"""
    second_launch: float = 1.0e-6
    """s of the launch that sums the parts, in addition to its traffic"""
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
    barrier: float = 0.0
    """s of a step that no further copies in flight would save"""
    chained: float = 0.0
    """s by which an instruction for 32 bytes along k waits for the sums of the one before; warpgroups' do not wait"""
    stored: float = 1.0
    """cost of a byte of the result relative to the L2 cache's bandwidth"""
    drawn: float = math.inf
    """share of the memory's bandwidth that programs on all multiprocessors could draw"""
    persistent: float = 1.0
    """a wave of persistent programs relative to one of others"""
    stream: float = 1.0
    """a step of stream-K relative to one of whole tiles"""
    converting: float = 0.0
    """warps per multiprocessor that reach half of the rate at which prologues are computed"""
    joined: float = 1.6
    """p: the norm by which overlapping times add up; 1 means no overlap, ∞ means that only the longest counts"""


FITTED = Constants()
INT8 = Constants(
    start=0.141e-6, overhead=0.49e-6, step_latency=0.2e-6, groups=0.738, fed=17.2, cache=4.94, kept=0.625,
    descriptors=0.599e-6, stored=2.47, drawn=3.53, run=130, barrier=23e-9, chained=18.1e-9, second_launch=0.509e-6,
    part=0.134e-6, parts=1.28, row_latency=0.271e-6, row_work=1.44, row_load=2.11, stream=1.43, persistent=0.85,
)  # fmt: skip
FLOAT8 = Constants(
    start=0.186e-6, groups=0.738, cache=12.8, kept=0.781, stored=2.13, drawn=3, barrier=45.7e-9, chained=29.4e-9,
    second_launch=0.656e-6, part=0.141e-6, parts=1.61, row_load=1.77, stream=1.28, persistent=1.05,
)  # fmt: skip
CONVERTED = Constants(
    start=1.25e-6, step_latency=0.108e-6, groups=1.53, fed=17.5, cache=8.4, joined=1.76, stored=2.31, drawn=3, run=354,
    warps=0.498, barrier=30.9e-9, chained=19.7e-9, second_launch=0.572e-6, part=0.123e-6, parts=1.12, stream=1.4,
    persistent=1.31, converting=1.87,
)  # fmt: skip
"""16-bit operands, one of them converted from integers of 8 or 4 bits as it is read."""

COOPERATIVE, PINGPONG = Constants(groups=1.9, overhead=0.35e-6), Constants(groups=1.9, overhead=0.1e-6)
"""CUTLASS's loops leave fewer cycles between steps. Blocks that take turns store while others multiply."""
MIXED = Constants(
    start=6.34e-9, overhead=7.23e-9, step_latency=0.289e-6, groups=1.67, warps=1.19, fed=42.9, cache=7.19, kept=7.55,
    stored=0.335, barrier=0.374e-6, chained=14.4e-9, second_launch=1.76e-6, part=51e-9, parts=4.87,
)  # fmt: skip
"""Elements of B pass through registers: a step is a chain of waiting, converting and multiplying. Fitted to all configs of 48
products on an H200 (benchmarks/results/gpu_cutlass_mixed.json), of which its first took 1.11 times as long as the best."""
COOPERATIVE8 = Constants(
    overhead=2.53e-6, step_latency=1.08e-6, groups=1.9, fed=42.8, cache=26.7, kept=0.185, descriptors=1.97e-6, stored=4.15,
    second_launch=0.744e-6, part=0.117e-6, parts=1.01, barrier=30e-9, stream=1.79,
)  # fmt: skip
PINGPONG8 = Constants(
    start=0.327e-6, overhead=96.5e-9, step_latency=0.28e-6, groups=1.9, fed=32, cache=9.15, kept=0.136, descriptors=2.78e-6,
    stored=9.03, barrier=30.1e-9,
)  # fmt: skip
"""The same for 8-bit operands. Nothing overlaps the start of a kernel: barriers, descriptors, and the transfer of registers
between warpgroups."""

LIBRARY_INT8 = Constants(
    start=0.731e-6, overhead=2.62e-6, step_latency=0.16e-6, groups=1.41, fed=16.4, kept=0.132, stored=7.21, warps=0.66,
    second_launch=0.5e-6, part=0.143e-6, parts=0.646,
)  # fmt: skip
LIBRARY_FLOAT8 = Constants(
    start=1.38e-6, overhead=1.24e-6, step_latency=0.156e-6, groups=2.18, fed=23.9, kept=0.826, stored=5.63,
    second_launch=1.03e-6, part=0.234e-6, parts=1.65,
)  # fmt: skip
"""The library's kernels for 8-bit operands."""


def constants_of(kind: Kind) -> Constants:
    """The constants of generated products of this kind."""
    if kind.itemsize == 1:
        return FLOAT8 if kind.float8 else INT8
    return CONVERTED if kind.words or (kind.mixed and kind.int8) else FITTED
