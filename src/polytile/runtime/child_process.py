"""Python processes that work for this one. Each has its own socket and exchanges one JSON value a line.

They are new interpreters, not forks. A forked copy of a server would keep its connections open, double the memory that
is written to, and wait for locks held by threads it does not have.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

NICENESS = 5
"""How much lower than this process's the priority of processes is that work beside calls: the builder (builder.py), and
compilers that nobody waits for. Calls leave the builder a core; where the system puts a thread of theirs on that core, the thread
goes first. Beside other programs that keep all cores busy, it gets a third of a fair share of a core, and a program is there
within a minute. At 10 it would get a ninth."""

LAST_BYTES = 2000
"""Number of trailing bytes of a process's output that `last_words` returns."""


def import_path() -> str:
    """PYTHONPATH for a process that must import what this one can. Modules beside the user's script shadow no others."""
    paths = [str(Path(__file__).parents[2]), *sys.path[1:], *sys.path[:1]]
    return os.pathsep.join(path for path in paths if path)


class ChildProcess:
    """A process that runs `script` with `arguments` and the file descriptor of its socket; `connection` is the other
    end.

    Its output is stored for `last_words` if `kept`, else goes to this process's stderr. Ctrl-C does not reach it. It and
    what it starts are nicer than this process by `niceness`. Raises OSError if it cannot be started.
    """

    def __init__(
        self,
        script: Path,
        *arguments: str,
        environment: Mapping[str, str],
        flags: Sequence[str] = (),
        niceness: int = 0,
        kept: bool = True,
    ) -> None:
        self.connection, theirs = socket.socketpair()
        self._written = tempfile.TemporaryFile() if kept else None
        try:
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, *flags, str(script), *arguments, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=self._written or subprocess.DEVNULL,
                    stderr=self._written,
                    pass_fds=(theirs.fileno(),),
                    env=environment,
                    start_new_session=True,
                )
        except OSError:
            self.close()
            raise
        if niceness:
            add_niceness(self.pid, niceness)

    @property
    def pid(self) -> int:
        """Process id, and id of the process group of its children."""
        return self.process.pid

    def ended(self) -> bool:
        return self.process.poll() is not None

    def last_words(self, seconds: float) -> tuple[int | None, str]:
        """Waits up to `seconds` for the exit. Returns the exit status as in subprocess, None if it still runs, and the
        end of its output."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        if self._written is None:
            return self.process.returncode, ""
        self._written.seek(max(0, self._written.seek(0, os.SEEK_END) - LAST_BYTES))
        return self.process.returncode, self._written.read().decode(errors="replace").strip()

    def end(self, seconds: float) -> None:
        """Kills the process and waits up to `seconds` until it is gone."""
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a GPU driver is still cleaning up
            self.process.wait(seconds)
        self.close()

    def abandon(self) -> None:
        """In a forked child: leaves the process to the parent."""
        self.process.returncode = 0
        self.close()

    def close(self) -> None:
        """Closes the connection without ending the process."""
        self.connection.close()
        if self._written is not None:
            self._written.close()


def add_niceness(process: int, more: int) -> None:
    """Makes a process that leads a session nicer than this one by `more`, and what it starts from now on. Does nothing if the
    system forbids it or the process has ended."""
    niceness = min(19, os.nice(0) + more)
    # Linux may first share the cores among sessions, each with its own niceness: see "autogroup" in sched(7).
    with contextlib.suppress(OSError):
        Path(f"/proc/{process}/autogroup").write_text(str(niceness))
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, process, niceness)


Heard = Callable[[dict[str, Any]], None]


def ask(connection: socket.socket, request: Mapping[str, Any], seconds: float, heard: Heard | None = None) -> dict[str, Any]:
    """Sends a request and waits up to `seconds` for the answer. `heard` gets the messages before it, which have the key
    "note". Raises OSError without an answer, and ValueError if the answer is no JSON."""
    end, received = time.monotonic() + seconds, bytearray()
    connection.settimeout(seconds)
    send(connection, request)
    while True:
        while b"\n" not in received:
            connection.settimeout(max(1e-3, end - time.monotonic()))
            part = connection.recv(1 << 20)
            if not part:
                raise ConnectionResetError("it ended without an answer")
            received += part
        line, _, received = received.partition(b"\n")
        message = dict(json.loads(line))
        if heard is None or "note" not in message:
            return message
        heard(message)


def send(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """Sends one message."""
    connection.sendall(json.dumps(message).encode() + b"\n")
