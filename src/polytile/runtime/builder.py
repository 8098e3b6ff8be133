"""The process that generates and compiles in place of this one, so that Python's lock is free for calls.

    ask(what, given)    has the process do something, and waits for its answer; what it makes it leaves in the cache directory
    begin()             has it start, as it will be needed soon
    stop()              ends it, with the compilers that it runs

It is this interpreter started anew (compiler/building.py), not a fork: a forked copy of a server would hold its connections
open, double the memory of what is written to, and wait for locks that other threads held. It starts with the first request, ends
IDLE_SECONDS after the last one, and does not outlive this process. Whoever asks does the work himself where there is no answer.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polytile import locks
from polytile import options as settings
from polytile.counters import counters
from polytile.errors import PolytileError
from polytile.runtime import background, pytorch
from polytile.runtime.cache import current

SCRIPT = Path(__file__).parents[1] / "compiler" / "building.py"

SECONDS = 600.0
"""How long an answer is waited for; the programs of large training steps take a minute on busy cores."""

END_SECONDS = 0.05
"""How long a process that is to end is waited for before it is killed."""

MOST_DEATHS = 3
"""Processes that may end without an answer; after so many the work is done in this process."""


class BuilderFailed(PolytileError):
    """The process that generates and compiles gave no answer, or says why it cannot do what it was asked."""


class _Process:
    """One process, and the socket by which it is asked."""

    def __init__(self) -> None:
        # What this process can import, that one can, but modules beside the user's script take no other's place.
        paths = [str(Path(__file__).parents[2]), *sys.path[1:], *sys.path[:1]]
        own = {
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "CUDA_VISIBLE_DEVICES": "",
            "POLYTILE_ISOLATION": "never",
        }
        self.connection, there = socket.socketpair()
        self.messages = tempfile.TemporaryFile()
        try:
            with there:
                self.process = subprocess.Popen(
                    [sys.executable, str(SCRIPT), str(there.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=self.messages,
                    stderr=self.messages,
                    pass_fds=(there.fileno(),),
                    env={**os.environ, **own},
                    start_new_session=True,  # Ctrl-C is for the user's process
                )
        except OSError as error:
            self.close()
            raise BuilderFailed(f"no process can be started ({error}).") from error
        background.yield_to_calls(self.process.pid, background.PROCESS_NICENESS)  # so are the compilers that it runs

    def ask(self, request: bytes, seconds: float) -> dict[str, Any]:
        """The answer. Raises OSError where there is none, and ValueError where it is none."""
        self.connection.settimeout(seconds)
        self.connection.sendall(request)
        end, received = time.monotonic() + seconds, bytearray()
        while not received.endswith(b"\n"):
            self.connection.settimeout(max(1e-3, end - time.monotonic()))
            part = self.connection.recv(1 << 20)
            if not part:
                raise ConnectionResetError("it ended")
            received += part
        return dict(json.loads(received))

    def last_words(self) -> str:
        """How it ended, if it has, and what it said."""
        with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
            status = self.process.wait(END_SECONDS)
            self.messages.seek(max(0, self.messages.seek(0, os.SEEK_END) - 2000))
            said = self.messages.read().decode(errors="replace").strip()
            return f" with status {status}" + (f", saying: {said}" if said else "")
        return ""

    def end(self) -> None:
        """Ends it with all that it has started."""
        for number in (signal.SIGTERM, signal.SIGKILL):  # compilers remove their temporary files at the first
            with contextlib.suppress(OSError):
                os.killpg(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_SECONDS)
                break
        self.close()

    def close(self) -> None:
        """Lets go of it; after a fork it is the parent's."""
        self.connection.close()
        self.messages.close()


class _Builder:
    """This process's one. Any number of threads may ask; each waits for the others' answers."""

    def __init__(self) -> None:
        self.lock = locks.lock()
        self.process: _Process | None = None
        self.deaths = 0
        self.closed = False

    def running(self) -> _Process:
        if self.process is not None and self.process.process.poll() is not None:
            self.process.close()  # nobody had asked it for a while
            self.process = None
        if self.process is None:
            if self.closed or self.deaths >= MOST_DEATHS:
                raise BuilderFailed("this process ends." if self.closed else f"it has died {self.deaths} times.")
            self.process = _Process()
        return self.process

    def stop(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.end()


_builder = _Builder()


PASSES_SHOWN = 3
"""From this level of the option `debug` on a process shows how its programs are made."""


def wanted() -> bool:
    """Whether the options in force want work to be done there, and somebody makes calls meanwhile. Not where `debug` shows
    what passes and schedules make: what is shown is made here."""
    elsewhere = settings.get("builder") == "process" and settings.get("persist") and settings.get("debug") < PASSES_SHOWN
    return bool(elsewhere) and not _builder.closed


def begin() -> None:
    """Has the process start, if it does not run. It takes seconds to import what it needs."""
    with contextlib.suppress(BuilderFailed), _builder.lock:  # reported to whoever asks
        _builder.running()


def ask(what: str, given: Mapping[str, Any], seconds: float = SECONDS) -> Any:
    """What the process answers to the request `what`, one of compiler/building.py's, as JSON has it. What it did counts in this
    process's counters. Raises BuilderFailed."""
    request = json.dumps({"do": what, **here(), **given}).encode() + b"\n"
    with _builder.lock:
        process = _builder.running()
        try:
            answer = process.ask(request, seconds)
        except (OSError, ValueError) as error:
            ending = process.last_words()
            _builder.deaths += 1
            _builder.stop()
            raise BuilderFailed(f"there was no answer: {error}{ending}") from error
    _builder.deaths = 0
    for name, count in answer["counts"].items():
        counters.add(name, count)
    if "error" in answer:
        raise BuilderFailed(answer["error"])
    return answer["value"]


def here() -> dict[str, Any]:
    """What has to be the same there for the same code to come out."""
    return {
        "options": {name: settings.get(name) for name in settings.BY_NAME},
        "root": str(current().root),
        "threads": pytorch.torch_threads(),
    }


def stop() -> None:
    """Ends the process; the next request starts another."""
    _builder.stop()


@atexit.register
def _close() -> None:
    _builder.closed = True
    _builder.stop()


def _after_fork() -> None:
    if _builder.process is not None:
        _builder.process.process.returncode = 0  # it is the parent's to wait for
        _builder.process.close()
    _builder.process = None


os.register_at_fork(after_in_child=_after_fork)
