"""What a call at sizes of new regimes costs its caller: `python -m benchmarks.new_regimes`.

A program of some ten kernels is compiled with stall="never" and settled at one size. Then sizes come that are in new
regimes for all of its kernels. The extra time of the first call at such a size, over the median of the next ones, is what the
dispatch tables add: while the background does nothing yet (`held`), and while it works beside the calls (`free`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import polytile
from polytile.compiler.programs import compiled_programs
from polytile.report import Column, Table, show
from polytile.runtime import background

LATER = 7
"""Calls whose median the first is compared with."""

FEATURES = 64


def program(x: Tensor, *weights: Tensor) -> Tensor:
    for weight in weights:
        hidden = functional.gelu(functional.layer_norm(x, (FEATURES,)) @ weight)
        x = x + torch.softmax(hidden, dim=-1)
    return x


def measured(sizes: Sequence[int], held: bool, device: str) -> dict[str, Any]:
    """Seconds until the first call at each size returned beyond those of later ones, in microseconds for each kernel."""
    torch.manual_seed(0)
    weights = [torch.randn(FEATURES, FEATURES, device=device) for _ in range(4)]
    compiled = polytile.compile(lambda x, *w: program(x, *w), options={"stall": "never"})
    with torch.no_grad():
        for _ in range(3):
            compiled(torch.randn(24, FEATURES, device=device), *weights)
            polytile.wait()
        kernels = len(compiled_programs()[-1].calls)
        extra, misses = [], []
        for size in sizes:
            x, before = torch.randn(size, FEATURES, device=device), polytile.counters["dispatch_misses"]
            with background.background.held() if held else contextlib.nullcontext():
                first, *later = [_seconds(compiled, x, weights) for _ in range(1 + LATER)]
            extra.append(1e6 * (first - statistics.median(later)) / kernels)
            polytile.wait()
            misses.append(polytile.counters["dispatch_misses"] - before)
    return {"kernels": kernels, "sizes": list(sizes), "misses": misses, "extra_us": extra}


def _seconds(compiled: Any, x: Tensor, weights: Sequence[Tensor]) -> float:
    begun = time.perf_counter()
    compiled(x, *weights)
    return time.perf_counter() - begun


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[40, 57, 80, 113, 160, 226, 320, 452, 640, 905])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", action="store_true", help="print the numbers too")
    given = parser.parse_args(arguments)
    rows, found = [], {}
    for kind in ("held", "free"):
        torch._dynamo.reset()
        with tempfile.TemporaryDirectory(prefix="new-regimes-", ignore_cleanup_errors=True) as directory:
            with polytile.options.override(cache_dir=directory):  # what is on record has no new regimes
                one = found[kind] = measured(given.sizes, kind == "held", given.device)
        each = sorted(one["extra_us"])
        rows.append((kind, str(one["kernels"]), str(sum(one["misses"])), f"{each[len(each) // 2]:.1f}", f"{each[-1]:.1f}"))
    columns = tuple(map(Column, ("the background", "kernels", "new regimes", "µs a kernel, median", "most")))
    show(Table("Extra host time of the first call at sizes of new regimes", columns, tuple(rows)))
    if given.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
