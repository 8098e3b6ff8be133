"""The analytical prior for products on a GPU: predicted seconds of a config at given sizes.

    t = launch + start + max(units, cache, memory, latency) + finish

    units     multiply-adds of whole blocks, overhang included, on the busiest multiprocessor, by the rate of its tensor cores
              and the share of it that blocks of this size reach
    cache     blocks of A and B that all programs ask for, by the bandwidth of the L2 cache
    memory    A, B and the result once, by the device's bandwidth; B again for each group of rows where it leaves the cache
    latency   the loads of a block along k one after another, `stages - 1` of them under way, as often as there are rounds of
              programs on the places that shared memory and registers leave
    finish    the sums written and, of a product whose sums meet in memory, written and read once more in a second launch

The structure is that of the roofline with waves; rates are of the data sheets. Three constants were
chosen on 254 products of bfloat16 and float32, every candidate measured on an H100: the first of the ranking takes 1.14 times
as long as the best (geometric mean; 95th percentile 1.6), the best of its first five 1.03 times. The rest are round numbers.
Known wrong: splits of very long K into too many parts (137 x 48 x 7648: 32 parts where 8 take a quarter of the time), and
persistent blocks on operands whose rows are not 16 bytes apart, which go without descriptors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from polytile.kernels.triton.gemm.configs import Kind
from polytile.problem import Config
from polytile.runtime.cuda.device import DeviceFacts

TENSOR_FLOPS: dict[int, dict[int, float]] = {
    70: {2: 1024}, 75: {2: 1024, 1: 2048}, 80: {4: 1024, 2: 2048, 1: 4096}, 86: {4: 256, 2: 1024, 1: 2048},
    89: {4: 512, 2: 1024, 1: 2048}, 90: {4: 2048, 2: 4096, 1: 8192}, 100: {4: 2048, 2: 8192, 1: 16384},
}  # fmt: skip
"""Capability → bytes of an element → floating-point operations of a multiprocessor in a cycle; 4 bytes: TF32."""
PLAIN_FLOPS = 256.0
"""The same without tensor cores."""

REGISTERS = 40  # of a thread beside its sums


@dataclass(frozen=True)
class Constants:
    """What no data sheet says; `benchmarks.gpu.prior_fit` fits it."""

    step_latency: float = 0.5e-6
    """s from asking for a block of operands until it is there"""
    start: float = 1.2e-6
    """s until the first block is there, beside the launch"""
    second_launch: float = 4.0e-6
    """s of the launch that adds parts up, beside its traffic"""
    block_overhead: float = 0.5e-6
    """s between the loops over k of two blocks on one place"""
    plain_half: float = 16.0
    """sums of a thread at which half of the rate without tensor cores is reached"""
    crowded: float = 1.0
    """how much longer without tensor cores a thread of more than 48 sums takes for each: registers hide nothing any more"""
    fed: float = 32.0
    """of a block of side b, 2 · fed / b is what feeding it takes beside multiplying"""
    drawn: float = 2.5
    """programs of a share 1 / drawn of the multiprocessors draw all of the memory's bandwidth"""
    kept: float = 0.6
    """of the L2 cache that operands find place in"""


FITTED = Constants()

MISALIGNED, LIBRARY_MISALIGNED = 4.0, 5.0
"""What operands whose rows are not 16 bytes apart cost a generated kernel, and the library for 16-bit types: medians over the
products of more than 8 us among those measured. float32 costs the library nothing."""


def cost(
    kind: Kind, config: Config, size: Mapping[str, int], device: DeviceFacts, constants: Constants = FITTED
) -> float:
    """Seconds of one call; see the module's formula."""
    batch, m, n, k = (size[name] for name in ("batch", "M", "N", "K"))
    if not (batch and m and n):
        return device.launch_seconds
    rate = multiprocessor_rate(kind, device)
    once = traffic(kind, batch, m, n, k) / device.bandwidth
    if config["variant"] == "rows":
        return _rows(config, batch, m, n, k, kind, device, once, constants)
    if config["variant"] == "stream":
        return _stream(config, batch, m, n, k, kind, device, once, constants)
    block_m, block_n, block_k, stages, warps = (int(config[name]) for name in ("m", "n", "k", "stages", "warps"))
    splits = int(config.get("splits", 1) or 1)
    programs = batch * math.ceil(m / block_m) * math.ceil(n / block_n) * splits
    steps = math.ceil(math.ceil(k / block_k) / splits)
    busiest = math.ceil(programs / device.sms)
    step = 2.0 * block_m * block_n * block_k / (rate * share(kind, block_m, block_n, warps, constants))
    units = busiest * (steps * step + 0.5 * constants.block_overhead)
    asked = programs * steps * (block_m + block_n) * block_k * kind.itemsize
    cache = asked / (device.l2_bandwidth * min(1.0, programs / device.sms))
    places = _places(kind, block_m, block_n, block_k, stages, warps, device)
    under_way = max(1, stages - 1)
    rounds = math.ceil(programs / (device.sms * places))
    latency = rounds * (steps * constants.step_latency / under_way + constants.block_overhead)
    again = _read_again(kind, config, batch, m, n, k, device, constants) / device.bandwidth
    finish = batch * m * n * 4 / device.bandwidth
    if splits > 1:
        finish = constants.second_launch + 2.0 * splits * batch * m * n * 4 / device.l2_bandwidth
    drawn = min(1.0, constants.drawn * min(programs, device.sms * places) / device.sms)
    return device.launch_seconds + constants.start + max(units, cache, (once + again) / drawn, latency) + finish


