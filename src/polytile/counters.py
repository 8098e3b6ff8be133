"""Counts of what polytile did. `polytile.counters` is this mapping; `polytile.reset()` sets it to zero."""

from __future__ import annotations

import collections
import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from polytile import locks, waits

NAMES = {
    "graphs_compiled": "graphs that a compiled function was made of",
    "programs_loaded": "graphs whose programs an earlier process has left in the cache directory",
    "kernels_generated": "different C++ kernels asked for, in the cache or not; Triton kernels compiled",
    "library_calls": "call sites of operators that run as ATen calls, by operator; for a loop, once for each regime",
    "tier0_calls": "calls of graphs that ran as ATen calls because their programs were not compiled yet",
    "failures": "graphs and lowerings that polytile failed to compile and that run as ATen calls",
    "candidates_benchmarked": "candidates timed",
    "store_hits": "decisions that measurements on record made",
    "sizes_refined": "sizes that were measured because they came often",
    "dispatch_misses": "calls that met a regime for which nothing was decided",
    "compiler_runs": "runs of the C and C++ compiler; Triton kernels compiled",
    "weights_packed": "packed copies of weights made",
    "cuda_graphs": "CUDA graphs made (option `cuda_graphs`)",
    "seconds": "seconds that first calls took, by stage",
}
"""What each of them counts."""

STAGES = {
    "tracing": "AOTAutograd: what it does with the graph that Dynamo has captured",
    "lowering": "the layout of images, and operators to loops",
    "loading": "programs and decisions from the cache directory",
    "passes": "loops to fewer loops",
    "generating": "canonical kernels, their candidates and sources, and the wrapper",
    "compiling": "waiting for compilers",
    "choosing": "regimes, predictions and what is on record",
    "checking": "references, and candidates compared with them",
    "measuring": "candidates timed",
}
"""What a first call does once Dynamo has captured its graph, each without what others of them do within it."""


class Counters(Mapping[str, Any]):
    """Thread-safe counts by name.

    `library_calls` is itself a mapping from operator to count of call sites, and `seconds` one from stage to seconds, of all
    threads together.
    """

    def __init__(self) -> None:
        self._lock = locks.lock()
        self._running = threading.local()
        self.reset()

    def reset(self) -> None:
        """Sets all of them to zero."""
        with self._lock:
            self._counts = {name: 0 for name in NAMES if name not in ("library_calls", "seconds")}
            self._library: collections.Counter[str] = collections.Counter()
            self._seconds = dict.fromkeys(STAGES, 0.0)

    def add(self, name: str, count: int = 1) -> None:
        """Adds `count` to the counter `name`."""
        with self._lock:
            self._counts[name] += count

    def add_library_call(self, operator: str) -> None:
        """Counts a library call of `operator`."""
        with self._lock:
            self._library[operator] += 1

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Adds the time within the block to a stage, one of STAGES; a stage within it has its own time to itself."""
        outer, begun = getattr(self._running, "inner", None), time.perf_counter()
        self._running.inner = inner = [0.0]
        try:
            with waits.during(name):
                yield
        finally:
            seconds = time.perf_counter() - begun
            self._running.inner = outer
            if outer is not None:
                outer[0] += seconds
            with self._lock:
                self._seconds[name] += seconds - inner[0]

    def __getitem__(self, name: str) -> Any:
        if name == "seconds":
            return dict(self._seconds)
        return dict(self._library) if name == "library_calls" else self._counts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)

    def __repr__(self) -> str:
        return f"Counters({dict(self)})"


counters = Counters()
