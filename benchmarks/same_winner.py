"""Do processes that tune the same problems from scratch choose the same kernels? `python -m benchmarks.same_winner`.

Each process has a store of its own, so that it learns nothing from the others; compiled kernels they share. The problems are the
kernels of ten functions at ten shapes, each compiled once. Those with one candidate worth timing say nothing, as all processes
"choose" it: contested problems, with two or more in every process, are what counts. --hinted has more of them.

Per problem the winner is the candidate that most processes chose, and agreement the share of processes that chose it. What a
choice costs is judged by the median over all processes of each candidate's time, in two ways: how much slower the chosen one is
than the fastest, which nobody who has only one process's times can find every time; and how much slower than what argmin
would have chosen by the very same times.

Processes that are done are kept in --directory: a run that was interrupted goes on where it stopped. With --jobs several run
at a time, and one of them measures: the others import, trace and compile meanwhile. That is quicker, and noisier, on a GPU too:
four at a time agreed in 93.6 % on problems on which single ones agree in 96.6 %, at 0.40 % of noise in place of 0.17 %.
"""

from __future__ import annotations

import argparse
import collections
import fcntl
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from benchmarks import record
from benchmarks.command import Command
from benchmarks.timing import OtherLoad
from polytile.report import Column, Table, show
from polytile.report.tables import ratio

if TYPE_CHECKING:
    from polytile.tuning.task import Attempt, Task

SHAPES = (
    (4, 48),
    (7, 1000),
    (16, 256),
    (33, 4096),
    (64, 64),
    (130, 700),
    (256, 2048),
    (520, 96),
    (1024, 1024),
    (3000, 333),
)
"""Rows and columns: no two lie in one regime, aligned and unaligned lengths, 200 to 1 million elements."""

WIDTH = 384
"""Columns of the products' right operand."""


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def layer_norm(x: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:])


def rms_norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)


def gelu_product(x: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x) * x


def scaled_rows(x: Tensor) -> Tensor:
    return x / x.abs().amax(-1, keepdim=True)


def row_sum(x: Tensor) -> Tensor:
    return x.sum(-1)


def column_sum(x: Tensor) -> Tensor:
    return x.sum(0)


def cumulative(x: Tensor) -> Tensor:
    return x.cumsum(-1)


def product(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


def gelu_linear(x: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x @ w)


ROWWISE: tuple[Callable[..., Tensor], ...] = (
    softmax, layer_norm, rms_norm, gelu_product, scaled_rows, row_sum, column_sum, cumulative,
)  # fmt: skip
PRODUCTS: tuple[Callable[..., Tensor], ...] = (product, gelu_linear)


@dataclass(frozen=True)
class Found:
    """One process's choice on one problem: the winner, and (candidate, seconds) of all that were timed, in canonical order."""

    winner: str
    times: tuple[tuple[str, float], ...]

    @property
    def fastest(self) -> str:
        return min(self.times, key=lambda pair: pair[1])[0]


@dataclass(frozen=True)
class Verdict:
    """Over all problems: mean share of processes that chose the commonest winner, share of pairs of processes that agree, mean
    cost against the fastest, and against what argmin chooses by the same process's times."""

    share: float
    pairs: float
    cost: float
    against_argmin: float

    def as_json(self) -> dict[str, float]:
        return {
            "same_winner": self.share, "pairs_that_agree": self.pairs, "mean_cost": self.cost,
            "mean_cost_against_argmin": self.against_argmin,
        }  # fmt: skip


# One process.


class Turn:
    """Held, in a `with`, by one thread of one process of all that know the file; the same thread may take it again."""

    def __init__(self, file: Path) -> None:
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT)
        self._lock, self._depth = threading.RLock(), 0

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1
        if self._depth == 1:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        self._lock.release()


