"""`python -m benchmarks.gpu.attention_scores [--quick] [--output FILE]`: scores and masks computed inside attention kernels.

Each case is a score_mod and a mask_mod of positions. Contestants take turns: `polytile` (one dynamic compile for all sizes),
`dense` (scaled_dot_product_attention with the mask or bias as a tensor, its making included), `made` (with the tensor made
before), `causal` (scaled_dot_product_attention with its own causal mask), and `flex`, the peer's flex_attention compiled for
each size in a process of its own. `error` is the largest difference from float64, `dense_error` that of
scaled_dot_product_attention. Prints one line of JSON a row.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

import polytile
from benchmarks.timing import compare

Function = Callable[..., Tensor]
SIZES = ((4, 1024), (2, 2048), (1, 4096), (2, 1531))
"""Batches and lengths; heads are HEADS, of WIDTH, those of keys GROUPS."""
HEADS, GROUPS, WIDTH = 16, 16, 128
WARM_SECONDS = 60.0


@dataclass(frozen=True)
class Case:
    """`score` and `mask` of flex_attention, None for none, of what `captured` makes for a batch and a length."""

    name: str
    score: Callable[..., Function] | None = None
    mask: Callable[..., Function] | None = None
    captured: Callable[[int, int], tuple[Tensor, ...]] = lambda batch, length: ()


def _window(*_: Tensor) -> Function:
    return lambda b, h, m, n: (m >= n) & (m - n < 256)


def _causal(*_: Tensor) -> Function:
    return lambda b, h, m, n: m >= n


def _prefix(*_: Tensor) -> Function:
    return lambda b, h, m, n: (m >= n) | (n < 200)


def _padding(lengths: Tensor) -> Function:
    return lambda b, h, m, n: (n < lengths[b]) & (m >= n)


def _documents(ids: Tensor) -> Function:
    return lambda b, h, m, n: (ids[m] == ids[n]) & (m >= n)


def _soft_cap(*_: Tensor) -> Function:
    return lambda score, b, h, m, n: 20 * torch.tanh(score / 20)


def _alibi(slopes: Tensor) -> Function:
    return lambda score, b, h, m, n: score + slopes[h] * (n - m)


def _relative(table: Tensor) -> Function:
    return lambda score, b, h, m, n: score + table[h, m - n + 4096]


def _lengths(batch: int, length: int) -> tuple[Tensor, ...]:
    return (torch.linspace(length // 2, length, batch, device="cuda").to(torch.int64),)


def _ids(batch: int, length: int) -> tuple[Tensor, ...]:
    return (torch.arange(length, device="cuda") // 300,)


CASES = (
    Case("sliding window", mask=_window),
    Case("prefix", mask=_prefix),
    Case("causal and lengths", mask=_padding, captured=_lengths),
    Case("documents", mask=_documents, captured=_ids),
    Case("soft cap, causal", _soft_cap, _causal),
    Case("ALiBi", _alibi, captured=lambda b, n: (torch.rand(HEADS, device="cuda"),)),
    Case("relative table", _relative, captured=lambda b, n: (torch.randn(HEADS, 8193, device="cuda"),)),
)


def operands(batch: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(length)
    q, k, v = (torch.randn(batch, h, length, WIDTH, device="cuda", dtype=torch.bfloat16) for h in (HEADS, GROUPS, GROUPS))
    return q, k, v


def functions(case: Case, captured: tuple[Tensor, ...]) -> tuple[Function | None, Function | None]:
    return (case.score(*captured) if case.score else None), (case.mask(*captured) if case.mask else None)


def attend(case: Case, q: Tensor, k: Tensor, v: Tensor, *captured: Tensor) -> Tensor:
    """The case as a program that polytile compiles: flex_attention with its mask_mod alone."""
    score, mask = functions(case, captured)
    # `is not None`: torch 2.11 ends the graph where a function that it traces is asked for its truth
    block = create_block_mask(mask, None, None, q.shape[2], k.shape[2], device="cuda") if mask is not None else None
    return flex_attention(q, k, v, score_mod=score, block_mask=block, enable_gqa=HEADS != GROUPS)


def dense_scores(case: Case, scores: Tensor, captured: tuple[Tensor, ...]) -> Tensor:
    """The scores by the definition."""
    score, mask = functions(case, captured)
    places = [torch.arange(n, device="cuda").view(-1, *[1] * (3 - d)) for d, n in enumerate(scores.shape)]
    changed = score(scores, *places) if score else scores
    return torch.where(mask(*places), changed, -float("inf")) if mask else changed


def dense_bias(case: Case, q: Tensor, captured: tuple[Tensor, ...]) -> Tensor | None:
    """What is added to the scores, in q's type; None where the case is more than an addition."""
    if case.score is _soft_cap:
        return None
    shape = (q.shape[0], q.shape[1] if case.score else 1, q.shape[2], q.shape[2])
    return dense_scores(case, torch.zeros(shape, device="cuda"), captured).to(q.dtype).expand(-1, q.shape[1], -1, -1)


