"""Processes that append measurements to one store at once: how many a second, and is each of them there afterwards.

`python -m benchmarks.store_rate`: 8 processes × 10 000 measurements of 40 samples into one SQLite file, and the same into
PostgreSQL with its default settings. Each measurement is a transaction of its own, as in tuning. `--show` measures nothing and
prints the table of the results that are there, for docs/store.md:

    python -m benchmarks.store_rate --show | python scripts/update_readme.py - --document docs/store.md --name store_rate
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from benchmarks import postgres, record
from benchmarks.command import Command
from polytile.facts import Divisible, Threads
from polytile.problem import Config, Measurement, Outcome, Problem, Resources
from polytile.report import Column, Table, show
from polytile.report.tables import count, ratio
from polytile.store import Store, check
from polytile.store.place import Place, Server

SAMPLES = 40
PROBLEMS = 500
"""Different problems that a process measures, over and over, with candidates of different names."""


@dataclass(frozen=True)
class Found:
    """One store: how many measurements were appended and how many are there, seconds, and bytes of the store.
    `alone_seconds` is what one append takes while nobody else writes."""

    store: str
    processes: int
    appended: int
    kept: int
    seconds: float
    alone_seconds: float
    reading_seconds: float
    size_bytes: int
    troubles: tuple[str, ...]

    @property
    def rate(self) -> float:
        return self.appended / self.seconds

    def as_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "lost": self.appended - self.kept, "measurements_per_second": self.rate}


def measurement(process: int, number: int) -> Measurement:
    """A measurement like those of tuning, in all its parts."""
    size = number % PROBLEMS
    problem = Problem(
        "loop",
        f"{process:016x}",
        (("n0", 64 + size), ("n1", 512)),
        ("float32", "float32"),
        (Divisible("n1"), Threads(2)),
        "cpu-x",
    )
    samples = tuple(1e-5 * (1 + ((number * 7919 + step * 104729) % 1000) / 1e5) for step in range(SAMPLES))
    return Measurement(
        problem,
        f"looped t{number // PROBLEMS}",
        Config.of({"n0": 64}, threads=2, unroll=4),
        "0123456789abcdef",
        Outcome.OK,
        samples,
        1e-7,
        0.25,
        environment=(("compiler", "g++ 12.2.0"), ("torch", "2.13.0")),
        origin="cpp",
        predicted=1.1e-5,
        resources=Resources(),
        state=(("load", 1.0), ("mhz", 2450.0)),
        machine=(("isa", "avx512"), ("model", "a processor")),
    )


def append(place: Place, process: int, numbers: range, barrier: Barrier | None = None) -> None:
    """What each process does: one append a measurement."""
    store = Store(place)
    ready = [measurement(process, number) for number in numbers]  # making them up is not what is timed
    store.exact(ready[0].problem, ready[0].environment)
    if barrier is not None:
        barrier.wait()
    for one in ready:
        store.append(one)
    store.close()


def measure(name: str, place: Place, processes: int, each: int) -> Found:
    """Appends, counts and checks."""
    started = time.perf_counter()
    alone = max(1, each // 10)
    append(place, processes, range(alone))
    alone_seconds = (time.perf_counter() - started) / alone
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes + 1)
    workers = [context.Process(target=append, args=(place, p, range(each), barrier)) for p in range(processes)]
    for worker in workers:
        worker.start()
    barrier.wait()
    started = time.perf_counter()
    for worker in workers:
        worker.join()
    seconds = time.perf_counter() - started
    failed = [worker.exitcode for worker in workers if worker.exitcode]
    assert not failed, f"{len(failed)} writers ended with {failed}"
    health = check.check(place)
    expected = {(p, n) for p in range(processes) for n in range(each)}
    started = time.perf_counter()
    kept = [m for m in Store(place).measurements() if int(m.problem.kernel, 16) < processes]
    reading_seconds = time.perf_counter() - started
    there = {(int(m.problem.kernel, 16), number(m)) for m in kept}
    assert there <= expected and len(there) == len(kept), "the store holds what nobody appended"
    size = health.size_bytes
    return Found(
        name, processes, len(expected), len(kept), seconds, alone_seconds, reading_seconds, size, health.troubles
    )


def number(m: Measurement) -> int:
    """The number that `measurement` made it of."""
    return int(m.candidate.removeprefix("looped t")) * PROBLEMS + dict(m.problem.sizes)["n0"] - 64


@contextlib.contextmanager
def places(names: list[str]) -> Iterator[dict[str, Place]]:
    with contextlib.ExitStack() as stack:
        made: dict[str, Place] = {}
        if "SQLite" in names:
            made["SQLite"] = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "store.sqlite3"
        if "PostgreSQL" in names:
            made["PostgreSQL"] = Server(stack.enter_context(postgres.server(settings=())).url)
        yield made


def table(found: list[Found], *notes: str) -> Table:
    columns: list[Column | str] = [
        "store",
        Column("processes", count),
        Column("appended", count),
        Column("lost", count),
        Column("seconds", ratio),
        Column("a second", count),
        Column("ms each, alone", ratio),
        Column("bytes each", count),
    ]
    rows = [
        (f.store, f.processes, f.appended, f.appended - f.kept, f.seconds, round(f.rate), f.alone_seconds * 1e3,
         f.size_bytes // max(1, f.kept)) for f in found
    ]  # fmt: skip
    troubles = [f"{f.store}: {trouble}." for f in found for trouble in f.troubles]
    return Table.from_rows(f"Appending measurements of {SAMPLES} samples, one a transaction", columns, rows, [*troubles, *notes])


def committed() -> Table:
    """The table of the results that are there, with where they come from."""
    content = json.loads((record.RESULTS / "store_rate.json").read_text())
    names = [field.name for field in dataclasses.fields(Found)]
    found = [Found(**{name: values[name] for name in names}) for values in content["results"].values()]
    where = content["environment"]
    note = f"{where['processor']}, {where['cores']} cores, {where['system']}, {where['date'][:10]}."
    return table(found, note)


def main() -> None:
    parser = Command(__doc__, json=True)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--each", type=int, default=10_000, help="measurements of each process")
    parser.add_argument("--stores", nargs="*", choices=["SQLite", "PostgreSQL"], default=["SQLite", "PostgreSQL"])
    parser.add_argument("--show", action="store_true", help="measure nothing and print what that file has")
    arguments = parser.parsed()
    if arguments.show:
        show(committed())
        return
    with places(arguments.stores) as made:
        found = [measure(name, place, arguments.processes, arguments.each) for name, place in made.items()]
    show(table(found))
    if arguments.json:
        record.write("store_rate", {f.store: f.as_json() for f in found})
    if any(f.kept != f.appended or f.troubles for f in found):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
