"""A process that compiles GPU kernels: it imports the compiler once and forks a child for each line of work.

Run as a file: `python worker.py MODULE SOCKET`. Before MODULE itself, only the standard library is imported. SOCKET is
an inherited Unix socket. For each child it wants, the parent sends one end of a socket pair over it. A child reads jobs
from its socket, one JSON object a line, and answers each with one: the result of `MODULE.run(job)`, or {"error": text}.
Closing the socket ends the child, and likewise the server.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from typing import Any


def serve(module: str, control: socket.socket) -> None:
    """Forks a child for every socket received until the parent goes away."""
    work = importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
    with contextlib.suppress(ConnectionError):  # the parent has ended meanwhile
        control.sendall(b"ready\n")
    while True:
        try:
            message, received, _, _ = socket.recv_fds(control, 1, 1)
        except ConnectionError:  # the parent has ended without having read that this is ready
            return
        if not message:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else a job's compiler would always seem to succeed
            control.close()
            _answer_all(work, socket.socket(fileno=received[0]))
            os._exit(0)
        os.close(received[0])


def _answer_all(work: Any, connection: socket.socket) -> None:
    """Answers jobs until the parent closes the socket or ends, possibly during a job."""
    with contextlib.suppress(ConnectionError), connection.makefile("rw", encoding="utf-8", newline="\n") as lines:
        for line in lines:
            lines.write(json.dumps(_answer(work, json.loads(line))) + "\n")
            lines.flush()


def _answer(work: Any, job: dict[str, Any]) -> dict[str, Any]:
    try:
        return dict(work.run(job))
    except Exception as error:  # compilers raise many classes; the parent converts them
        return {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}


if __name__ == "__main__":
    sys.path.pop(0)  # this folder's modules must not shadow others
    os.dup2(2, 1)  # the compiler's output is no answer
    serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
