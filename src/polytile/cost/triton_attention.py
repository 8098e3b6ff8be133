"""Predicted time of generated attention kernels.

    t(flash) = launch + waves of programs · steps · |latency, together · busy|      or the bytes over the bandwidth
    t(split) = the same with the keys of a program shared + launch + what the second launch reads

A step is the work of a program on one tile of keys. `busy` is its time on a multiprocessor that has other programs to run,
`latency` its time alone. STEPS has both for the tiles that were measured on an H200, the first as a share of the tensor cores'
peak (benchmarks/gpu/attention_fit.py); other tiles use those of their neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from polytile.attention.problem import AttentionProblem, Causal
from polytile.attention.schedule import schedule_of
from polytile.attention.triton.configs import Row, head_block, row_of, shared_bytes
from polytile.attention.triton.split import COLUMNS, MOST, STEP
from polytile.cost import roofline
from polytile.cost.library_attention import bias_bytes
from polytile.problem import Config
from polytile.runtime.cuda.device import DeviceFacts

STEPS: dict[tuple[int, int], dict[Row, tuple[float, float]]] = {
    (2, 64): {(16, 128, 3, 4): (0.092, 0.86e-6), (64, 64, 3, 4): (0.35, 0.74e-6), (128, 64, 3, 4): (0.35, 1.5e-6),
              (128, 128, 2, 12): (0.456, 0.2e-6), (192, 128, 2, 16): (0.46, 0.2e-6)},
    (2, 128): {(16, 128, 3, 4): (0.1, 0.2e-6), (64, 64, 3, 4): (0.379, 0.2e-6), (128, 64, 3, 8): (0.379, 0.2e-6),
               (128, 128, 2, 8): (0.337, 0.2e-6), (128, 128, 2, 12): (0.63, 0.2e-6)},
    (2, 256): {(16, 64, 2, 4): (0.07, 0.2e-6), (64, 32, 3, 4): (0.288, 0.2e-6), (128, 32, 3, 8): (0.364, 0.2e-6),
               (128, 64, 2, 8): (0.379, 0.2e-6), (128, 64, 2, 12): (0.69, 0.2e-6)},
    (4, 64): {(16, 64, 3, 4): (0.154, 0.2e-6), (32, 32, 3, 4): (0.18, 1.9e-6), (64, 64, 2, 4): (0.237, 5.5e-6),
              (128, 64, 2, 8): (0.288, 0.2e-6)},
    (4, 128): {(16, 32, 3, 4): (0.173, 0.2e-6), (32, 32, 3, 4): (0.246, 3.2e-6), (128, 32, 2, 8): (0.237, 0.2e-6)},
    (4, 256): {(16, 32, 2, 4): (0.173, 0.2e-6), (32, 32, 2, 4): (0.121, 0.2e-6)},
}  # fmt: skip
"""(bytes of an element, head size) → tile → share of the peak when busy, seconds of a step alone."""
BACKWARD: dict[tuple[int, int], dict[Row, float]] = {
    (2, 64): {(64, 64, 2, 4): 0.32, (128, 64, 2, 8): 0.25, (64, 128, 2, 8): 0.17, (128, 128, 2, 12): 0.46,
              (64, 128, 3, 12): 0.43},
    (2, 128): {(64, 64, 2, 8): 0.21, (64, 64, 1, 4): 0.35, (64, 128, 2, 12): 0.57},
    (2, 256): {(64, 32, 1, 8): 0.13, (64, 128, 2, 12): 0.54},
}  # fmt: skip
"""The same for tiles of the backward pass on an H200: the share of the peak over both launches
(benchmarks.gpu.attention_backward, geometric means over the cells of 1024 rows and more)."""
UNKNOWN = 0.2, 2e-6
"""The same for head sizes without a measured tile."""
BEGIN = 2e-6
"""Seconds from a program's start to its first step, and from its last step to its end."""
NEXT = {False: 3.1e-6, True: 1.3e-6}
"""Seconds between two tiles of rows of specialised warps on a multiprocessor, on an H200 (benchmarks.gpu.attention_kernels): of
programs that come and go, and of resident ones."""
COMBINE = 1.5e-6
"""Seconds per wave of the second launch of `split`."""
REGISTERS, SUMS, SCORES = 60, 1.0, 1.5
"""Registers of a thread: in addition to those of tiles, per accumulator element, and per score."""