def tune_all(device: str, limit: int, turns: Path) -> dict[str, Found]:
    """Calls every function at every shape, and returns what was decided by measuring, by problem. What a GPU has free may be
    used for that, as in `polytile tune`."""
    import polytile
    from polytile.dispatch.links import measured
    from polytile.dispatch.registry import alive
    from polytile.tuning.headroom import for_measuring
    from polytile.tuning.tune import tune

    turn = Turn(turns)

    def in_turn(task: Task) -> list[Attempt]:
        with turn:
            return tune(task)

    measured.tuner = in_turn
    torch.manual_seed(0)
    compiled = {function.__name__: polytile.compile(function) for function in (*ROWWISE, *PRODUCTS)}
    with torch.no_grad(), for_measuring():
        for rows, columns in SHAPES[:limit]:
            x = torch.randn(rows, columns, device=device)
            w = torch.randn(columns, WIDTH, device=device)
            for function in ROWWISE:
                compiled[function.__name__](x)
            for function in PRODUCTS:
                compiled[function.__name__](x, w)
    found = {}
    for decision in (decision for kernel in alive() for decision in kernel.decisions if decision.link == "measured"):
        times = tuple((s.candidate, s.seconds) for s in decision.standings if s.seconds == s.seconds and not s.note)
        found[str(decision.problem)] = Found(decision.candidate, times)
    return found


def child(target: Path, device: str, limit: int) -> None:
    """Tunes everything in this process and writes what was chosen to `target`."""
    load, started = OtherLoad(), time.perf_counter()
    found = tune_all(device, limit, target.with_name("turns"))
    problems = {name: [one.winner, one.times] for name, one in found.items()}
    content = {"problems": problems, "seconds": time.perf_counter() - started, "cores_used_by_others": load.cores()}
    unfinished = target.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(content))
    os.replace(unfinished, target)


# All processes.


HINTED = {"cpu": {"POLYTILE_SHORTLIST": "6"}, "cuda": {}}
"""By the type of device: as many candidates as hinted sizes get."""


@dataclass(frozen=True)
class Plan:
    """What each process is to do, and what all have in common."""

    directory: Path
    device: str
    mode: str
    limit: int
    hinted: bool

    def process(self, number: int) -> dict[str, Any]:
        """What process `number` wrote; it runs now if it has not run yet."""
        target = self.directory / f"{self.device}-{self.mode}-{self.limit}-{'hinted-' if self.hinted else ''}{number}.json"
        if not target.exists():
            store = target.with_suffix(".sqlite3")
            store.unlink(missing_ok=True)
            variables = {
                "POLYTILE_STORE": str(store), "POLYTILE_TUNE": self.mode, "POLYTILE_CACHE_DIR": str(self.directory / "cache"),
            }  # fmt: skip
            command = [sys.executable, "-m", "benchmarks.same_winner", "--child", str(target)]
            command += ["--device", self.device, "--shapes", str(self.limit)]
            subprocess.run(command, check=True, env={**os.environ, **variables, **(HINTED[self.device] if self.hinted else {})})
            store.unlink(missing_ok=True)
        written: dict[str, Any] = json.loads(target.read_text())
        others = f"{written['cores_used_by_others']:.2f} cores used by others"
        print(f"[{number + 1}] {written['seconds']:.0f} s, {others}", flush=True)
        return written


def run(plan: Plan, processes: int, jobs: int, seconds: float) -> list[dict[str, Any]]:
    """What each process wrote: the first alone, as it compiles for all, the others `jobs` at a time. None is begun once so many
    seconds have passed; the first two are in any case."""
    plan.directory.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + seconds
    first = plan.process(0)
    with ThreadPoolExecutor(jobs) as pool:
        later = range(1, processes)
        others = pool.map(lambda number: plan.process(number) if number == 1 or time.monotonic() < until else None, later)
        return [first, *(written for written in others if written is not None)]


def judged(found: dict[str, list[Found]], chosen: Callable[[Found], str]) -> Verdict:
    """What the rule `chosen`, applied to each process's own times, means for agreement and cost."""
    shares, pairs, costs, against = [], [], [], []
    for each in found.values():
        pooled = medians(each)
        winners = [chosen(one) for one in each]
        shares.append(collections.Counter(winners).most_common(1)[0][1] / len(winners))
        pairs += [first == second for first, second in itertools.combinations(winners, 2)]
        costs += [pooled[winner] / min(pooled.values()) - 1 for winner in winners]
        against += [pooled[winner] / pooled[one.fastest] - 1 for winner, one in zip(winners, each, strict=True)]
    return Verdict(statistics.fmean(shares), statistics.fmean(pairs), statistics.fmean(costs), statistics.fmean(against))


