"""Checks every entry, in processes of their own, and writes benchmarks/results/conformance_DEVICE.json.

    python -m tests.conformance.run [--device cuda] [--jobs 2] [--samples 6] [--only REGEX] [--again] [--seconds 500]

A run that was stopped goes on where it was: finished entries are kept in build/conformance_DEVICE.jsonl as long as the
package's sources stay the same (with --keep even if they change). --again checks those anew that were not right.
Ends with status 1 if an entry is wrong and not listed, or listed and right.
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
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance.listed import reason_for

ROOT = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 300
"""An entry that takes longer is stopped and counts as wrong."""

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
    process: subprocess.Popen[str] | None = None
    answered: int = 0

    def ask(self, name: str) -> Report:
        """The report for the entry `name`; one that says so if the process died or took too long."""
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
            answered = any(ready.select(1.0) for _ in range(LIMIT_SECONDS))  # a run that is paused loses no time
            line = process.stdout.readline() if answered else None
        if line:
            self.answered += 1
            report = dict(json.loads(line))
            if any(LOST_DEVICE in text for text in report["detail"].values()):
                self.stop()
            return report
        seconds = time.perf_counter() - begin
        self.stop()
        what = f"no answer in {seconds:.0f} s" if line is None else f"the process died with status {process.returncode}"
        return {"entry": name, "verdict": "wrong", "detail": {"process": what}, "seconds": seconds}

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
    """The reports so far, in a file with one JSON line each; the last line of an entry holds."""

    def __init__(self, file: Path, settings: dict[str, Any]) -> None:
        self.file, self.settings = file, settings
        self.lock = threading.Lock()
        self.reports: dict[str, Report] = {}

    def load(self, keep: bool) -> None:
        if not self.file.exists():
            return
        for line in self.file.read_text(encoding="utf-8").splitlines():
            try:
                report = json.loads(line)
            except json.JSONDecodeError:  # the run was stopped in the midst of writing it
                continue
            if keep or report["settings"] == self.settings:
                self.reports[report["entry"]] = report

    def add(self, report: Report) -> None:
        with self.lock:
            self.reports[report["entry"]] = {**report, "settings": self.settings}
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with open(self.file, "a", encoding="utf-8") as file:
                file.write(json.dumps(self.reports[report["entry"]]) + "\n")


def verdict(report: Report, device: str) -> str:
    """right, wrong, listed (wrong, for a known reason), stale (right, though listed) or absent (eager does not run it)."""
    if report["verdict"] == "absent":
        return "absent"
    known = reason_for(report["entry"], device)
    if report["verdict"] == "right":
        return "stale" if known else "right"
    return "listed" if known else "wrong"


def run(names: list[str], device: str, samples: int, jobs: int, seconds: float, progress: Progress) -> None:
    """Checks the entries `names` in `jobs` processes; begins none after `seconds`."""
    end = time.monotonic() + seconds
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for name in names:
        waiting.put(name)
    count, total = iter(range(1, len(names) + 1)), len(names)

    def serve() -> None:
        worker = Worker(device, samples)
        try:
            while time.monotonic() < end:
                try:
                    name = waiting.get_nowait()
                except queue.Empty:
                    return
                report = worker.ask(name)
                progress.add(report)
                number, found = next(count), verdict(report, device)
                detail = f"  {report['detail']}" if found == "wrong" else ""
                print(f"[{number}/{total}] {found:<6} {name} ({report['seconds']:.1f} s){detail}", flush=True)
        finally:
            worker.stop()

    threads = [threading.Thread(target=serve) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def summary(reports: list[Report], device: str, settings: dict[str, Any]) -> dict[str, Any]:
    """What is written: counts, one row for each entry, and for each library operator why."""
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
        if known := reason_for(report["entry"], device):
            row["reason"] = known
        rows[report["entry"]] = row
    right = verdicts["right"] + verdicts["stale"]
    counts = {"entries": len(reports), **{k: verdicts[k] for k in ("right", "listed", "wrong", "stale", "absent")}}
    share = right / max(len(reports) - verdicts["absent"], 1)
    return {"settings": settings, "counts": counts, "share_right": share, "entries": rows, "library_reasons": reasons}


def write(found: dict[str, Any], device: str) -> Path:
    """Writes the results as benchmarks do, with one line for each entry."""
    from benchmarks.environment import environment

    kind = device.partition(":")[0]
    target = ROOT / "benchmarks" / "results" / f"conformance_{kind}.json"
    head = {"suite": f"conformance_{kind}", "environment": environment(), **found}
    rows, reasons = head.pop("entries"), head.pop("library_reasons")
    text = json.dumps(head, indent=1).removesuffix("\n}")
    for name, table in (("entries", rows), ("library_reasons", reasons)):
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(table.items()))
        text += f',\n "{name}": {{\n{lines}\n }}'
    temporary = target.with_suffix(".tmp")
    temporary.write_text(text + "\n}\n", encoding="utf-8")
    os.replace(temporary, target)
    return target


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
    arguments = parser.parse_args()
    if importlib.util.find_spec("expecttest") is None:
        raise SystemExit(
            "torch's test database imports expecttest, which is not installed: pip install expecttest, or put its "
            "wheel (pip download expecttest) on PYTHONPATH."
        )
    import torch

    from tests.conformance.entries import entries

    device = arguments.device
    settings = {"sources": sources(), "samples": arguments.samples, "torch": torch.__version__}
    kind = device.partition(":")[0]
    progress = Progress(ROOT / "build" / f"conformance_{kind}.jsonl", settings)
    progress.load(arguments.keep)
    every = list(entries(device))
    wanted = [name for name in every if re.search(arguments.only, name)]
    todo = [
        name
        for name in wanted
        if name not in progress.reports or (arguments.again and progress.reports[name]["verdict"] != "right")
    ]
    run(todo, device, arguments.samples, arguments.jobs, arguments.seconds, progress)
    reports = [progress.reports[name] for name in every if name in progress.reports]
    found = summary(reports, device, settings)
    print(f"{found['counts']}, {100 * found['share_right']:.1f} % right")
    if len(reports) == len(every):
        print(f"written to {write(found, device)}")
    else:
        print(f"{len(every) - len(reports)} of {len(every)} entries are not checked yet; no results written.")
    if found["counts"]["wrong"] or found["counts"]["stale"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
