"""Predicted time of generated attention kernels on a CPU.

    t(flash) = fork + rounds of units · (multiply-adds / rate + weights + copies) + bytes of keys and values / bandwidth
    t(backward) = t(flash), with 5/2 of the multiply-adds and twice the weights
    t(split) = fork + |multiply-adds / rate + weights, bytes of keys and values / bandwidth|

A round is one unit of work per thread. Times are in cycles of Machine, like those of products, with which these kernels are
compared. They were measured on Zen 4, which starts half as many 64-byte FMAs per cycle as Machine assumes, at a higher clock.
Known wrong: keys and values are assumed to be in the cache level in which they were last.
"""

from __future__ import annotations

from collections.abc import Mapping

from polytile.attention.problem import AttentionProblem
from polytile.attention.schedule import schedule_of
from polytile.cost.library_attention import work
from polytile.matmul.cpp.machine import Machine
from polytile.problem import Config

FLASH_SHARE, SPLIT_SHARE = 0.95, 0.55
"""Share of the peak rate of multiply-adds."""
WEIGHT_CYCLES = 6.0
"""Cycles to turn a vector of scores into softmax weights."""
BACKWARD_PRODUCTS, BACKWARD_WEIGHTS = 2.5, 2.0
"""Multiply-adds and weights of the backward pass relative to the forward pass."""
FEWEST_UNITS = 32
"""Units into which the backward pass divides a call at least, if there are as many blocks of keys."""
COPY_CYCLES = 4.0
"""Cycles to copy a vector of keys or values."""
UNIT_BYTES = 256 << 10
"""Bytes of the queries and accumulators of a unit of `flash`."""


def cost(problem: AttentionProblem, config: Config, size: Mapping[str, int], machine: Machine) -> float:
    """Predicted seconds of one call."""
    parts = terms(problem, config, size, machine)
    computing = parts["products_s"] + parts["weights_s"] + parts["copies_s"]
    if not schedule_of(config).shares_keys:  # copies do not overlap with computation
        return parts["fork_s"] + computing + parts["memory_s"]
    return parts["fork_s"] + max(computing, parts["memory_s"])


def terms(problem: AttentionProblem, config: Config, size: Mapping[str, int], machine: Machine) -> dict[str, float]:
    """The terms of `cost` in seconds: `fork`, computation (`products`, `weights`, `copies`), and `memory`."""
    size = problem.layout.mean(size) if problem.layout is not None else size
    products, moved = work(problem, size)
    heads, threads = size["D"] + size["Dv"], int(config["threads"])
    lanes, cycle = machine.vector_bytes // 4, machine.cycle()
    schedule, pairs = schedule_of(config), 2 if config.get("pairs") else 1
    weights = products / max(1, heads) * (BACKWARD_WEIGHTS if schedule.derivative else 1.0)
    products *= BACKWARD_PRODUCTS if schedule.derivative else 1.0
    copied, busy = _shares(config, size, threads)
    rate = machine.gflops / 2 * 1e9 * (SPLIT_SHARE if schedule.shares_keys else FLASH_SHARE) * pairs
    return {
        "fork_s": machine.fork_seconds if threads > 1 else 0.0,
        "products_s": products / (rate * busy),
        "weights_s": weights / lanes * WEIGHT_CYCLES * cycle / busy,
        "copies_s": copied / pairs / lanes * COPY_CYCLES * cycle / busy,
        "memory_s": moved / machine.bandwidth(int(moved), threads),
    }


def _shares(config: Config, size: Mapping[str, int], threads: int) -> tuple[float, float]:
    """Numbers that are copied before they are multiplied, and how many threads are busy on average."""
    schedule, heads = schedule_of(config), size["D"] + size["Dv"]
    rows, items = size["Hq"] // max(1, size["Hkv"]) * size["Mq"], size["B"] * size["Hkv"]
    if schedule.shares_keys:
        return 0.0, threads
    if schedule.derivative:
        blocks = -(-size["Mkv"] // int(config["keys"]))
        units = items * max(1, min(-(-FEWEST_UNITS // max(1, items)), blocks))
        return 1.5 * items * size["Mkv"] * heads + units * rows * heads, _busy(units, threads)
    units = items * max(1, -(-rows * heads * 4 // UNIT_BYTES))
    return units * size["Mkv"] * heads, _busy(units, threads) if rows < 64 * threads else threads


def _busy(units: int, threads: int) -> float:
    """Threads that are busy on average where `units` of work are too few to even out."""
    return units / -(-units // threads) if 0 < units < 4 * threads else threads
