"""What does a campaign's scheduler cost? `python -m benchmarks.campaign_fleet [--json]`, on two cores and 16 simulated devices.

The units of work are the products that were recorded on an H100 (benchmarks.recorded). A worker of each device takes units from
the campaign's folder, and the driver adds what they find to a SQLite store, by the code of `polytile campaign run`. Only the
measuring is simulated: for each timing that a unit takes, its worker sleeps 100 ms, and its result is what the recorded times
give. So all CPU time that is used is the scheduler's: that of leases, signs of life, results and the store.

`times one device` compares with a single device that is never idle, as no scheduler can make it. `idle` is the share of the
devices' time in which no unit was measured, before the last 5 % of the campaign. `--show` prints the committed result.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import resource
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.command import Command
from benchmarks.recorded import Noisy, of_one_problem, products
from benchmarks.search import percent
from polytile import options
from polytile.campaigns import run
from polytile.campaigns.board import Board, Unit
from polytile.campaigns.spec import SEARCHES, Spec
from polytile.campaigns.worker import Bench, work
from polytile.dispatch.replay import replay
from polytile.problem import Measurement
from polytile.report import Column, Table, show
from polytile.report.tables import count, ratio
from polytile.store import jsonl
from polytile.store.reading import Record, records
from polytile.tuning.replay import Matrix

TIMING_SECONDS = 0.1
LAST = 0.05
"""The share of a campaign in which devices may be idle, as there are fewer units left than devices."""


@dataclass(frozen=True)
class Found:
    """One campaign. Seconds are of the clock; `busy_seconds` and `idle` of all devices together."""

    search: str
    devices: int
    units: int
    timings: int
    seconds: float
    busy_seconds: float
    cpu_seconds: float
    idle: float
    kept: int

    @property
    def speedup(self) -> float:
        return self.timings * TIMING_SECONDS / self.seconds

    @property
    def cpu_per_timing(self) -> float:
        return self.cpu_seconds / self.timings


class Simulated(Bench):
    """Gives each unit's recorded result, after as many seconds as its timings would take; notes in a file when it did."""

    def __init__(self, results: Mapping[str, tuple[int, str]], log: Path) -> None:
        super().__init__(_calls_nothing)
        self.results, self.log = results, log

    def prepare(self, unit: Unit) -> None:
        """Simulated devices have nothing to compile."""

    def measure(self, unit: Unit) -> str:
        timings, lines = self.results[unit.id]
        begun = time.monotonic()
        time.sleep(timings * TIMING_SECONDS)
        with open(self.log, "a") as file:
            file.write(f"{begun} {time.monotonic()}\n")
        return lines


def _calls_nothing(about: Mapping[str, Any], device: str) -> tuple[Callable[..., Any], Sequence[tuple[Any, ...]]]:
    """The calls of a unit: simulated devices make none."""
    raise AssertionError(f"a simulated device was to call {about}")


def simulated_units(search: str) -> tuple[list[Unit], dict[str, tuple[int, str]]]:
    """The units, and for each of them its number of timings and its measurements as JSON lines."""
    units, results = [], {}
    for number, matrix in enumerate(of_one_problem(products())):
        (problem,) = matrix.problems
        unit = Unit(
            problem.kernel, {"n": number}, dict(problem.sizes), SEARCHES[search], "cuda", problem.device, matrix.environment,
            threads=1, seconds=600.0, candidates=matrix.size,
        )  # fmt: skip
        found = [Record(uuid.uuid4().hex, float(number), measurement) for measurement in _found(matrix, search)]
        units.append(unit)
        results[unit.id] = len(found), jsonl.header() + "".join(map(jsonl.line, found))
    return units, results


def _found(matrix: Matrix, search: str) -> list[Measurement]:
    device = Noisy(matrix, seed=1)
    with options.override(**SEARCHES[search]):
        replay(matrix, device=device)
    return device.measured


def campaign(search: str, devices: int) -> Found:
    """Runs it: the driver here, and each device's worker in a process of its own."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        units, results = simulated_units(search)
        board = Board(folder / "campaign", make=True)
        for unit in units:
            board.add(unit)
        board.order(units)
        logs = [folder / f"device{number}.log" for number in range(devices)]
        ready = context.Barrier(devices + 1)
        workers = [context.Process(target=_device, args=(board, Simulated(results, log), ready)) for log in logs]
        for worker in workers:
            worker.start()
        ready.wait()
        spent, begun = _cpu_seconds(), time.monotonic()
        run.measure(Spec(device="cuda", search=search), board, "folder", 0, _calls_nothing, lambda *seen: None)
        seconds = time.monotonic() - begun
        for worker in workers:
            worker.join()
        kept = len(records(run.store_of(Spec(), board.root)))
        spans = [(float(start), float(end)) for log in logs for start, end in map(str.split, log.read_text().splitlines())]
        return Found(
            search, devices, len(units), sum(timings for timings, _ in results.values()), seconds,
            sum(end - start for start, end in spans), _cpu_seconds() - spent, _idle(spans, begun, seconds, devices), kept,
        )  # fmt: skip


def _device(board: Board, bench: Simulated, ready: Barrier) -> None:
    """What the process of a device runs. All begin when the last of them is there, and the campaign with them."""
    ready.wait()
    work(board, bench.log.stem, bench)


def _idle(spans: Sequence[tuple[float, float]], begun: float, seconds: float, devices: int) -> float:
    """The share of the devices' time without a unit, before the last of the campaign."""
    whole = (1 - LAST) * seconds
    busy = sum(max(0.0, min(end, begun + whole) - start) for start, end in spans)
    return 1 - busy / (devices * whole)


def _cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def table(found: Sequence[Found]) -> Table:
    columns: list[Column | str] = [
        "search", Column("devices", count), Column("units", count), Column("timings", count), Column("seconds", ratio),
        Column("times one device", ratio), Column("CPU ms a timing", ratio), Column("idle, before the last 5 %", percent),
    ]  # fmt: skip
    rows = [
        (f.search, f.devices, f.units, f.timings, f.seconds, f.speedup, f.cpu_per_timing * 1e3, f.idle) for f in found
    ]  # fmt: skip
    return Table.from_rows(f"Campaigns on simulated devices, {TIMING_SECONDS * 1e3:.0f} ms a timing", columns, rows)


def show_committed(results: Mapping[str, Any]) -> None:
    names = {field.name for field in dataclasses.fields(Found)}
    show(table([Found(**{name: value for name, value in each.items() if name in names}) for each in results.values()]))


def main() -> None:
    parser = Command(__doc__, "campaign_fleet", show_committed, json=True)
    parser.add_argument("--devices", type=int, default=16)
    parser.add_argument("--searches", nargs="+", choices=["thorough", "all"], default=["thorough", "all"])
    given = parser.parsed()
    found = [campaign(search, given.devices) for search in given.searches]
    show(table(found))
    for each in found if given.json else ():
        record.add("campaign_fleet", each.search, _as_json(each))
    if any(f.kept != f.timings for f in found):
        raise SystemExit(1)


def _as_json(found: Found) -> dict[str, Any]:
    return {**dataclasses.asdict(found), "speedup": found.speedup, "cpu_per_timing": found.cpu_per_timing}


if __name__ == "__main__":
    main()
