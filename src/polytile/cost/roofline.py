"""Terms that the formulas of all families share, and peak rates of devices as data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polytile.runtime.cuda.device import DeviceFacts

TENSOR_FLOPS: dict[int, dict[int, float]] = {
    70: {2: 1024}, 75: {2: 1024, 1: 2048}, 80: {4: 1024, 2: 2048, 1: 4096}, 86: {4: 256, 2: 1024, 1: 2048},
    89: {4: 512, 2: 1024, 1: 2048}, 90: {4: 2048, 2: 4096, 1: 8192}, 100: {4: 2048, 2: 8192, 1: 16384},
}  # fmt: skip
"""Compute capability → bytes of an element → floating-point operations per multiprocessor and cycle; 4 bytes mean TF32."""
PLAIN_FLOPS = 256.0
"""The same without tensor cores."""
RESIDENT = 0.8
"""Share of the L2 cache that a call's data may fill for the next call to find all of it there."""


def overlapping(power: float, *seconds: float) -> float:
    """The p-norm |seconds|ₚ of overlapping times. A power of 1 means no overlap; the greater it is, the more the longest term
    dominates."""
    return sum(each**power for each in seconds) ** (1.0 / power)


def in_turns(seconds: float, turns: float) -> float:
    """Seconds of programs that run in waves on their slots. The last wave may be partial, but it is waited for."""
    return seconds * (1.0 if turns <= 1 else turns + 0.5 * (math.ceil(turns) - turns))


def places(device: DeviceFacts, registers: float, threads: int = 1, shared: float = 0.0, most: int | None = None) -> int:
    """Number of programs that a multiprocessor holds at once (occupancy), by registers, threads and bytes of shared memory per
    program, and by `most` or the device's limit."""
    by_registers, by_shared = device.registers_per_sm // registers, device.shared_per_sm // max(1.0, shared)
    return int(max(1, min(by_registers, by_shared, device.threads_per_sm // threads, most or device.blocks_per_sm)))


def missing(moved: float, device: DeviceFacts) -> float:
    """Share of a call's bytes that the L2 cache has not kept since the previous call: none up to RESIDENT of its size, then soon
    all."""
    return min(1.0, max(0.0, (moved / device.l2_bytes - RESIDENT) / (1.0 - RESIDENT)))


def tensor_flops(device: DeviceFacts, itemsize: int, unknown: int = 70) -> float:
    """Floating-point operations per multiprocessor and cycle for elements of this size, on tensor cores if they support them.
    `unknown` is the capability assumed for a device without one, such as AMD's."""
    rates = TENSOR_FLOPS[max((capability for capability in TENSOR_FLOPS if capability <= device.capability), default=unknown)]
    return rates.get(itemsize, PLAIN_FLOPS)
