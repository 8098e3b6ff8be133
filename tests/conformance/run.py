"""Checks every entry, in processes of their own, and writes benchmarks/results/conformance_DEVICE.json.

    python -m tests.conformance.run [--device cuda] [--jobs 2] [--samples 6] [--only REGEX] [--again] [--seconds 500]

A run that was stopped goes on where it was: finished entries are kept in build/conformance_DEVICE.jsonl as long as the
package's sources stay the same (with --keep even if they change). --again checks those anew that were not right.

On machines lent for minutes: with --out DIR, or $OUT, both files go there, and --resume takes the finished entries of
earlier runs from theirs. The results are then written however the run ends, and say how many entries are left; without
--out those of a part go to build/. Ends with status 1 if an entry is wrong and not listed, or listed and right.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import queue
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.environment import environment
from tests.conformance.listed import NEVER_CAPTURED, reason_for

ROOT = Path(__file__).resolve().parents[2]
RESULTS, BUILD = ROOT / "benchmarks" / "results", ROOT / "build"

LIMIT_SECONDS = 300
"""An entry that takes longer is stopped and counts as wrong."""

GRACE_SECONDS = 20
"""What --seconds leaves to the entries begun by then; they are no part of the results if they take longer."""

LOST_DEVICE = "CUDA error"
"""After an error with these words a process can use its GPU no more."""

FRESH_AFTER = 100
"""Entries after which a worker is replaced, so that what it keeps in memory does not grow without end."""

Report = dict[str, Any]


def sources() -> str:
    """Digest of everything that decides the results: the package and these tests, less the list."""
    found = hashlib.sha256()
    for file in sorted([*(ROOT / "src").rglob("*"), *Path(__file__).parent.glob("*.py")]):
        if file.suffix in (".py", ".h", ".c"):
            found.update(file.read_bytes())
    return found.hexdigest()[:16]


@dataclass
class Worker:
    """A process of tests.conformance.worker, started when it is first needed and after each death."""

    device: str
    samples: int
    stopped: threading.Event
    process: subprocess.Popen[str] | None = None
    answered: int = 0

    def ask(self, name: str) -> Report | None:
        """The report for the entry `name`; one that says so if the process died or took too long. None if the run was
        stopped meanwhile."""
        if self.answered >= FRESH_AFTER:
            self.stop()
        process = self.process = self.process or self._start()
        assert process.stdin is not None and process.stdout is not None
        begin = time.perf_counter()
        try:
            process.stdin.write(name + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it is dead, and reading says so
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdout, selectors.EVENT_READ)
            seconds = (
                ready.select(1.0) or self.stopped.is_set() for _ in range(LIMIT_SECONDS)
            )  # pauses cost none of them
            answered = any(seconds) and not self.stopped.is_set()
            line = process.stdout.readline() if answered else None
        if line:
            self.answered += 1
            report = dict(json.loads(line))
            if any(LOST_DEVICE in text for text in report["detail"].values()):
                self.stop()
            return report
        took = time.perf_counter() - begin
        self.stop()
        if self.stopped.is_set():
            return None
        what = f"no answer in {took:.0f} s" if line is None else f"the process died with status {process.returncode}"
        return {"entry": name, "verdict": "wrong", "detail": {"process": what}, "seconds": took}

    def _start(self) -> subprocess.Popen[str]:
        self.answered = 0
        environment = {"OMP_WAIT_POLICY": "passive", "POLYTILE_COMPILE_WORKERS": "2", **os.environ}
        environment["PYTHONPATH"] = os.pathsep.join(
            [str(ROOT), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        return subprocess.Popen(
            [sys.executable, "-m", "tests.conformance.worker", "--device", self.device, "--samples", str(self.samples)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env=environment,
        )

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Progress:
    """The reports so far, in a file with one JSON line each; the last line of an entry holds. A report counts as found
    with the settings (sources, samples, torch) that its line names."""

    def __init__(self, file: Path, settings: dict[str, Any]) -> None:
        self.file, self.settings = file, settings
        self.lock = threading.Lock()
        self.reports: dict[str, Report] = {}

    def load(self, keep: bool) -> None:
        """Takes what this file holds; with `keep`, what was found with other settings too."""
        if self.file.exists():
            self.reports.update(self._read(self.file, keep))

    def take(self, file: Path, keep: bool) -> None:
        """Takes what an earlier run left in `file`, into this one's own file too. Raises OSError if there is no such file."""
        for name, report in self._read(file, keep).items():
            if name not in self.reports:
                self._write(report)

    def _read(self, file: Path, keep: bool) -> dict[str, Report]:
        found = {}
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                report = json.loads(line)
            except json.JSONDecodeError:  # the run was stopped in the midst of writing it
                continue
            if keep or report["settings"] == self.settings:
                found[report["entry"]] = report
        return found

    def add(self, report: Report) -> None:
        with self.lock:
            self._write({**report, "settings": self.settings})

    def _write(self, report: Report) -> None:
        self.reports[report["entry"]] = report
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with open(self.file, "a", encoding="utf-8") as file:
            file.write(json.dumps(report) + "\n")


def verdict(report: Report, device: str) -> str:
    """right, wrong, listed (wrong, for a known reason), uncaptured (listed too, and equal to eager, but Dynamo hands no graph of
    it to any backend), stale (right, though listed) or absent (eager does not run it)."""
    if report["verdict"] == "absent":
        return "absent"
    known = reason_for(report["entry"], device)
    if report["verdict"] == "right":
        return "stale" if known else "right"
    uncaptured = all(text.startswith(NEVER_CAPTURED) for text in report["detail"].values())
    return "wrong" if not known else "uncaptured" if uncaptured else "listed"


