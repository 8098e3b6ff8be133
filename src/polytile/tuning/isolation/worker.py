"""The process that kernels are tried in, seen from the one that must not die: start, ask, end, and say why it ended."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polytile.problem import Outcome
from polytile.runtime.cpu import available_bytes
from polytile.tuning.isolation import child

log = logging.getLogger("polytile.tuning")

START_SECONDS = 60.0
"""How long a new worker may take until it answers, importing torch included."""

LARGEST_BYTES = 8 << 30
"""Private memory that a worker may have at most; half of what the machine has available where that is less."""

ENDINGS: dict[int, tuple[Outcome, str]] = {
    signal.SIGSEGV: (Outcome.CRASHED, "segmentation fault"),
    signal.SIGBUS: (Outcome.CRASHED, "bus error"),
    signal.SIGABRT: (Outcome.CRASHED, "aborted"),
    signal.SIGFPE: (Outcome.CRASHED, "arithmetic fault, such as an integer division by zero"),
    signal.SIGILL: (Outcome.CRASHED, "illegal instruction"),
    signal.SIGKILL: (Outcome.OUT_OF_MEMORY, "ended by the system, as it does when memory runs out"),
    signal.SIGXCPU: (Outcome.TIMEOUT, "used the processor without end"),
    signal.SIGALRM: (Outcome.TIMEOUT, "did not come to an end"),
}
"""What the signal that ended a worker says about the kernel."""

LAST_WORDS: tuple[tuple[str, Outcome], ...] = (
    ("bad_alloc", Outcome.OUT_OF_MEMORY),
    ("out of memory", Outcome.OUT_OF_MEMORY),
    ("libgomp: Thread creation failed", Outcome.OUT_OF_MEMORY),
)
"""What a process that aborts may have written on stderr, and what it means."""

ERRORS: tuple[tuple[str, Outcome], ...] = (
    ("out of memory", Outcome.OUT_OF_MEMORY),
    ("not enough memory", Outcome.OUT_OF_MEMORY),
    ("cannot allocate memory", Outcome.OUT_OF_MEMORY),
    ("illegal memory access", Outcome.CRASHED),
    ("illegal address", Outcome.CRASHED),
    ("misaligned address", Outcome.CRASHED),
    ("illegal instruction", Outcome.CRASHED),
    ("unspecified launch failure", Outcome.CRASHED),
    ("device-side assert", Outcome.CRASHED),
    ("launch timed out", Outcome.TIMEOUT),
)
"""Words in the message of an error, and how the kernel ended then. All but the first three poison a GPU's context: the worker
that raised such an error is not used again."""


class Unavailable(Exception):
    """No worker can be had here; says why. Nothing is known about the kernel."""


class Failure(Exception):
    """A kernel did not come to an end as it should: how, and in which words."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(detail)
        self.outcome, self.detail = outcome, detail


@dataclass(frozen=True)
class Finished:
    """The kernel returned: its run-time check's number (0: none failed) and the seconds that the calls took."""

    code: int
    seconds: float


