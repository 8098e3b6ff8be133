"""`python -m benchmarks.gpu.prior_fit [--folds 5]`: the constants of the prior for products, fitted on shapes of
which every candidate was measured (part `candidates` of benchmarks.gpu.gemm), and judged on shapes that took no part.

The shapes are dealt out into folds; the constants are fitted on all but one, one constant after another over a grid of factors,
and the fold left out says what their ranking is worth: the regret of its first, and of the best of its first five. Needs no GPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.timing import geomean
from polytile.kernels.triton.gemm.candidates import label
from polytile.kernels.triton.gemm.configs import Kind, space
from polytile.kernels.triton.gemm.prior import FITTED, Constants, cost
from polytile.problem import Config
from polytile.report import Table, show
from polytile.runtime.cuda.device import DeviceFacts, named

FACTORS = (0.25, 0.5, 0.7, 0.85, 1.2, 1.5, 2.0, 4.0)
ROUNDS = 4
KINDS = {"bf16": Kind(), "fp32": Kind(4)}
FIRST = 5
"""How many of the ranking a shortlist measures."""


@dataclass(frozen=True)
class Shape:
    """The measured candidates of one shape: µs of each config that is generated today."""

    kind: Kind
    size: dict[str, int]
    measured: tuple[tuple[Config, float], ...]

    def ranked(self, constants: Constants, device: DeviceFacts) -> list[float]:
        """Regrets of the candidates, in the order of the prior's predictions."""
        best = min(us for _, us in self.measured)
        order = sorted(self.measured, key=lambda pair: cost(self.kind, pair[0], self.size, device, constants))
        return [us / best for _, us in order]


def shapes(rows: Sequence[dict[str, Any]], device: DeviceFacts) -> list[Shape]:
    found = []
    for row in rows:
        kind = KINDS[row["dtype"]]
        configs = {label(config): config for config in space(kind, device).configs}
        measured = tuple((configs[name], us) for name, us in row["us"].items() if name in configs)
        if len(measured) > 1:
            m, n, k = row["shape"]
            found.append(Shape(kind, {"batch": 1, "M": m, "N": n, "K": k}, measured))
    return found


def score(chosen: Sequence[Shape], constants: Constants, device: DeviceFacts) -> float:
    """What the fit makes small: the mean logarithm of the first's regret, and of the best of the first five's."""
    total = 0.0
    for shape in chosen:
        regrets = shape.ranked(constants, device)
        total += math.log(regrets[0]) + math.log(min(regrets[:FIRST]))
    return total / len(chosen)


def fitted(chosen: Sequence[Shape], device: DeviceFacts, start: Constants = FITTED) -> Constants:
    """The best constants that going along one after another finds."""
    best, value = start, score(chosen, start, device)
    for _ in range(ROUNDS):
        before = value
        for field in dataclasses.fields(Constants):
            for factor in FACTORS:
                tried = dataclasses.replace(best, **{field.name: getattr(best, field.name) * factor})
                found = score(chosen, tried, device)
                if found < value - 1e-6:
                    best, value = tried, found
        if value > before - 1e-4:
            break
    return best


@dataclass(frozen=True)
class Verdict:
    """Over shapes: geometric mean, 95th percentile and worst of the first's regret, geometric mean of the best of five's."""

    shapes: int
    first: float
    p95: float
    worst: float
    best_of_five: float


def verdict(rankings: Sequence[Sequence[float]]) -> Verdict:
    first = sorted(regrets[0] for regrets in rankings)
    p95 = first[min(len(first) - 1, math.ceil(0.95 * len(first)) - 1)]
    five = geomean([min(regrets[:FIRST]) for regrets in rankings])
    return Verdict(len(first), geomean(first), p95, first[-1], five)


def held_out(found: Sequence[Shape], folds: int, device: DeviceFacts) -> list[list[float]]:
    """The ranking of every shape by constants that were fitted without its fold."""
    rankings: list[list[float]] = []
    for fold in range(folds):
        constants = fitted([shape for k, shape in enumerate(found) if k % folds != fold], device, Constants())
        rankings += [shape.ranked(constants, device) for k, shape in enumerate(found) if k % folds == fold]
        print(f"fold {fold}: {dataclasses.asdict(constants)}", flush=True)
    return rankings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--results", default=str(record.RESULTS / "gpu_gemm.json"))
    parser.add_argument("--device", default="H100")
    parser.add_argument("--out", default=str(record.RESULTS))
    given = parser.parse_args()
    device = named(given.device)
    rows = json.loads(Path(given.results).read_text())["results"]["cells"]
    found = shapes([row for row in rows if row["part"] == "candidates"], device)
    every = fitted(found, device, Constants())
    verdicts = {
        "as committed": verdict([shape.ranked(FITTED, device) for shape in found]),
        "fitted on all, in sample": verdict([shape.ranked(every, device) for shape in found]),
        "held out": verdict(held_out(found, given.folds, device)),
    }
    columns = ["constants", "shapes", "first", "p95", "worst", "best of five"]
    body = [
        (name, v.shapes, f"{v.first:.3f}", f"{v.p95:.2f}", f"{v.worst:.2f}", f"{v.best_of_five:.3f}")
        for name, v in verdicts.items()
    ]
    show(Table.of("regret of the prior for products", columns, body))
    results = {
        "verdicts": {name: dataclasses.asdict(v) for name, v in verdicts.items()},
        "fitted": dataclasses.asdict(every), "committed": dataclasses.asdict(FITTED), "folds": given.folds,
    }  # fmt: skip
    print(record.write("gpu_prior_fit", results, Path(given.out)))


if __name__ == "__main__":
    main()