def medians(each: Sequence[Found]) -> dict[str, float]:
    """Seconds of each candidate: the median over the processes that timed it."""
    times: dict[str, list[float]] = {}
    for name, seconds in (pair for one in each for pair in one.times):
        times.setdefault(name, []).append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def contested(found: dict[str, list[Found]]) -> dict[str, list[Found]]:
    """The problems on which every process had a choice."""
    return {problem: each for problem, each in found.items() if all(len(one.times) > 1 for one in each)}


def unsteady(found: dict[str, list[Found]]) -> list[tuple[str, str, float]]:
    """(problem, its winners, their gap by the medians) where processes disagree, the worst first."""
    rows = []
    for problem, each in found.items():
        winners = collections.Counter(one.winner for one in each).most_common()
        if len(winners) > 1:
            pooled = medians(each)
            gap = abs(pooled[winners[0][0]] / pooled[winners[1][0]] - 1)
            rows.append((winners[0][1], problem, ", ".join(f"{name}: {times}" for name, times in winners), gap))
    return [(problem, winners, gap) for _, problem, winners, gap in sorted(rows)]


def main() -> None:
    parser = Command(__doc__, json=True)
    parser.add_argument("--processes", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tune", choices=["auto", "thorough"], default="thorough", help="how carefully to measure")
    parser.add_argument("--shapes", type=int, default=len(SHAPES), help="the first so many shapes alone")
    parser.add_argument("--hinted", action="store_true", help="as many candidates as hinted sizes get")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time, of which one measures")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no further process is begun")
    parser.add_argument("--directory", type=Path, default=Path("build/same_winner"), help="what is done is kept here")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parsed()
    if given.child is not None:
        child(given.child, given.device, given.shapes)
        return
    plan = Plan(given.directory.absolute(), given.device, given.tune, given.shapes, given.hinted)
    written = run(plan, given.processes, given.jobs, given.seconds)
    by_problem: dict[str, list[Found]] = {}
    for name, (winner, times) in (pair for one in written for pair in one["problems"].items()):
        by_problem.setdefault(name, []).append(Found(winner, tuple((who, seconds) for who, seconds in times)))
    everything = {name: each for name, each in by_problem.items() if len(each) == len(written) > 0}
    verdicts = {
        f"{rule}, {which}": (len(found), judged(found, chosen))
        for which, found in (("contested", contested(everything)), ("all", everything))
        for rule, chosen in (("polytile", lambda one: one.winner), ("argmin", lambda one: one.fastest))
        if found
    }
    columns: list[Column | str] = [
        "choice by", "problems", Column("same winner %", ratio), Column("pairs that agree %", ratio),
        Column("mean cost %", ratio), Column("against argmin %", ratio),
    ]  # fmt: skip
    rows = [
        (name, size, 100 * v.share, 100 * v.pairs, 100 * v.cost, 100 * v.against_argmin)
        for name, (size, v) in verdicts.items()
    ]
    busy = max(one["cores_used_by_others"] for one in written)
    notes = [f"Other processes used at most {busy:.2f} cores meanwhile."]
    disagreements = unsteady(everything)
    title = f"{len(written)} processes from scratch, {given.device}, tune={given.tune}"
    show(Table.from_rows("Problems on which processes disagree", ["problem", "winners", Column("gap", ratio)], disagreements))
    show(Table.from_rows(title, columns, rows, notes))
    if given.json:
        results = {
            "processes": len(written), "jobs": given.jobs, "device": given.device, "tune": given.tune, "hinted": given.hinted,
            "verdicts": {name: {"problems": size, **verdict.as_json()} for name, (size, verdict) in verdicts.items()},
            "seconds_each": [round(one["seconds"], 1) for one in written], "cores_used_by_others": round(busy, 2),
            "disagreements": [list(row) for row in disagreements],
        }  # fmt: skip
        record.write(f"same_winner_{torch.device(given.device).type}", results)


__all__ = ["Found", "Turn", "Verdict", "contested", "judged", "medians", "unsteady"]

if __name__ == "__main__":
    main()
