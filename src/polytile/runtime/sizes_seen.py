"""Records the sizes of compiled programs' calls by sampling the calls.

    know(call, graph)       registers that `call` runs a program of this graph
    serve(call, program)    registers that a program in C now runs its calls
    record_sizes(path)      samples calls from now on and writes the sizes to a file

A program in C counts down its calls (program.c) and shows one of them to a Sampler, which derives the sizes and answers
how many calls to skip. That number is random, so that periodic patterns are sampled fairly, and large enough that
sampling takes at most SHARE of the program's time. Skipped calls count as calls at the sizes of the one that is shown.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from polytile import locks, options
from polytile.errors import SizesError
from polytile.runtime import sizes_file
from polytile.runtime.sizes_file import Counts, Seen

log = logging.getLogger("polytile")

SHARE = 0.0005
"""Largest share of a program's time spent on sampling: half of the promised 0.1 %. The rest is for the writer."""

PERIOD_SECONDS = 20.0
"""Seconds between writes to the file."""

FEWEST_SECONDS, MOST_GAP = 1e-6, 1 << 20
"""Shortest time attributed to one sample, its call included; largest number of calls between samples."""

Call = Callable[[list[Any]], list[Any]]
Places = tuple[tuple[int, int | None], ...]
"""Position of each size among a program's arguments: a tensor's number and dimension, or an integer's number and None."""

clock = time.perf_counter


class Graph:
    """One graph: its digest, the location of its code, its sizes by name, and where its program finds them."""

    def __init__(self, digest: str, about: str, names: dict[str, str], places: Places) -> None:
        self.digest, self.about, self.names, self.places = digest, about, names, places


