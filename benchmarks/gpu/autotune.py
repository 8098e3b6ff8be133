"""`polytile.autotune` beside `triton.autotune`: seconds that calls at random sizes wait, the kernels' times, a call's host time.

    python -m benchmarks.gpu.autotune [--sizes 30]      measures, writes OUT/gpu_autotune.json
    python -m benchmarks.gpu.autotune --calls           only calls' host times; the other results of the committed file stay
    python -m benchmarks.gpu.autotune --show            only prints the table of the committed file

Two kernels, a product and a softmax, with the same configs. Each tuner has a process and empty caches of its own; polytile's runs
once more in a second process, which finds what the first has measured.

Host times are taken in one process, where groups of calls of each kind take turns. A call's time includes what the caller's own
function does, alike for all: it makes the arguments, and the grid. The product asks six tensors for their strides, the softmax
calls `triton.next_power_of_2`. The table has the whole call, and what is left of it without that.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
import triton.language as tl

import polytile
from benchmarks import record
from benchmarks.command import Command
from benchmarks.contestants import alone, own_caches
from polytile.report import Table, show

Launch = Callable[[], Any]

PRODUCTS = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP": 8}, num_warps=w, num_stages=s)
    for m, n, k, w, s in (
        (16, 64, 64, 4, 4), (32, 64, 64, 4, 4), (64, 32, 64, 4, 4), (64, 64, 32, 4, 4), (64, 64, 64, 4, 3),
        (64, 128, 32, 4, 4), (128, 64, 32, 4, 4), (128, 64, 64, 4, 3), (128, 128, 32, 4, 3), (128, 128, 64, 8, 3),
        (128, 256, 64, 8, 3), (256, 128, 64, 8, 3),
    )
]  # fmt: skip
ROWS = [triton.Config({}, num_warps=warps) for warps in (1, 2, 4, 8, 16)]


@triton.jit
def product_kernel(  # type: ignore[no-untyped-def]
    a, b, c, M, N, K, sam, sak, sbk, sbn, scm, scn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    rows, columns = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    first = pid // (GROUP * columns) * GROUP
    height = min(rows - first, GROUP)
    m = (first + pid % (GROUP * columns) % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (pid % (GROUP * columns) // height) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    left = a + (m % M)[:, None] * sam + k[None, :] * sak
    right = b + k[:, None] * sbk + (n % N)[None, :] * sbn
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for done in range(0, K, BLOCK_K):
        inside = k < K - done
        total = tl.dot(tl.load(left, inside[None, :], 0.0), tl.load(right, inside[:, None], 0.0), total)
        left += BLOCK_K * sak
        right += BLOCK_K * sbk
    at = c + m[:, None] * scm + n[None, :] * scn
    tl.store(at, total.to(c.dtype.element_ty), (m < M)[:, None] & (n < N)[None, :])


@triton.jit
def softmax_kernel(x, y, N, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * N + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < N
    row = tl.load(x + at, inside, -float("inf")).to(tl.float32)
    power = tl.exp(row - tl.max(row, 0))
    tl.store(y + at, power / tl.sum(power, 0), inside)


def product(kernel: Any, m: int, n: int, k: int) -> tuple[Launch, Callable[[], float], str]:
    a, b = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((m, k), (k, n)))
    c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)

    def grid(meta: dict[str, Any]) -> tuple[int]:
        return (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)

    def error() -> float:
        right = a.double() @ b.double()
        return float(((c.double() - right).abs().max() / right.square().mean().sqrt()).cpu())

    return lambda: kernel[grid](a, b, c, m, n, k, *a.stride(), *b.stride(), *c.stride()), error, f"{m}x{n}x{k}"


def softmax(kernel: Any, m: int, n: int, _: int) -> tuple[Launch, Callable[[], float], str]:
    x = torch.randn(m, n, device="cuda", dtype=torch.bfloat16)
    y = torch.empty_like(x)

    def error() -> float:
        return float((y.double() - x.double().softmax(-1)).abs().max().cpu())

    return lambda: kernel[(m,)](x, y, n, BLOCK=triton.next_power_of_2(n)), error, f"{m}x{n}"


CASES = {
    "product": (product_kernel, PRODUCTS, ["M", "N", "K"], product),
    "softmax": (softmax_kernel, ROWS, ["N"], softmax),
}


TUNERS: dict[str, Callable[..., Any]] = {"triton": triton.autotune, "polytile": polytile.autotune}


def median_us(launch: Launch) -> float:
    """The kernel's own time, by a graph of launches."""
    return 1e3 * float(triton.testing.do_bench_cudagraph(launch, rep=20, return_mode="median"))


def host_us(launches: dict[str, Launch], groups: int = 60, calls: int = 200) -> dict[str, float]:
    """Host time of a call by name: the least of groups that take turns, as what else the machine does adds up to half for tens of
    milliseconds."""
    best = dict.fromkeys(launches, float("inf"))
    for _ in range(groups):
        for name, launch in launches.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(calls):
                launch()
            best[name] = min(best[name], 1e6 * (time.perf_counter() - begin) / calls)
    torch.cuda.synchronize()
    return best


