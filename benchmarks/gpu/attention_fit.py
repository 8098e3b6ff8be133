"""`python -m benchmarks.gpu.attention_fit gpu_attention.json`: STEPS of cost/triton_attention.py from measured kernels.

For each block, the share of the peak and the latency of a step that bring predictions nearest to the times of its kernels whose
keys are not split; then how long the prior's first choices take beside the best of each cell.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.command import Command
from benchmarks.gpu.attention_kernels import Cell, regret
from polytile.attention.triton.configs import Row, head_block, label, row_of, space, valid
from polytile.cost import triton_attention as prior
from polytile.runtime.cuda.device import DeviceFacts, named

SHARES = [0.02 * 1.04**k for k in range(100)]
LATENCIES = [0.2e-6 * 1.08**k for k in range(60)]

Block = tuple[int, int, Row]
"""Bytes of an element, head size, row."""


def samples(rows: list[dict[str, Any]], device: DeviceFacts) -> dict[Block, list[tuple[Any, Any, Any, float]]]:
    """Block → (problem, config, sizes, seconds) of each kernel that was measured with it."""
    found = defaultdict(list)
    for row in rows:
        cell = Cell(**row["cell"])
        for config in space(cell.problem, device):
            name = label(config)
            if config["variant"] == "flash" and name in row["us"] and valid(cell.problem, config, cell.size):
                block = cell.problem.dtype.itemsize, head_block(cell.size), row_of(config)
                found[block].append((cell.problem, config, cell.size, row["us"][name] * 1e-6))
    return found


def fit(block: Block, measured: list[tuple[Any, Any, Any, float]], device: DeviceFacts) -> float:
    """Puts the best numbers of `block` into STEPS. Returns the root mean square of the logarithms of its errors."""
    itemsize, head, row = block
    known = prior.STEPS.setdefault((itemsize, head), {})

    def error(share: float, latency: float) -> float:
        known[row] = share, latency
        off = [math.log(prior.cost(problem, config, size, device) / took) for problem, config, size, took in measured]
        return math.sqrt(statistics.mean(each**2 for each in off))

    share, latency = 0.3, 1e-6
    for _ in range(3):
        share = min(SHARES, key=lambda each: error(each, latency))
        latency = min(LATENCIES, key=lambda each: error(share, each))
    return error(share, latency)


def main() -> None:
    parser = Command(__doc__)
    parser.add_argument("results", type=Path, help="what benchmarks.gpu.attention_kernels wrote")
    found = record.read(parser.parsed().results)
    device = named(found["device"])
    for block, measured in sorted(samples(found["rows"], device).items()):
        off = fit(block, measured, device)
        share, latency = prior.STEPS[block[:2]][block[2]]
        print(f"{block[:2]}: {block[2]}: ({share:.3f}, {latency * 1e6:.2g}e-6)   {len(measured)} kernels, rms of log {off:.2f}")
    ratios = []
    for row in found["rows"]:
        cell = Cell(**row["cell"])
        configs = {label(config): config for config in space(cell.problem, device) if label(config) in row["us"]}
        costs = {name: prior.cost(cell.problem, config, cell.size, device) for name, config in configs.items()}
        if costs:
            us = {name: row["us"][name] for name in costs}
            ratios.append(regret({"us": us, "predicted_us": costs}))
    print(f"first choice {statistics.geometric_mean(ratios):.3f} of the best, worst {max(ratios):.3f}, {len(ratios)} cells")


if __name__ == "__main__":
    main()
