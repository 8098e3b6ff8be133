"""Where the time of a first call goes, seen from outside: the file that the calling thread is in, every few milliseconds.

What is seen is the innermost file of the table below on the stack, so that an operator which a check runs counts as checking.
Both compilers are looked at in the same way. The interpreter answers when it can: a library call that holds its lock counts in
whole.
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections import defaultdict
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
            frame = sys._current_frames().get(self._thread)
            now = time.perf_counter()
            self.seconds[self._stage(frame)] += now - last
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


__all__ = ["RUNNING", "STAGES", "WAITING", "Stages"]
