"""A process that compiles GPU kernels: it imports what is needed once and forks a child for each line of work.

Run as a file, `python worker.py MODULE SOCKET`: no import but the standard library happens before MODULE's own. SOCKET is
the number of an inherited Unix socket over which the parent sends, one for each child it wants, the end of a socket
pair. A child reads jobs from it, one JSON object a line, and answers each with one: what `MODULE.run(job)` returns, or
{"error": text}. A closed socket ends the child, and the server.
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    with contextlib.suppress(ConnectionError):  # the parent has ended meanwhile
        control.sendall(b"ready\n")
    while True:
        message, received, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or a compiler that a job runs would seem to have succeeded
            control.close()
            _answer_all(work, socket.socket(fileno=received[0]))
            os._exit(0)
        os.close(received[0])


def _answer_all(work: Any, connection: socket.socket) -> None:
    """Until the parent closes the socket, or ends, which it may while a job is at work."""
    with contextlib.suppress(ConnectionError), connection.makefile("rw", encoding="utf-8", newline="\n") as lines:
        for line in lines:
            lines.write(json.dumps(_answer(work, json.loads(line))) + "\n")
            lines.flush()


def _answer(work: Any, job: dict[str, Any]) -> dict[str, Any]:
    try:
        return dict(work.run(job))
    except Exception as error:  # a compiler's errors have many classes: the parent makes one of them
        return {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}


if __name__ == "__main__":
    sys.path.pop(0)  # this file's folder: its neighbours' names are not to be imported from there
    os.dup2(2, 1)  # what a compiler prints is no answer
    serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
