"""Where workers run: as processes of this machine, as actors of a Ray cluster, or wherever somebody starts them.

A Place is called periodically to replace workers that ended and to end those that hang. The folder records their work (board.py),
so that nothing is lost with a worker.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path

from polytile.campaigns.board import Board
from polytile.campaigns.worker import HUNG
from polytile.errors import CampaignError
from polytile.runtime.child_process import import_path

A_GPU = 4
"""Workers for each GPU, which take turns on it. A unit takes the host about as long as the device, and longer while its kernels
are new: with three workers, an H200 waits at times although most of its units are compiled."""

MOST_DEATHS = 5
"""Number of workers in a row that may end before finishing a unit."""


class Place:
    """A place for workers. This base class has none: they are started elsewhere."""

    def tend(self) -> None:
        """Replace workers that ended, and end those that hang. Raises CampaignError if none can work."""

    def close(self) -> None:
        """End all workers, and release the units that they were measuring."""


class Local(Place):
    """Processes of this machine. On GPUs, A_GPU for each of the first `count`, or of all for 0; on CPUs `count`, or a single
    one, as CPU times need the machine to themselves."""

    def __init__(self, board: Board, kind: str, count: int = 0) -> None:
        self.board, self.kind = board, kind
        self.names: dict[int, tuple[str, subprocess.Popen[bytes]]] = {}
        self.devices = _devices(kind, count)
        self.deaths, self._done = 0, -1
        for number in range(len(self.devices)):
            self._start(number)

    def tend(self) -> None:
        done = len(list((self.board.root / "done").glob("*.json")))
        if done != self._done:
            self.deaths, self._done = 0, done
        for number, (name, process) in list(self.names.items()):
            if process.poll() is None:
                continue
            for unit in self.board.leases_of(name):
                self.board.lose(unit)
            self.board.leave(name)
            if process.returncode == 0 and self.board.is_over():
                del self.names[number]
                continue
            self.deaths += process.returncode != HUNG
            if self.deaths > MOST_DEATHS:
                raise CampaignError(
                    f"{self.deaths} workers in a row ended, the last as this says:\n{self._words(name)}"
                )
            self._start(number)
        self.board.lose_lapsed()

    def close(self) -> None:
        for _, process in self.names.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for name, process in self.names.values():
            process.wait()
            for unit in self.board.leases_of(name):
                self.board.give_back(unit)
            self.board.leave(name)
        self.names.clear()

    def _start(self, number: int) -> None:
        name = f"local{number}-{uuid.uuid4().hex[:8]}"
        own = {"PYTHONPATH": import_path()}
        if self.kind == "cuda":
            own["CUDA_VISIBLE_DEVICES"] = self.devices[number]
        words = [sys.executable, "-m", "polytile", "campaign", "work", str(self.board.root), "--name", name]
        with open(self._log(name), "wb") as log:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **own},
                start_new_session=True,
            )
        self.names[number] = name, process

    def _log(self, name: str) -> Path:
        return self.board.root / "workers" / f"{name}.log"

    def _words(self, name: str) -> str:
        return self._log(name).read_text(errors="replace").strip()[-2000:]


def _devices(kind: str, count: int) -> Sequence[str]:
    if kind != "cuda":
        return [""] * (count or 1)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(number) for number in range(_gpus())]
    if not names:
        raise CampaignError("the campaign is for GPUs, and this machine has none.")
    return [name for name in names[: count or len(names)] for _ in range(A_GPU)]


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()
