"""`python -m benchmarks.programs [--only ...] [--levels ...] [--jobs 8] [--seconds 420]`: the suite, or a part of it.

Each contestant of each program has a process and caches of its own. Rows go to OUT/programs_DEVICE.jsonl as they end. A run
goes on from those and from the record, OUT/programs_DEVICE.json, which `--json` writes; `--show` prints both. When `--seconds`
are over no process is begun, and one that has not ended `--grace` seconds later is ended.
The programs come in an order that mixes families, so that a part of the suite is a sample of it. Several GPUs of one host can
share a suite: each runs one `--part`, and `--resume` joins their files of rows.

`--first-calls 10` measures anew, one process after the other, the slowest first calls on record: beside other processes they take
longer than alone.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import queue
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks import record
from benchmarks.contestants import LATE, Processes
from benchmarks.environment import DEVICE, environment, revision
from benchmarks.programs.contestant import CONTESTANTS, table_of
from benchmarks.programs.program import LEVELS, Program
from benchmarks.programs.report import WAYS, report, slowest

Key = tuple[str, str]
CONTESTANT = "benchmarks.programs.contestant:main"
SHARED = ("torch._dynamo", "benchmarks.direct", "benchmarks.timing", "benchmarks.programs.contestant")
EVERY = 15.0
"""Seconds between two writings of the file of results."""
STEP = 29
"""The order of a run: every so many places of the tables, which it has no factor in common with."""
TIMES = ("first_call_s", "second_call_s", "stages", *WAYS, "beside")
"""What a row says of time."""


class Rows:
    """The rows measured so far: those of the record beside `path`, which ends in .json, and those of `path`, a .jsonl file to
    which each row is written as it ends. The last of a program and contestant counts, so that of the file written last. Those of
    other files of either kind are added that are missing; of those timed while other processes kept more than `beside` cores busy
    only the verdict, and not that they were late. Raises FileNotFoundError where one of the others is not there."""

    def __init__(self, path: Path, others: Iterable[Path] = (), beside: float = math.inf) -> None:
        self.path, self.where = path, {"revision": revision(), "processor": environment()["processor"]}
        self._rows: dict[Key, dict[str, Any]] = {}
        own = filter(Path.exists, (path.with_suffix(".json"), path))
        for file in sorted(own, key=lambda file: file.stat().st_mtime_ns):
            self._rows |= _read(file)
        for file in others:
            for key, row in _read(file).items():
                if key not in self and (row.get("error") != LATE or beside == math.inf):
                    self._write(row if _busy(row) <= beside else {k: v for k, v in row.items() if k not in TIMES})

    @property
    def all(self) -> list[dict[str, Any]]:
        return list(self._rows.values())

    def __contains__(self, key: Key) -> bool:
        return key in self._rows

    def timed(self, key: Key) -> bool:
        """Whether a row has times of calls, or says why there are none."""
        return any(way in self._rows[key] for way in (*WAYS, "error"))

    def add(self, row: dict[str, Any]) -> None:
        self._write({**row, **self.where})

    def _write(self, row: dict[str, Any]) -> None:
        self._rows[row["program"], row["contestant"]] = row
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def _read(path: Path) -> dict[Key, dict[str, Any]]:
    """The last row of each program and contestant in the lines of a run (.jsonl) or a record (.json)."""
    rows = record.read(path)["rows"] if path.suffix == ".json" else map(json.loads, path.read_text().splitlines())
    return {(row["program"], row["contestant"]): row for row in rows}


def _busy(row: Mapping[str, Any]) -> float:
    """The most cores that other processes kept busy beside some timing of a row."""
    return max(row.get("beside", {}).values(), default=0.0)


@dataclass(frozen=True)
class Run:
    """How contestants are run: who makes processes, on which device, the lock file for times, when to stop, how long one may
    take, seconds of timing, PyTorch's threads (a forked process would have one)."""

    processes: queue.SimpleQueue[Processes]
    device: str
    lock: Path | None
    deadline: float
    grace: float
    limit: float
    timing: float
    threads: int
    table: str
    rows: Rows = field(repr=False)

    def one(self, program: Program, who: str) -> None:
        """Runs one contestant of one program, unless time is up, and adds its row."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            return
        asked = {"program": program.name, "contestant": who, "device": self.device, "seconds": self.timing}
        asked |= {"lock": str(self.lock) if self.lock else "", "table": self.table, "threads": self.threads}
        until = min(self.limit, left + self.grace)
        processes = self.processes.get()
        try:
            found = processes.run(CONTESTANT, asked, until)
        finally:
            self.processes.put(processes)
        if found.get("error") == LATE and until < self.limit:
            return  # its own limit was not reached: nothing is known of it
        row = {"program": program.name, "contestant": who, "level": program.level, "family": program.family, **found}
        self.rows.add({**row, "device": self.device})
        print(line(row), flush=True)


def line(row: Mapping[str, Any]) -> str:
    begin = f"{row['program']}, {row['contestant']}: "
    if "error" in row:
        return begin + row["error"].splitlines()[0][:200]
    parts = [f"WRONG: {row['wrong']}" if row["wrong"] else "right", f"first call {row['first_call_s']:.1f} s"]
    for kind in ("kernels", "direct", "called", "door"):
        if kind in row:
            parts.append(f"{kind} " + " / ".join(f"{seconds * 1e6:.0f}" for seconds in row[kind].values()) + " µs")
    return begin + ", ".join(parts)


def wanted(given: argparse.Namespace, programs: Mapping[str, Program]) -> list[Program]:
    """The programs asked for, families mixed."""
    found = [
        program
        for program in programs.values()
        if program.level in given.levels
        and (not given.families or program.family in given.families)
        and (not given.only or any(word in program.name for word in given.only))
        and (given.device == "cpu" or program.gpu)
    ]
    mixed = sorted(found, key=lambda program: (list(programs).index(program.name) * STEP) % len(programs))
    part, parts = given.part
    return mixed[part::parts]


def part_of(text: str) -> tuple[int, int]:
    """What `--part` says, "1/4": the part, counted from 0, and the number of parts."""
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 0 < int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r} is no part such as 1/4")
    return int(part) - 1, int(parts)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", choices=("cpu", "cuda"), default=DEVICE)
    parser.add_argument("--contestants", nargs="+", choices=CONTESTANTS, default=list(CONTESTANTS))
    parser.add_argument("--levels", nargs="+", choices=LEVELS, default=list(LEVELS))
    parser.add_argument("--families", nargs="+", default=[])
    parser.add_argument("--only", nargs="+", default=[], help="programs whose names contain one of these")
    parser.add_argument(
        "--part", type=part_of, default=(0, 1), metavar="I/N", help="of N parts the I-th: each of N GPUs can run one"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes at a time; while one is timed others only compile"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of PyTorch in each process")
    parser.add_argument("--seconds", type=float, default=1e6, help="when no further process is begun")
    parser.add_argument(
        "--grace", type=float, default=30, help="seconds after which those that are running then are ended"
    )
    parser.add_argument("--limit", type=float, default=300, help="seconds that one process may take")
    parser.add_argument(
        "--timing", type=float, default=0.4, help="seconds of timing for each row and way; 0: correctness alone"
    )
    parser.add_argument(
        "--first-calls", type=int, default=0, metavar="N", help="only the N slowest on record, alone and anew"
    )
    parser.add_argument("--anew", action="store_true", help="also what is on record")
    parser.add_argument("--untimed", action="store_true", help="also what has a verdict on record, and no times")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or record.RESULTS))
    parser.add_argument(
        "--resume", type=Path, nargs="*", default=[], help="records (.json) and rows (.jsonl) of earlier runs to go on from"
    )
    parser.add_argument(
        "--beside", type=float, default=math.inf, help="of those, no times taken beside more busy cores than this"
    )
    parser.add_argument("--json", action="store_true", help="also write OUT/programs_DEVICE.json, now and then and in the end")
    parser.add_argument("--show", action="store_true", help="only print the tables of what is on record")
    return parser.parse_args()


def carry_out(given: argparse.Namespace, table: str, rows: Rows, results: Results) -> None:
    named = table_of(table)
    programs, contestants = wanted(given, named), given.contestants
    if given.first_calls:
        programs = [named[row["program"]] for row in slowest(rows.all, given.first_calls)]
        given.anew, given.jobs = True, 1
    lock = given.out / f".programs_{given.device}.lock" if given.jobs > 1 else None
    each = max(1, (os.cpu_count() or 1) // given.jobs) if given.jobs > 1 else 0
    processes: queue.SimpleQueue[Processes] = queue.SimpleQueue()
    own = [Processes(each, SHARED if given.device == "cpu" else ()) for _ in range(given.jobs)]
    for one in own:
        processes.put(one)
    until = time.monotonic() + given.seconds
    run = Run(processes, given.device, lock, until, given.grace, given.limit, given.timing, given.threads, table, rows)
    with ThreadPoolExecutor(given.jobs) as pool:
        begun = [
            pool.submit(run.one, program, who)
            for program in programs
            for who in contestants
            if given.anew or (program.name, who) not in rows or (given.untimed and not rows.timed((program.name, who)))
        ]
        for future in as_completed(begun):
            future.result()
            results.write_now_and_then()
    for one in own:
        one.close()
    if lock is not None:
        lock.unlink(missing_ok=True)


def main(suite: str = "programs", table: str = "benchmarks.programs.suite:PROGRAMS") -> None:
    """Runs what the command line asks for of a table ("module:name"); files are called after the suite."""
    given = arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    rows = Rows(given.out / f"{suite}_{given.device}.jsonl", given.resume, given.beside)
    results = Results(given, suite, table_of(table), rows)
    try:
        if not given.show:
            carry_out(given, table, rows, results)
    finally:
        report(rows.all)
        if given.json:
            print(results.write())


class Results:
    """The file of results, which is also there for a run that is ended before it has come to its end."""

    def __init__(self, given: argparse.Namespace, suite: str, programs: Mapping[str, Program], rows: Rows) -> None:
        self.given, self.suite, self.programs, self.rows = given, suite, programs, rows
        self._written = time.monotonic()

    def write_now_and_then(self) -> None:
        if self.given.json and time.monotonic() - self._written > EVERY:
            self.write()

    def write(self) -> Path:
        device = self.given.device
        found = {
            "device": torch.cuda.get_device_name() if device == "cuda" and torch.cuda.is_available() else device,
            "programs in the suite": len(self.programs),
            "processes at a time": self.given.jobs,
            "rows": sorted_rows(self.rows.all, self.programs),
        }
        path = record.write(f"{self.suite}_{device}", found, self.given.out)
        self._written = time.monotonic()
        return path


def sorted_rows(rows: Sequence[dict[str, Any]], programs: Mapping[str, Program]) -> list[dict[str, Any]]:
    """In the order of the table."""
    order = {name: place for place, name in enumerate(programs)}
    return sorted(rows, key=lambda row: (order.get(row["program"], len(order)), row["contestant"]))


if __name__ == "__main__":
    main()
