"""A campaign's folder: what to measure, who is measuring what, and the results. It consists of files only, so that any process on
any host that sees the folder can take part, be killed, and be replaced.

    units/ID.json       a unit of work
    taken/ID.json       a lease: who works on it. It is touched every few seconds, and lapses otherwise
    lost/ID.N.json      leases that lapsed, or whose worker is known to have ended
    done/ID.json        what was found, the measurements as lines of JSON; it appears whole, and once
    ahead/ID.json       who compiles the kernels of a unit before it is taken; a note, not a lease
    workers/NAME.json   who took part, touched as long as the worker lives
    driver              touched as long as somebody may add units
    stop                exists if no further unit is to be taken
    campaign.json       says that this is a campaign's folder, and where its store is

A lease is taken by creating its file and lost by renaming it; only one process can succeed in either. Times are those of the file
system, so that the hosts' clocks need not agree.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from polytile.errors import CampaignError
from polytile.problem import digest

FORMAT, CAMPAIGN = "polytile campaign", "campaign.json"

LEASE_SECONDS, BEAT_SECONDS = 30.0, 3.0
"""Seconds without a sign of life after which a lease lapses, and the interval between signs of life."""

MOST_LOSSES = 3
"""Number of workers that may end or hang on a unit before it is given up."""

TRYING = ("checking", "measuring")
"""The stages of a unit in which its device runs candidates."""


@dataclass(frozen=True)
class Unit:
    """A unit of work, measured by one worker on one device.

    about     the kernel and its sizes, for people
    work      how to create the kernel, as JSON (dispatch/define.py), or, for a call, {"target", "shapes", "dtype", "index"}
    sizes     the kernel's; empty for a call
    options   under which it is measured
    kind, device, environment   "cpu" or "cuda"; where times count, which must be the same for all workers
    threads   of torch; seconds: after which its worker counts as hanging
    weight    how many calls had these sizes; frequent ones are measured first
    candidates   the number of candidates, 0 if unknown. Among equal weights, the unit with the most comes first, so that the
              campaign does not end with a long unit
    process   the number of the measuring process, if several measure it independently
    """

    about: str
    work: Mapping[str, Any]
    sizes: Mapping[str, int]
    options: Mapping[str, Any]
    kind: str
    device: str
    environment: tuple[tuple[str, str], ...]
    threads: int
    seconds: float
    weight: float = 1.0
    candidates: int = 0
    process: int = 0

    @property
    def id(self) -> str:
        """The same for the same work and process, so that a restarted campaign finds its results."""
        about = [self.work, self.sizes, self.options, self.device, self.environment, self.threads]
        return f"{digest(json.dumps(about, sort_keys=True), 24)}-{self.process}"


def work_of(name: str) -> str:
    """The part of a unit's id that is common to all processes that measure it."""
    return name.partition("-")[0]


@dataclass(frozen=True)
class Result:
    """What became of a unit.

    seconds   that the worker had it
    lines     the measurements, as lines of JSON
    error     why there are none, if so
    stages    the share of `seconds` that each stage of `polytile.counters["seconds"]` took, in seconds
    device_seconds   in which no other unit could use the device: those of its turns on a GPU. None: all, as on a CPU
    """

    worker: str
    seconds: float
    lines: str = ""
    error: str = ""
    stages: Mapping[str, float] = field(default_factory=dict)
    device_seconds: float | None = None


@dataclass(frozen=True)
class Status:
    """How far a campaign is.

    taken     who measures which unit
    failed    units without a result, and why
    seconds   that all units took; device_seconds: those of their devices; trying: in which candidates were checked and timed
    workers   those that live
    """

    units: int
    done: int
    taken: Mapping[str, str]
    failed: Mapping[str, str] = field(default_factory=dict)
    lost: int = 0
    seconds: float = 0.0
    device_seconds: float = 0.0
    trying: float = 0.0
    workers: tuple[str, ...] = ()

    @property
    def left(self) -> int:
        return self.units - self.done


