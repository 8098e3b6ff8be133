"""How few timings does tuning need? `python -m benchmarks.search [--json]`, on matrices that were recorded on an H100.

polytile's own tuning runs there as in a campaign (`search = "thorough"`): a learned model, trained on problems of other sizes,
ranks the candidates, and the first of its ranking race on a device with the noise that was recorded (benchmarks.recorded). Beside
it stand the strategies of Kernel Tuner on the same matrices, in its simulation mode, without noise, if `pip install kernel_tuner`
has brought it. A timing is one candidate at one problem. What was recorded leaves out candidates that were predicted to take over
twice as long as the best, so all shares would be smaller of the whole space.

`--show` prints the tables of the committed result.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks import kernel_tuner_strategies, record
from benchmarks.command import Command
from benchmarks.recorded import SUITES, Noisy, of_one_problem
from polytile import options
from polytile.dispatch.links import model
from polytile.dispatch.replay import replay
from polytile.learn.examples import FOLDS, examples
from polytile.learn.model import Settings, Trained
from polytile.learn.offer import Offer
from polytile.learn.score import cases
from polytile.learn.train import TREES, grown
from polytile.problem import Problem
from polytile.report import Column, Table, show
from polytile.report.tables import count
from polytile.tuning.replay import Matrix

SHARES = (0.05, 0.10, 0.15, 0.25, 0.50)
SETTINGS = Settings(14, 3, "squared_error", TREES)
"""Of all models here; `polytile learn train` would try others too, which takes eight times as long."""

ENOUGH = 1.01
"""A search is as good as the exhaustive one from where it takes this many times as long."""


@dataclass(frozen=True)
class HeldOut:
    """A model of dispatch/links/model.py: of each problem says what one says that has seen no problem of its sizes."""

    models: Mapping[Problem, Trained]
    machine: Mapping[str, str]
    name: str = "held out"

    def choose(self, problem: Problem, offers: Sequence[Offer]) -> str | None:
        """It only ranks."""
        return None

    def expect(self, problem: Problem, offers: Sequence[Offer]) -> Mapping[str, float] | None:
        """The seconds that it expects of each offer."""
        found = self.models[problem].judge_on(problem, self.machine, offers) if problem in self.models else None
        return found.seconds if found is not None else None


Order = list[float]
"""Times over the fastest of the candidates of a problem, in the order in which they are tried."""


@contextmanager
def registered(learned: HeldOut | None) -> Iterator[None]:
    if learned is None:
        yield
        return
    model.register(learned)
    try:
        yield
    finally:
        model.unregister(learned)


def tuned(measured: Sequence[Matrix], learned: HeldOut | None, tune: str, seed: int) -> dict[str, float]:
    """The selector on each matrix: what it times, what that takes on the device, and how slow its choices are."""
    timings = bursts = 0
    seconds, regrets = 0.0, []
    with options.override(tune=tune, learned=False), registered(learned):
        for matrix in measured:
            device = Noisy(matrix, seed=seed)
            report = replay(matrix, device=device)
            timings, bursts, seconds = timings + report.measured, bursts + device.bursts, seconds + device.seconds
            regrets.append(report.regret)
    return {"timings": timings, "bursts": bursts, "seconds": seconds, **judged(regrets)}


def judged(regrets: Sequence[float]) -> dict[str, float]:
    ordered = sorted(regrets)
    p95 = ordered[max(0, math.ceil(0.95 * len(ordered)) - 1)]
    return {"regret": statistics.geometric_mean(ordered), "p95": p95, "worst": ordered[-1]}


def by_share(orders: Sequence[Order]) -> dict[str, float]:
    """The geometric mean of what is best among the first so large a share of each problem's candidates (one at least), and the
    least share that is ENOUGH."""
    found = {f"{share:.0%}": _after(orders, share) for share in SHARES}
    needed = next((percent / 100 for percent in range(1, 101) if _after(orders, percent / 100) <= ENOUGH), math.nan)
    return {**found, "needed": needed}


def _after(orders: Sequence[Order], share: float) -> float:
    return statistics.geometric_mean(min(order[: max(1, round(share * len(order)))]) for order in orders)


def run(measured: Sequence[Matrix], learned: HeldOut, orders: Mapping[str, list[Order]], seeds: int) -> dict[str, object]:
    """Everything about one suite."""
    size = sum(matrix.size for matrix in measured)
    searches = {
        "exhaustive": (None, "all"), "by prediction": (None, "thorough"), "by a learned order": (learned, "thorough"),
    }  # fmt: skip
    found = {name: [tuned(measured, by, tune, seed) for seed in range(seeds)] for name, (by, tune) in searches.items()}
    means = {name: {key: statistics.fmean(one[key] for one in each) for key in each[0]} for name, each in found.items()}
    shares = {name: by_share(each) for name, each in orders.items()}
    return {"problems": len(measured), "timings": size, "tuning": means, "orders": shares}


def suite(name: str, seeds: int) -> dict[str, object]:
    """Records, the models that are held out, and all searches."""
    records = SUITES[name]()
    measured = of_one_problem(records)
    models: dict[Problem, Trained] = {}
    orders: dict[str, list[Order]] = {"prediction": [], "learned order": []}
    for chosen in examples(records).families().values():
        for fold in range(FOLDS):
            held = [example for example in chosen if example.fold == fold]
            trained = grown([example for example in chosen if example.fold != fold], SETTINGS)
            models.update((example.problem, trained) for example in held)
            for case in cases(trained, held):
                orders["prediction"].append(list(case.prior))
                orders["learned order"].append(list(case.ranking))
    machine = dict(records[0].measurement.machine)
    return run(measured, HeldOut(models, machine), {**orders, **kernel_tuner_strategies.orders(measured)}, seeds)


def tables(found: Mapping[str, Any]) -> list[Table]:
    """Two for each suite: polytile's own tuning, and orders in which candidates may be tried."""
    made = []
    for name, each in found.items():
        size, everything = each["timings"], each["tuning"]["exhaustive"]
        rows = [
            (way, one["timings"], one["timings"] / size, one["bursts"] / everything["bursts"], one["regret"], one["p95"],
             one["worst"])
            for way, one in each["tuning"].items()
        ]
        columns: list[Column | str] = [
            "tuning", Column("timings", count), Column("of all", percent), Column("bursts, of all", percent),
            Column("× fastest", thousandths), Column("p95", thousandths), Column("worst", thousandths),
        ]  # fmt: skip
        title = f"{each['problems']} {name}, {count(size)} candidates in all: tuning on recorded times, with recorded noise"
        made.append(Table.from_rows(title, columns, rows))
        columns = ["order", *(Column(f"{share:.0%}", thousandths) for share in SHARES), Column(f"share for {ENOUGH}", percent)]
        rows = [(way, *(one[f"{share:.0%}"] for share in SHARES), one["needed"]) for way, one in each["orders"].items()]
        title = f"{name}: × fastest of the best among the first so many of each problem's candidates"
        made.append(Table.from_rows(title, columns, rows))
    return made


def percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.1f} %"


def thousandths(value: float) -> str:
    return f"{value:.3f}"


def show_tables(found: Mapping[str, Any]) -> None:
    for table in tables(found):
        show(table)


def main() -> None:
    parser = Command(__doc__, "search", show_tables, json=True)
    parser.add_argument("--suites", nargs="+", choices=list(SUITES), default=list(SUITES))
    parser.add_argument("--seeds", type=int, default=2, help="how often all is repeated, with other noise")
    given = parser.parsed()
    found = {name: suite(name, given.seeds) for name in given.suites}
    show_tables(found)
    for name, each in found.items() if given.json else ():
        record.add("search", name, each)


if __name__ == "__main__":
    main()