def calls() -> dict[str, dict[str, float]]:
    """Host times of calls on a hit, by kernel: of both tuners, of the bare kernel, and of the caller's own."""
    found = {}
    for name, (function, configs, key, case) in CASES.items():
        tuners = {tuner: decorate(configs=configs, key=key)(function) for tuner, decorate in TUNERS.items()}
        launches = {tuner: case(kernel, 64, 64, 64)[0] for tuner, kernel in tuners.items()}
        for _ in range(3):
            for launch in launches.values():
                launch()
        chosen = tuners["triton"].best_config
        launches["bare"] = case(Bare(function, chosen.all_kwargs()), 64, 64, 64)[0]
        launches["own"] = case(Nothing(chosen.kwargs), 64, 64, 64)[0]
        found[name] = host_us(launches)
    return found


def measured(name: str, kernel: Any, sizes: list[tuple[int, int, int]]) -> list[dict[str, Any]]:
    """For each size in turn: the seconds that the first call takes, the kernel's time, the error, the config."""
    cells = []
    for given in sizes:
        launch, error, text = CASES[name][3](kernel, *given)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        launch()
        torch.cuda.synchronize()
        waited = time.perf_counter() - begin
        config = str(kernel.best_config)
        cells.append({"size": text, "waited_s": waited, "us": median_us(launch), "error": error(), "config": config})
    return cells


def tuned(given: Mapping[str, Any]) -> dict[str, Any]:
    """Both kernels in this process, of {"tuner", "sizes": how many}."""
    draw, tuner, count = random.Random(0), given["tuner"], given["sizes"]
    m, n, k = ([round(2 ** draw.uniform(4, 12)) for _ in range(count)] for _ in range(3))
    drawn = list(zip(m, n, k, strict=True))
    report: dict[str, Any] = {}
    for name, (function, configs, key, _) in CASES.items():
        kernel, before = TUNERS[tuner](configs=configs, key=key)(function), polytile.counters["candidates_benchmarked"]
        cells = measured(name, kernel, drawn)
        report[name] = {
            "cells": cells,
            "waited_s": sum(cell["waited_s"] for cell in cells),
            "timed": polytile.counters["candidates_benchmarked"] - before,
            "worst_error": max(cell["error"] for cell in cells),
            "decisions": [str(decision) for decision in getattr(kernel, "decisions", ())],
        }
    return report


class Bare:
    """A kernel with one config, launched by Triton itself."""

    def __init__(self, kernel: Any, chosen: dict[str, Any]) -> None:
        self.kernel, self.chosen = kernel, chosen

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: self.kernel[grid](*args, **kwargs, **self.chosen)


class Nothing:
    """In place of a kernel: a launch computes its grid, and that is all."""

    def __init__(self, meta: dict[str, Any]) -> None:
        self.meta = meta

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: grid(self.meta) if callable(grid) else grid


def beside(first: dict[str, Any], second: dict[str, Any]) -> dict[str, float]:
    """The second's kernel times and waiting over the first's."""
    ratios = [b["us"] / a["us"] for a, b in zip(first["cells"], second["cells"], strict=True)]
    return {
        "geomean": statistics.geometric_mean(ratios), "worst": max(ratios), "best": min(ratios),
        "waited": second["waited_s"] / first["waited_s"],
    }  # fmt: skip


def main() -> None:
    parser = Command(__doc__, "gpu_autotune", show_table, gpu=True)
    parser.add_argument("--sizes", type=int, default=30)
    parser.add_argument("--calls", action="store_true", help="only the host times of calls")
    given = parser.parsed()
    if given.calls:
        report = record.read("gpu_autotune")
        report["calls"] = {"device": torch.cuda.get_device_name(), **calls()}
        record.write("gpu_autotune", report, given.out)
        show_table(report)
        return
    report = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
    for tuner, runs in (("triton", ("triton",)), ("polytile", ("polytile", "polytile again"))):
        with own_caches() as caches:
            for run in runs:
                asked = {"tuner": tuner, "sizes": given.sizes}
                report[run] = alone("benchmarks.gpu.autotune:tuned", asked, variables=caches)
    for name in CASES:
        report[f"{name}: polytile over triton"] = beside(report["triton"][name], report["polytile"][name])
        report[f"{name}: again over triton"] = beside(report["triton"][name], report["polytile again"][name])
    report["calls"] = {"device": report["device"], **calls()}
    record.write("gpu_autotune", report, given.out)
    show_table(report)


def show_table(report: dict[str, Any]) -> None:
    """Prints what a call takes on the host; and what kernels and waiting take, relative to triton.autotune's."""
    rows, host = [], []
    for name in CASES:
        beside_it, us = report[f"{name}: polytile over triton"], report["calls"][name]
        rows.append((name, *(f"{beside_it[key]:.2f}" for key in ("geomean", "worst", "waited"))))
        ratios = us["polytile"] / us["triton"], (us["polytile"] - us["own"]) / (us["triton"] - us["own"])
        host.append((name, *(f"{us[key]:.1f}" for key in ("own", "bare", "triton", "polytile")), *(f"{r:.2f}" for r in ratios)))
    columns = (
        "kernel", "the caller's own", "bare launch", "triton.autotune", "polytile.autotune", "× triton's",
        "above the caller's own",
    )  # fmt: skip
    show(Table.from_rows(f"Host µs of a call, {report['calls']['device']}", columns, host))
    times_of = ("kernel", "kernel time over triton.autotune's", "worst", "waited")
    show(Table.from_rows(f"polytile.autotune beside triton.autotune, {report['device']}", times_of, rows))


if __name__ == "__main__":
    main()
