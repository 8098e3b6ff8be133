"""Python processes that work for this one, each asked through a socket of its own: JSON, one value a line.

They are interpreters started anew, not forks: a forked copy of a server would hold its connections open, double the memory of
what is written to, and wait for locks that other threads held.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LAST_BYTES = 2000
"""Of what a process has written, as much as its last words may be."""


def import_path() -> str:
    """PYTHONPATH of a process that can import what this one can; modules beside the user's script take no other's place."""
    paths = [str(Path(__file__).parents[2]), *sys.path[1:], *sys.path[:1]]
    return os.pathsep.join(path for path in paths if path)


class ChildProcess:
    """A process that runs `script`, with `arguments` and the number of its socket in its command line; the other end is
    `connection`. What it writes is kept for `last_words`, or goes to this process's stderr. Ctrl-C does not reach it. Raises
    OSError where none can be started."""

    def __init__(
        self, script: Path, *arguments: str, environment: Mapping[str, str], flags: Sequence[str] = (), kept: bool = True
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

    @property
    def pid(self) -> int:
        """The process's number, and that of the group of what it starts."""
        return self.process.pid

    def ended(self) -> bool:
        """Whether the process is gone."""
        return self.process.poll() is not None

    def last_words(self, seconds: float) -> tuple[int | None, str]:
        """Its exit status as subprocess has it, None where it goes on after so many seconds, and the last that it wrote."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        if self._written is None:
            return self.process.returncode, ""
        self._written.seek(max(0, self._written.seek(0, os.SEEK_END) - LAST_BYTES))
        return self.process.returncode, self._written.read().decode(errors="replace").strip()

    def end(self, seconds: float) -> None:
        """Kills it and waits at most so long until it is gone."""
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a GPU's driver is still cleaning up
            self.process.wait(seconds)
        self.close()

    def abandon(self) -> None:
        """After a fork: it is the parent's to wait for and to end."""
        self.process.returncode = 0
        self.close()

    def close(self) -> None:
        """Lets go of it without ending it."""
        self.connection.close()
        if self._written is not None:
            self._written.close()


def ask(connection: socket.socket, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """The answer to a request, which is waited for at most so long. Raises OSError where there is none, and ValueError where it
    is none."""
    end, received = time.monotonic() + seconds, bytearray()
    connection.settimeout(seconds)
    connection.sendall(json.dumps(request).encode() + b"\n")
    while not received.endswith(b"\n"):
        connection.settimeout(max(1e-3, end - time.monotonic()))
        part = connection.recv(1 << 20)
        if not part:
            raise ConnectionResetError("it ended without an answer")
        received += part
    return dict(json.loads(received))
