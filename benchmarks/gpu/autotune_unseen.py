"""`polytile.autotune` at sizes that nobody tuned, and in many processes, on a GPU.

    python -m benchmarks.gpu.autotune_unseen [--seconds 110]                     64 unseen M of a product; ≤ 2 minutes
    python -m benchmarks.gpu.autotune_unseen --processes 20 [--jobs 4]           what so many processes choose, each by itself
    python -m benchmarks.gpu.autotune_unseen --ranks                             two processes with one store
    python -m benchmarks.gpu.autotune_unseen --show                              only prints the table of the committed file

The kernel and its twelve configs are those of benchmarks.gpu.autotune. First every config is timed at every M, by graphs of
launches; that is what tuning each M exhaustively takes, and the matrix by which all choices are judged. Then a tuner with an
empty cache is called at the sizes in random order. Each part adds to OUT/gpu_autotune_unseen.json.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import triton

import polytile
from benchmarks import record
from benchmarks.autotune_matrix import first_winners, regret, unseen
from benchmarks.command import Command
from benchmarks.contestants import alone, own_caches
from benchmarks.gpu.autotune import PRODUCTS, Bare, product, product_kernel
from polytile.autotuner.candidate import name_of
from polytile.report import Table, show

N, K = 4096, 4096
SUITE = "gpu_autotune_unseen"
FEW = 24
"""Sizes that processes are compared at."""


def matrix_of(sizes: list[int], until: float) -> dict[int, dict[str, float]]:
    """Microseconds by M and config; sizes for which there is no time left are missing."""
    found = dict[int, dict[str, float]]()
    for m in sizes:
        if time.monotonic() > until:
            break
        found[m] = {}
        for config in PRODUCTS:
            launch, _, _ = product(Bare(product_kernel, config.all_kwargs()), m, N, K)
            launch()
            found[m][name_of(config)] = 1e3 * float(triton.testing.do_bench_cudagraph(launch, rep=4, return_mode="median"))
    return found


def choices_at(given: Mapping[str, int]) -> dict[str, Any]:
    """What a tuner chooses in this process at so many unseen "sizes", the timings and the seconds that it takes."""
    sizes = unseen(given["sizes"])
    kernel, before = polytile.autotune(PRODUCTS, ["M", "N", "K"])(product_kernel), polytile.counters["candidates_benchmarked"]
    chosen, begin = {}, time.perf_counter()
    for m in sizes:
        launch, _, _ = product(kernel, m, N, K)
        launch()
        chosen[m] = name_of(kernel.best_config)
    torch.cuda.synchronize()
    timed = polytile.counters["candidates_benchmarked"] - before
    took = time.perf_counter() - begin
    measured = {
        dict(decision.sizes)["M"]: {one.candidate: 1e6 * one.seconds for one in decision.standings if one.seconds > 0}
        for decision in kernel.decisions
    }
    return {"choices": chosen, "timings": timed, "seconds": took, "measured": measured}


def at_unseen(count: int, seconds: float) -> dict[str, Any]:
    begin = time.monotonic()
    matrix = matrix_of(unseen(count), begin + 0.7 * seconds)
    exhaustive = time.monotonic() - begin
    own = choices_at({"sizes": len(matrix)})
    first = next(iter(matrix))
    winner = min(matrix[first], key=lambda name: matrix[first][name])
    return {
        "sizes": len(matrix), "over_exhaustive": regret(matrix, own["choices"]),
        "first_winner_over_exhaustive": regret(matrix, dict.fromkeys(matrix, winner)),
        "median_first_winner_over_exhaustive": first_winners(matrix),
        "timings": own["timings"], "timings_exhaustive": sum(map(len, matrix.values())),
        "seconds": own["seconds"], "seconds_exhaustive": exhaustive, "choices": own["choices"], "matrix": matrix,
        "measured": own["measured"],
    }  # fmt: skip


def in_processes(count: int, jobs: int, shared: bool) -> dict[str, Any]:
    """The share of choices that are the commonest one at their size. Compiled kernels are shared; stores, where that is asked."""
    with tempfile.TemporaryDirectory() as folder:

        def one(number: int) -> dict[str, str]:
            store = f"{folder}/store" if shared else f"{folder}/{number}"
            shares = {"TRITON_CACHE_DIR": f"{folder}/triton", "POLYTILE_CACHE_DIR": store}
            with own_caches() as caches:
                found = alone("benchmarks.gpu.autotune_unseen:choices_at", {"sizes": FEW}, variables={**caches, **shares})
            choices: dict[str, str] = found["choices"]
            return choices

        first = [] if shared else [one(0)]  # which compiles for all
        with ThreadPoolExecutor(jobs) as pool:
            chosen = [*first, *pool.map(one, range(len(first), count))]
    common = [Counter(each[m] for each in chosen).most_common(1)[0][1] for m in chosen[0]]
    return {"processes": count, "jobs": jobs, "agreement": sum(common) / (count * len(common)), "choices": chosen}


def main() -> None:
    parser = Command(__doc__, SUITE, show_table, gpu=True)
    parser.add_argument("--sizes", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=110.0)
    parser.add_argument("--processes", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time: quicker, and noisier")
    parser.add_argument("--ranks", action="store_true")
    given = parser.parsed()
    file = given.out / f"{SUITE}.json"
    found = record.read(file) if file.exists() else {}
    if given.ranks:
        found["ranks"] = in_processes(2, 2, shared=True)
    elif given.processes:
        found["processes"] = in_processes(given.processes, given.jobs, shared=False)
    else:
        with tempfile.TemporaryDirectory() as folder:
            os.environ |= {"TRITON_CACHE_DIR": f"{folder}/triton", "POLYTILE_CACHE_DIR": f"{folder}/polytile"}
            found["unseen"] = at_unseen(given.sizes, given.seconds)
    found["device"] = torch.cuda.get_device_name()
    record.write(SUITE, found, given.out)
    show_table(found)


def show_table(report: dict[str, Any]) -> None:
    rows = []
    if found := report.get("unseen"):
        rows += [
            ("unseen sizes, each config timed at each", f"{found['sizes']}, {found['timings_exhaustive']} timings"),
            ("time over the best config's at each, geomean", f"{found['over_exhaustive']:.3f}"),
            ("the same of the first size's winner", f"{found['first_winner_over_exhaustive']:.2f}"),
            ("the same, as the median over which size is first", f"{found['median_first_winner_over_exhaustive']:.2f}"),
            ("polytile's timings", f"{found['timings']}, {found['timings_exhaustive'] / max(1, found['timings']):.1f} × fewer"),
        ]
    parts = {"processes": "processes that agree, each by itself", "ranks": "processes that agree, with one store"}
    for part, words in parts.items():
        if found := report.get(part):
            rows.append((words, f"{found['agreement']:.1%} of choices, {found['processes']} processes"))
    show(Table.from_rows(f"A product at sizes that nobody tuned, {report['device']}", ("what", "found"), rows))


if __name__ == "__main__":
    main()