class Board:
    """The folder at `root`. `store`: the place of the campaign's measurements, without a password; "" in older folders."""

    def __init__(self, root: Path, make: bool = False, store: str = "") -> None:
        self.root = root
        self._results: dict[str, Result] = {}
        """Those that were read, without their measurements: a result never changes."""
        self._left: list[str] = []
        self._stamp = 0
        if make:
            for name in ("units", "taken", "lost", "done", "ahead", "workers"):
                (root / name).mkdir(parents=True, exist_ok=True)
            self._write(root / CAMPAIGN, {"format": FORMAT, "version": 1, "store": store})
        try:
            about = json.loads((root / CAMPAIGN).read_text())
            if about["format"] != FORMAT:
                raise ValueError
            self.store: str = about.get("store", "")
        except (OSError, ValueError, KeyError, TypeError):
            raise CampaignError(
                f"{root} is no campaign's folder; `polytile campaign run SPEC.toml` makes one."
            ) from None

    # what is to be done

    def add(self, unit: Unit) -> None:
        """Add a unit, unless it exists."""
        path = self._unit(unit.id)
        if not path.exists():
            self._write(path, asdict(unit))

    def unit(self, name: str) -> Unit:
        values = json.loads(self._unit(name).read_text())
        return Unit(**{**values, "environment": tuple((key, value) for key, value in values["environment"])})

    def order(self, units: Iterable[Unit]) -> None:
        """Make these the only units to be taken: those of first processes and with the largest weights first."""
        ordered = sorted((unit.process, -unit.weight, -unit.candidates, unit.id) for unit in units)
        self._write(self.root / "order.json", [name for *_, name in ordered])

    def extend(self, units: Sequence[Unit]) -> None:
        """Append units to the order."""
        for unit in units:
            self.add(unit)
        self._write(self.root / "order.json", list(dict.fromkeys([*self.wanted(), *(unit.id for unit in units)])))

    def wanted(self) -> list[str]:
        """The units of the campaign, in the order in which they are to be taken."""
        with contextlib.suppress(FileNotFoundError):
            return list(json.loads((self.root / "order.json").read_text()))
        return []

    def stop(self, stopped: bool = True) -> None:
        """Stop, or resume, taking units."""
        if stopped:
            (self.root / "stop").touch()
        else:
            (self.root / "stop").unlink(missing_ok=True)

    @property
    def stopped(self) -> bool:
        return (self.root / "stop").exists()

    # leases

    def take(self, worker: str, but: Collection[str] = (), first: Sequence[str] = ()) -> str | None:
        """A unit that nobody else has, from now on this worker's; None where there is none. Units whose `work_of` is in `but` are
        left to others.

        The free units of `first` come before all others, and units that other workers compile after all others.
        """
        if self.stopped:
            return None
        for name in first:
            if not self._is_done(name) and self._lease_undone(name, worker):
                return name
        taken, claimed, left = self._names("taken"), self._names("ahead"), self._units_left()
        free = [name for name in left if name not in taken and work_of(name) not in but]
        done, mine = set[str](), None
        for name in sorted(free, key=claimed.__contains__):
            if self._is_done(name):
                done.add(name)
            elif self._lease_undone(name, worker):
                mine = name
                break
        self._left = [name for name in left if name not in done]
        return mine

    def claim_next(self, worker: str, but: Collection[str] = ()) -> str | None:
        """The next free unit whose kernels nobody compiles yet; from now on this worker does, while it measures another one. None
        where there is none. Whoever takes the unit finds what is compiled by then."""
        if self.stopped:
            return None
        others = self._names("taken") | self._names("ahead")
        for name in self._units_left():
            if name not in others and work_of(name) not in but and not self._is_done(name):
                if self._create(self.root / "ahead" / f"{name}.json", json.dumps({"worker": worker})):
                    return name
        return None

    def is_over(self) -> bool:
        """Whether there will be no unit to take: all are done and nobody adds any, or the campaign is stopped."""
        return self.stopped or (all(map(self._is_done, self._units_left())) and not self._is_driven())

    def drive(self, driven: bool = True) -> None:
        """Show that somebody may add units, or that this has ended."""
        if driven:
            (self.root / "driver").touch()
        else:
            (self.root / "driver").unlink(missing_ok=True)

    def _is_driven(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            return self._now() - (self.root / "driver").stat().st_mtime <= LEASE_SECONDS
        return False

    def _units_left(self) -> list[str]:
        """The units in order, without those that were done at the last `take`, unless the order has changed since."""
        with contextlib.suppress(FileNotFoundError):
            stamp = (self.root / "order.json").stat().st_mtime_ns
            if stamp != self._stamp:
                self._stamp, self._left = stamp, self.wanted()
        return self._left

    def _is_done(self, name: str) -> bool:
        return os.path.exists(f"{self.root}/done/{name}.json")

    def _lease_undone(self, name: str, worker: str) -> bool:
        """Whether the unit was free and not done; it is this worker's then."""
        content = json.dumps({"worker": worker, "host": socket.gethostname(), "pid": os.getpid()})
        if not self._create(self.root / "taken" / f"{name}.json", content):
            return False
        if self._is_done(name):
            self.give_back(name)
            return False
        return True

    def beat(self, worker: str, name: str | None = None) -> None:
        """Keep the worker and its lease alive."""
        for path in (
            self.root / "workers" / f"{worker}.json",
            *([self.root / "taken" / f"{name}.json"] if name else []),
        ):
            with contextlib.suppress(OSError):
                os.utime(path)

    def join(self, worker: str) -> None:
        self._write(self.root / "workers" / f"{worker}.json", {"host": socket.gethostname(), "pid": os.getpid()})

    def leave(self, worker: str) -> None:
        (self.root / "workers" / f"{worker}.json").unlink(missing_ok=True)

    def finish(self, name: str, result: Result) -> bool:
        """File a result. Returns whether it is the unit's first, as another worker may have had the unit as well."""
        first = self._create(self.root / "done" / f"{name}.json", json.dumps(asdict(result)))
        self.give_back(name)
        (self.root / "ahead" / f"{name}.json").unlink(missing_ok=True)
        return first

    def give_back(self, name: str) -> None:
        (self.root / "taken" / f"{name}.json").unlink(missing_ok=True)

    def lose(self, name: str) -> None:
        """End the lease of a worker that is gone. A unit that has lost MOST_LOSSES workers gets an error as its result."""
        losses = len([path for path in self._lost() if path.name.startswith(f"{name}.")])
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.root / "taken" / f"{name}.json", self.root / "lost" / f"{name}.{uuid.uuid4().hex[:8]}.json")
            if losses + 1 >= MOST_LOSSES:
                self.finish(name, Result("", 0.0, error=f"{losses + 1} workers ended or hung over it"))

    def lose_lapsed(self) -> None:
        """End the leases without a sign of life for LEASE_SECONDS."""
        now = self._now()
        for path in (self.root / "taken").glob("*.json"):
            with contextlib.suppress(FileNotFoundError):
                if now - path.stat().st_mtime > LEASE_SECONDS:
                    self.lose(path.stem)

    def leases_of(self, worker: str) -> list[str]:
        """The units that a worker holds."""
        return [name for name, holder in self._holders().items() if holder == worker]

    # what was found

    def results(self, known: set[str]) -> Iterator[tuple[str, Result]]:
        """The results of units that are not `known`."""
        for name in sorted(self._names("done") - known):
            yield name, self.result(name)

    def results_of(self, work: str) -> dict[str, Result]:
        """The results of all units with that `work_of`, by name."""
        names = sorted(path.stem for path in (self.root / "done").glob(f"{work}-*.json"))
        return {name: self.result(name) for name in names}

    def result(self, name: str) -> Result:
        return Result(**json.loads((self.root / "done" / f"{name}.json").read_text()))

    def filed_at(self, name: str) -> float:
        """When the result of a unit was filed, in seconds since 1970, by the file system's clock."""
        return (self.root / "done" / f"{name}.json").stat().st_mtime

    def forget_failures(self) -> None:
        """Make units without a result available again."""
        self._results.clear()
        for name, result in self.results(set()):
            if result.error:
                (self.root / "done" / f"{name}.json").unlink(missing_ok=True)
                for path in (self.root / "lost").glob(f"{name}.*"):
                    path.unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.root / "order.json")  # workers look at all units again

    def status(self) -> Status:
        wanted = self.wanted()
        own = set(wanted)
        for name, result in self.results(set(self._results)):
            self._results[name] = replace(result, lines="")
        results = {name: result for name, result in self._results.items() if name in own}
        now, alive = self._now(), []
        for path in sorted((self.root / "workers").glob("*.json")):
            with contextlib.suppress(FileNotFoundError):
                if now - path.stat().st_mtime <= LEASE_SECONDS:
                    alive.append(path.stem)
        failed = {name: result.error for name, result in results.items() if result.error}
        seconds = sum(result.seconds for result in results.values())
        held = [result.seconds if result.device_seconds is None else result.device_seconds for result in results.values()]
        trying = sum(result.stages.get(stage, 0.0) for result in results.values() for stage in TRYING)
        lost, times = len(self._lost()), (seconds, sum(held), trying)
        return Status(len(wanted), len(results), self._holders(), failed, lost, *times, tuple(alive))

    # files

    def _unit(self, name: str) -> Path:
        return self.root / "units" / f"{name}.json"

    def _names(self, folder: str) -> set[str]:
        return {path.stem for path in (self.root / folder).glob("*.json")}

    def _lost(self) -> list[Path]:
        return list((self.root / "lost").glob("*.json"))

    def _holders(self) -> dict[str, str]:
        holders = {}
        for path in (self.root / "taken").glob("*.json"):
            with contextlib.suppress(OSError, ValueError):
                holders[path.stem] = str(json.loads(path.read_text())["worker"])
        return holders

    def _now(self) -> float:
        """The current time by the file system's clock."""
        probe = self.root / f"clock-{uuid.uuid4().hex}.tmp"
        probe.touch()
        try:
            return probe.stat().st_mtime
        finally:
            probe.unlink(missing_ok=True)

    def _write(self, path: Path, content: Any) -> None:
        temporary = path.with_name(f"{path.stem}-{uuid.uuid4().hex}.tmp")
        temporary.write_text(json.dumps(content))
        os.replace(temporary, path)

    def _create(self, path: Path, text: str) -> bool:
        """Create the file atomically. Returns False if it existed."""
        temporary = path.with_name(f"{path.stem}-{uuid.uuid4().hex}.tmp")
        temporary.write_text(text)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        return True
