"""`python -m benchmarks.gpu.attention_dropout [--lengths 256 ...] [--head 64] [--seconds 200]`: training attention with dropout.

nanoGPT's attention without a fused kernel: product, scale, causal mask, softmax, dropout, product; forward and backward, bf16.
Contestants take turns: `eager`, `polytile` (one dynamic compile for all lengths), `library` (the same by the option
attention_dropout="library"), `peer` (its dynamic compile), and `fused`: scaled_dot_product_attention with dropout, which draws
other random numbers. Prints the microseconds of whole steps, the most
memory that a step takes beside its operands, and errors against float64 with eager's mask. The time until a step returns, the
device idle before, is recorded as the host's. `--profile 512` adds the functions in which the host spends it, by Python's
profiler, which takes time of its own. `--first 512` adds the first steps of a function that waits for nothing, by either value of
the option attention_dropout. Writes OUT/gpu_attention_dropout.json, with the rows of an earlier file that `--beside` names.
"""

from __future__ import annotations

import cProfile
import functools
import itertools
import pstats
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import polytile
from benchmarks import record
from benchmarks.command import Command
from benchmarks.gpu.replay import wall_times
from polytile.compiler.programs import compiled_programs
from polytile.report import Table, show

BATCH, WIDTH, P = 8, 768, 0.1
LENGTHS = (256, 512, 1024, 2048)
CHECKED = 512
"""Longest length that is compared with float64."""
SETTLING = 40
"""The most calls before a length is timed."""
CONTESTANTS = ("eager", "polytile", "library", "peer", "fused")
OWN = CONTESTANTS[1:3]
CALLS = 100
"""Steps of which the host's time is taken, or whose functions are listed."""
LISTED = 25
"""Functions of a profile that are listed."""
FIRST_SECONDS = 12.0
"""How long the first steps are timed."""