def right(case: Case, q: Tensor, k: Tensor, v: Tensor, captured: tuple[Tensor, ...]) -> Tensor:
    """The result in float64, one batch and four heads at a time where no head is named."""
    out = torch.empty(q.shape, dtype=torch.float64, device="cuda")
    for b in range(q.shape[0]):
        products = q[b : b + 1].double() @ k[b : b + 1].double().transpose(2, 3) * WIDTH**-0.5
        own = tuple(t[b : b + 1] if case.captured is _lengths else t for t in captured)
        out[b : b + 1] = torch.softmax(dense_scores(case, products, own), -1) @ v[b : b + 1].double()
    return out


def row(case: Case, call: Any, batch: int, length: int) -> dict[str, Any]:
    """One case at one size."""
    q, k, v = operands(batch, length)
    captured = case.captured(batch, length)
    began = time.perf_counter()
    out = call(q, k, v, *captured)
    torch.cuda.synchronize()
    first = time.perf_counter() - began
    polytile.wait()
    end = time.perf_counter() + WARM_SECONDS
    while time.perf_counter() < end and time.perf_counter() - began < 4:
        out = call(q, k, v, *captured)
        torch.cuda.synchronize()
    wanted = right(case, q, k, v, captured)
    contestants: dict[str, Callable[[], Any]] = {"polytile": lambda: call(q, k, v, *captured)}
    found = {"case": case.name, "batch": batch, "length": length, "first_s": first}
    found["error"] = (out.double() - wanted).abs().max().item()
    bias = dense_bias(case, q, captured)
    if bias is not None:
        other = scaled_dot_product_attention(q, k, v, attn_mask=bias)
        found["dense_error"] = (other.double() - wanted).abs().max().item()
        contestants["dense"] = lambda: scaled_dot_product_attention(q, k, v, attn_mask=dense_bias(case, q, captured))
        contestants["made"] = lambda: scaled_dot_product_attention(q, k, v, attn_mask=bias)
    contestants["causal"] = lambda: scaled_dot_product_attention(q, k, v, is_causal=True)
    found["us"] = microseconds(contestants)
    return found


def microseconds(contestants: dict[str, Callable[[], Any]]) -> dict[str, float]:
    return {name: round(timing.median * 1e6, 2) for name, timing in compare(contestants).timings.items()}


def ours(quick: bool) -> list[dict[str, Any]]:
    rows = []
    for case in CASES:
        torch._dynamo.reset()
        before = torch._dynamo.utils.counters["stats"]["unique_graphs"]

        def program(q: Tensor, k: Tensor, v: Tensor, *captured: Tensor, case: Case = case) -> Tensor:
            return attend(case, q, k, v, *captured)

        call = torch.compile(program, backend="polytile", dynamic=True, options={"persist": False, "stall": "tune"})
        with torch.no_grad():
            for batch, length in SIZES[: 2 if quick else None]:
                made = row(case, call, batch, length)
                made["graphs"] = torch._dynamo.utils.counters["stats"]["unique_graphs"] - before
                text = str(polytile.explain(call, *operands(batch, length), *case.captured(batch, length)))
                made["chosen"] = [line.strip() for line in text.splitlines() if "attention_" in line][:2]
                rows.append(made)
                print(json.dumps(made), flush=True)
    return rows


def peer() -> None:
    """The peer's flex_attention, compiled for each size, in this process: microseconds a case and size as JSON lines."""
    compiled = torch.compile(flex_attention, dynamic=False)
    for case in CASES:
        for batch, length in SIZES:
            try:
                made = _of_peer(case, compiled, batch, length)
            except Exception as why:  # whatever the peer cannot do is a row too
                made = {"failed": f"{type(why).__name__}: {why}"[:300]}
            print(json.dumps({"case": case.name, "batch": batch, "length": length, **made}), flush=True)


def _of_peer(case: Case, compiled: Any, batch: int, length: int) -> dict[str, Any]:
    q, k, v = operands(batch, length)
    captured = case.captured(batch, length)
    score, mask = functions(case, captured)
    torch._dynamo.reset()
    blocks = batch if captured else None
    block = create_block_mask(mask, blocks, None, length, length, device="cuda") if mask else None
    began = time.perf_counter()
    out = compiled(q, k, v, score_mod=score, block_mask=block)
    torch.cuda.synchronize()
    first = time.perf_counter() - began
    error = (out.double() - right(case, q, k, v, captured)).abs().max().item()
    times = microseconds({"flex": lambda: compiled(q, k, v, score_mod=score, block_mask=block)})
    return {"us": times, "first_s": first, "error": error}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    if given.peer:
        with torch.no_grad():
            peer()
        return
    rows = ours(given.quick)
    lines: list[str] = []
    try:
        asked = [sys.executable, "-m", "benchmarks.gpu.attention_scores", "--peer"]
        lines = subprocess.run(asked, capture_output=True, text=True, timeout=240, check=False).stdout.splitlines()
    except subprocess.TimeoutExpired as late:
        held = late.stdout or b""
        lines = (held if isinstance(held, str) else held.decode()).splitlines()
    others = [json.loads(line) for line in lines if line.startswith("{")]
    for each in others:
        print(json.dumps({"peer": each}), flush=True)
    if given.output:
        given.output.write_text(json.dumps({"rows": rows, "peer": others, "torch": torch.__version__}, indent=1) + "\n")


if __name__ == "__main__":
    main()
