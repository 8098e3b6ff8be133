"""Workers as actors of a Ray cluster. Ray places them and reports when one is gone; polytile assigns their work.

An actor needs no folder: Ray transports units to it and measurements back. The driver holds the leases for all of them.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from typing import Any

from polytile.campaigns.board import BEAT_SECONDS, Board, Result, Unit, work_of
from polytile.campaigns.places import A_GPU, MOST_DEATHS, Place
from polytile.campaigns.worker import Bench, Resolve, result_of
from polytile.errors import CampaignError


class Actor:
    """The actor in the cluster."""

    def __init__(self, resolve: Resolve) -> None:
        self.bench = Bench(resolve)

    def measure(self, unit: Unit) -> Result:
        """Measure a unit and return the result. Raises OtherDevice."""
        return result_of(unit, self.bench)


class OnRay(Place):
    """`count` actors; for 0, A_GPU for each GPU of the cluster, or one for each of its hosts."""

    def __init__(self, board: Board, kind: str, count: int, resolve: Resolve) -> None:
        try:
            import ray
        except ImportError:
            raise CampaignError("--workers ray needs Ray: pip install 'polytile[campaign]'.") from None
        self.ray, self.board, self.kind, self.resolve = ray, board, kind, resolve
        self._began_ray = not ray.is_initialized()
        if self._began_ray:
            ray.init(address=None, log_to_driver=False, include_dashboard=False, configure_logging=False)
        total = A_GPU * ray.cluster_resources().get("GPU", 0) if kind == "cuda" else len(ray.nodes())
        self.running: dict[Any, tuple[str, Any, str, float]] = {}
        """Pending requests: the future result, the worker's name, the actor, the unit, and when it counts as hanging."""
        self.measured: dict[str, set[str]] = {}
        """The work that each actor has measured: further processes of it go to other actors."""
        self.free = {f"ray{n}-{uuid.uuid4().hex[:8]}": self._actor() for n in range(count or int(total))}
        if not self.free:
            raise CampaignError("the campaign is for GPUs, and the Ray cluster has none.")
        for name in self.free:
            board.join(name)
        self.deaths, self._beaten = 0, 0.0

    def _actor(self) -> Any:
        needs = {"num_gpus": 1 / A_GPU} if self.kind == "cuda" else {"num_cpus": 1}
        return self.ray.remote(**needs)(Actor).remote(self.resolve)

    def tend(self) -> None:
        self._collect()
        for name, actor in list(self.free.items()):
            measured = self.measured.setdefault(name, set())
            unit = self.board.take(name, measured)
            if unit is None and measured and (unit := self.board.take(name)) is not None:
                self.ray.kill(actor)
                actor = self._actor()
                measured.clear()
            if unit is None:
                break
            measured.add(work_of(unit))
            described = self.board.unit(unit)
            answer = actor.measure.remote(described)
            self.running[answer] = name, actor, unit, time.monotonic() + described.seconds
            del self.free[name]
        if time.monotonic() - self._beaten > BEAT_SECONDS:
            self._beaten = time.monotonic()
            for name in self.free:
                self.board.beat(name)
            for name, _, unit, _ in self.running.values():
                self.board.beat(name, unit)

    def _collect(self) -> None:
        ready, _ = (
            self.ray.wait(list(self.running), num_returns=len(self.running), timeout=0) if self.running else ([], [])
        )
        for answer in ready:
            name, actor, unit, _ = self.running.pop(answer)
            try:
                result = self.ray.get(answer)
            except self.ray.exceptions.RayTaskError as error:
                self.board.give_back(unit)
                raise CampaignError(str(error.cause or error)) from None
            except self.ray.exceptions.RayError:
                self._replace(name, unit)
                continue
            self.deaths = 0
            self.board.finish(unit, replace(result, worker=name))
            self.free[name] = actor
        for answer, (name, actor, unit, deadline) in list(self.running.items()):
            if time.monotonic() > deadline:
                del self.running[answer]
                self.ray.kill(actor)
                self._replace(name, unit)

    def _replace(self, name: str, unit: str) -> None:
        """Replace the lost actor of a unit."""
        self.board.lose(unit)
        self.deaths += 1
        if self.deaths > MOST_DEATHS:
            raise CampaignError(f"{self.deaths} actors in a row ended over their units; `ray logs` has what they said.")
        self.free[name] = self._actor()

    def close(self) -> None:
        for name, actor, unit, _ in self.running.values():
            self.board.give_back(unit)
            self.ray.kill(actor)
            self.board.leave(name)
        for name, actor in self.free.items():
            self.ray.kill(actor)
            self.board.leave(name)
        if self._began_ray:
            self.ray.shutdown()
