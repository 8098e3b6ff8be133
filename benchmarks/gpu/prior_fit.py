"""`python -m benchmarks.gpu.prior_fit [--folds 5]`: the constants of the prior for products, fitted on shapes of
which every candidate was measured (part `candidates` of benchmarks.gpu.gemm), and judged on shapes that took no part.

The shapes are dealt out into folds; the constants are fitted on all but one, one after another by steps that grow smaller, and
the fold left out says what their ranking is worth: the regret of its first, and of the best of shortlists of three and five. What
the fit makes small is the regret to be expected where predictions are off by SOFT, which is smooth where the regret itself jumps,
and a little of the predictions' own errors near the best. Needs no GPU.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.command import Command
from benchmarks.timing import geomean
from polytile.candidates.triton_matmul import label, traits
from polytile.cost.product_constants import FITTED, Constants
from polytile.cost.triton_matmul import Access, Accesses, cost, refused
from polytile.dispatch.links.prior import CLEAR_LOSER, varied
from polytile.matmul.triton.configs import Kind, space
from polytile.problem import Config
from polytile.report import Table, show
from polytile.runtime.cuda.device import DeviceFacts, named

STEPS = ((0.1, (0.7, 0.35)), (0.05, (0.35, 0.18, 0.09, 0.05)))
"""(SOFT, steps of a constant's logarithm) one after another."""
ROUNDS = 3
FURTHEST = 2.5
"""How far a constant's logarithm may go from where it began."""
ERRORS, NEAR, TOLERATED = 0.06, 0.4, 0.2
"""The weight of the predictions' errors; how fast it falls with the logarithm of a candidate's regret; below which logarithm of
an error it is squared."""
KINDS = {
    "bf16": Kind(), "fp16": Kind(), "fp32": Kind(4), "tf32": Kind(4, tf32=True), "int8": Kind(1, int8=True),
    "fp8": Kind(1, float8=True),
}  # fmt: skip
ROW_BY_ROW = ("x @ y", "batches")
"""Functions whose B is read as it is; of the others it lies along k."""
MADE_BY_PROGRAMS, BY_PROGRAMS = ("ea0be1c", "434d34e"), 2.5e-6
"""Revisions in which programs made their descriptors themselves, and the constant `descriptors` of such programs."""
SHORTLISTS = (1, 3, 5)
Bests = tuple[float, ...]
"""The least regret of a shortlist of each of these lengths, as they are made for measuring (multikernel.links.prior)."""


@dataclass(frozen=True)
class Shape:
    """The measured candidates of one shape, of dense operands: µs of each config that is generated today."""

    kind: Kind
    size: dict[str, int]
    accesses: Accesses
    measured: tuple[tuple[Config, float], ...]
    by_programs: bool = False
    """Whether programs made their descriptors themselves then."""

    @cached_property
    def regrets(self) -> list[float]:
        """Logarithms of the candidates' times over the best one's."""
        best = min(us for _, us in self.measured)
        return [math.log(us / best) for _, us in self.measured]

    def predicted(self, constants: Constants, device: DeviceFacts) -> list[float]:
        """µs."""
        if self.by_programs:
            constants = dataclasses.replace(constants, descriptors=BY_PROGRAMS)
        return [cost(self.kind, c, self.size, device, self.accesses, constants) * 1e6 for c, _ in self.measured]

    def best_of_shortlists(self, constants: Constants, device: DeviceFacts) -> Bests:
        """The least regret of a shortlist of each length."""
        predicted = self.predicted(constants, device)
        order = sorted(range(len(predicted)), key=predicted.__getitem__)
        order = [index for index in order if predicted[index] <= CLEAR_LOSER * predicted[order[0]]]
        chosen = (varied(order, count, lambda index: traits(self.measured[index][0])) for count in SHORTLISTS)
        return tuple(math.exp(min(self.regrets[index] for index in indices)) for indices in chosen)


def shapes(rows: Sequence[dict[str, Any]], device: DeviceFacts) -> list[Shape]:
    found = []
    for row in rows:
        kind = KINDS[row["dtype"]]
        configs = {label(config): config for config in space(kind, device).configs}
        measured = tuple((configs[name], us) for name, us in row["us"].items() if name in configs)
        m, n, k = row["shape"]
        size = {"batch": row.get("batch", 1), "M": m, "N": n, "K": k}
        by_rows = row["function"].removeprefix("candidates: ") in ROW_BY_ROW
        accesses = Access(bool(k % 16), True), Access(bool(n % 16)) if by_rows else Access(bool(k % 16), True)
        measured = tuple(pair for pair in measured if not refused(kind, pair[0], size, device, accesses))
        if len(measured) > 1:
            found.append(Shape(kind, size, accesses, measured, row["revision"].startswith(MADE_BY_PROGRAMS)))
    return found


def score(chosen: Sequence[Shape], constants: Constants, device: DeviceFacts, soft: float) -> float:
    """What the fit makes small; see above."""
    regret = errors = weights = 0.0
    for shape in chosen:
        logs = [math.log(us) for us in shape.predicted(constants, device)]
        least = min(logs)
        shares = [math.exp((least - each) / soft) for each in logs]
        regret += sum(s * r for s, r in zip(shares, shape.regrets, strict=True)) / sum(shares)
        for each, own, (_, us) in zip(logs, shape.regrets, shape.measured, strict=True):
            weight, error = math.exp(-own / NEAR), (each - math.log(us)) / TOLERATED
            errors, weights = errors + weight * (math.hypot(1.0, error) - 1.0), weights + weight
    return regret / len(chosen) + ERRORS * errors / weights


def fitted(chosen: Sequence[Shape], device: DeviceFacts, start: Constants = FITTED) -> Constants:
    """The best constants that going along one after another finds."""
    best = start
    for soft, steps in STEPS:
        value = score(chosen, best, device, soft)
        for step, _ in itertools.product(steps, range(ROUNDS)):
            before = value
            for field in (f for f in dataclasses.fields(Constants) if 0.0 < getattr(start, f.name) < math.inf):
                for factor in (math.exp(step), math.exp(-step)):
                    tried, found = _moved(chosen, device, start, best, field.name, factor, soft, value)
                    if found < value:
                        best, value = tried, found
                        break
            if before - value < 2e-4:
                break
    return best


def _moved(
    chosen: Sequence[Shape], device: DeviceFacts, start: Constants, best: Constants, name: str, factor: float, soft: float,
    value: float,
) -> tuple[Constants, float]:  # fmt: skip
    """One constant multiplied by `factor` as often as that makes the score smaller."""
    while True:
        tried = dataclasses.replace(best, **{name: getattr(best, name) * factor})
        if abs(math.log(getattr(tried, name) / getattr(start, name))) > FURTHEST:
            return best, value
        found = score(chosen, tried, device, soft)
        if found > value - 1e-6:
            return best, value
        best, value = tried, found


@dataclass(frozen=True)
class Verdict:
    """Of the first of the ranking, and of the best of shortlists of three and five: geometric mean and 95th percentile of the
    regret; the worst of the first's."""

    shapes: int
    geomean: tuple[float, ...]
    p95: tuple[float, ...]
    worst: float


def verdict(bests: Sequence[Bests]) -> Verdict:
    best = [sorted(each) for each in zip(*bests, strict=True)]
    at = max(0, math.ceil(0.95 * len(bests)) - 1)
    means, p95 = tuple(geomean(each) for each in best), tuple(each[at] for each in best)
    return Verdict(len(bests), means, p95, best[0][-1])


def held_out(found: Sequence[Shape], folds: int, device: DeviceFacts) -> list[Bests]:
    """The best of the shortlists of every shape, by constants that were fitted without its fold."""
    bests: list[Bests] = []
    for fold in range(folds):
        constants = fitted([shape for k, shape in enumerate(found) if k % folds != fold], device, Constants())
        bests += [shape.best_of_shortlists(constants, device) for k, shape in enumerate(found) if k % folds == fold]
        print(f"fold {fold}: {dataclasses.asdict(constants)}", flush=True)
    return bests


def main() -> None:
    parser = Command(__doc__, out=True)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=record.RESULTS / "gpu_gemm.json")
    parser.add_argument("--device", default="H100")
    given = parser.parsed()
    device = named(given.device)
    rows = record.read(given.results)["cells"]
    found = shapes([row for row in rows if row["part"] == "candidates"], device)
    every = fitted(found, device, Constants())
    verdicts = {
        "as committed": verdict([shape.best_of_shortlists(FITTED, device) for shape in found]),
        "fitted on all, in sample": verdict([shape.best_of_shortlists(every, device) for shape in found]),
        "held out": verdict(held_out(found, given.folds, device)),
    }
    columns = ["constants", "shapes", "first", "p95", "worst", *[f"best of {n}" for n in SHORTLISTS[1:]], "p95 of it"]
    body = [
        (name, v.shapes, f"{v.geomean[0]:.3f}", f"{v.p95[0]:.2f}", f"{v.worst:.2f}", *[f"{mean:.3f}" for mean in v.geomean[1:]],
         ", ".join(f"{p95:.2f}" for p95 in v.p95[1:]))
        for name, v in verdicts.items()
    ]  # fmt: skip
    show(Table.from_rows("regret of the prior for products", columns, body))
    results = {
        "verdicts": {name: dataclasses.asdict(v) for name, v in verdicts.items()},
        "fitted": dataclasses.asdict(every), "committed": dataclasses.asdict(FITTED), "folds": given.folds,
    }  # fmt: skip
    print(record.write("gpu_prior_fit", results, given.out))


if __name__ == "__main__":
    main()
