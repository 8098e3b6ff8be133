"""Where the time of a first call goes, seen from outside: the file that the calling thread is in, every few milliseconds.

What is seen is the innermost file of the table below on the stack, so that an operator which a check runs counts as checking.
Both compilers are looked at in the same way. The interpreter answers when it can: a library call that holds its lock counts in
whole.

No look keeps a frame: the locals of a function that returns meanwhile would live as long, and guards of torch's modes among them
would restore the mode too late, and in the watcher's thread.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

EVERY = 4e-3
"""Seconds between two looks."""
WAITING, RUNNING = "waiting for its turn", "running"

FILES = (
    (r"benchmarks/contestants\.py", WAITING),
    (r"<frozen importlib", "importing"),
    (r"polytile/tuning/(gate|tolerance|distance|clones)\.py|polytile/tuning/isolation/", "checking"),
    (r"polytile/tuning/", "measuring"),
    (r"polytile/runtime/((compile|toolchain|native)\.py|cuda/(workers|cubins)\.py)", "compiling"),
    (r"polytile/candidates/(cpp|triton)\.py", "compiling"),
    (r"polytile/(schedule|codegen|matmul|cost|candidates|wrapper)/|polytile/dispatch/define", "generation"),
    (r"polytile/(store|dispatch)/", "choosing"),
    (r"polytile/(frontend|passes|ir|compiler)/", "lowering"),
    (
        r"torch/_inductor/(codecache|async_compile|cpp_builder|cpu_vec_isa|compile_worker/\w+|output_code)\.py|/triton/",
        "compiling",
    ),
    (r"torch/_inductor/(runtime/(triton_heuristics|benchmarking)|select_algorithm|autotune_process)\.py", "measuring"),
    (r"torch/_inductor/codegen/", "generation"),
    (r"torch/_inductor/", "lowering"),
    (r"torch/_functorch/|torch/_dynamo/(?!eval_frame)", "tracing"),
)
"""Part of a file's path → the stage that it belongs to; the first that fits."""
COMPILERS = "polytile's and the peer's compilers and workers, which are other processes, included"
STAGES = ("importing", "tracing", "lowering", "generation", "compiling", "choosing", "checking", "measuring", RUNNING)


class Stages:
    """Seconds of each stage of what the calling thread does within the block."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._thread, self._done = threading.get_ident(), threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._known: dict[str, str | None] = {}

    def __enter__(self) -> Stages:
        self._watcher.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._done.set()
        self._watcher.join()

    def as_json(self) -> dict[str, float]:
        ordered = sorted(self.seconds.items(), key=lambda pair: -pair[1])
        return {name: round(seconds, 3) for name, seconds in ordered}

    def _watch(self) -> None:
        last = time.perf_counter()
        while not self._done.wait(EVERY):
            stage, now = self._stage(sys._current_frames().get(self._thread)), time.perf_counter()
            self.seconds[stage] += now - last
            last = now

    def _stage(self, frame: FrameType | None) -> str:
        while frame is not None:
            file = frame.f_code.co_filename
            if file not in self._known:
                self._known[file] = next((stage for pattern, stage in FILES if re.search(pattern, file)), None)
            stage = self._known[file]
            if stage is not None:
                return stage
            frame = frame.f_back
        return RUNNING


class ProcessorStages(Stages):
    """Processor seconds of each stage, of all threads; those of other processes that run or have ended within the block are the
    compilers'. Linux alone."""

    def __enter__(self) -> ProcessorStages:
        self._began, self._elsewhere = time.process_time(), _seconds_elsewhere()
        super().__enter__()
        return self

    def __exit__(self, *_: Any) -> None:
        super().__exit__()
        seen = sum(self.seconds.values())
        self.seconds[RUNNING] += max(0.0, time.process_time() - self._began - seen)  # what no look has met
        self.seconds["compiling"] += _seconds_elsewhere() - self._elsewhere

    def total(self) -> float:
        """Processor seconds so far."""
        return time.process_time() - self._began + _seconds_elsewhere() - self._elsewhere

    def _watch(self) -> None:
        clocks: dict[int, float] = {}
        while not self._done.wait(EVERY):
            alive = {thread.ident for thread in threading.enumerate()} - {threading.get_ident()}
            stages = {thread: self._stage(frame) for thread, frame in sys._current_frames().items() if thread in alive}
            for thread, stage in stages.items():
                now = time.clock_gettime(time.pthread_getcpuclockid(thread))
                self.seconds[stage] += now - clocks.get(thread, now)
                clocks[thread] = now


def _seconds_elsewhere() -> float:
    """Processor seconds of the processes below this one: of those that have ended, and of those that run."""
    ended = os.times()
    return ended.children_user + ended.children_system + sum(_of_tree(child) for child in _children(os.getpid()))


def _children(process: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text().split())
    return found


def _of_tree(process: int) -> float:
    """Seconds of a process, of those that it has waited for and of those below it; 0 where it has just ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    own = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return own + sum(map(_of_tree, _children(process)))


__all__ = ["COMPILERS", "RUNNING", "STAGES", "WAITING", "ProcessorStages", "Stages"]
