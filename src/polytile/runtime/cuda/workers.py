"""Worker processes that compile GPU kernels, started by the first kernel.

A compiler written in Python holds the GIL, and one that crashes takes its process along, so it runs outside the user's
process. One server process imports the compiler. It forks a worker for each job that finds none idle, up to the option
`compile_workers` (0: one per core, if memory suffices). A worker that dies or times out fails only its own job.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import stat
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from polytile.errors import CompileFailed
from polytile.runtime.child_process import ChildProcess, ask, import_path
from polytile.runtime.pool import Pool

TIMEOUT_SECONDS = 180.0
"""Timeout of a job, after which its worker is abandoned. The largest kernels take about 5 s."""

WORKER_BYTES = 1 << 30
"""Estimated peak memory of one worker: Triton, LLVM and an assembler, without the memory shared with the server."""

START_SECONDS, STOP_SECONDS = 120.0, 10.0
"""A server takes 1-3 s to import what it needs, longer from a cold disk. The second value is how long to wait for its end."""

NICENESS = 10
"""How much lower than this process's the priority of the workers is, which are as many as there are cores."""

SCRIPT = Path(__file__).with_name("worker.py")

READ_BY_COMPILERS = ("TRITON_", "LLVM_", "MLIR_", "NVPTX_", "PTXAS_", "AMDGCN_", "DISABLE_", "USE_IR_LOC")
"""Prefixes of the environment variables that Triton, LLVM and the assemblers read. The set ones are part of the key of
a compiled kernel, since a new Triton may read new ones. They are passed to the worker, which may need them
(TRITON_PTXAS_PATH)."""

INDIFFERENT = (
    "TRITON_CACHE_DIR", "TRITON_CACHE_MANAGER", "TRITON_REMOTE_CACHE_BACKEND", "TRITON_HOME", "TRITON_DUMP_DIR",
    "TRITON_KERNEL_DUMP", "TRITON_ALWAYS_COMPILE", "TRITON_PRINT_AUTOTUNING", "TRITON_CACHE_AUTOTUNING",
)  # fmt: skip
"""Exceptions that do not change the code. They are passed to the worker as well."""

CLEARED = ("TRITON_INTERPRET", "TRITON_KERNEL_OVERRIDE", "TRITON_OVERRIDE_DIR")
"""Exceptions that would keep a worker from compiling, or replace a kernel's code. They are not passed on."""

Answer = dict[str, Any]
Ask = Callable[[Mapping[str, Any]], Answer]
"""Has a worker do a job. Returns its answer, or {"error": text}."""
Asked = Callable[[Ask], None]
"""Is called on some thread, asks at most once, and handles the answer and all errors."""


class WorkerDied(CompileFailed):
    """The process that compiled a kernel died, or was killed after a timeout."""


def compiler_environment() -> dict[str, str]:
    """Environment variables that affect the compilers of GPU kernels, by name. A variable that names a file includes
    the file's size and modification time."""
    names = sorted(n for n in os.environ if n.startswith(READ_BY_COMPILERS) and n not in (*INDIFFERENT, *CLEARED))
    return {name: os.environ[name] + _stamp(os.environ[name]) for name in names if os.environ[name]}


def _stamp(value: str) -> str:
    """Size and modification time of a file, such as an assembler, to detect its replacement."""
    with contextlib.suppress(OSError, ValueError):
        status = os.stat(value)
        if stat.S_ISREG(status.st_mode):
            return f" ({status.st_size} bytes, {status.st_mtime_ns})"
    return ""


class _Server:
    """The process that forks workers."""

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        own = {"PYTHONPATH": import_path(), "CUDA_VISIBLE_DEVICES": ""}
        self.process = ChildProcess(SCRIPT, module, environment={**environment, **own}, niceness=NICENESS, kept=False)
        self.control = self.process.connection
        self.ready = False
        self.lock = threading.Lock()

    def worker(self) -> socket.socket:
        """The socket of a new worker. Raises WorkerDied if the server does not start."""
        ours, theirs = socket.socketpair()
        with self.lock, theirs:
            try:
                if not self.ready:
                    self.control.settimeout(START_SECONDS)
                    self.ready = self.control.recv(16) == b"ready\n"
                if not self.ready:
                    raise OSError("it ended")
                socket.send_fds(self.control, [b"."], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise WorkerDied(
                    f"the process that compiles GPU kernels did not start ({error}); its messages are on stderr. Try: "
                    f"{sys.executable} -c 'import triton'."
                ) from error
        return ours


class _Own(threading.local):
    """The connection of a thread to its worker."""

    connection: socket.socket | None = None


class Workers:
    """A pool for the jobs of one module, with this process's current environment. Each of its threads serves one worker: it
    sends jobs and waits for the answers."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.environment = {name: value for name, value in os.environ.items() if name not in CLEARED}
        self.server: _Server | None = None
        self._lock = threading.Lock()
        self._pool = Pool("polytile-gpu-compile", WORKER_BYTES)
        self._own = _Own()

    def start(self) -> None:
        """Starts the server, so that its imports are done when the first job comes."""
        with self._lock:
            if self.server is None or self.server.process.ended():
                self.server = _Server(self.module, self.environment)

    def submit(self, work: Asked) -> None:
        """Has a thread call `work` with a function that sends a job and returns its answer; returns at once."""
        self.start()
        self._pool.submit(functools.partial(work, self._answer))

    def stop(self) -> None:
        with self._lock:
            if self.server is not None:
                self.server.process.end(STOP_SECONDS)
                self.server = None

    def _answer(self, job: Mapping[str, Any]) -> Answer:
        try:
            self._own.connection = self._own.connection or self._connect()
            return ask(self._own.connection, job, TIMEOUT_SECONDS)
        except (OSError, ValueError, WorkerDied) as error:
            if self._own.connection is not None:
                self._own.connection.close()
            self._own.connection = None
            return {"error": str(error) if isinstance(error, WorkerDied) else _lost(error)}

    def _connect(self) -> socket.socket:
        self.start()
        server = self.server
        if server is None:
            raise WorkerDied("the process that compiles GPU kernels was stopped.")
        return server.worker()


def _lost(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"the process that compiled the kernel was given up after {TIMEOUT_SECONDS:.0f} s"
    return f"the process that compiled the kernel died ({error})"


_pools: dict[tuple[Any, ...], Workers] = {}
_lock = threading.Lock()


def pool(module: str) -> Workers:
    """The pool of `module` for the compilers' current environment; the same object in every call."""
    key = (module, *compiler_environment().items())
    with _lock:
        if key not in _pools:
            _pools[key] = Workers(module)
        return _pools[key]


def reset() -> None:
    """Ends every server and its workers; the next job starts new ones. A forked child starts with none."""
    with _lock:
        for workers in _pools.values():
            workers.stop()
        _pools.clear()


def _forked() -> None:
    global _lock
    _lock = threading.Lock()
    _pools.clear()


os.register_at_fork(after_in_child=_forked)
