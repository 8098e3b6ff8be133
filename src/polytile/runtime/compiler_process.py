"""One run of the C or C++ compiler, as a process that ends with this one."""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from polytile.counters import counters
from polytile.errors import CompileFailed, CompilerMissing
from polytile.runtime import toolchain
from polytile.runtime.child_process import NICENESS, add_niceness

TIMEOUT_SECONDS = 300.0
"""Compilers that run longer are stopped. The largest generated kernels take about 2 s."""


class SourceRejected(CompileFailed):
    """The compiler rejected a source file.

    `command` is the command line, `messages` the compiler's output and `source` the file, which is kept for inspection.
    """

    def __init__(self, name: str, command: tuple[str, ...], messages: str, source: Path, ending: str) -> None:
        self.name, self.command, self.messages, self.source = name, command, messages, source
        super().__init__(
            f"kernel {name!r} did not compile: {command[0]} {ending}.\n  source: {source}\n"
            f"  command: {shlex.join(command)}\n  messages:\n{messages.rstrip()}"
        )


class _Running:
    """The compilers that this process has started. A forked child has none of them."""

    def __init__(self) -> None:
        self.processes: set[subprocess.Popen[str]] = set()
        self.ended = False
        """Whether this process is about to end."""


_running = _Running()


def reset() -> None:
    """Forgets the compilers of a parent process."""
    global _running
    _running = _Running()


os.register_at_fork(after_in_child=reset)


@atexit.register
def _stop_compilers() -> None:
    _running.ended = True
    for process in list(_running.processes):
        _stop(process)


_groups = {"own": True}
"""Whether each compiler has its own process group, so that Ctrl-C does not reach it."""


def share_group() -> None:
    """Puts all further compilers into this process's group, so that they end with it."""
    _groups["own"] = False


_turn: list[Callable[[], contextlib.AbstractContextManager[None]]] = []


def take_turns(turn: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
    """Runs each compiler within a context of its own that `turn` makes."""
    _turn[:] = [turn]


def _stop(process: subprocess.Popen[str]) -> None:
    """Stops a compiler driver and its subprocesses. The driver removes its own temporary files."""
    with contextlib.suppress(OSError):
        if _groups["own"]:
            os.killpg(process.pid, signal.SIGTERM)
        else:
            process.terminate()


def run(name: str, command: tuple[str, ...], source: Path, beside_calls: bool = False) -> None:
    """Compiles `source`, of the kernel `name`; at a lower priority if it runs `beside_calls`, which do not wait for it. Raises
    SourceRejected; CompilerMissing if this process is ending."""
    with contextlib.ExitStack() as within:
        for turn in _turn:
            within.enter_context(turn())
        status, messages = _ended(name, command, source, beside_calls)
    if status != 0 and _running.ended:  # this process has stopped it: nothing is known about the source
        raise CompilerMissing(f"kernel {name!r} was being compiled when the process ended.")
    if status != 0:
        raise SourceRejected(name, command, messages, source, f"ended with status {status}")


def _ended(name: str, command: tuple[str, ...], source: Path, beside_calls: bool) -> tuple[int, str]:
    """Runs the compiler and returns its exit status and its output."""
    counters.add("compiler_runs")
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=toolchain.environment(),
        start_new_session=_groups["own"],
    )
    if beside_calls and _groups["own"]:  # those of a builder have its priority
        add_niceness(process.pid, NICENESS)
    state = _running
    state.processes.add(process)
    try:
        messages, _ = process.communicate(timeout=TIMEOUT_SECONDS)
    except BaseException as error:  # too slow, or Ctrl-C
        _stop(process)
        messages, _ = process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            ending = f"was stopped after {TIMEOUT_SECONDS:.0f} s"
            raise SourceRejected(name, command, messages, source, ending) from None
        raise
    finally:
        state.processes.discard(process)
    return process.returncode, messages
