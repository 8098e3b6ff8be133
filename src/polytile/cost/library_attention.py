"""Predicted time of the library's attention kernels: a roofline with a share of the peak for each.

    t = launches + |multiply-adds / (rate · share · used), bytes / bandwidth|

`used` is the part of the multiprocessors that tiles of ROWS query rows keep busy. The shares come from measurements on an H200 at
1024 to 16384 rows in bfloat16. Known wrong: few rows take up to three times as long, and heads of 64 are 1.3 times as slow as
heads of 128.
"""

from __future__ import annotations

from collections.abc import Mapping

from polytile.attention.problem import AttentionProblem, Causal
from polytile.cost.roofline import PLAIN_FLOPS, tensor_flops
from polytile.runtime.cuda.device import DeviceFacts

SHARES = {"flash": 0.28, "cudnn": 0.54, "efficient": 0.14, "math": 0.3}
ROWS = 128
"""Query rows of a tile."""
PLAN_SECONDS = 0.08
"""Seconds that cuDNN takes to build the plan for new sizes: 48 to 110 ms on an H200."""
PASSES = 8
"""How often scores in memory are written and read: products, mask, maximum, exponentials, sums, quotients."""
BACKWARD = 2.5
"""Time of the backward pass relative to the forward pass: five tile products instead of two."""
CPU_RATE, CPU_BYTES, CPU_CALL = 30e9, 12e9, 10e-6
"""Multiply-adds per second and core, bytes per second, seconds per call."""


def work(problem: AttentionProblem, size: Mapping[str, int]) -> tuple[float, float]:
    """Multiply-adds of both products, and bytes of the operands and the result."""
    size = problem.layout.mean(size) if problem.layout is not None else size
    scores = size["B"] * size["Hq"] * size["Mq"] * size["Mkv"]
    seen = 0.5 if problem.causal is not Causal.NO and size["Mq"] > 1 else 1.0
    rows = size["B"] * size["Hq"] * size["Mq"] * (size["D"] + size["Dv"])
    keys = size["B"] * size["Hkv"] * size["Mkv"] * (size["D"] + size["Dv"])
    return seen * scores * (size["D"] + size["Dv"]), float((rows + keys) * problem.dtype.itemsize + bias_bytes(problem, size))


def bias_bytes(problem: AttentionProblem, size: Mapping[str, int]) -> int:
    """Bytes of the bias at these sizes; 0 without a bias."""
    if problem.bias is None:
        return 0
    count = problem.bias.dtype.itemsize
    for axis, name in zip("bhmn", ("B", "Hq", "Mq", "Mkv"), strict=True):
        count *= size[name] if axis in problem.bias.varies else 1
    return count


def gpu_cost(problem: AttentionProblem, kind: str, size: Mapping[str, int], device: DeviceFacts) -> float:
    """Predicted seconds of one call of a kernel in SHARES on a GPU. For cuDNN it is the first call, which builds the plan, so
    that only measurements choose it."""
    products, moved = work(problem, size)
    itemsize = problem.dtype.itemsize
    tensor = tensor_flops(device, itemsize, unknown=80) if itemsize < 4 or problem.tf32 else PLAIN_FLOPS
    size = problem.layout.mean(size) if problem.layout is not None else size
    blocks = size["B"] * size["Hq"] * -(-size["Mq"] // ROWS)
    used = min(1.0, max(1, blocks) / device.sms)
    copied = 2 * size["B"] * size["Hq"] * size["Mq"] * size["Dv"] * itemsize / device.bandwidth + device.launch_seconds
    seconds = max(2 * products / (tensor * device.sms * device.clock * SHARES[kind] * used), moved / device.bandwidth)
    if kind == "math":
        seconds += PASSES * 4 * size["B"] * size["Hq"] * size["Mq"] * size["Mkv"] / device.bandwidth + 6 * device.launch_seconds
    seconds *= BACKWARD if problem.backward else 1.0
    return 2 * device.launch_seconds + copied + seconds + (PLAN_SECONDS if kind == "cudnn" else 0.0)


def cpu_cost(problem: AttentionProblem, kind: str, size: Mapping[str, int], threads: int) -> float:
    """Predicted seconds of one call of "flash" or "math" on a CPU."""
    products, moved = work(problem, size)
    seconds = max(products / (CPU_RATE * threads), moved / (CPU_BYTES * min(threads, 4)))
    if kind == "math":
        seconds += PASSES * 4 * size["B"] * size["Hq"] * size["Mq"] * size["Mkv"] / (CPU_BYTES * min(threads, 4))
    return (BACKWARD if problem.backward else 1.0) * seconds + CPU_CALL
