"""A worker: takes units of work from a campaign's folder, measures them, and files the results.

On a GPU it compiles the kernels of the next units while it measures one, so that the device does not wait for compilers, and
several workers take turns (turns.py), so that it does not wait for what the host does. On a CPU both would disturb what is timed.

It measures into a store of its own, of which the new measurements go to the folder with each unit, so that no two hosts write to
one file. While it works a thread gives signs of life. It ends itself after a unit's time is over: a kernel that hangs the device
would hold it for good.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from polytile import options
from polytile.campaigns.board import BEAT_SECONDS, Board, Result, Unit, work_of
from polytile.campaigns.turns import Turn
from polytile.candidates.candidate import Candidate
from polytile.compiler import backend
from polytile.counters import counters
from polytile.dispatch import hinted
from polytile.dispatch.define import WORKS
from polytile.dispatch.links import measured
from polytile.dispatch.multikernel import MultiKernel
from polytile.errors import CampaignError
from polytile.ir.serialise import MALFORMED, Reader
from polytile.problem import sizes_text
from polytile.runtime import device
from polytile.store import jsonl
from polytile.store.reading import Record, records
from polytile.tuning.environment import environment
from polytile.tuning.headroom import for_measuring

HUNG = 75
"""Exit status of a worker whose unit took too long."""

PATIENCE_SECONDS = 1.0
"""Seconds that a worker waits before it looks again if others hold all remaining units."""

MOST_UNITS = 256
"""Maximum number of units per store: each unit scans all of it for new measurements."""

AHEAD, AHEAD_AT_ONCE = 64, 4
"""Units whose kernels a GPU's worker compiles while it measures others, and how many it adds before each. A device measures
a unit in a fraction of a second, and a kernel takes seconds to compile."""

Resolve = Callable[[Mapping[str, Any], str], tuple[Callable[..., Any], Sequence[tuple[Any, ...]]]]
"""Takes a call's description and a device; returns the function to call, and the arguments of each call."""


class OtherDevice(CampaignError):
    """A campaign's times count on another kind of device, or in another environment, than this worker has."""