class Sampler:
    """Samples the calls of one program. `counts` holds the number of calls at each combination of sizes, not written yet."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.counts: Counts = {}
        self.program: Any = None
        """The program in C, once it exists."""
        self.left = self._gap = 0
        self._last, self._cost = clock(), 10 * FEWEST_SECONDS

    def begin(self) -> None:
        """Samples calls, starting with the next one."""
        self.left = self._gap = 1
        self._last = clock()
        if self.program is not None:
            self.program.look_at(self.look, self.left)

    def end(self) -> None:
        """Stops sampling."""
        self.left = 0
        if self.program is not None:
            self.program.look_at(None, 0)

    def look(self, args: Sequence[Any]) -> int:
        """Counts the calls since the last sample; returns how many calls to skip until the next."""
        begun = clock()
        sizes = tuple(args[i] if d is None else args[i].shape[d] for i, d in self.graph.places)
        sizes_file.count(self.counts, sizes, self._gap)
        each = max(1e-9, (begun - self._last) / self._gap)
        self._cost = min(FEWEST_SECONDS + clock() - begun, 1.25 * self._cost)  # limits the effect of an interrupted sample
        mean = min(self._cost / (SHARE * each), MOST_GAP)
        self._gap = random.randint(1, max(1, round(2 * mean) - 1))
        self._last = begun
        return self._gap

    def counting(self, args: Sequence[Any]) -> None:
        """Counts a call by the Python wrapper."""
        if self.left > 0:
            self.left -= 1
            if self.left == 0:
                self.left = self.look(args)

    def take(self) -> Seen:
        """The counts since the last call of this method."""
        counts, self.counts = self.counts, {}
        return Seen(self.graph.digest, self.graph.about, self.graph.names, counts)


_samplers: weakref.WeakKeyDictionary[Call, Sampler] = weakref.WeakKeyDictionary()
_serving: weakref.WeakKeyDictionary[Call, Any] = weakref.WeakKeyDictionary()
"""Programs in C that began to serve before their graph was known."""
_gone: list[Sampler] = []
"""Samplers of deleted programs, with counts not written yet."""
_lock = locks.rlock()
_recorder: Recording | None = None


def know(call: Call, graph: Graph | None) -> Call:
    """Samples the calls of a program while sizes are recorded, if its graph has any; returns the callable to use in its
    place."""
    if graph is None or not graph.places:
        return call
    begin_if_asked()
    sampler = Sampler(graph)
    with _lock:
        _samplers[call] = sampler
        weakref.finalize(call, _keep, sampler).atexit = False
        sampler.program = _serving.pop(call, None)
        if _recorder is not None:
            sampler.begin()
    # Calls in Python are counted only if sizes are being recorded when the program is made; otherwise they cost
    # nothing.
    return call if _recorder is None or getattr(call, "becomes_c", False) else _counted(call, sampler)


def _counted(call: Call, sampler: Sampler) -> Call:
    def counted_call(args: list[Any]) -> list[Any]:
        sampler.counting(args)
        return call(args)

    counted_call._boxed_call = True  # type: ignore[attr-defined]
    return counted_call


def serve(call: Call, program: Any) -> None:
    """Registers that a program in C runs the calls from now on."""
    with _lock:
        sampler = _samplers.get(call)
        if sampler is None:
            _serving[call] = program
            return
        sampler.program = program
        if _recorder is not None:
            sampler.begin()


def show(call: Call, args: Sequence[Any]) -> None:
    """Counts a call that the Python wrapper runs."""
    sampler = _samplers.get(call)
    if sampler is not None:
        sampler.counting(args)


def _keep(sampler: Sampler) -> None:
    if sampler.counts and _recorder is not None:
        _gone.append(sampler)


class Recording:
    """Recording into one file, until `stop` is called, its `with` block ends, or the process ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stopped: threading.Event | None = None
        self._begin_writing()

    def _begin_writing(self) -> None:
        self._stopped = threading.Event()
        writer = functools.partial(_write_now_and_then, weakref.ref(self), self._stopped)
        threading.Thread(target=writer, name="polytile sizes", daemon=True).start()

    def write(self) -> None:
        """Adds the counts since the last write to the file. Raises SizesError if the file cannot be written."""
        with _lock:
            gone, _gone[:] = list(_gone), []
            new = [seen for seen in (sampler.take() for sampler in [*_samplers.values(), *gone]) if seen.calls]
        try:
            if new:
                sizes_file.add(self.path, new)
        except OSError as error:
            raise SizesError(f"the sizes cannot be written to {self.path}: {error.strerror or error}.") from None

    def stop(self) -> None:
        """Stops sampling and writes the remaining counts. Raises SizesError if the file cannot be written."""
        global _recorder
        with _lock:
            if _recorder is not self:
                return
            for sampler in _samplers.values():
                sampler.end()
            _recorder = None
        if self._stopped is not None:
            self._stopped.set()
        self.write()

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def record_sizes(path: str | os.PathLike[str]) -> Recording:
    """Records which sizes calls of compiled functions have from now on, and how often, in every thread of this process.

    It looks at a sample of the calls, which takes less than 0.1 % of the program's time. `hints=`, `polytile tune --sizes` and
    campaigns read the file (docs/campaigns.md).

    Parameters
    ----------
    path
        The file. If it is there, the counts are added to those in it; several processes may add to one file.

    Returns
    -------
    A Recording. It ends with its `with` block, with `.stop()`, or with the process; `.write()` writes what was seen so far.

    Raises
    ------
    SizesError
        Sizes are being recorded already, or the file is something else or cannot be written.
    """
    global _recorder
    file = Path(path).expanduser().absolute()
    with _lock:
        if _recorder is not None:
            raise SizesError(f"sizes are being recorded into {_recorder.path} already; stop that first.")
        try:
            sizes_file.add(file, [])
        except OSError as error:
            raise SizesError(f"sizes cannot be recorded into {file}: {error.strerror or error}.") from None
        _recorder = Recording(file)
        for sampler in _samplers.values():
            sampler.begin()
        return _recorder


def begin_if_asked() -> None:
    """Starts recording if the option `record_sizes` asks for it. An error is reported once, and programs run on."""
    named = options.get("record_sizes")
    if named and _recorder is None and named not in _refused:
        try:
            record_sizes(named)
        except SizesError as error:
            _refused.add(named)
            log.warning("No sizes are recorded: %s", error)


_refused: set[str] = set()


def _write_now_and_then(recording: weakref.ref[Recording], stopped: threading.Event) -> None:
    while not stopped.wait(PERIOD_SECONDS):
        alive = recording()
        if alive is None:
            return
        _written(alive)


def _written(recording: Recording) -> None:
    try:
        recording.write()
    except SizesError as error:
        log.warning("%s", error)


@atexit.register
def _at_end() -> None:
    if _recorder is not None:
        _written(_recorder)


def _after_fork() -> None:
    """The parent writes its own counts. The child has no writer thread yet."""
    _gone.clear()
    for sampler in _samplers.values():
        sampler.counts = {}
    if _recorder is not None:
        _recorder._begin_writing()


os.register_at_fork(after_in_child=_after_fork)
