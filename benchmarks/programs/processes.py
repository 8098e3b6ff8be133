"""Processes for contestants: new ones, or, where there is no GPU, forked from one that has imported what all of them need.

A forked one begins as empty as a new one: what it is forked from has compiled and run nothing. It saves the seconds of importing.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.contestants import ROOT, own_caches

LATE = "did not end in time"
CONTESTANT, NURSERY = "benchmarks.programs.contestant", "benchmarks.programs.processes"


class Nursery:
    """Gives contestants processes, one at a time."""

    def __init__(self, compilers: int, forked: bool) -> None:
        self.compilers = compilers
        self._forks: subprocess.Popen[str] | None = None
        if forked:
            with own_caches(compilers) as variables:
                command = [sys.executable, "-m", NURSERY]
                self._forks = subprocess.Popen(
                    command,
                    env=variables,
                    cwd=ROOT,
                    text=True,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                )

    def row(self, asked: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """What a contestant has found; {"error"} where it gave nothing, LATE where it took longer than these seconds."""
        with own_caches(self.compilers) as variables:
            directory = Path(variables["TMPDIR"]).parent
            said, row = directory / "said.txt", directory / "row.json"
            given = json.dumps({**asked, "row": str(row)})
            status = (
                self._forked(given, variables, said, seconds) if self._forks else _new(given, variables, said, seconds)
            )
            text = said.read_text(errors="replace") if said.exists() else ""
            if row.exists():
                warned = [line for line in text.splitlines() if "polytile" in line and "Warning" in line]
                return {**json.loads(row.read_text()), **({"warned": warned[:5]} if warned else {})}
            return {"error": LATE if status is None else f"ended with status {status}: {text[-1500:]}"}

    def _forked(self, given: str, variables: Mapping[str, str], said: Path, seconds: float) -> int | None:
        assert self._forks is not None and self._forks.stdin is not None and self._forks.stdout is not None
        request = {"given": given, "variables": dict(variables), "said": str(said), "seconds": seconds}
        self._forks.stdin.write(json.dumps(request) + "\n")
        self._forks.stdin.flush()
        status: int | None = json.loads(self._forks.stdout.readline())
        return status

    def close(self) -> None:
        if self._forks is not None and self._forks.stdin is not None:
            self._forks.stdin.close()
            self._forks.wait()


def _new(given: str, variables: Mapping[str, str], said: Path, seconds: float) -> int | None:
    """The status of a new process; None where it took longer."""
    with said.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", CONTESTANT, given],
            env=dict(variables),
            cwd=ROOT,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process.pid)
            process.wait()


def _end(group: int) -> None:
    """Ends what is left of a contestant's process group: its compilers too."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def serve() -> None:
    """Forks a process for each request on the standard input, and answers with its status, or null where it took too long."""
    from benchmarks.programs import contestant

    for name in ("torch._dynamo", "benchmarks.direct", "benchmarks.timing"):
        importlib.import_module(name)

    for line in sys.stdin:
        request = json.loads(line)
        process = os.fork()
        if process == 0:
            os.setsid()
            os.environ.update(request["variables"])
            with open(request["said"], "w") as file:
                os.dup2(file.fileno(), 1)
                os.dup2(file.fileno(), 2)
            try:
                contestant.write_row(json.loads(request["given"]))
            finally:
                os._exit(0)
        status = _status(process, time.monotonic() + request["seconds"])
        _end(process)
        if status is None:
            os.waitpid(process, 0)
        print(json.dumps(status), flush=True)


def _status(process: int, until: float) -> int | None:
    while time.monotonic() < until:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    return None


__all__ = ["LATE", "Nursery"]

if __name__ == "__main__":
    serve()
