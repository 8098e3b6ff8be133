"""The analytical prior for attention on a GPU: predicted seconds of a config at given sizes.

    t = launches + |rounds · (start + steps · (products + powers)), memory| + parts

    rounds    programs go to the places that shared memory and registers leave; the last round may have fewer of them
    steps     blocks of keys that a block of rows sees; half of them under a causal mask
    products  both products of a step, by the rate of the tensor cores and the share of it that blocks of so many rows reach
    powers    an exponential for each score, by the rate of the special function units, half of it beside the products
    memory    operands and result once, keys and values again for each block of rows from the second-level cache
    parts     what split keys leave in memory and add up in a second launch

The shares are estimates that order configs; no device was fitted. Where they are wrong: programs whose warps divide the work
(`ws`) are expected to be a sixth faster wherever they take part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from polytile.attention.problem import AttentionProblem
from polytile.attention.triton.configs import shared_bytes
from polytile.attention.triton.unit import padded
from polytile.cost.library_attention import bias_bytes, work
from polytile.cost.triton_matmul import PLAIN_FLOPS, TENSOR_FLOPS
from polytile.problem import Config
from polytile.runtime.cuda.device import DeviceFacts

SHARE = {16: 0.25, 32: 0.4, 64: 0.55, 128: 0.65}
"""Share of the tensor cores' rate, by rows of a block."""
WARPED = 1.15
"""How much faster programs are whose warps divide the work."""
POWERS = 16.0
"""Exponentials of a multiprocessor in a cycle."""
START = 2000.0
"""Cycles of a program beside its steps: the block of q, the first keys, the result."""
STEP = 150.0
"""Cycles of a step that nothing else hides."""
THREADS_REGISTERS = 168
"""Registers of a thread, about."""


def terms(problem: AttentionProblem, config: Config, size: Mapping[str, int], device: DeviceFacts) -> dict[str, float]:
    """What `cost` is made of, and what the work is."""
    products, moved = work(problem, size)
    loop, again = _loop(problem, config, size, device, products)
    return {
        **{f"work.{name}": float(size[name]) for name in ("B", "Hq", "Hkv", "Mq", "Mkv", "D", "Dv")},
        "work.itemsize": float(problem.dtype.itemsize),
        "work.causal": float(bool(problem.causal.value)),
        "work.bias": float(bias_bytes(problem, size)),
        "loop_s": loop,
        "memory_s": moved / device.bandwidth,
        "cache_s": again / device.l2_bandwidth,
        "parts_s": _parts(config, size, device),
        "launch_s": device.launch_seconds * (2 if config["variant"] == "split" else 1),
    }


def cost(problem: AttentionProblem, config: Config, size: Mapping[str, int], device: DeviceFacts) -> float:
    """Seconds of one call."""
    known = terms(problem, config, size, device)
    return known["launch_s"] + max(known["loop_s"], known["memory_s"], known["cache_s"]) + known["parts_s"]


def _loop(
    problem: AttentionProblem, config: Config, size: Mapping[str, int], device: DeviceFacts, products: float
) -> tuple[float, float]:
    """Seconds of all rounds of programs, and the bytes of keys and values that they read in all."""
    m, n, stages, warps = (int(config[name]) for name in ("m", "n", "stages", "warps"))
    head = max(padded(size["D"]), padded(size["Dv"]))
    blocks, splits = _blocks(config, size, device)
    scores = max(1, size["B"] * size["Hq"] * size["Mq"] * size["Mkv"])
    seen = products / (scores * max(1, size["D"] + size["Dv"]))
    keys = seen * size["Mkv"] / splits
    rates = TENSOR_FLOPS.get(max((c for c in TENSOR_FLOPS if c <= device.capability), default=80), {})
    rate = rates.get(problem.dtype.itemsize, PLAIN_FLOPS) if problem.dtype.itemsize < 4 or problem.tf32 else PLAIN_FLOPS
    share = SHARE[max((rows for rows in SHARE if rows <= m), default=16)] * (WARPED if config.get("ws") else 1.0)
    multiply = 4.0 * m * n * head / (rate * share)
    powers = m * n / POWERS
    step = max(multiply, powers) + 0.5 * min(multiply, powers) + STEP
    shared = shared_bytes((m, n, stages, warps), head, problem.dtype.itemsize)
    threads = warps * device.warp
    resident = max(1, min(device.shared_per_sm // max(1, shared), device.registers_per_sm // (threads * THREADS_REGISTERS)))
    count = blocks * splits
    side_by_side = min(resident, math.ceil(count / device.sms))
    rounds = math.ceil(count / (device.sms * max(1, side_by_side)))
    overlapped = side_by_side * (1.0 if side_by_side == 1 else 0.85)
    cycles = rounds * (START + math.ceil(keys / n) * step * overlapped)
    again = count * keys * (size["D"] + size["Dv"]) * problem.dtype.itemsize
    return cycles / device.clock, float(again)


def _blocks(config: Config, size: Mapping[str, int], device: DeviceFacts) -> tuple[int, int]:
    """Blocks of rows, and parts of their keys."""
    group = size["Hq"] // max(1, size["Hkv"])
    packed = bool(config.get("packed"))
    rows, heads = (group * size["Mq"], size["Hkv"]) if packed else (size["Mq"], size["Hq"])
    blocks = max(1, size["B"] * heads * -(-rows // int(config["m"])))
    if config["variant"] != "split":
        return blocks, 1
    wanted = int(config["waves"]) * device.sms // blocks
    return blocks, max(1, min(wanted, -(-size["Mkv"] // int(config["n"]))))


def _parts(config: Config, size: Mapping[str, int], device: DeviceFacts) -> float:
    """Seconds for what the parts leave in memory, float32, written and read."""
    blocks, splits = _blocks(config, size, device)
    if splits == 1:
        return 0.0
    return 2 * 4 * blocks * splits * int(config["m"]) * size["Dv"] / device.l2_bandwidth + device.launch_seconds


__all__ = ["cost", "terms"]
