"""The process in which kernels are tried, from the side of the process that must not die: starting it, asking it, ending it,
and saying why it ended."""

from __future__ import annotations

import atexit
import contextlib
import enum
import json
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polytile.problem import Outcome
from polytile.runtime.child_process import ChildProcess
from polytile.runtime.cpu import available_bytes
from polytile.runtime.cuda import driver
from polytile.tuning.isolation import child
from polytile.tuning.isolation.endings import Failure, ended, raised
from polytile.tuning.isolation.memory import Memory, Unavailable

START_SECONDS = 60.0
"""How long a new worker may take to answer, importing torch included."""

STOP_SECONDS, ENDING_SECONDS = 10.0, 5.0
"""How long to wait for a process that is being ended, and for one that has closed its socket."""

IDLE_SECONDS = 5.0
"""How long an idle process keeps its memory on a GPU."""

LARGEST_BYTES = 8 << 30
"""The most private memory that a worker may have; at most half of what the machine has available."""


@dataclass(frozen=True)
class Finished:
    """The kernel came to its end: its run-time check's number (0: none failed) and the seconds that the calls took."""

    code: int
    seconds: float
    beside: int | None = None
    """On a GPU: the number of a block beside which it wrote."""


class Kind(enum.Enum):
    """What a worker loads in addition to Python's standard library."""

    NATIVE = "nothing"
    PYTHON = "torch"
    DEVICE = "a context on a GPU"


