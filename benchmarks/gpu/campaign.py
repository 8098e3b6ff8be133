"""A campaign on one GPU of this machine, then on all of them: rows an hour, and how much of the time the devices run candidates.

    python -m benchmarks.gpu.campaign [--lengths 540] [--seconds 95]     runs both, writes OUT/gpu_campaign.json after each
    python -m benchmarks.gpu.campaign --show                             only prints the table of the committed file

The campaign measures the products and loops of a transformer's block in bfloat16 at random numbers of tokens. Each run has a
folder and empty caches of its own. Its rows are what `polytile campaign run` puts into the store, and its time lasts from the
first worker's start to the last result: it includes imports, and compilers where a device waits for them. A campaign that the
seconds cut short counts as far as it came.

"On trial" is the share of that time in which workers' turns had candidates checked and timed, `from the first result` without
what comes before it. It includes what the host does in between, such as recording graphs. "Kernels running" is the driver's own
number: the share of its sampling periods with a kernel running.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import record
from benchmarks.command import Command
from benchmarks.contestants import interrupt
from benchmarks.encoder import FeedForward
from polytile.campaigns.board import Board
from polytile.report import Table, show
from polytile.runtime.cuda.clocks import utilisation
from polytile.store.reading import records

SUITE = "gpu_campaign"
WIDTH = 1024
REPORT_SECONDS, SAMPLE_SECONDS, END_SECONDS = 10.0, 0.25, 8.0


def block() -> tuple[FeedForward, list[tuple[Tensor, ...]]]:
    """What the campaign measures, as its spec names it."""
    torch.manual_seed(0)
    model = FeedForward(WIDTH).to("cuda", torch.bfloat16).eval()
    return model, [(torch.randn(100, WIDTH, device="cuda", dtype=torch.bfloat16),)]


def spec(lengths: int) -> str:
    sizes = sorted(random.Random(0).sample(range(2, 8192), lengths))
    return (
        f'[campaign]\ndevice = "cuda"\n[[model]]\ntarget = "{Path(__file__).resolve()}:block"\n'
        f"sizes = {{s0 = {sizes}}}\nmost = {lengths}\n"
    )


@dataclass(frozen=True)
class Run:
    """A campaign's time, its rows, and what the devices did, as shares of the time: see above."""

    devices: int
    seconds: float
    rows: int
    units: int
    done: int
    busy: float
    stages: dict[str, float]
    """Seconds of all workers together, by the stages of `polytile.counters["seconds"]`."""
    busy_later: float | None = None
    running: float | None = None
    first: float = 0.0
    """Seconds until the first result."""

    @property
    def rows_an_hour(self) -> float:
        return 3600 * self.rows / self.seconds


def measured(devices: int, lengths: int, seconds: float) -> Run:
    """A campaign on so many devices, from empty caches."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        root = Path(folder)
        (root / "block.toml").write_text(spec(lengths))
        own = {"POLYTILE_CACHE_DIR": str(root / "cache"), "TRITON_CACHE_DIR": str(root / "triton")}
        words = [sys.executable, "-m", "polytile", "campaign", "run", str(root / "block.toml"), "--count", str(devices)]
        with open(root / "said", "wb") as said:
            process = subprocess.Popen(words, env={**os.environ, **own}, stdout=subprocess.DEVNULL, stderr=said)
        begun = _wait_for(root / "block" / "workers", process)
        try:
            run = _watched(Board(root / "block"), process, begun, devices, seconds)
        finally:
            interrupt(process, END_SECONDS)
        if not run.done:
            raise SystemExit((root / "said").read_text())
        return replace(run, rows=len(records(root / "block" / "store.sqlite3")))


def _watched(board: Board, process: subprocess.Popen[bytes], begun: float, devices: int, seconds: float) -> Run:
    """What becomes of the campaign until all is measured or the time is over, but for its rows."""
    first, before, told = 0.0, 0.0, 0.0
    with sampled(devices) as samples:
        while process.poll() is None and (status := board.status()).left and time.time() - begun < seconds:
            if status.done and not first:
                first, before = time.time(), status.trying
            if time.time() - told > REPORT_SECONDS:
                told = time.time()
                print(f"{devices}: {told - begun:.0f} s, {status.done} of {status.units} units", file=sys.stderr, flush=True)
            time.sleep(0.1)
        status, ended = board.status(), time.time()
    later = (status.trying - before) / ((ended - first) * devices) if first else None
    running = sum(samples) / len(samples) / 100 if samples else None
    spent, until_first = ended - begun, first - begun if first else 0.0
    busy, stages = status.trying / (spent * devices), _stages(board)
    return Run(devices, spent, 0, status.units, status.done, busy, stages, later, running, until_first)


@contextmanager
def sampled(devices: int) -> Iterator[list[float]]:
    """Within the block, collects each device's utilisation in percent, as the driver reports it."""
    samples: list[float] = []
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(SAMPLE_SECONDS):
            samples.extend(told for index in range(devices) if (told := utilisation(index)) is not None)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def _stages(board: Board) -> dict[str, float]:
    sums = Counter[str]()
    for _, result in board.results(set()):
        sums.update(result.stages)
    return {stage: round(seconds, 2) for stage, seconds in sums.items() if seconds}


def _wait_for(workers: Path, process: subprocess.Popen[bytes]) -> float:
    """When the campaign's first worker began, which writes a log there."""
    while process.poll() is None:
        if workers.is_dir() and (logs := list(workers.glob("*.log"))):
            return min(log.stat().st_mtime for log in logs)
        time.sleep(0.05)
    raise SystemExit((workers.parent.parent / "said").read_text())


def main() -> None:
    parser = Command(__doc__, SUITE, lambda report: show(table(report)), gpu=True)
    parser.add_argument("--lengths", type=int, default=540)
    parser.add_argument("--seconds", type=float, default=95.0, help="after which each of the two campaigns is stopped")
    parser.add_argument("--devices", type=int, nargs="+", help="default: one, and all of this machine")
    given = parser.parsed()
    report: dict[str, Any] = {"device": torch.cuda.get_device_name(), "runs": []}
    for count in given.devices or sorted({1, torch.cuda.device_count()}):
        report["runs"].append(asdict(measured(count, given.lengths, given.seconds)))
        record.write(SUITE, report, given.out)
        print(json.dumps(report["runs"][-1]), file=sys.stderr, flush=True)
    show(table(report))


def table(report: dict[str, Any]) -> Table:
    runs = [Run(**run) for run in report["runs"]]
    rows = [
        (run.devices, f"{run.done} of {run.units}", run.rows, f"{run.seconds:.0f}", f"{run.rows_an_hour:.0f}",
         f"{run.rows_an_hour / runs[0].rows_an_hour:.2f}", f"{run.busy:.0%}", percent(run.busy_later), percent(run.running))
        for run in runs
    ]  # fmt: skip
    columns = (
        "devices", "units", "rows", "s", "rows an hour", "× one device", "on trial", "from the first result", "kernels running",
    )  # fmt: skip
    return Table.from_rows(f"A campaign on {report['device']}", columns, rows)


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


if __name__ == "__main__":
    main()