class Attention(nn.Module):
    """nanoGPT's, of WIDTH numbers a token in heads of `head`. It is a module since Dynamo takes a module's numbers as constants,
    and those of other objects as sizes that may change."""

    def __init__(self, head: int) -> None:
        super().__init__()
        self.head = head

    def heads(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """q, k and v (batch, heads, length, head) in what a model's projection gives: (batch, length, 3 · WIDTH)."""
        return tuple(each.transpose(1, 2) for each in tokens.unflatten(-1, (3, WIDTH // self.head, self.head)).unbind(2))

    def attend(self, tokens: Tensor) -> Tensor:
        q, k, v = self.heads(tokens)
        seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        scores = (q @ k.transpose(-2, -1) * self.head**-0.5).masked_fill(~seen, -torch.inf)
        return (F.dropout(torch.softmax(scores, dim=-1), P) @ v).transpose(1, 2).flatten(2)

    def fused(self, tokens: Tensor) -> Tensor:
        q, k, v = self.heads(tokens)
        return F.scaled_dot_product_attention(q, k, v, dropout_p=P, is_causal=True).transpose(1, 2).flatten(2)

    def exact(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """With a mask that has been drawn."""
        q, k, v = self.heads(tokens)
        scores = q @ k.transpose(-2, -1) * self.head**-0.5
        scores = scores.masked_fill(~torch.ones_like(scores[0, 0], dtype=torch.bool).tril(), -torch.inf)
        return (torch.softmax(scores, dim=-1) * mask / (1 - P) @ v).transpose(1, 2).flatten(2)

    def compiled(self, dropout: str = "fused", stall: str = "tune") -> Callable[..., Tensor]:
        """By one value of the option attention_dropout."""
        options: dict[str, Any] = {"persist": False, "stall": stall, "attention_dropout": dropout}

        def function(tokens: Tensor) -> Tensor:
            return self.attend(tokens)

        return torch.compile(function, backend="polytile", dynamic=True, fullgraph=True, options=options)

    def contestants(self) -> dict[str, Callable[..., Tensor]]:
        peer = torch.compile(self.attend, dynamic=True, fullgraph=True)
        own = self.compiled(), self.compiled("library")
        return dict(zip(CONTESTANTS, (self.attend, *own, peer, self.fused), strict=True))


def step(function: Callable[..., Tensor], tokens: Tensor, grad: Tensor) -> list[Tensor]:
    """The result, and the gradients of q, k and v."""
    out = function(tokens)
    return [out, *torch.autograd.grad(out, tokens, grad)[0].unflatten(-1, (3, -1)).unbind(2)]


def operands(length: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(length)
    tokens, grad = (torch.randn(BATCH, length, n * WIDTH, device="cuda", dtype=torch.bfloat16) for n in (3, 1))
    return tokens.requires_grad_(), grad


def settle(run: Callable[[], Any]) -> None:
    """Calls until nothing is measured any more."""
    for _ in range(SETTLING):
        before = polytile.counters["candidates_benchmarked"]
        run()
        polytile.wait()
        if polytile.counters["candidates_benchmarked"] == before:
            return


def most_memory(run: Callable[[], Any]) -> int:
    """Bytes that are allocated at most during a call, beside those before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def host_time(run: Callable[[], Any]) -> float:
    """Microseconds until a call returns that begins when the device is idle: the median."""
    taken = []
    for _ in range(CALLS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        run()
        taken.append((time.perf_counter() - began) * 1e6)
    return statistics.median(taken)


def profile(run: Callable[[], Any]) -> list[dict[str, Any]]:
    """The functions in which the host spends most of its time during a call: calls and microseconds of its own, per call."""
    with cProfile.Profile() as profiler:
        for _ in range(CALLS):
            run()
    torch.cuda.synchronize()
    found = [
        {"function": f"{file.rpartition('site-packages/')[2]}:{line} {name}", "calls": calls / CALLS, "us": own * 1e6 / CALLS}
        for (file, line, name), (_, calls, own, _, _) in pstats.Stats(profiler).stats.items()  # type: ignore[attr-defined]
    ]
    return sorted(found, key=lambda each: -each["us"])[:LISTED]


def first_steps(attention: Attention, length: int) -> dict[str, dict[str, Any]]:
    """Of a new function by either option, without waiting: milliseconds of its first steps, and steps in FIRST_SECONDS."""
    tokens, grad = operands(length)
    found = {}
    for choice in ("library", "fused"):
        torch._dynamo.reset()
        polytile.reset()
        run = functools.partial(step, attention.compiled(choice, "never"), tokens, grad)
        taken, until = [], time.perf_counter() + FIRST_SECONDS
        while (began := time.perf_counter()) < until:
            run()
            torch.cuda.synchronize()
            taken.append(round((time.perf_counter() - began) * 1e3, 3))
        passed = list(itertools.accumulate(taken))
        longest = sorted(range(len(taken)), key=lambda k: -taken[k])[:10]
        found[choice] = {
            "steps": len(taken), "first": taken[0], "last": statistics.median(taken[-50:]),
            "longest": {round(passed[k]): taken[k] for k in longest},
        }  # fmt: skip
        polytile.wait()
    return found


def errors(attention: Attention, calls: Mapping[str, Callable[..., Tensor]], length: int) -> dict[str, list[float]]:
    """The largest error of the result and of each gradient, relative to the largest value, on one seed."""
    tokens, grad = operands(length)
    torch.manual_seed(1)
    weights = torch.ones(BATCH, WIDTH // attention.head, length, length, device="cuda", dtype=torch.bfloat16)
    mask = torch.native_dropout(weights, P, True)[1]
    right = step(functools.partial(attention.exact, mask=mask), tokens.detach().double().requires_grad_(), grad.double())
    found = {}
    for name in ("eager", "polytile"):
        torch.manual_seed(1)
        mine = step(calls[name], tokens, grad)
        found[name] = [(m.double() - r).abs().max().div(r.abs().max()).item() for m, r in zip(mine, right, strict=True)]
    return found


def measured(
    attention: Attention, calls: Mapping[str, Callable[..., Tensor]], length: int, profiled: bool = False
) -> dict[str, Any]:
    """The row of a length."""
    tokens, grad = operands(length)
    bound = {name: functools.partial(step, call, tokens, grad) for name, call in calls.items()}
    first = {}
    for name, run in bound.items():
        began = time.perf_counter()
        run()
        torch.cuda.synchronize()
        first[name] = round(time.perf_counter() - began, 3)
    for name in OWN:
        settle(bound[name])
    row: dict[str, Any] = {"length": length, "head": attention.head, "us": wall_times(bound), "first_s": first}
    row["host_us"] = {name: host_time(run) for name, run in bound.items()}
    row["memory"] = {name: most_memory(run) for name, run in bound.items()}
    row["errors"] = errors(attention, calls, length) if length <= CHECKED else {}
    if profiled:
        row["profile"] = profile(bound["polytile"])
    text = str(polytile.explain(calls["polytile"], tokens))
    row["chosen"] = [line.strip() for line in text.splitlines() if "attention" in line]
    kernels = [kernel for program in compiled_programs() for kernel, _ in program.calls]
    row["rejected"] = {name: why for kernel in kernels for name, why in kernel.faulty.items()}
    return row


def report(found: Mapping[str, Any]) -> None:
    columns = ["length", "head", *(f"{name} µs" for name in CONTESTANTS), "× eager", "× peer"]
    columns += [f"{name} MB" for name in CONTESTANTS]
    body = []
    for row in found["rows"]:
        us, bytes_of = row["us"], row["memory"]
        times = (f"{us[name]:.0f}" if name in us else "–" for name in CONTESTANTS)
        ratios = (f"{us[name] / us['polytile']:.2f}" for name in ("eager", "peer"))
        memory = (f"{bytes_of[name] / 2**20:.0f}" if name in bytes_of else "–" for name in CONTESTANTS)
        body.append((row["length"], row["head"], *times, *ratios, *memory))
    show(Table.from_rows("training attention with dropout, forward and backward", columns, body))


def main() -> None:
    parser = Command(__doc__, "gpu_attention_dropout", report, gpu=True)
    parser.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS))
    parser.add_argument("--head", type=int, default=64, help="numbers of a head, of WIDTH in all")
    parser.add_argument("--seconds", type=float, default=200, help="when no new length is begun")
    parser.add_argument("--profile", nargs="*", type=int, default=[], help="lengths at which the host is profiled")
    parser.add_argument("--first", nargs="*", type=int, default=[], help="lengths whose first steps are timed")
    parser.add_argument("--beside", type=Path, help="a result file whose other rows are kept")
    given = parser.parsed()
    began, attention = time.monotonic(), Attention(given.head)
    calls = attention.contestants()
    rows = record.read(given.beside)["rows"] if given.beside is not None else []
    rows = [row for row in rows if (row["length"], row["head"]) not in {(length, given.head) for length in given.lengths}]
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "batch": BATCH, "width": WIDTH, "p": P, "rows": rows}
    for length in given.lengths:
        if time.monotonic() - began > given.seconds:
            break
        rows.append(measured(attention, calls, length, length in given.profile))
        print(rows[-1], flush=True)
        record.write("gpu_attention_dropout", found, given.out)
    if given.first:
        found["first"] = {length: first_steps(attention, length) for length in given.first}
        print(found["first"], flush=True)
        record.write("gpu_attention_dropout", found, given.out)
    report(found)


if __name__ == "__main__":
    main()