class Worker:
    """One process, started when first asked, and again after it has died. Callers keep other threads out.

    One that imports torch needs this interpreter's own start-up; one with a GPU context is for device number `index`.
    """

    def __init__(self, kind: Kind = Kind.NATIVE, index: int = 0) -> None:
        self.kind, self.index = kind, index
        self.started = 0
        """How many processes there have been."""
        self._process: ChildProcess | None = None
        self._mapped: Any = None
        self._received = b""
        self._greeted = False
        self._used = 0.0

    @property
    def pid(self) -> int | None:
        """The process's number; None where none is running."""
        return self._process.pid if self._process is not None else None

    def begin(self) -> None:
        """Starts the process, if none is running, without waiting until it is ready. Raises Unavailable."""
        if self._process is not None and self._process.ended():
            self.stop()  # it died between two requests: nobody's fault
        if self._process is None:
            self._start()

    def run(self, memory: Memory, request: dict[str, Any], seconds: float) -> Finished:
        """Runs the kernel that `request` describes (child.py) on `memory`. Raises Failure for whatever ends badly, a kernel
        that keeps its processors busy for `seconds` included, and Unavailable where there is no worker."""
        self._open(memory)
        if request["do"] == "python":
            self._send({**request, "do": "load"})
            self._kernels(START_SECONDS)
        self._send({**request, "seconds": seconds})
        answer = self._kernels(seconds, request.get("threads", 1))
        return Finished(answer["code"], answer["seconds"])

    def run_all(
        self, memory: Memory, place: dict[str, Any], requests: Sequence[dict[str, Any]], seconds: float
    ) -> list[Finished | Failure]:
        """Runs kernels on a GPU, one after the other, all of them sent at once, with the arguments that `place` describes. What
        became of each; those after one that ended the process are missing. Raises Unavailable where there is no worker, or
        the arguments have no room."""
        self._open(memory)
        self._send(place, *({**request, "seconds": seconds} for request in requests), {"do": "clear"})
        self._expected()
        endings: list[Finished | Failure] = []
        for _ in requests:
            try:
                answer = self._kernels(seconds)
            except Failure as failure:
                endings.append(failure)
                if self._process is None:
                    return endings
            else:
                endings.append(Finished(answer["code"], answer["seconds"], answer["beside"]))
        with contextlib.suppress(Unavailable):  # then it has been ended, and what it held is free
            self._expected()
        return endings

    def unmap(self, memory: Memory) -> None:
        """Has the process let go of `memory`, if it holds it."""
        if self._process is not None and self._mapped is memory:
            self._mapped = None
            with contextlib.suppress(Unavailable):  # it has died, and holds nothing
                self._send({"do": "unmap"})
                self._expected()

    def stop(self) -> None:
        """Ends the process; the next request starts another."""
        if self._process is not None:
            self._process.end(STOP_SECONDS)
        self._forget()

    def abandon(self) -> None:
        """Forgets the process without ending it: after a fork it is the parent's."""
        if self._process is not None:
            self._process.abandon()
        self._forget()

    def _forget(self) -> None:
        self._process = self._mapped = None
        self._received, self._greeted = b"", False

    def rest(self) -> None:
        """From now on the process may wait IDLE_SECONDS for more to do; then it ends, and its memory is free."""
        self._used = time.monotonic()
        timer = threading.Timer(IDLE_SECONDS, _stop_if_idle, [self])
        timer.daemon = True
        timer.start()

    def idle(self) -> bool:
        """Whether it has rested for so long."""
        return time.monotonic() - self._used >= IDLE_SECONDS

    def _start(self) -> None:
        flags = () if self.kind is Kind.PYTHON else ("-I", "-S")
        own = {"POLYTILE_ISOLATION": "never"}  # a module that it imports may call kernels itself
        try:
            self._process = ChildProcess(Path(child.__file__), environment={**os.environ, **own}, flags=flags)
        except OSError as error:
            raise Unavailable(f"no process can be started ({error})") from None
        self.started += 1
        on_device = self.kind is Kind.DEVICE
        self._send(
            {
                "do": "open",
                "preload": [] if on_device else preloaded(),
                "bytes": 0 if on_device else _memory_limit(),  # a GPU's driver takes address space without end
                "torch": self.kind is Kind.PYTHON,
                "device": [driver.where(), self.index] if on_device else None,
            }
        )

    def _open(self, memory: Memory) -> None:
        """Has the process ready, with `memory` in it. Raises Unavailable."""
        self.begin()
        if not self._greeted:
            self._expected()
            self._greeted = True
        if self._mapped is not memory:
            self._send({"do": "map", "bytes": memory.size}, descriptors=[memory.descriptor])
            self._expected()
            self._mapped = memory

    def _expected(self) -> None:
        """Waits for the answer to a request that runs no kernel: if it fails, no worker can be used."""
        try:
            answer = self._answer(START_SECONDS, 1)
        except Failure as failure:
            raise Unavailable(f"the worker ended: {failure.detail}") from None
        if "error" in answer:
            self.stop()
            raise Unavailable(f"the worker cannot do its work: {answer['error']}: {answer['message']}")

    def _kernels(self, seconds: float, threads: int = 1) -> dict[str, Any]:
        """Waits for the answer to something of which a kernel may be to blame if it fails: then a Failure says how."""
        answer = self._answer(seconds, threads)
        if "error" not in answer:
            return answer
        failure = raised(answer["error"], answer["message"])
        if failure.outcome is not Outcome.RAISED:
            self.stop()
        raise failure

    def _send(self, *requests: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Sends requests, all of them at once. A process that is gone says why in its answer."""
        assert self._process is not None
        lines = b"".join(json.dumps(request).encode() + b"\n" for request in requests)
        try:
            sent = socket.send_fds(self._process.connection, [lines], list(descriptors))
            self._process.connection.sendall(lines[sent:])
        except (BrokenPipeError, ConnectionResetError):
            return

    def _answer(self, seconds: float, threads: int) -> dict[str, Any]:
        """The next answer; raises Failure when the process dies of its request or is ended for taking too long."""
        try:
            while b"\n" not in self._received:
                self._receive(seconds, threads)
        except ConnectionResetError:
            raise self._ending() from None
        line, _, self._received = self._received.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _receive(self, seconds: float, threads: int) -> None:
        """Takes in more of an answer."""
        assert self._process is not None
        connection = self._process.connection
        begun, used = time.monotonic(), self._processor_seconds()
        waited = 0.0
        while not select.select([connection], [], [], seconds if waited < seconds else min(0.05, seconds))[0]:
            waited, busy = time.monotonic() - begun, self._processor_seconds() - used
            if waited >= child.PATIENCE * seconds or (waited >= seconds and busy >= seconds * threads):
                self.stop()
                raise Failure(Outcome.TIMEOUT, f"was ended after {waited:.1f} s, of which it ran for {busy:.1f} s")
        data = connection.recv(1 << 16)
        if not data:
            raise self._ending()
        self._received += data

    def _ending(self) -> Failure:
        """Why the process is gone."""
        assert self._process is not None
        status, words = self._process.last_words(ENDING_SECONDS)
        self.stop()
        return ended(status, words)

    def _processor_seconds(self) -> float:
        """Seconds that the process's threads have used; the clock where the system does not say."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, IndexError, ValueError):
            return time.monotonic()


def preloaded() -> list[str]:
    """The files of the OpenMP runtime and the maths library in this process: kernels find their functions there."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = dict.fromkeys(line.partition("/")[2] for line in lines if "/" in line)
    return [f"/{path}" for path in paths if any(name in os.path.basename(path) for name in ("omp", "libm.", "libm-"))]


def _memory_limit() -> int:
    """Bytes; 0 where the machine does not say how much it has."""
    available = available_bytes()
    return 0 if available is None else min(LARGEST_BYTES, available // 2)


_lock = threading.RLock()
_workers: dict[tuple[Kind, int], Worker] = {}


@contextlib.contextmanager
def borrowed(kind: Kind, index: int = 0) -> Iterator[Worker]:
    """This process's worker of a kind (with a context: on that device), for one thread at a time."""
    with _lock:
        worker = _workers.setdefault((kind, index), Worker(kind, index))
        with _undisturbed(worker):
            yield worker


@contextlib.contextmanager
def _undisturbed(worker: Worker) -> Iterator[None]:
    """Talks to a worker within the block. What interrupts it, Ctrl-C above all, ends the worker: whatever that is doing, nobody
    waits for its answer any more."""
    try:
        yield
    except (Failure, Unavailable):
        raise
    except BaseException:
        worker.stop()
        raise


def begin(kind: Kind, index: int = 0) -> None:
    """Starts such a worker in the background, since one will be needed soon."""
    with borrowed(kind, index) as worker, contextlib.suppress(Unavailable):  # reported when it is needed
        worker.begin()


def _stop_if_idle(worker: Worker) -> None:
    with _lock:
        if worker.idle():
            worker.stop()


def for_all_running(action: Callable[[Worker], None]) -> None:
    """Calls `action` with each worker of this process."""
    with _lock:
        for worker in _workers.values():
            with _undisturbed(worker):
                action(worker)


def stop_all() -> None:
    """Ends the workers; the next trial starts new ones."""
    for_all_running(Worker.stop)


def _after_fork() -> None:
    global _lock, _workers
    for worker in _workers.values():
        worker.abandon()
    _lock, _workers = threading.RLock(), {}


os.register_at_fork(after_in_child=_after_fork)
atexit.register(stop_all)
