"""Decides when enough processes have measured a unit of work.

Processes differ. On a GPU a kernel's time in one process is off by a few tenths of a per cent, whatever is measured within it,
and now and then by 3 to 10 % (docs/tuning-experiments.md). So a campaign with `processes` = n has n of them measure each unit. It
asks for one more if that may change the choice, up to MOST times n. Programs choose by the medians, or, of many, by the means of
the middle halves (tuning/decide.py).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from polytile.campaigns.board import Board, Unit, work_of
from polytile.problem import Problem
from polytile.runtime.device import kind_of
from polytile.store import jsonl
from polytile.store.reading import Record, grouped
from polytile.store.records import Reading, reading_of
from polytile.tuning.decide import doubtful, noise_band
from polytile.tuning.standings import standings

MOST = 5
"""Maximum number of processes for a unit whose choice stays in doubt, as a multiple of `processes`."""

SURE = 1.3
"""`doubtful` looks within twice the standard error; 2.6 times is exceeded in 1 % of cases."""

OF_DIFFERENCES = 0.6745 * math.sqrt(2)
"""The median absolute difference of two normal variables, in units of their standard deviation."""

OF_MEDIANS = math.sqrt(math.pi / 2)
"""The standard error of a median of n numbers relative to that of their mean; that of the middle half's mean is 1.09."""


def units_in_doubt(board: Board, found: Collection[str], processes: int) -> list[Unit]:
    """A unit for one more process for each work among the units `found` that needs one."""
    if processes < 2:
        return []
    wanted: dict[str, int] = {}
    for name in board.wanted():
        wanted[work_of(name)] = wanted.get(work_of(name), 0) + 1
    more = []
    for work in sorted({work_of(name) for name in found} & set(wanted)):
        results = board.results_of(work)
        complete = len(results) >= wanted[work] and not any(result.error for result in results.values())
        if complete and len(results) < MOST * processes:
            lines = (jsonl.parse(result.lines.encode(), name) for name, result in results.items())
            if in_doubt([record for parsed in lines for record in parsed.records]):
                more.append(replace(board.unit(next(iter(results))), process=len(results)))
    return more


def in_doubt(records: Iterable[Record]) -> bool:
    """Whether another process may change the choice for one of the measured problems."""
    problems = grouped(records, lambda one: one.problem)
    return any(_in_doubt(problem, measured) for problem, measured in problems.items())


def _in_doubt(problem: Problem, measured: Sequence[Record]) -> bool:
    by_candidate = standings(measured)
    spread = spread_of([reading_of(one) for one in standing.measured] for standing in by_candidate.values())
    error = SURE * OF_MEDIANS * spread
    judged = [replace(s.score, noise=error / math.sqrt(max(1, s.score.times))) for s in by_candidate.values()]
    return doubtful(judged, noise_band(kind_of(problem.device)), [standing.entrant for standing in by_candidate.values()])


def spread_of(candidates: Iterable[Sequence[Reading]]) -> float:
    """The relative standard deviation between processes, from the median pairwise difference for the same candidate; 0 if none
    was measured twice."""
    apart = [
        abs(one.seconds / other.seconds - 1)
        for readings in candidates
        for one, other in itertools.combinations([r for r in readings if math.isfinite(r.seconds)], 2)
    ]
    return statistics.median(apart) / OF_DIFFERENCES if apart else 0.0
