"""What the formulas of all families are made of, and what devices can do at most, as data."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polytile.runtime.cuda.device import DeviceFacts

TENSOR_FLOPS: dict[int, dict[int, float]] = {
    70: {2: 1024}, 75: {2: 1024, 1: 2048}, 80: {4: 1024, 2: 2048, 1: 4096}, 86: {4: 256, 2: 1024, 1: 2048},
    89: {4: 512, 2: 1024, 1: 2048}, 90: {4: 2048, 2: 4096, 1: 8192}, 100: {4: 2048, 2: 8192, 1: 16384},
}  # fmt: skip
"""Capability → bytes of an element → floating-point operations of a multiprocessor in a cycle; 4 bytes: TF32."""
PLAIN_FLOPS = 256.0
"""The same without tensor cores."""
RESIDENT = 0.8
"""Of the L2 cache that may be full of a call's data for the next one to find all of it."""


def overlapping(power: float, *seconds: float) -> float:
    """Seconds of what goes on at the same time, |seconds|ₚ: one after another where the power is 1; the greater it is, the more
    the longest alone counts."""
    return sum(each**power for each in seconds) ** (1.0 / power)


def in_turns(seconds: float, turns: float) -> float:
    """Seconds of programs that take so long each, in turns on their places; the last turn is not full, but is waited for."""
    return seconds * (1.0 if turns <= 1 else turns + 0.5 * (math.ceil(turns) - turns))


def places(device: DeviceFacts, registers: float, threads: int = 1, shared: float = 0.0, most: int | None = None) -> int:
    """Programs that a multiprocessor holds at once, by the registers of one, its threads and its bytes of shared memory, and
    `most` of them, or as many as the device counts."""
    by_registers, by_shared = device.registers_per_sm // registers, device.shared_per_sm // max(1.0, shared)
    return int(max(1, min(by_registers, by_shared, device.threads_per_sm // threads, most or device.blocks_per_sm)))


def missing(moved: float, device: DeviceFacts) -> float:
    """Share of the bytes of a call that the L2 cache has not kept since the call before: none up to RESIDENT of it, then soon
    all."""
    return min(1.0, max(0.0, (moved / device.l2_bytes - RESIDENT) / (1.0 - RESIDENT)))


def tensor_flops(device: DeviceFacts, itemsize: int, unknown: int = 70) -> float:
    """Floating-point operations of a multiprocessor in a cycle, on operands of so many bytes an element: of the tensor cores
    where they take these. `unknown`: the capability that stands for a device without any, such as AMD's."""
    rates = TENSOR_FLOPS[max((capability for capability in TENSOR_FLOPS if capability <= device.capability), default=unknown)]
    return rates.get(itemsize, PLAIN_FLOPS)
