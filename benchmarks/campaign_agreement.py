"""Do independent campaigns choose alike? `python -m benchmarks.campaign_agreement [--json]`, on times recorded on an H100.

Each campaign tunes every regime from scratch, thoroughly, as `polytile campaign run` has its workers do, on a device of its own
that gives the recorded times with the noise that was recorded on such GPUs (benchmarks.recorded): processes differ, recordings of
a burst differ, and now and then a process has a kernel 3 to 10 % slower than the others have it. Campaigns share nothing.
`processes` is what the campaign's spec says: so many measure each regime, and more of them where the choice stays in doubt.

Two campaigns agree on a regime if they choose the same candidate. Where they do not, they are as far apart as the recorded times
of the two candidates. `--show` prints the tables of the committed result.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import record
from benchmarks.command import Command
from benchmarks.recorded import SUITES, Noisy, of_one_problem
from benchmarks.search import percent, thousandths
from polytile import options
from polytile.campaigns.consensus import MOST, in_doubt
from polytile.dispatch.replay import replay
from polytile.report import Column, Table, show
from polytile.report.tables import count, ratio
from polytile.store import Store
from polytile.store.reading import Record
from polytile.tuning.replay import Matrix

AGREE, APART = 0.97, 1.02
"""What is wanted: the share of regimes, and how many times as long the slower of two choices may take elsewhere."""


def campaign(measured: Sequence[Matrix], seed: int, processes: int) -> list[tuple[str, int]]:
    """The candidate that a campaign of so many `processes` chooses in each regime, and by how many it was measured."""
    return [_chosen(matrix, seed, processes) for matrix in measured]


def _chosen(matrix: Matrix, seed: int, processes: int) -> tuple[str, int]:
    """What a program makes of the store in which all of them have put what they found, and how many there were."""
    store, found, number = Store(None), list[Record](), 0
    with options.override(tune="thorough", learned=False):
        while number < processes or (1 < processes <= number < MOST * processes and in_doubt(found)):
            device = Noisy(matrix, seed=1000 * seed + number)
            replay(matrix, device=device)
            store.append(*device.measured)
            found += [Record(f"{number}-{index}", float(number), one) for index, one in enumerate(device.measured)]
            number += 1
    with options.override(tune="off", learned=False):
        return replay(matrix, store=store).choices[0].candidate, number


def judged(measured: Sequence[Matrix], campaigns: Sequence[Sequence[tuple[str, int]]]) -> dict[str, Any]:
    """All pairs of campaigns."""
    chosen = [[name for name, _ in each] for each in campaigns]
    shares, apart = [], []
    for one, other in itertools.combinations(chosen, 2):
        gaps = [_gap(matrix, a, b) for matrix, a, b in zip(measured, one, other, strict=True) if a != b]
        shares.append(1 - len(gaps) / len(measured))
        apart += gaps
    ordered = sorted(apart) or [1.0]
    best = [_over_best(matrix, name) for each in chosen for matrix, name in zip(measured, each, strict=True)]
    return {
        "regimes": len(measured), "campaigns": len(chosen),
        "measured_by": statistics.fmean(number for each in campaigns for _, number in each),
        "pairs": len(shares), "agree": statistics.fmean(shares),
        "least": min(shares), "disagreements": len(apart), "apart": statistics.geometric_mean(ordered),
        "apart_p95": ordered[-(-95 * len(ordered) // 100) - 1], "apart_most": ordered[-1],
        "beyond": sum(gap > APART for gap in apart) / (len(measured) * len(shares)),
        "regret": statistics.geometric_mean(best),
    }  # fmt: skip


def _gap(matrix: Matrix, a: str, b: str) -> float:
    (problem,) = matrix.problems
    first, second = sorted((matrix.seconds(problem, a), matrix.seconds(problem, b)))
    return second / first


def _over_best(matrix: Matrix, name: str) -> float:
    (problem,) = matrix.problems
    return matrix.seconds(problem, name) / matrix.best(problem).score.seconds


def table(found: Mapping[str, Any]) -> Table:
    """A line for each suite and number of processes that measure each regime."""
    columns: list[Column | str] = [
        "regimes of", Column("processes"), Column("in the mean", ratio), Column("regimes", count),
        Column("campaigns", count), Column("agree on", percent),
        Column("the least two", percent), Column("apart, where not", thousandths), Column("95 %", thousandths),
        Column("most", thousandths), Column("beyond 1.02, of all", percent), Column("× fastest", thousandths),
    ]  # fmt: skip
    rows = [
        (name, processes, one["measured_by"], one["regimes"], one["campaigns"], one["agree"], one["least"],
         one["apart"], one["apart_p95"], one["apart_most"], one["beyond"], one["regret"])
        for name, by_processes in found.items() for processes, one in by_processes.items()
    ]  # fmt: skip
    return Table.from_rows("Independent campaigns on recorded times, with recorded noise", columns, rows)


def main() -> None:
    parser = Command(__doc__, "campaign_agreement", lambda found: show(table(found)), json=True)
    parser.add_argument("--suites", nargs="+", choices=list(SUITES), default=list(SUITES))
    parser.add_argument("--campaigns", type=int, default=4)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 3], help="as a campaign's spec has it")
    given = parser.parsed()
    found = {}
    for name in given.suites:
        measured = of_one_problem(SUITES[name]())
        found[name] = {
            str(processes): judged(measured, [campaign(measured, seed, processes) for seed in range(given.campaigns)])
            for processes in given.processes
        }
    show(table(found))
    if given.json:
        record.write("campaign_agreement", found)


if __name__ == "__main__":
    main()
