"""The program of the process that generates and compiles in place of another (runtime/builder.py).

Started as a script with the number of its socket, after builder.LINEAR where products are expected. Requests and answers are
JSON, one a line:

    {"do": "program", ...}    a lowered graph becomes a program on disk, its first kernels compiled (handed.py)
    {"do": "kernels", ...}    candidates of one kernel are compiled (dispatch/ahead.py)

The answer is {"value": ..., "counts": {counter: number}}, or {"error": text, "counts"}. Before each compiler but the first it
sends {"note": "ran", "seconds": since it last went on}, and goes on at {"do": "go"}. It runs no kernel and measures nothing.
Until the first request it compiles what any program may need: the caller traces, which takes one core.
It ends when the socket closes, with the compilers that it runs, and when nothing was asked for IDLE_SECONDS.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

IDLE_SECONDS = 60.0

COUNTED = ("compiler_runs",)
"""Counters whose growth is reported to the requesting process. It counts the rest itself when it loads the results."""

Makers = dict[str, Callable[[dict[str, Any]], Any]]


class Turns:
    """Compilers run in turns with calls of the process that asks, while it waits for an answer: that process says when the next
    one may run."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._lock = connection, threading.Lock()
        self._go = threading.Event()
        self._asked = self._first = False
        self._since = 0.0
        """When this process last went on."""
        self._places: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Waits for its turn; a compiler runs within the block. The thread that needs a result starts a compiler of its own where
        those of the pool are busy: it waits for a place like them."""
        with self._places:
            self.wait()
            yield

    def wait(self) -> None:
        """Waits until the next compiler may run. The work since the last wait took a core from calls: that of the previous
        compiler, and passes and code generation, which take as long."""
        with self._lock:
            if self._asked and not self._first:
                self._go.clear()
                self._send({"note": "ran", "seconds": time.monotonic() - self._since})
                self._go.wait(IDLE_SECONDS)
                self._since = time.monotonic()
            self._first = False

    def go(self) -> None:
        self._go.set()

    def begin(self, side_by_side: int = 0) -> None:
        """From now on, the other process waits for an answer, and at most so many compilers run at a time; 0: any number."""
        self._places = threading.Semaphore(side_by_side) if side_by_side else contextlib.nullcontext()
        self._asked = self._first = True
        self._since = time.monotonic()

    def end(self, answer: dict[str, Any]) -> None:
        with self._lock:
            self._asked = False
            self._send(answer)

    def _send(self, message: dict[str, Any]) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")


def serve(connection: socket.socket, linear: bool) -> None:
    """Answers requests until the connection is closed. `linear`: see builder.begin."""
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    turns = Turns(connection)
    threading.Thread(target=_listen, args=(connection, requests, turns), daemon=True).start()
    makers = _makers(turns)
    _prepare_until_asked(requests, linear)
    reported = dict.fromkeys(COUNTED, 0)
    with contextlib.suppress(queue.Empty, ConnectionError):
        while True:
            request = requests.get(timeout=IDLE_SECONDS)
            turns.begin(request["options"]["compile_workers"])
            turns.end({**_answer(makers, request), "counts": _new_counts(reported)})


def _prepare_until_asked(requests: queue.SimpleQueue[dict[str, Any]], linear: bool) -> None:
    """Compiles what many programs need, one after the other. Nothing is left begun: a program waits for all compilers."""
    from polytile.compiler import handed
    from polytile.errors import PolytileError

    with contextlib.suppress(PolytileError):  # whoever needs it meets the error again
        needed = handed.needed_by_many(linear)
        while requests.empty() and (compilation := next(needed, None)) is not None:
            compilation.result()


def _new_counts(reported: dict[str, int]) -> dict[str, int]:
    """How much the counters have grown since what was `reported` last."""
    from polytile.counters import counters

    grown = {name: counters[name] - before for name, before in reported.items()}
    reported.update({name: counters[name] for name in reported})
    return grown


def _listen(connection: socket.socket, requests: queue.SimpleQueue[dict[str, Any]], turns: Turns) -> None:
    """Hands on what is asked. Where nobody is left to ask, ends the process, whatever it is doing."""
    with contextlib.suppress(ConnectionError), connection.makefile(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            request = json.loads(line)
            if request["do"] == "go":
                turns.go()
            else:
                requests.put(request)
    os.killpg(0, signal.SIGTERM)


def _makers(turns: Turns | None = None) -> Makers:
    """What answers each kind of request. What is compiled here is not measured here. The collector never searches what is
    imported: that took 0.3 of 1.4 s."""
    gc.disable()
    from polytile.compiler import handed
    from polytile.runtime import background, compiler_process

    gc.freeze()
    gc.enable()
    background.background.close()
    compiler_process.share_group()
    if turns is not None:
        compiler_process.take_turns(turns.turn)
    return {"program": handed.make_program, "kernels": handed.make_kernels}


def _answer(makers: Makers, request: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"value": makers[request["do"]](request)}
    except Exception as error:  # the asking process does the work itself, and meets the error if it is one
        return {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}


if __name__ == "__main__":
    sys.path.pop(0)  # this file's folder: its neighbours' names are not to be imported from there
    serve(socket.socket(fileno=int(sys.argv[-1])), linear=len(sys.argv) > 2)
    os._exit(0)
