"""Records the sizes that calls of compiled programs have, by looking at some of the calls.

    know(call, graph)       `call` runs a program of this graph
    serve(call, program)    from now on the program in C runs its calls
    record(path)            looks at calls from now on, and writes what it sees

A program in C counts its calls down (program.c), and shows one in so many to a Sampler, which works out the sizes. It says after
how many calls it wants another: a random number, so that what comes in turns is met in turns, and so large that looking takes no
more than SHARE of the program's time. The calls that were passed over count as calls at the same sizes as the one that is shown.
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
"""What part of a program's time looking at its calls may take: half of the 0.1 % that is promised, the rest being for the
writer."""

PERIOD_SECONDS = 20.0
"""How often what was seen is written."""

FEWEST_SECONDS, MOST_GAP = 1e-6, 1 << 20
"""What a look takes at least, the call of it included; calls from one look to the next, at most."""

Call = Callable[[list[Any]], list[Any]]
Places = tuple[tuple[int, int | None], ...]
"""Where each size is among a program's arguments: the number of a tensor and of its dimension, or the number of an integer."""

clock = time.perf_counter


class Graph:
    """What is known of one graph: its digest, where it begins, its sizes by name, and where its program finds them."""

    def __init__(self, digest: str, about: str, names: dict[str, str], places: Places) -> None:
        self.digest, self.about, self.names, self.places = digest, about, names, places


class Sampler:
    """Looks at calls of one program. `counts`: calls at each combination of sizes that are not written yet."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.counts: Counts = {}
        self.program: Any = None
        """The program in C, once there is one."""
        self.left = self._gap = 0
        self._last, self._cost = clock(), 10 * FEWEST_SECONDS

    def begin(self) -> None:
        """Looks at calls from the next one on."""
        self.left = self._gap = 1
        self._last = clock()
        if self.program is not None:
            self.program.look_at(self.look, self.left)

    def end(self) -> None:
        """Looks at no more calls."""
        self.left = 0
        if self.program is not None:
            self.program.look_at(None, 0)

    def look(self, args: Sequence[Any]) -> int:
        """Counts the calls since the last look; after how many to look again."""
        begun = clock()
        sizes = tuple(args[i] if d is None else args[i].shape[d] for i, d in self.graph.places)
        sizes_file.count(self.counts, sizes, self._gap)
        each = max(1e-9, (begun - self._last) / self._gap)
        self._cost = min(FEWEST_SECONDS + clock() - begun, 1.25 * self._cost)  # one that was interrupted says nothing
        mean = min(self._cost / (SHARE * each), MOST_GAP)
        self._gap = random.randint(1, max(1, round(2 * mean) - 1))
        self._last = begun
        return self._gap

    def counting(self, args: Sequence[Any]) -> None:
        """A call by Python's wrapper."""
        if self.left > 0:
            self.left -= 1
            if self.left == 0:
                self.left = self.look(args)

    def take(self) -> Seen:
        """What was seen since it was last asked."""
        counts, self.counts = self.counts, {}
        return Seen(self.graph.digest, self.graph.about, self.graph.names, counts)


_samplers: weakref.WeakKeyDictionary[Call, Sampler] = weakref.WeakKeyDictionary()
_serving: weakref.WeakKeyDictionary[Call, Any] = weakref.WeakKeyDictionary()
"""Programs in C whose graph was not known when they began to serve."""
_gone: list[Sampler] = []
"""Samplers of programs that are gone, with counts that are not written yet."""
_lock = locks.rlock()
_recorder: Recording | None = None


def know(call: Call, graph: Graph | None) -> Call:
    """Has the calls of a program looked at while sizes are recorded, if its graph has any; gives what to call in place of it."""
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
    # What stays in Python is counted where it is made while sizes are recorded, and costs nothing elsewhere.
    return call if _recorder is None or getattr(call, "becomes_c", False) else _counted(call, sampler)


def _counted(call: Call, sampler: Sampler) -> Call:
    def counted_call(args: list[Any]) -> list[Any]:
        sampler.counting(args)
        return call(args)

    counted_call._boxed_call = True  # type: ignore[attr-defined]
    return counted_call


def serve(call: Call, program: Any) -> None:
    """From now on a program in C runs the calls."""
    with _lock:
        sampler = _samplers.get(call)
        if sampler is None:
            _serving[call] = program
            return
        sampler.program = program
        if _recorder is not None:
            sampler.begin()


def show(call: Call, args: Sequence[Any]) -> None:
    """A call that Python's wrapper runs."""
    sampler = _samplers.get(call)
    if sampler is not None:
        sampler.counting(args)


def _keep(sampler: Sampler) -> None:
    if sampler.counts and _recorder is not None:
        _gone.append(sampler)


class Recording:
    """Recording into one file, until `stop` is called, its `with` block ends, or the process does."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stopped: threading.Event | None = None
        self._begin_writing()

    def _begin_writing(self) -> None:
        self._stopped = threading.Event()
        writer = functools.partial(_write_now_and_then, weakref.ref(self), self._stopped)
        threading.Thread(target=writer, name="polytile sizes", daemon=True).start()

    def write(self) -> None:
        """Adds what was seen since the last time to the file. Raises SizesError where that cannot be."""
        with _lock:
            gone, _gone[:] = list(_gone), []
            new = [seen for seen in (sampler.take() for sampler in [*_samplers.values(), *gone]) if seen.calls]
        try:
            if new:
                sizes_file.add(self.path, new)
        except OSError as error:
            raise SizesError(f"the sizes cannot be written to {self.path}: {error.strerror or error}.") from None

    def stop(self) -> None:
        """Looks at no more calls, and writes what was seen. Raises SizesError where that cannot be."""
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


def record(path: str | os.PathLike[str]) -> Recording:
    """Looks at calls of all compiled programs from now on. Raises SizesError where something is recorded already, or the file is
    something else or cannot be written."""
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
    """Records from now on where the option `record_sizes` asks for it. What is wrong is reported once, and programs run on."""
    named = options.get("record_sizes")
    if named and _recorder is None and named not in _refused:
        try:
            record(named)
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
    """What the parent has seen it writes itself; the child has no thread yet."""
    _gone.clear()
    for sampler in _samplers.values():
        sampler.counts = {}
    if _recorder is not None:
        _recorder._begin_writing()


os.register_at_fork(after_in_child=_after_fork)