def multiprocessor_rate(kind: Kind, device: DeviceFacts) -> float:
    """Floating-point operations a second of one multiprocessor on operands of this kind."""
    known = TENSOR_FLOPS[max((c for c in TENSOR_FLOPS if c <= device.capability), default=70)]
    if kind.itemsize == 4 and not kind.tf32:
        return PLAIN_FLOPS * device.clock
    return known.get(kind.itemsize, PLAIN_FLOPS) * device.clock


def share(kind: Kind, block_m: int, block_n: int, warps: int, constants: Constants = FITTED) -> float:
    """Of the rate that a block reaches. On tensor cores a warp group takes 64 rows, and operands are fed from shared memory
    by (block_m + block_n) / (block_m · block_n); without them by the sums that a thread has to feed."""
    if kind.itemsize == 4 and not kind.tf32:
        sums = block_m * block_n / (32 * warps)
        return 0.95 * sums / (sums + constants.plain_half) / (constants.crowded if sums > 48 else 1.0)
    rows = min(1.0, block_m / 64)
    fed = 1.0 / (1.0 + constants.fed * (block_m + block_n) / (block_m * block_n))
    groups = 1.0 if warps >= 4 else 0.5
    return 0.95 * rows * fed * groups


def traffic(kind: Kind, batch: int, m: int, n: int, k: int) -> float:
    """Bytes that must move once."""
    return batch * ((m * k + k * n) * kind.itemsize + m * n * max(2, kind.itemsize))


def _read_again(
    kind: Kind, config: Config, batch: int, m: int, n: int, k: int, device: DeviceFacts, constants: Constants
) -> float:
    """Bytes of B that every group of rows of blocks reads anew, where B does not stay in the cache."""
    if (k * n + m * k) * kind.itemsize <= constants.kept * device.l2_bytes:
        return 0.0
    groups = math.ceil(m / (int(config["m"]) * int(config["group"])))
    return batch * (groups - 1) * k * n * kind.itemsize * 0.5


def _places(
    kind: Kind, block_m: int, block_n: int, block_k: int, stages: int, warps: int, device: DeviceFacts
) -> int:
    """Programs that one multiprocessor holds at once."""
    shared = max(1, stages * kind.itemsize * (block_m + block_n) * block_k)
    registers = device.warp * warps * (REGISTERS + block_m * block_n // (device.warp * warps))
    by_threads = device.threads_per_sm // (device.warp * warps)
    return max(1, min(device.shared_per_sm // shared, device.registers_per_sm // registers, by_threads))


def _rows(
    config: Config, batch: int, m: int, n: int, k: int, kind: Kind, device: DeviceFacts, once: float, constants: Constants
) -> float:
    """Bound by reading B: what programs on all multiprocessors have under way, and multiply-adds outside the tensor cores."""
    block_n, block_k, warps = (int(config[name]) for name in ("n", "k", "warps"))
    programs = batch * math.ceil(n / block_n)
    steps = math.ceil(k / block_k)
    places = max(1, min(8, device.threads_per_sm // (device.warp * warps)))
    rounds = math.ceil(programs / (device.sms * places))
    units = math.ceil(programs / device.sms) * steps * 4.0 * m * block_n * block_k / (PLAIN_FLOPS * device.clock)
    drawn = min(1.0, constants.drawn * programs / device.sms)
    latency = rounds * steps * constants.step_latency / 2
    return device.launch_seconds + constants.start + max(once / drawn, units, latency)


def _stream(
    config: Config, batch: int, m: int, n: int, k: int, kind: Kind, device: DeviceFacts, once: float, constants: Constants
) -> float:
    """Every multiprocessor has an equal share of all steps; at most two parts of each meet in memory, those of a block are added
    up one after another."""
    block_m, block_n, block_k, stages, warps = (int(config[name]) for name in ("m", "n", "k", "stages", "warps"))
    blocks = batch * math.ceil(m / block_m) * math.ceil(n / block_n)
    steps = blocks * math.ceil(k / block_k)
    own = math.ceil(steps / device.sms)
    rate = multiprocessor_rate(kind, device) * share(kind, block_m, block_n, warps, constants)
    units = own * 2.0 * block_m * block_n * block_k / rate + constants.block_overhead
    cache = steps * (block_m + block_n) * block_k * kind.itemsize / device.l2_bandwidth
    latency = own * constants.step_latency / max(1, stages - 1) + constants.block_overhead
    finish = constants.second_launch + 2.0 * 2 * device.sms * block_m * block_n * 4 / device.l2_bandwidth
    finish += constants.step_latency * math.ceil(device.sms / blocks)
    return device.launch_seconds + constants.start + max(units, cache, once, latency) + finish


def slowed(seconds: float, factor: float, device: DeviceFacts) -> float:
    """`seconds` with all but the launch and the start taking `factor` times as long."""
    fixed = device.launch_seconds + FITTED.start
    return fixed + factor * max(0.0, seconds - fixed)


def library(kind: Kind, size: Mapping[str, int], device: DeviceFacts) -> float:
    """Seconds that a good library takes: the roofline at four fifths of the rate."""
    batch, m, n, k = (size[name] for name in ("batch", "M", "N", "K"))
    compute = 2.0 * batch * m * n * k / (0.8 * multiprocessor_rate(kind, device) * device.sms)
    return device.launch_seconds + FITTED.start + max(compute, traffic(kind, batch, m, n, k) / device.bandwidth)


__all__ = ["FITTED", "Constants", "cost", "library", "multiprocessor_rate", "share", "slowed"]
