"""Decisions that the ranks of a job of torch.distributed share (option agree="ranks").

A decision is a line in the job's key-value store, through which its ranks have met. The rank that decides first for a regime
writes the line, and every rank follows what it says. No collective takes part, so that ranks may meet different regimes, or end.

    nothing has to be measured     a rank decides, and writes that down unless another has; it follows what is written
    something has to be measured   one rank measures, which holds the lease of the regime; the others wait for its decision
    it takes too long              a rank that waits writes down the predictable choice: the prior's
    the store does not answer      this process makes the predictable choice from then on

The last two are reported. What one rank alone has seen decides nothing: no decision of its cache directory, none of its learned
models, no live trial, no measuring at sizes that come often, no subdivided regime.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from polytile import locks, options
from polytile.dispatch import selector, trials
from polytile.dispatch.decision import Decision
from polytile.dispatch.plan_conditions import plan_conditions
from polytile.dispatch.request import Answer, Request, may_measure
from polytile.facts import texts
from polytile.problem import digest, sizes_text
from polytile.runtime import device
from polytile.tuning.decide import Score
from polytile.version import source_digest

log = logging.getLogger("polytile")
T = TypeVar("T")

FORMAT = 1

PERIOD_SECONDS = 0.02
"""How often a rank that waits looks for a decision."""

LEAST_SECONDS = 0.1
"""How long the store has for an answer, at least."""

FIXED = ("forced", "plan")
"""Links whose answer is the same on all ranks with the same options."""

PREDICTABLE = ("prior", "default")
"""Links whose answers depend only on the kernel, its sizes and the device."""

OPEN = ("exact", "nearby", "model", "prior", "measured", "default")
"""The links to ask if neither `force` nor a plan says what runs."""

OF_ONE_RANK = {"explore": 0.0, "refine": 0.0}
"""Values of the options by which one rank would decide for itself."""


class Unreachable(Exception):
    """The job's store does not answer."""


def wanted() -> bool:
    """Whether the option in force says that ranks agree."""
    return bool(options.get("agree") == "ranks")


def restrained(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a kernel. If ranks agree, those that let one rank decide for itself are switched off."""
    with options.restored(given):
        return {**given, **OF_ONE_RANK} if wanted() else dict(given)


class Job:
    """The ranks that have met through one store of torch.distributed, and this one's number."""

    def __init__(self, store: Any, rank: int) -> None:
        self.rank = rank
        self._store = store
        self._lost = False
        self._waiting_since: dict[str, float] = {}

    def published(self, name: str) -> str | None:
        """The decision of that name; None until there is one. Raises Unreachable."""
        store = self._store
        return self._asked(lambda: store.get(name).decode() if store.check([name]) else None)

    def publish(self, name: str, text: str) -> str:
        """Records a decision unless there is one already; returns the recorded one. Raises Unreachable."""
        return self._asked(lambda: self._store.compare_set(name, "", text).decode())

    def holds_lease(self, name: str) -> bool:
        """Whether this rank is to decide, because it asked first. Raises Unreachable."""
        own = str(self.rank)
        return self._asked(lambda: self._store.compare_set(f"{name}/lease", "", own).decode()) == own

    def is_late(self, name: str) -> bool:
        """Whether this rank has waited for the decision as long as it may. The waiting begins when it first asks."""
        return time.monotonic() - self._waiting_since.setdefault(name, time.monotonic()) >= options.get("agree_seconds")

    def _asked(self, question: Callable[[], T]) -> T:
        """The answer of the store. A thread of its own asks, as a host that is gone may never answer."""
        if self._lost:
            raise Unreachable
        answers: list[T] = []
        errors: list[Exception] = []

        def ask() -> None:
            try:
                answers.append(question())
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=ask, name="polytile-agreement", daemon=True)
        thread.start()
        thread.join(max(LEAST_SECONDS, options.get("agree_seconds")))
        if answers:
            return answers[0]
        self._lost = True
        why = str(errors[0]).partition("\n")[0] if errors else "it did not answer in time"
        log.warning(
            "Rank %d can no longer agree with the others on kernels: the job's store failed (%s). It runs the kernels that are "
            "predicted to be fastest.", self.rank, why,
        )  # fmt: skip
        raise Unreachable


_jobs: weakref.WeakKeyDictionary[Any, Job] = weakref.WeakKeyDictionary()
_lock = locks.lock()


