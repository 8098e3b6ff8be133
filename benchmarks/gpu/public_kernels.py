"""Twelve Triton kernels (benchmarks/gpu/public) under `triton.autotune` and, with that import changed, `polytile.autotune`.

    python -m benchmarks.gpu.public_kernels [--seconds 85]   checks and times all, writes OUT/gpu_public_kernels.json
    python -m benchmarks.gpu.public_kernels --show           only prints the table of the committed file

Both run in one process on the same tensors, triton.autotune first, with empty caches; compiled kernels are in a cache that both
share. A time is that of a graph of launches, with what the kernel's function allocates and copies around it, alike for both.
Results are compared with torch's in float32, relative to themselves and their root mean square; "apart" is how far the two are
from each other.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import triton

import polytile
from benchmarks import record
from benchmarks.command import Command
from benchmarks.gpu.public import DECORATOR, NAMES, POLYTILES, Run, loaded
from benchmarks.timing import geomean
from polytile.report import Table, show

SIZES = (1, 2)
ALLOWED = 3e-2
"""bfloat16 has 8 bits, and sums are added up in other orders."""


def error(got: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> float:
    """The largest difference of any number, relative to that number and to the root mean square of its tensor."""

    def of_tensor(got: torch.Tensor, right: torch.Tensor) -> float:
        return float(((got - right).abs() / (right.abs() + right.square().mean().sqrt())).max())

    return max(of_tensor(g.double(), r.double()) for g, r in zip(got, right, strict=True))


def first_call(run: Run) -> tuple[list[torch.Tensor], float]:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    results = list(run())
    torch.cuda.synchronize()
    return results, time.perf_counter() - begin


def median_us(run: Run) -> float:
    return 1e3 * float(triton.testing.do_bench_cudagraph(run, rep=10, return_mode="median"))


def measured(name: str, modules: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for size in SIZES:
        row: dict[str, Any] = {"kernel": name, "size": size}
        results: dict[str, list[torch.Tensor]] = {}
        right: Sequence[torch.Tensor] = ()
        for tuner, module in modules.items():
            torch.manual_seed(0)
            run, reference = module.make(size, "cuda", torch.bfloat16)
            right = right or reference()
            results[tuner], waited = first_call(run)
            again = list(run())  # what was chosen, after tuning
            errors = error(results[tuner], right), error(again, right)
            row[tuner] = {"waited_s": waited, "error": max(errors), "us": median_us(run), "configs": chosen(module)}
        row["apart"] = error(results["polytile"], results["triton"])
        row["right"] = max(row["polytile"]["error"], row["apart"]) < ALLOWED
        rows.append(row)
        torch.cuda.empty_cache()
    return rows


def chosen(module: Any) -> dict[str, str]:
    return {name: str(value.best_config) for name, value in vars(module).items() if hasattr(value, "best_config")}


def main() -> None:
    parser = Command(__doc__, "gpu_public_kernels", show_table, gpu=True)
    parser.add_argument("--seconds", type=float, default=85.0, help="no kernel is begun after that")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    given = parser.parsed()
    begin, rows, failed = time.monotonic(), list[dict[str, Any]](), dict[str, str]()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"TRITON_CACHE_DIR": f"{folder}/triton", "POLYTILE_CACHE_DIR": f"{folder}/polytile"}
        for name in given.only:
            if time.monotonic() - begin > given.seconds:
                failed[name] = "not begun for want of time"
                continue
            try:
                decorators = {"triton": DECORATOR, "polytile": POLYTILES}
                modules = {tuner: loaded(name, made(folder, tuner), line) for tuner, line in decorators.items()}
                rows += measured(name, modules)
            except Exception as problem:
                failed[name] = f"{type(problem).__name__}: {str(problem)[:2000]}"
            print(name, f"{time.monotonic() - begin:.1f} s", failed.get(name, ""), flush=True)
    report = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__, "rows": rows,
        "failed": failed, "seconds": time.monotonic() - begin, "timed": polytile.counters["candidates_benchmarked"],
    }  # fmt: skip
    record.write("gpu_public_kernels", report, given.out)
    show_table(report)


def made(folder: str, tuner: str) -> Path:
    """Of each tuner, as the two modules have one name."""
    path = Path(folder, tuner)
    path.mkdir(exist_ok=True)
    return path


def show_table(report: dict[str, Any]) -> None:
    rows = []
    for one in report["rows"]:
        theirs, ours = one["triton"], one["polytile"]
        errors = (f"{each:.1e}" for each in (theirs["error"], ours["error"], one["apart"]))
        times = f"{theirs['us']:.1f}", f"{ours['us']:.1f}", f"{ours['us'] / theirs['us']:.2f}"
        waited = (f"{each['waited_s']:.1f}" for each in (theirs, ours))
        rows.append((one["kernel"], str(one["size"]), *errors, *times, *waited, "" if one["right"] else "WRONG"))
    ratio = geomean([one["polytile"]["us"] / one["triton"]["us"] for one in report["rows"]])
    notes = [f"{len({one['kernel'] for one in report['rows']})} kernels, polytile's time over triton's {ratio:.3f} (geomean)."]
    notes += [f"{name}: {why}" for name, why in report["failed"].items()]
    columns = (
        "kernel", "size", "error, triton", "error, polytile", "apart", "µs, triton", "µs, polytile", "ratio",
        "first call s, triton", "first call s, polytile", "",
    )  # fmt: skip
    show(Table.from_rows(f"Kernels under both decorators, {report['device']}", columns, rows, notes))


if __name__ == "__main__":
    main()