class Bench:
    """What a worker measures with: a store of its own, and kernels that are being compiled for units to come."""

    def __init__(self, resolve: Resolve) -> None:
        self.resolve = resolve
        self._ahead: dict[tuple[str, Path], tuple[MultiKernel, Sequence[Candidate]]] = {}
        """The kernels of the last units that were prepared, and what is being compiled of them, by the unit's id and the store
        that they write to."""
        self._turn: Turn | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="polytile-campaign-")
        self._units = 0
        self._known: set[str] = set()
        self._newest = -math.inf
        """The measurements of the store that results have, and when the last of them was taken."""

    @property
    def place(self) -> Path:
        return Path(self._folder.name) / f"store-{self._units // MOST_UNITS}.sqlite3"

    def prepare(self, unit: Unit) -> None:
        """Starts compiling the kernels of a unit that is measured later; returns at once. Does nothing for a unit that is a call:
        what it runs is known only when it is made. What fails here fails again when the unit is measured."""
        if "target" in unit.work:
            return
        with contextlib.suppress(Exception), self._as_asked(unit):
            kernel = _define(unit)
            kernel.forget()
            compiling = kernel.prepare([unit.sizes[name] for name in kernel.spec.size_names])
            self._ahead[unit.id, self.place] = kernel, compiling
            while len(self._ahead) > AHEAD + 1:
                del self._ahead[next(iter(self._ahead))]

    def is_compiled(self, name: str) -> bool:
        """Whether measuring a prepared unit would wait for no compiler."""
        _, compiling = self._ahead.get((name, self.place), (None, ()))
        return all(candidate.ready() or candidate.failed() for candidate in compiling)

    @property
    def held(self) -> float | None:
        """Seconds of this bench's turns on its GPU so far; None on a CPU, which it has to itself."""
        return None if self._turn is None else self._turn.held

    @property
    def waited(self) -> float:
        """Seconds until now that this bench has waited for other workers' turns."""
        return 0.0 if self._turn is None else self._turn.waited

    def measure(self, unit: Unit) -> str:
        """The measurements of a unit, as JSON lines. Raises OtherDevice, and whatever the kernel raises."""
        torch.set_num_threads(unit.threads)
        with self._as_asked(unit), self._in_turns(unit), for_measuring(), torch.no_grad():
            if "target" in unit.work:
                self._call(unit)
            else:
                self._warm(unit)
        lines = jsonl.header() + "".join(map(jsonl.line, self._new()))
        self._units += 1
        if self._units % MOST_UNITS == 0:
            self._known, self._newest = set(), -math.inf
        return lines

    def _new(self) -> list[Record]:
        """The measurements that no result has."""
        fresh = [record for record in records(self.place, self._newest) if record.uid not in self._known]
        self._known.update(record.uid for record in fresh)
        self._newest = max((record.taken_at for record in fresh), default=self._newest)
        return fresh

    def _as_asked(self, unit: Unit) -> contextlib.AbstractContextManager[None]:
        """Within the block options are the unit's, and measurements go to this bench's store."""
        own = {"store": str(self.place), "persist": True, "stall": "tune", "progress": "off"}
        return options.override(**{**unit.options, **own})

    @contextlib.contextmanager
    def _in_turns(self, unit: Unit) -> Iterator[None]:
        """Within the block, candidates are tried on a GPU while no other worker of this host does so."""
        if unit.kind != "cuda":
            yield
            return
        self._turn = self._turn or Turn.on_this_gpu()
        own, measured.tuner = measured.tuner, self._turn.tune
        try:
            yield
        finally:
            measured.tuner = own

    def _taken(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._turn is None else self._turn.taken()

    def _warm(self, unit: Unit) -> None:
        key = unit.id, self.place
        kernel = self._ahead.pop(key)[0] if key in self._ahead else _define(unit)
        _check_place(unit, kernel.spec.device or device.fingerprint(), kernel.spec.target)
        kernel.forget()
        with self._taken():
            args = kernel.spec.arguments_for(unit.sizes)
        hinted.warm_on(kernel, [args])

    def _call(self, unit: Unit) -> None:
        _check_place(unit, fingerprint(unit.kind), torch.device(unit.kind))
        with self._taken():
            function, calls = self.resolve(unit.work, unit.kind)
            backend.compile(function)(*calls[unit.work["index"]])

    def close(self) -> None:
        self._folder.cleanup()


def _define(unit: Unit) -> MultiKernel:
    """The kernel of a unit. Raises CampaignError where this version cannot read what the unit says of it."""
    try:
        return Reader(unit.work, WORKS).value().define()
    except MALFORMED as error:
        raise CampaignError(f"{unit.about} was described by another version of polytile ({error}).") from error


def fingerprint(kind: str) -> str:
    """The device of problems on a device of this kind, "cpu" or "cuda"."""
    if kind != "cuda":
        return device.fingerprint()
    from polytile.runtime.cuda.device import fingerprint as of_gpu  # import what a GPU needs only if there is one

    return of_gpu(torch.cuda.current_device())


def _check_place(unit: Unit, found: str, target: torch.device) -> None:
    here = dict(environment(target))
    differing = [name for name, value in unit.environment if here.get(name) != value]
    if found != unit.device or differing:
        name = "device" if found != unit.device else differing[0]
        said, own = (unit.device, found) if name == "device" else (dict(unit.environment)[name], here.get(name))
        raise OtherDevice(
            f"this campaign's times are of {name} {said}, and this worker's is {own}; begin one of its own there."
        )


def work(board: Board, name: str, bench: Bench) -> bool:
    """Measures units until none is left, and closes the bench; whether some are left to another process than this one, which has
    measured the same already. Raises OtherDevice where nothing measured here would count."""
    board.join(name)
    measured, ahead = set[str](), list[str]()
    try:
        while True:
            unit = board.take(name, measured, sorted(ahead, key=lambda other: not bench.is_compiled(other)))
            if unit is not None:
                measured.add(work_of(unit))
                ahead = [other for other in ahead if other != unit]
                _look_ahead(board, name, unit, measured, ahead, bench)
                _work_on(board, name, unit, bench)
            elif board.is_over():
                return False
            elif measured and (again := board.take(name)) is not None:
                board.give_back(again)
                return True
            else:
                board.beat(name)
                board.lose_lapsed()
                time.sleep(PATIENCE_SECONDS)
    finally:
        bench.close()
        board.leave(name)


def _look_ahead(board: Board, worker: str, name: str, measured: set[str], ahead: list[str], bench: Bench) -> None:
    """Starts compiling units that come after this one, if their kernels run on a GPU, and adds them to `ahead`."""
    if board.unit(name).kind == "cpu":
        return
    for _ in range(min(AHEAD_AT_ONCE, AHEAD - len(ahead))):
        unit = board.claim_next(worker, measured.union(map(work_of, ahead)))
        if unit is None:
            return
        bench.prepare(board.unit(unit))
        ahead.append(unit)


def _work_on(board: Board, worker: str, name: str, bench: Bench) -> None:
    unit = board.unit(name)
    try:
        with _signs_of_life(board, worker, name, unit.seconds, bench):
            result = result_of(unit, bench, worker)
    except (OtherDevice, KeyboardInterrupt, SystemExit):
        board.give_back(name)
        raise
    board.finish(name, result)


def result_of(unit: Unit, bench: Bench, worker: str = "") -> Result:
    """Measures a unit. Raises OtherDevice."""
    begun, held, before, lines, error = time.monotonic(), bench.held, counters["seconds"], "", ""
    try:
        lines = bench.measure(unit)
    except OtherDevice:
        raise
    except Exception as raised:
        error = _failed(unit, raised)
    seconds, device_seconds = time.monotonic() - begun, None if bench.held is None else bench.held - (held or 0.0)
    stages = {stage: round(spent - before[stage], 4) for stage, spent in counters["seconds"].items()}
    return Result(worker, seconds, lines, error, stages, device_seconds)


def _failed(unit: Unit, error: BaseException) -> str:
    """Why a unit has no result, in one line."""
    first = (str(error).strip().splitlines() or ["no message"])[0]
    at = f" at {sizes_text(unit.sizes.items())}" if unit.sizes else ""
    return f"{unit.about}{at}: {type(error).__name__}: {first}"


@contextlib.contextmanager
def _signs_of_life(board: Board, worker: str, name: str, seconds: float, bench: Bench) -> Iterator[None]:
    """Within the block, which may take `seconds`; waiting for turns does not count."""
    ended, deadline = threading.Event(), time.monotonic() + seconds - bench.waited

    def beat() -> None:
        while not ended.wait(BEAT_SECONDS):
            if time.monotonic() - bench.waited > deadline:
                board.lose(name)
                os._exit(HUNG)
            board.beat(worker, name)

    thread = threading.Thread(target=beat, name="polytile campaign", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