def job() -> Job | None:
    """The job that this process is a rank of; None where there is none, or no other rank."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        if int(os.environ.get("WORLD_SIZE") or 1) > 1:
            _tell_of_no_group()
        return None
    group = distributed.group.WORLD
    if distributed.get_world_size() == 1 or group is None:
        return None
    with _lock:
        if group not in _jobs:
            store = distributed.distributed_c10d._get_default_store()
            _jobs[group] = Job(distributed.PrefixStore("polytile", store), distributed.get_rank())
        return _jobs[group]


@functools.cache
def _tell_of_no_group() -> None:
    log.warning(
        "The option agree is 'ranks', but the process group does not exist yet, so this rank chooses kernels alone; call "
        "torch.distributed.init_process_group before the first call of a compiled function."
    )


def decide(request: Request) -> Decision | None:
    """What the selector chooses; with agree="ranks", what the ranks of the job have agreed on."""
    ranks = job() if wanted() and len(request.candidates) > 1 and not trials.within() else None
    if ranks is None:
        return selector.choose(request)
    if (fixed := selector.choose(request, FIXED)) is not None:
        return fixed
    try:
        return _agreed(ranks, request)
    except Unreachable:
        return _predictable(request)


def waits(request: Request) -> bool:
    """Whether another rank is deciding for the request and this rank has time to wait for it."""
    ranks = job() if wanted() and len(request.candidates) > 1 else None
    if ranks is None:
        return False
    name = name_of(request)
    with contextlib.suppress(Unreachable):
        return ranks.published(name) is None and not ranks.holds_lease(name) and not ranks.is_late(name)
    return False


def name_of(request: Request) -> str:
    """A digest of everything that the request asks: two ranks ask the same if it is equal."""
    spec = request.spec
    about = [
        FORMAT, source_digest(), spec.kernel, spec.dtypes, texts(spec.layouts), texts(plan_conditions(spec.target.type)),
        spec.device or device.fingerprint(), request.environment, str(request.regime), may_measure(request),
    ]  # fmt: skip
    return digest(json.dumps(about), 32)


def _agreed(ranks: Job, request: Request) -> Decision | None:
    name = name_of(request)
    text = ranks.published(name)
    if text is None and may_measure(request) and not ranks.holds_lease(name):
        text = _waited_for(ranks, name)
        if text is None:
            own = _predictable(request)
            why = f"no rank decided within {options.get('agree_seconds'):g} s"
            own = own and dataclasses.replace(own, provenance=f"{own.provenance}; {why}")
            log.warning("Kernel %r at %s: %s; the prediction decides.", request.spec.name, sizes_text(request.sizes.items()), why)
            text = None if own is None else ranks.publish(name, _Row.of(own, ranks.rank).text)
    elif text is None:
        own = selector.choose(request, OPEN)
        text = None if own is None else ranks.publish(name, _Row.of(own, ranks.rank).text)
    return None if text is None else _followed(request, _Row.read(text))


def _waited_for(ranks: Job, name: str) -> str | None:
    while (text := ranks.published(name)) is None and not ranks.is_late(name):
        time.sleep(PERIOD_SECONDS)
    return text


def _predictable(request: Request) -> Decision | None:
    with options.override(learned=False):
        return selector.choose(dataclasses.replace(request, args=None), PREDICTABLE)


def _followed(request: Request, row: _Row) -> Decision | None:
    """The decision that a line stands for. If its candidate has failed on this rank, the rank makes its predictable choice."""
    if row.candidate not in request.names:
        log.warning(
            "Kernel %r at %s: the ranks agreed on %r, which cannot run on this one; its results may differ from theirs.",
            request.spec.name, sizes_text(request.sizes.items()), row.candidate,
        )  # fmt: skip
        return _predictable(request)
    timed = Score(row.seconds) if row.seconds is not None else None
    scores = tuple(timed if candidate.name == row.candidate else None for candidate in request.candidates)
    grounds = f"{row.provenance}, by rank {row.rank} for all"
    answer = Answer(request.named(row.candidate), grounds, scores, measured_at=dict(row.measured_at))
    return selector.decision_from(request, row.link, answer)


@dataclass(frozen=True)
class _Row:
    """A decision as ranks tell it to each other. `seconds` at the sizes `measured_at`, None if the candidate was not measured.
    The times of other candidates are not shared: with them a rank would subdivide regimes that others do not."""

    candidate: str
    link: str
    provenance: str
    seconds: float | None
    measured_at: tuple[tuple[str, int], ...]
    rank: int

    @staticmethod
    def of(decision: Decision, rank: int) -> _Row:
        seconds = decision.seconds
        known = seconds is not None and math.isfinite(seconds)
        where = decision.measured_at or decision.sizes
        return _Row(decision.candidate, decision.link, decision.provenance, seconds if known else None, where, rank)

    @property
    def text(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def read(text: str) -> _Row:
        row = json.loads(text)
        return _Row(**{**row, "measured_at": tuple((name, size) for name, size in row["measured_at"])})
