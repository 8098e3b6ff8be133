"""What polytile did, counted where it happens. `polytile.counters` is this mapping; `polytile.reset()` empties it."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping
from typing import Any

from polytile import locks

NAMES = {
    "graphs_compiled": "graphs that a compiled function was made of",
    "kernels_generated": "different C++ kernels asked for, in the cache or not; Triton kernels compiled",
    "library_calls": "call sites of operators that run as ATen calls, by operator; in place of a loop, once for each regime",
    "candidates_benchmarked": "candidates timed",
    "store_hits": "decisions that measurements on record made",
    "sizes_refined": "sizes that were measured because they came often",
    "dispatch_misses": "calls that met a regime without an entry in the dispatch table",
    "compiler_runs": "runs of the C and C++ compiler; Triton kernels compiled",
    "weights_packed": "packed copies of weights made",
}
"""What each of them counts."""


class Counters(Mapping[str, Any]):
    """Thread-safe counts by name; `library_calls` is itself a mapping from operator to count of call sites."""

    def __init__(self) -> None:
        self._lock = locks.lock()
        self.reset()

    def reset(self) -> None:
        with self._lock:
            self._counts = {name: 0 for name in NAMES if name != "library_calls"}
            self._library: collections.Counter[str] = collections.Counter()

    def add(self, name: str, count: int = 1) -> None:
        with self._lock:
            self._counts[name] += count

    def add_library_call(self, operator: str) -> None:
        with self._lock:
            self._library[operator] += 1

    def __getitem__(self, name: str) -> Any:
        return dict(self._library) if name == "library_calls" else self._counts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)

    def __repr__(self) -> str:
        return f"Counters({dict(self)})"


counters = Counters()
