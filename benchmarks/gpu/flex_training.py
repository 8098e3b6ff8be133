"""`python -m benchmarks.gpu.flex_training [--quick] [--output FILE]`: flex_attention forward and backward.

The cases are those of benchmarks.gpu.attention_scores. Contestants: `polytile`, one dynamic compile for all sizes; `causal`,
eager scaled_dot_product_attention with its causal mask; and `flex`, the peer's flex_attention compiled for each size in a process
of its own. `error` is the largest difference of a gradient from float64. Prints one line of JSON a row.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

import polytile
from benchmarks.gpu.attention_scores import CASES, Case, attend, dense_scores, functions, microseconds, operands

NAMES = ("sliding window", "documents", "soft cap, causal", "ALiBi")
SIZES = ((4, 1024), (2, 2048), (1, 4096), (2, 1531))
Step = Callable[[], tuple[Tensor, ...]]


def step_of(call: Callable[..., Tensor], *given: Tensor) -> Step:
    """Forward and backward of `call` on q, k, v and what is captured."""
    leaves = [each.detach().requires_grad_() for each in given[:3]]
    grad = torch.ones_like(leaves[0])
    return lambda: torch.autograd.grad(call(*leaves, *given[3:]), leaves, grad)


def right(case: Case, q: Tensor, k: Tensor, v: Tensor, *captured: Tensor) -> Tensor:
    scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5
    return torch.softmax(dense_scores(case, scores, captured), -1) @ v


def error_of(case: Case, step: Step, batch: int, length: int) -> float | None:
    """The largest difference of a gradient from float64; None where the scores would take too much memory."""
    if batch * length * length > 1 << 23:
        return None
    wide = [each.double() for each in operands(batch, length)]
    wanted = step_of(lambda *given: right(case, *given), *wide, *case.captured(batch, length))()
    return max((one.double() - other).abs().max().item() for one, other in zip(step(), wanted, strict=True))


def row(case: Case, call: Callable[..., Tensor], batch: int, length: int, name: str) -> dict[str, Any]:
    """The times of one case at one size."""
    given = operands(batch, length)
    step = step_of(call, *given, *case.captured(batch, length))
    began = time.perf_counter()
    step()
    torch.cuda.synchronize()
    first = time.perf_counter() - began
    polytile.wait()
    contestants = {name: step}
    if name == "polytile":
        contestants["causal"] = step_of(lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True), *given)
    error = error_of(case, step, batch, length)
    torch.cuda.reset_peak_memory_stats()
    step()
    found = {"case": case.name, "batch": batch, "length": length, "first_s": round(first, 2), "error": error}
    return {**found, "peak_mib": torch.cuda.max_memory_allocated() >> 20, "us": microseconds(contestants)}


def of_polytile(case: Case) -> Callable[..., Tensor]:
    def program(q: Tensor, k: Tensor, v: Tensor, *captured: Tensor) -> Tensor:
        return attend(case, q, k, v, *captured)

    return torch.compile(program, backend="polytile", dynamic=True, options={"persist": False, "stall": "tune"})


def of_peer(case: Case, batch: int, length: int) -> Callable[..., Tensor]:
    captured = case.captured(batch, length)
    score, mask = functions(case, captured)
    block = create_block_mask(mask, batch if captured else None, None, length, length, device="cuda") if mask else None
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda q, k, v, *_: compiled(q, k, v, score_mod=score, block_mask=block)


def measured(sizes: tuple[tuple[int, int], ...], name: str) -> list[dict[str, Any]]:
    rows = []
    for case in (case for case in CASES if case.name in NAMES):
        torch._dynamo.reset()
        call = of_polytile(case) if name == "polytile" else None
        for batch, length in sizes:
            try:
                made = row(case, call if call is not None else of_peer(case, batch, length), batch, length, name)
            except Exception as why:  # whatever a contestant cannot do is a row too
                made = {"case": case.name, "batch": batch, "length": length, "failed": f"{type(why).__name__}: {why}"[:300]}
            rows.append(made)
            print(json.dumps(made), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    sizes = SIZES[: 2 if given.quick else None]
    rows = measured(sizes, "flex" if given.peer else "polytile")
    if given.peer:
        return
    asked = [sys.executable, "-m", "benchmarks.gpu.flex_training", "--peer", *(["--quick"] if given.quick else [])]
    lines = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.splitlines()
    others = [json.loads(line) for line in lines if line.startswith("{")]
    for each in others:
        print(json.dumps({"peer": each}), flush=True)
    if given.output:
        given.output.write_text(json.dumps({"rows": rows, "peer": others, "torch": torch.__version__}, indent=1) + "\n")


if __name__ == "__main__":
    main()