@dataclass(frozen=True)
class Programs:
    """The number of programs, and their mean and maximum number of steps."""

    count: int
    mean: float
    most: int


def cost(problem: AttentionProblem, config: Config, size: Mapping[str, int], device: DeviceFacts) -> float:
    """Predicted seconds of one call."""
    parts = terms(problem, config, size, device)
    return parts["launch"] + max(parts["steps"], parts["memory"], parts["cache"]) + parts["combine"]


def terms(problem: AttentionProblem, config: Config, size: Mapping[str, int], device: DeviceFacts) -> dict[str, float]:
    """The terms of `cost` in seconds: `launch`, then the largest of `steps` (computation), `memory` and `cache` (traffic), then
    `combine`."""
    if problem.backward:
        return _backward_terms(problem, config, size, device)
    size = problem.layout.mean(size) if problem.layout is not None else size
    own, row, itemsize = programs(problem, config, size, device), row_of(config), problem.dtype.itemsize
    heads, head = size["D"] + size["Dv"], head_block(size)
    share, latency = _step(row, head, itemsize)
    busy = 4.0 * row[0] * row[1] * head / (_rate(problem, device) * share)
    rows = size["B"] * (size["Hq"] * size["Mq"] * heads)
    keys = size["B"] * size["Hkv"] * size["Mkv"] * heads
    moved = (rows + keys) * itemsize + bias_bytes(problem, size)
    resident, specialised = bool(config.get("resident")), schedule_of(config).specialised
    in_pairs = resident and own.mean < own.most
    return {
        "launch": device.launch_seconds + BEGIN + (NEXT[resident] * -(-own.count // device.sms) if specialised else 0.0),
        "steps": max(latency, busy) * _steps_of_pairs(own, device.sms) if in_pairs
        else _rounds(own, busy, latency, _together(row, head, itemsize, device), device.sms),
        "memory": moved / device.bandwidth,
        "cache": own.count * own.mean * row[1] * heads * itemsize / device.l2_bandwidth,
        "combine": _combine(problem, config, size, device) if schedule_of(config).shares_keys else 0.0,
    }


def _backward_terms(
    problem: AttentionProblem, config: Config, size: Mapping[str, int], device: DeviceFacts
) -> dict[str, float]:
    """The same for the backward pass: seven tile products instead of two, in two launches that read the same data. Tiles that
    were not measured have UNKNOWN's share."""
    m, n, _, _ = row = row_of(config)
    itemsize, heads = problem.dtype.itemsize, size["D"] + size["Dv"]
    seen = 0.5 if problem.causal is not Causal.NO and size["Mq"] > 1 else 1.0
    blocks = size["B"] * size["Hq"] * -(-size["Mq"] // m) * -(-size["Mkv"] // n) * seen
    share = BACKWARD.get((itemsize, head_block(size)), {}).get(row, UNKNOWN[0])
    busy = 7.0 * m * n * head_block(size) * 2 / (_rate(problem, device) * share)
    programs = size["B"] * size["Hkv"] * -(-size["Mkv"] // n)
    moved = size["B"] * (3 * size["Hq"] * size["Mq"] + 3 * size["Hkv"] * size["Mkv"]) * heads * itemsize
    return {
        "launch": 2 * (device.launch_seconds + BEGIN),
        "steps": blocks * busy / max(1, min(programs, device.sms)),
        "memory": 2 * (moved + bias_bytes(problem, size)) / device.bandwidth,
        "cache": 0.0,
        "combine": 0.0,
    }


def _step(row: Row, head: int, itemsize: int) -> tuple[float, float]:
    """The entry of STEPS, or that of the most similar tile with its latency scaled."""
    known = STEPS.get((itemsize, head))
    if known is None:
        return UNKNOWN
    near = min(known, key=lambda other: (abs(math.log(row[0] / other[0])), abs(math.log(row[1] / other[1])), row != other))
    share, latency = known[near]
    return share, latency * row[0] * row[1] / (near[0] * near[1])


def programs(problem: AttentionProblem, config: Config, size: Mapping[str, int], device: DeviceFacts) -> Programs:
    """The programs of the first launch."""
    m, n, _, _ = row_of(config)
    group = size["Hq"] // max(1, size["Hkv"]) if config.get("packed") else 1
    tiles, blocks = -(-size["Mq"] * group // m), -(-size["Mkv"] // n)
    count = size["B"] * size["Hq"] // max(1, group) * tiles
    if schedule_of(config).shares_keys:
        shared = parts(config, count, size, device)
        blocks = -(-blocks // shared)
        return Programs(count * shared, blocks, blocks)
    if problem.causal is Causal.NO or tiles <= 1:
        return Programs(count, blocks, blocks)
    return Programs(count, blocks * (tiles + 1) / (2 * tiles), blocks)


def parts(config: Config, count: int, size: Mapping[str, int], device: DeviceFacts) -> int:
    """Number of programs that share the keys of each of `count` row tiles, as in attention/triton/split.py."""
    places = device.sms * int(config["waves"])
    return max(1, min(MOST, places // max(1, count), size["Mkv"] // int(config["n"])))


def _combine(problem: AttentionProblem, config: Config, size: Mapping[str, int], device: DeviceFacts) -> float:
    group = size["Hq"] // max(1, size["Hkv"])
    count = size["B"] * size["Hkv"] * -(-size["Mq"] * group // int(config["m"]))
    shared, rows = parts(config, count, size, device), size["B"] * size["Hq"] * size["Mq"]
    waves = -(-rows * max(1, head_block(size) // COLUMNS) // (device.sms * 8))
    written = 2 * 4 * rows * shared * size["Dv"] / device.l2_bandwidth
    return device.launch_seconds + waves * COMBINE * (1 + -(-shared // STEP)) + written


def _rounds(own: Programs, busy: float, latency: float, together: int, sms: int) -> float:
    """Seconds of all steps: full waves of the multiprocessors and a partial one. If programs differ in length, the last to finish
    count."""
    places = sms * together
    full = max(latency, together * busy)
    last = max(latency, -(-min(own.count, places) // sms) * busy)
    if own.mean < own.most:
        return max(own.count * own.mean * full / places, own.most * last)
    rest = own.count % places
    return own.most * (own.count // places * full + (max(latency, -(-rest // sms) * busy) if rest else 0.0))


def _together(row: Row, head: int, itemsize: int, device: DeviceFacts) -> int:
    """Number of programs that a multiprocessor holds at once."""
    m, n, _, warps = row
    threads = warps * device.warp
    registers = min(255.0, REGISTERS + (SUMS * m * head + SCORES * m * n) / threads)
    return roofline.places(device, int(registers * threads), threads, shared_bytes(row, head, itemsize) + 1024)


def _steps_of_pairs(own: Programs, sms: int) -> float:
    """Steps of a resident program that takes pairs of a long and a short tile. Few pairs of the last round are taken apart."""
    rounds, rest = divmod(-(-own.count // 2), sms)
    return rounds * 2 * own.mean + (0.0 if not rest else own.most if 2 * rest <= sms else 2 * own.mean)


def _rate(problem: AttentionProblem, device: DeviceFacts) -> float:
    """Peak floating-point operations per second of a multiprocessor."""
    flops = roofline.tensor_flops(device, problem.dtype.itemsize, unknown=80)
    return flops * device.clock / (3 if problem.dtype.itemsize == 4 and not problem.tf32 else 1)
