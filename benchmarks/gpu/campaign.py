"""A campaign on one GPU of this machine, then on all of them: rows an hour, and how much of the time the devices run candidates.

    python -m benchmarks.gpu.campaign [--lengths 64] [--seconds 200]     runs both, writes OUT/gpu_campaign.json
    python -m benchmarks.gpu.campaign --show                             only prints the table of the committed file

The campaign measures the products and loops of a transformer's block in bfloat16 at random numbers of tokens. Each run has a
folder and empty caches of its own. Its rows are what `polytile campaign run` puts into the store, and its time lasts from the
first worker's start to the last result: it includes imports, and compilers where a device waits for them. A campaign that the
seconds cut short counts as far as it came.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import record
from polytile.campaigns.board import Board
from polytile.report import Table, show
from polytile.store.reading import records

SUITE = "gpu_campaign"
WIDTH = 1024


class Block(nn.Module):
    """The products and loops of a transformer's feed-forward half."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def block() -> tuple[Block, list[tuple[Tensor, ...]]]:
    """What the campaign measures, as its spec names it."""
    torch.manual_seed(0)
    model = Block().to("cuda", torch.bfloat16).eval()
    return model, [(torch.randn(100, WIDTH, device="cuda", dtype=torch.bfloat16),)]


def spec(lengths: int) -> str:
    sizes = sorted(random.Random(0).sample(range(2, 8192), lengths))
    return (
        f'[campaign]\ndevice = "cuda"\n[[model]]\ntarget = "{Path(__file__).resolve()}:block"\nsizes = {{s0 = {sizes}}}\n'
    )


@dataclass(frozen=True)
class Run:
    """A campaign's time, its rows, and what the devices did: `busy` is the share of the time with candidates running."""

    devices: int
    seconds: float
    rows: int
    units: int
    done: int
    busy: float
    stages: dict[str, float]
    """Seconds of all devices together, by the stages of `polytile.counters["seconds"]`."""

    @property
    def rows_an_hour(self) -> float:
        return 3600 * self.rows / self.seconds


def measured(devices: int, lengths: int, seconds: float) -> Run:
    """A campaign by so many workers, from empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "block.toml").write_text(spec(lengths))
        own = {"POLYTILE_CACHE_DIR": str(root / "cache"), "TRITON_CACHE_DIR": str(root / "triton")}
        words = [sys.executable, "-m", "polytile", "campaign", "run", str(root / "block.toml"), "--count", str(devices)]
        process = subprocess.Popen(words, env={**os.environ, **own}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        begun = _wait_for(root / "block" / "workers", process)
        board = Board(root / "block")
        while process.poll() is None and board.status().left and time.time() - begun < seconds:
            time.sleep(0.1)
        status, ended = board.status(), time.time()
        rows = len(records(root / "block" / "store.sqlite3"))
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        _, said = process.communicate()
        if not status.done:
            raise SystemExit(said.decode())
        spent = ended - begun
        return Run(devices, spent, rows, status.units, status.done, status.trying / (spent * devices), _stages(board))


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
    _, said = process.communicate()
    raise SystemExit(said.decode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=200.0, help="after which each of the two campaigns is stopped")
    parser.add_argument("--devices", type=int, nargs="+", help="default: one, and all of this machine")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or record.RESULTS))
    parser.add_argument("--show", action="store_true", help="only print the table of the file there")
    given = parser.parse_args()
    if not given.show:
        counts = given.devices or sorted({1, torch.cuda.device_count()})
        found = [measured(count, given.lengths, given.seconds) for count in counts]
        device = torch.cuda.get_device_name()
        record.write(SUITE, {"device": device, "runs": [asdict(run) for run in found]}, given.out)
    show(table(json.loads((given.out / f"{SUITE}.json").read_text())["results"]))


def table(report: dict[str, Any]) -> Table:
    runs = [Run(**run) for run in report["runs"]]
    rows = [
        (run.devices, f"{run.done} of {run.units}", run.rows, f"{run.seconds:.0f}", f"{run.rows_an_hour:.0f}",
         f"{run.rows_an_hour / runs[0].rows_an_hour:.2f}", f"{run.busy:.0%}")
        for run in runs
    ]  # fmt: skip
    columns = ("devices", "units", "rows", "s", "rows an hour", "× one device", "time with candidates running")
    return Table.from_rows(f"A campaign on {report['device']}", columns, rows)


if __name__ == "__main__":
    main()