class Worker:
    """One process, started when first asked, and again when it has died. `torch` says whether it will import torch, and so
    needs this interpreter's own start-up. Callers keep other threads out."""

    def __init__(self, torch: bool = False) -> None:
        self.torch = torch
        self.started = 0
        """How many processes there have been."""
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._stderr: Any = None
        self._mapped: Any = None

    @property
    def pid(self) -> int | None:
        """The process's number; None where none is running."""
        return self._process.pid if self._process is not None else None

    def run(self, memory: Memory, request: dict[str, Any], seconds: float) -> Finished:
        """Runs the kernel that `request` describes (child.py) on `memory`. Raises Failure for whatever ends badly, a kernel
        that keeps its processors busy for `seconds` included, and Unavailable where there is no worker."""
        if self._process is not None and self._process.poll() is not None:
            self.stop()  # it died between two requests: nobody's fault
        if self._process is None:
            self._start()
        if self._mapped is not memory:
            self._expected({"do": "map", "bytes": memory.size}, [memory.descriptor])
            self._mapped = memory
        if request["do"] == "python":
            self._kernels({**request, "do": "load"}, START_SECONDS)
        answer = self._kernels({**request, "seconds": seconds}, seconds)
        return Finished(answer["code"], answer["seconds"])

    def unmap(self, memory: Memory) -> None:
        """Has the process let go of `memory`, if it holds it."""
        if self._process is not None and self._mapped is memory:
            self._mapped = None
            with contextlib.suppress(Unavailable):  # it has died, and holds nothing
                self._expected({"do": "unmap"})

    def stop(self) -> None:
        """Ends the process; the next request starts another."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        for held in (self._connection, self._stderr):
            if held is not None:
                held.close()
        self._process = self._connection = self._stderr = self._mapped = None

    def abandon(self) -> None:
        """Forgets the process without ending it: after a fork it is the parent's."""
        self._process = self._connection = self._stderr = self._mapped = None

    def _start(self) -> None:
        here, there = socket.socketpair()
        flags = () if self.torch else ("-I", "-S")
        try:
            self._stderr = tempfile.TemporaryFile()
            self._process = subprocess.Popen(
                [sys.executable, *flags, str(Path(child.__file__)), str(there.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._stderr,
                stderr=self._stderr,
                pass_fds=(there.fileno(),),
                start_new_session=True,  # Ctrl-C is for the user's process
            )
        except OSError as error:
            here.close()
            raise Unavailable(f"no process can be started ({error})") from None
        finally:
            there.close()
        self._connection = here
        self.started += 1
        self._expected({"do": "open", "preload": preloaded(), "bytes": _memory_limit(), "torch": self.torch})

    def _expected(self, request: dict[str, Any], descriptors: list[int] | None = None) -> None:
        """Asks for something in which no kernel has a part: if it fails, there is no worker to be had."""
        try:
            answer = self._ask(request, START_SECONDS, descriptors)
        except Failure as failure:
            raise Unavailable(f"the worker ended: {failure.detail}") from None
        if "error" in answer:
            self.stop()
            raise Unavailable(f"the worker cannot do its work: {answer['error']}: {answer['message']}")

    def _kernels(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Asks for something of which a kernel may be to blame if it fails: then a Failure says how."""
        answer = self._ask(request, seconds)
        if "error" not in answer:
            return answer
        detail = f"{answer['error']}: {answer['message']}"
        outcome = (
            Outcome.OUT_OF_MEMORY if answer["error"] == "MemoryError" else _meaning(detail, ERRORS, Outcome.RAISED)
        )
        if outcome is not Outcome.RAISED:
            self.stop()
        raise Failure(outcome, detail)

    def _ask(self, request: dict[str, Any], seconds: float, descriptors: list[int] | None = None) -> dict[str, Any]:
        """The answer to one request; raises Failure when the process dies of it or is ended for taking too long."""
        assert self._connection is not None
        line = json.dumps(request).encode() + b"\n"
        try:
            sent = socket.send_fds(self._connection, [line], descriptors or [])
            self._connection.sendall(line[sent:])
            return self._answer(seconds, request.get("threads", 1))
        except (BrokenPipeError, ConnectionResetError):
            raise self._ending() from None
        except Failure:
            raise
        except BaseException:  # Ctrl-C: whatever the worker is doing, nobody waits for it any more
            self.stop()
            raise

    def _answer(self, seconds: float, threads: int) -> dict[str, Any]:
        assert self._connection is not None
        received, begun, used = b"", time.monotonic(), self._processor_seconds()
        while not received.endswith(b"\n"):
            waited = time.monotonic() - begun
            if not select.select([self._connection], [], [], min(0.05, seconds) if waited > seconds else seconds)[0]:
                busy = self._processor_seconds() - used
                if waited >= child.PATIENCE * seconds or (waited >= seconds and busy >= seconds * threads):
                    self.stop()
                    raise Failure(Outcome.TIMEOUT, f"was ended after {waited:.1f} s, of which it ran for {busy:.1f} s")
                continue
            data = self._connection.recv(1 << 16)
            if not data:
                raise self._ending()
            received += data
        answer: dict[str, Any] = json.loads(received)
        return answer

    def _ending(self) -> Failure:
        """Why the process is gone."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5.0)
        status = self._process.returncode
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - 2000))
        words = self._stderr.read().decode(errors="replace").strip()
        self.stop()
        if status is None or status >= 0:
            outcome, what = Outcome.CRASHED, f"ended its process with status {status}"
        else:
            outcome, what = ENDINGS.get(-status, (Outcome.CRASHED, f"ended by signal {-status}"))
        last = words.splitlines()[-1] if words else ""
        return Failure(_meaning(words, LAST_WORDS, outcome), f"{what}{f': {last}' if last else ''}")

    def _processor_seconds(self) -> float:
        """Seconds that the process's threads have used; the clock where the system does not say."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, IndexError, ValueError):
            return time.monotonic()


class Memory:
    """Memory without a name that two processes can map. Raises Unavailable where there is not enough."""

    def __init__(self, size: int) -> None:
        self.size = size
        try:
            if hasattr(os, "memfd_create"):
                self.descriptor = os.memfd_create("polytile", os.MFD_CLOEXEC)
            else:
                with tempfile.TemporaryFile() as file:
                    self.descriptor = os.dup(file.fileno())
        except OSError as error:
            raise Unavailable(f"there is no shared memory ({error})") from None
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.descriptor, 0, size)  # now, not as a bus error in the middle of a copy
            else:
                os.ftruncate(self.descriptor, size)
        except OSError as error:
            self.close()
            raise Unavailable(f"{size} bytes of shared memory are not to be had ({error})") from None

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


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


def _meaning(text: str, table: tuple[tuple[str, Outcome], ...], otherwise: Outcome) -> Outcome:
    low = text.lower()
    return next((outcome for words, outcome in table if words.lower() in low), otherwise)


_lock = threading.RLock()
_workers: dict[bool, Worker] = {}


@contextlib.contextmanager
def borrowed(torch: bool) -> Iterator[Worker]:
    """This process's worker, the one with torch or the one without, for one thread at a time."""
    with _lock:
        yield _workers.setdefault(torch, Worker(torch))


def for_all_running(action: Callable[[Worker], None]) -> None:
    """Calls `action` with each worker of this process."""
    with _lock:
        for worker in _workers.values():
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

__all__ = ["Failure", "Finished", "Memory", "Unavailable", "Worker", "borrowed", "for_all_running", "stop_all"]