def run(names: list[str], device: str, samples: int, jobs: int, seconds: float, progress: Progress) -> None:
    """Checks the entries `names` in `jobs` processes; begins none after `seconds`, and ends soon after, or when the main
    thread is interrupted."""
    end = time.monotonic() + seconds
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        waiting.put(name)
    count, total = iter(range(1, len(names) + 1)), len(names)
    stopped = threading.Event()

    def serve() -> None:
        worker = Worker(device, samples, stopped)
        try:
            while time.monotonic() < end:
                try:
                    name = waiting.get_nowait()
                except queue.Empty:
                    return
                report = worker.ask(name)
                if report is None:
                    return
                progress.add(report)
                number, found = next(count), verdict(report, device)
                detail = f"  {report['detail']}" if found == "wrong" else ""
                print(f"[{number}/{total}] {found:<6} {name} ({report['seconds']:.1f} s){detail}", flush=True)
        finally:
            worker.stop()

    threads = [threading.Thread(target=serve) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join(min(max(0.0, end + GRACE_SECONDS - time.monotonic()), threading.TIMEOUT_MAX))
    finally:
        stopped.set()
        for thread in threads:
            thread.join()


def summary(reports: list[Report], left: int, device: str, settings: dict[str, Any]) -> dict[str, Any]:
    """What is written: counts, one row for each entry, and for each library operator why; `left` entries are not checked.
    Rows that were found with other sources than `settings` name theirs."""
    verdicts = Counter(verdict(report, device) for report in reports)
    reasons: dict[str, str] = {}
    rows = {}
    for report in reports:
        reasons.update(report.get("reasons", {}))
        found = verdict(report, device)
        row: dict[str, Any] = {"verdict": found, "family": report.get("family", "")}
        row |= {key: report.get(key, 0) for key in ("samples", "available", "gradients", "graphs")}
        row["seconds"] = round(report["seconds"], 2)
        row |= {how: names for how, names in report.get("operators", {}).items() if how != "view"}
        if report["detail"]:
            row["detail"] = report["detail"]
        if report["settings"]["sources"] != settings["sources"]:
            row["sources"] = report["settings"]["sources"]
        if known := reason_for(report["entry"], device):
            row["reason"] = known
        rows[report["entry"]] = row
    right = verdicts["right"] + verdicts["stale"]
    kinds = ("right", "uncaptured", "listed", "wrong", "stale", "absent")
    counts = {"entries": len(reports), **{kind: verdicts[kind] for kind in kinds}}
    counts |= {"left": left} if left else {}
    run = max(len(reports) - verdicts["absent"], 1)
    shares = {"share_right": right / run, "share_as_eager": (right + verdicts["uncaptured"]) / run}
    return {"settings": settings, "counts": counts, **shares, "entries": rows, "library_reasons": reasons}


def write(found: dict[str, Any], suite: str, directory: Path) -> Path:
    """Writes the results as benchmarks do, with one line for each entry."""
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / f"{suite}.json"
    head = {"suite": suite, "environment": environment(), **found}
    rows, reasons = head.pop("entries"), head.pop("library_reasons")
    text = json.dumps(head, indent=1).removesuffix("\n}")
    for name, table in (("entries", rows), ("library_reasons", reasons)):
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(table.items()))
        text += f',\n "{name}": {{\n{lines}\n }}'
    temporary = target.with_suffix(".tmp")
    temporary.write_text(text + "\n}\n", encoding="utf-8")
    os.replace(temporary, target)
    return target


def interrupted(number: int, _: object) -> None:
    """SIGTERM, which `timeout` sends, ends the run as Ctrl-C does."""
    raise KeyboardInterrupt(f"signal {number}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side (default: 2)")
    parser.add_argument("--samples", type=int, default=6, help="most samples of an entry; 0: all (default: 6)")
    parser.add_argument("--only", default="", help="regular expression that names of entries must contain")
    parser.add_argument("--again", action="store_true", help="check entries anew that were not right")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begin no entry after this time (default: none)"
    )
    parser.add_argument("--keep", action="store_true", help="keep what was found with other sources")
    parser.add_argument(
        "--out", type=Path, default=os.environ.get("OUT"), help="directory of both files (default: $OUT)"
    )
    parser.add_argument("--resume", type=Path, nargs="*", default=[], help="finished entries of earlier runs (.jsonl)")
    given = parser.parse_args()
    if importlib.util.find_spec("expecttest") is None:
        raise SystemExit(
            "torch's test database imports expecttest, which is not installed: pip install expecttest, or put its "
            "wheel (pip download expecttest) on PYTHONPATH."
        )
    import torch

    from tests.conformance.entries import entries

    device, out = given.device, Path(given.out) if given.out else None
    suite = f"conformance_{device.partition(':')[0]}"
    settings = {"sources": sources(), "samples": given.samples, "torch": torch.__version__}
    progress = Progress((out or BUILD) / f"{suite}.jsonl", settings)
    progress.load(given.keep)
    for file in given.resume:
        progress.take(file, given.keep)
    every = list(entries(device))
    known = {name for name, report in progress.reports.items() if report["verdict"] == "right" or not given.again}
    todo = [name for name in every if re.search(given.only, name) and name not in known]
    signal.signal(signal.SIGTERM, interrupted)
    try:
        run(todo, device, given.samples, given.jobs, given.seconds, progress)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    reports = [progress.reports[name] for name in every if name in progress.reports]
    left = len(every) - len(reports)
    found = summary(reports, left, device, settings)
    print(f"{found['counts']}, {100 * found['share_right']:.1f} % right, {100 * found['share_as_eager']:.1f} % as eager")
    print(f"written to {write(found, suite, out or (BUILD if left else RESULTS))}")
    if found["counts"]["wrong"] or found["counts"]["stale"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
