"""The tables of `polytile learn`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from polytile.cli.plain import sizes_text
from polytile.learn.decisions import DECISIONS
from polytile.learn.emit import about
from polytile.learn.examples import Example
from polytile.learn.model import Trained, Tried
from polytile.learn.score import Case, cases, tried
from polytile.report import Column, Table
from polytile.report.tables import count

WORST = 5


def times(value: float) -> str:
    """A ratio of times to a tenth of a percent, which is what models differ by."""
    return f"{value:.3f}"


COUNTS = ("correct", "wrong", "unsure", "total", "far")
COLUMNS: tuple[Column | str, ...] = (
    "set", Column("max_depth", count), Column("min_samples_leaf", count),
    *[Column(name, count) for name in COUNTS],
    Column("max_wrong_speedup", times), Column("gman_wrong_speedup", times), "threshold", Column("answered", times),
    Column("first", times), Column("p95", times), Column("best of 3", times), Column("p95", times),
    Column("best of 10", times), Column("prior", times), Column("p95", times), Column("its best of 3", times),
    Column("speedup", times), Column("slowdown", times),
)  # fmt: skip

READING = (
    "Times over the fastest candidate's: geometric means, and what 95 % do not exceed. answered: where the model is sure; first: "
    "its first choice, sure or not; prior: the prediction's. far: wrong by more than 10 %. speedup, slowdown: of answers over "
    "the prediction's choice, where they are faster, and where slower."
)


def reports(model: Trained) -> Table:
    """A model's own reports, of the sets that it was made with."""
    rows = [_row(model, report) for report in model.reports]
    return Table.from_rows(model.name, list(COLUMNS), rows, [*about(model).splitlines()[:2], READING])


def decisions(named: str, judged: Sequence[tuple[Trained, Sequence[Example]]]) -> Iterator[Table]:
    """A row for each decision that the examples pose; each model is judged on its own examples."""
    rows, notes = [], [READING]
    for decision in DECISIONS:
        own_cases = [case for model, chosen in judged for case in cases(model, decision.examples_of(chosen))]
        if own_cases:
            rows.append(_row(judged[0][0], tried(decision.name, own_cases)))
            notes.append(f"{decision.name}: {decision.doc}.")
    yield Table.from_rows(f"Learned choice of {named}", list(COLUMNS), rows, notes)


def worst(found: Sequence[Case]) -> Table:
    """The cases in which the first choice is farthest from the fastest."""
    ordered = sorted(found, key=lambda case: case.regret, reverse=True)[:WORST]
    rows = [_worst_row(case) for case in ordered]
    columns: list[Column | str] = ["kernel", "sizes", "fastest", Column("× fastest", times), Column("prior", times), "sure"]
    return Table.from_rows("Where first choices are worst", columns, rows)


def _worst_row(case: Case) -> tuple[object, ...]:
    example = case.example
    fastest = example.offers[example.seconds.index(example.best)].name
    sure = "yes" if case.sure else "no"
    return example.problem.kernel[:8], sizes_text(example.problem.sizes), fastest, case.regret, case.prior[0], sure


def _row(model: Trained, report: Tried) -> tuple[object, ...]:
    counts = [getattr(report, name) for name in COUNTS]
    return (
        report.set, model.settings.max_depth, model.settings.min_samples_leaf, *counts, report.max_wrong_speedup,
        report.gman_wrong_speedup, f"{model.threshold:.4f}", report.answered, report.regret, report.p95, report.top3,
        report.top3_p95, report.top10, report.prior, report.prior_p95, report.prior_top3, report.speedup, report.slowdown,
    )  # fmt: skip
