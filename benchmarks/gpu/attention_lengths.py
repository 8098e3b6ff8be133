"""`python -m benchmarks.gpu.attention_lengths [--calls 200] [--seconds 200]`: attention at a new length in each call.

A fresh process for each contestant calls attention at so many lengths that differ, forward and backward, each once: `default` is
scaled_dot_product_attention as PyTorch chooses its kernels, `flash` the same with FlashAttention forced, `polytile` one dynamic
compile, which has been called at other lengths of the same regimes before (`--cold`: which has been called never). Then it calls
each length again. Wall times are those of whole calls until the device has ended; the host's are those until a call returns, the
device idle before. What a new length costs is the difference between its first call and a later one. Writes
OUT/gpu_attention_lengths.json.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import polytile
from benchmarks import record
from benchmarks.command import Command
from benchmarks.contestants import OWN, Processes
from benchmarks.timing import quantile
from polytile.report import Table, show

SUITE, CONTESTANT = "gpu_attention_lengths", "benchmarks.gpu.attention_lengths:contestant"
BATCH, HEADS, HEAD = 4, 16, 128
SHORTEST, LONGEST = 512, 2048
DEFAULT, FLASH, COLD = "default", "flash", "polytile, cold"
CONTESTANTS = (DEFAULT, FLASH, OWN, COLD)
WARM_LENGTHS = 24
"""Lengths at which polytile is called before, none of which is measured; one in three is a multiple of 128."""
GRACE = 30.0
"""Seconds beyond its share after which a process is ended."""

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return attend(q, k, v)


def lengths_of(calls: int, seed: int = 0) -> list[int]:
    """Lengths that differ, in a random order."""
    return random.Random(seed).sample(range(SHORTEST, LONGEST + 1), calls)


def step(function: Attend, operands: Sequence[Tensor], grad: Tensor) -> None:
    torch.autograd.grad(function(*operands), list(operands), grad)


def warm(function: Attend, measured: Sequence[int], until: float) -> None:
    """Calls at lengths that are not measured, until nothing is left to be decided or the time is over."""
    others = [n for n in range(SHORTEST, LONGEST + 1) if n not in set(measured)]
    tiles = [n for n in others if n % 128 == 0]
    chosen = random.Random(1).sample(others, WARM_LENGTHS) + tiles[: WARM_LENGTHS // 3]
    for _ in range(3):
        for length in chosen:
            step(function, *operands_of(length))
            if time.perf_counter() > until:
                return
        polytile.wait()


def operands_of(length: int) -> tuple[list[Tensor], Tensor]:
    shape = BATCH, HEADS, length, HEAD
    *given, grad = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    return [each.requires_grad_() for each in given], grad


def timed(function: Attend, operands: Sequence[Tensor], grad: Tensor) -> tuple[float, float]:
    """Milliseconds of a step on the host, and until the device has ended."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    step(function, operands, grad)
    returned = time.perf_counter()
    torch.cuda.synchronize()
    return (returned - began) * 1e3, (time.perf_counter() - began) * 1e3


def contestant(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Of {"who", "calls", "seconds"}, in a process of its own: the times of first and of later calls at each length."""
    who, began, seconds = asked["who"], time.perf_counter(), asked["seconds"]
    lengths = lengths_of(asked["calls"])
    functions: dict[str, Attend] = {DEFAULT: attend, FLASH: flash}
    function = functions.get(who) or torch.compile(attend, backend="polytile", dynamic=True, fullgraph=True)
    step(attend, *operands_of(64))  # loads the libraries
    if who == OWN:
        warm(function, lengths, began + seconds / 2)
    first, later = [], []
    for length in lengths:
        if time.perf_counter() > began + seconds:
            break
        first.append((length, *timed(function, *operands_of(length))))
    for length, *_ in first:
        given = operands_of(length)
        later.append(tuple(map(statistics.median, zip(*(timed(function, *given) for _ in range(5)), strict=True))))
    return {"first": first, "later": later}


def summary(found: Mapping[str, Any]) -> dict[str, float]:
    """Milliseconds of a first and of a later call, and what the host takes more for a first one than for a later one."""
    more = [host - again for (_, host, _), (again, _) in zip(found["first"], found["later"], strict=True)]
    return {
        "calls": len(more), "first": statistics.mean(wall for *_, wall in found["first"]),
        "later": statistics.mean(wall for _, wall in found["later"]),
        "more_median": quantile(more, 0.5), "more_90": quantile(more, 0.9), "more_most": max(more),
    }  # fmt: skip


def report(found: Mapping[str, Any]) -> None:
    columns = ["contestant", "lengths", "first call, ms", "later call, ms", "more on the host, ms", "90 %", "most"]
    body = []
    for who, one in found["contestants"].items():
        if not one.get("first"):  # an error, or the time was over while choosing
            body.append((who, *["–"] * 5, one.get("error", "no time was left")[:60]))
            continue
        s = summary(one)
        more = (f"{s[name]:.2f}" for name in ("more_median", "more_90", "more_most"))
        body.append((who, int(s["calls"]), f"{s['first']:.2f}", f"{s['later']:.2f}", *more))
    title = f"attention at a new length in each call, {found['batch']} × {found['heads']} heads of {found['head']}"
    show(Table.from_rows(title, columns, body))


def main() -> None:
    parser = Command(__doc__, SUITE, report, gpu=True)
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--contestants", nargs="+", default=list(CONTESTANTS), choices=CONTESTANTS)
    parser.add_argument("--seconds", type=float, default=200, help="for all contestants; each has an equal share")
    given = parser.parsed()
    found: dict[str, Any] = {"batch": BATCH, "heads": HEADS, "head": HEAD, "device": torch.cuda.get_device_name()}
    found["contestants"] = {}
    share = given.seconds / len(given.contestants)
    for who in given.contestants:
        asked = {"who": who, "calls": given.calls, "seconds": share * 0.6}
        found["contestants"][who] = Processes().run(CONTESTANT, asked, share + GRACE)
        record.write(SUITE, found, given.out)
    report(found)


if __name__ == "__main__":
    main()
