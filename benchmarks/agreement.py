"""Do processes that learn live from the same requests come to run the same kernels? `python -m benchmarks.agreement`.

Each process calls ten functions at sizes that a seed draws, the same in all processes, with the default stall="never": kernels
are tried on these calls, and nobody waits. With --store own each has a store of its own and learns nothing from the others;
compiled kernels alone are copied from the first. With shared they have one store and one cache directory, as the workers of a
server do, and leases keep them from learning the same at once.

The judgement is that of benchmarks.same_winner, by kernel and regime in place of problems: the share of processes that chose the
commonest winner, and how much slower a choice is than the fastest, by the median of each candidate's time. Only
regimes that every process has decided by measuring count, and those with two or more candidates timed in each are "contested".
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import record
from benchmarks.same_winner import PRODUCTS, ROWWISE, WIDTH, Found, contested, judged, unsteady
from benchmarks.timing import OtherLoad
from polytile.report import Column, Table, show
from polytile.report.tables import ratio

LEARNED = ("measured", "exact", "nearby")
"""Links of the selector whose decisions rest on measurements, this process's or another's."""


def requests(count: int, seed: int = 0) -> Iterator[tuple[int, int]]:
    """Rows and columns: few lengths of which each comes with any number of rows, as in a server."""
    draw = random.Random(seed)
    for _ in range(count):
        yield draw.choice((1, 2, 4, 8, 16, 32, 64)) + draw.randrange(8), draw.choice((48, 256, 700, 1000, 2048, 4096))


def child(target: Path, device: str, count: int) -> None:
    """Serves the requests in this process, and writes what it has decided to `target`."""
    import polytile
    from polytile.dispatch.registry import alive

    load, started = OtherLoad(), time.perf_counter()
    torch.manual_seed(0)
    compiled = [polytile.compile(function) for function in (*ROWWISE, *PRODUCTS)]
    weights: dict[int, torch.Tensor] = {}
    with torch.no_grad():
        for rows, columns in requests(count):
            x = torch.randn(rows, columns, device=device)
            w = weights.setdefault(columns, torch.randn(columns, WIDTH, device=device))
            for number, function in enumerate(compiled):
                function(x) if number < len(ROWWISE) else function(x, w)
    found = {}
    decisions = [decision for kernel in alive() for decision in kernel.decisions]
    for decision in (decision for decision in decisions if decision.link in LEARNED):
        times = [(s.candidate, s.seconds) for s in decision.standings if s.seconds == s.seconds and not s.note]
        found[f"{decision.kernel} {decision.regime}"] = [decision.candidate, times]
    content = {
        "regimes": found, "decided": len(decisions), "seconds": time.perf_counter() - started,
        "candidates_measured": polytile.counters["candidates_benchmarked"], "cores_used_by_others": load.cores(),
    }  # fmt: skip
    unfinished = target.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(content))
    os.replace(unfinished, target)


@dataclass(frozen=True)
class Plan:
    """What each process is to do, and what all have in common."""

    directory: Path
    device: str
    requests: int
    shared: bool

    def process(self, number: int) -> dict[str, Any]:
        """What process `number` wrote; it runs now if it has not run yet."""
        kind = "shared" if self.shared else "own"
        target = self.directory / f"{self.device}-{self.requests}-{kind}-{number}.json"
        if not target.exists():
            store = self.directory / ("shared.sqlite3" if self.shared else f"own-{number}.sqlite3")
            cache = self.directory / ("cache" if self.shared else f"cache-{number}")
            first = self.directory / "cache-0" / "kernels"
            if not self.shared and number and first.exists() and not cache.exists():
                cache.mkdir(mode=0o700)
                shutil.copytree(first, cache / "kernels")
            variables = {"POLYTILE_STORE": str(store), "POLYTILE_CACHE_DIR": str(cache)}
            command = [sys.executable, "-m", "benchmarks.agreement", "--child", str(target)]
            command += ["--device", self.device, "--requests", str(self.requests)]
            subprocess.run(command, check=True, env={**os.environ, **variables})
        written: dict[str, Any] = json.loads(target.read_text())
        print(f"[{number + 1}] {written['seconds']:.0f} s, {len(written['regimes'])} of {written['decided']} regimes measured, "
              f"{written['cores_used_by_others']:.2f} cores used by others", flush=True)  # fmt: skip
        return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--processes", type=int, default=20)
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--store", choices=["own", "shared"], default="own", help="whether the processes share one")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--directory", type=Path, default=Path("build/agreement"), help="what is done is kept here")
    parser.add_argument("--json", action="store_true", help="also write benchmarks/results/agreement_STORE_DEVICE.json")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        child(given.child, given.device, given.requests)
        return
    plan = Plan(given.directory.absolute(), given.device, given.requests, given.store == "shared")
    plan.directory.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(given.jobs) as pool:
        first = [] if plan.shared else [plan.process(0)]  # alone, as it compiles for all
        written = [*first, *pool.map(plan.process, range(len(first), given.processes))]
    report(written, given)


def report(written: list[dict[str, Any]], given: argparse.Namespace) -> None:
    """Prints the judgement, and writes it where that is asked for."""
    by_regime: dict[str, list[Found]] = {}
    for one in written:
        for name, (winner, times) in one["regimes"].items():
            by_regime.setdefault(name, []).append(Found(winner, tuple((who, seconds) for who, seconds in times)))
    everywhere = {name: each for name, each in by_regime.items() if len(each) == len(written)}
    timed = {name: each for name, each in everywhere.items() if all(one.times for one in each)}
    verdicts = {
        which: (len(found), judged(found, lambda one: one.winner))
        for which, found in (("contested", contested(timed)), ("all", timed))
        if found
    }
    columns: list[Column | str] = [
        "regimes", "count", Column("same winner %", ratio), Column("pairs that agree %", ratio), Column("mean cost %", ratio),
    ]  # fmt: skip
    rows = [(name, size, 100 * v.share, 100 * v.pairs, 100 * v.cost) for name, (size, v) in verdicts.items()]
    busy = max(one["cores_used_by_others"] for one in written)
    notes = [
        f"{len(by_regime)} regimes were measured by some process, {len(everywhere)} by all.",
        f"Other processes used at most {busy:.2f} cores meanwhile.",
    ]
    disagreements = unsteady(timed)
    show(Table.from_rows("Regimes on which processes disagree", ["regime", "winners", Column("gap", ratio)], disagreements))
    title = f"{len(written)} processes, {given.requests} requests each, {given.device}, store: {given.store}"
    show(Table.from_rows(title, columns, rows, notes))
    if given.json:
        results = {
            "processes": len(written), "jobs": given.jobs, "requests": given.requests, "device": given.device,
            "store": given.store, "measured_by_some": len(by_regime), "measured_by_all": len(everywhere),
            "verdicts": {name: {"regimes": size, **verdict.as_json()} for name, (size, verdict) in verdicts.items()},
            "seconds_each": [round(one["seconds"], 1) for one in written],
            "candidates_measured": [one["candidates_measured"] for one in written], "cores_used_by_others": round(busy, 2),
            "disagreements": [list(row) for row in disagreements],
        }  # fmt: skip
        record.write(f"agreement_{given.store}_{torch.device(given.device).type}", results)


if __name__ == "__main__":
    main()
