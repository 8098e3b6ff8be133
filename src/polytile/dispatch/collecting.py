"""Recording without choosing: every candidate at the sizes of a call is measured into a store of its own, for `polytile learn`.

With the option `collect` a program makes the same choices as without it: the measurements go to the file that the option names,
which no choice reads. They are taken at a regime's first call, whether its program was compiled now or comes from a cache.
Problems that are in the file are not measured again.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import logging
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import torch

from polytile import options
from polytile.candidates.candidate import Candidate
from polytile.dispatch import trials
from polytile.dispatch.ahead import start_compiling
from polytile.dispatch.links import measured
from polytile.dispatch.request import Request
from polytile.store import Store, identity
from polytile.tuning.decide import combine
from polytile.tuning.headroom import NoHeadroom

log = logging.getLogger("polytile.dispatch")

WITHIN = 8.0
"""Candidates predicted to take this many times as long as the best are not measured: nothing could be learned about them but
that they are slow."""

_ahead: contextvars.ContextVar[tuple[int, deque[Request]] | None] = contextvars.ContextVar("polytile_collect", default=None)


def collect(request: Request) -> None:
    """Measures all candidates of a call, if the option `collect` names a file. Errors are reported and do not reach the call."""
    named = options.get("collect")
    if not named or request.args is None or trials.within() or torch.are_deterministic_algorithms_enabled():
        return
    if request.spec.target.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return
    own = dataclasses.replace(request, store=_store(Path(named)), rejected={}, outcomes={}, budget=None)
    waiting = _ahead.get()
    if waiting is None:
        _measure(own)
        return
    count, requests = waiting
    for candidate in missing(own):
        start_compiling(candidate)
    requests.append(own)
    while len(requests) > count:
        _measure(requests.popleft())


@contextlib.contextmanager
def ahead(count: int) -> Iterator[None]:
    """Within the block, in this context, the candidates of the next `count` problems compile while one is measured, and their
    arguments are kept for that long. When the block ends, all have been measured."""
    requests: deque[Request] = deque()
    token = _ahead.set((count, requests))
    try:
        yield
        while requests:
            _measure(requests.popleft())
    finally:
        _ahead.reset(token)


def missing(request: Request) -> list[Candidate]:
    """The candidates without a measurement at these sizes in the request's store."""
    known = combine(request.store.exact(request.problem, request.environment))
    able = [candidate for candidate in request.candidates if candidate.origin != "reference"]
    best = min((candidate.cost(request.sizes) for candidate in able), default=0.0)
    near = [candidate for candidate in able if candidate.cost(request.sizes) <= WITHIN * best]
    return [candidate for candidate in near if identity(candidate) not in known] if len(near) > 1 else []


def _measure(request: Request) -> None:
    wanted = missing(request)
    if not wanted:
        return
    try:
        with options.override(tune="all"):  # nobody waits: every candidate gets its time
            measured.trial(request, wanted, remember=True)
    except (torch.OutOfMemoryError, NoHeadroom) as error:
        log.warning("%s is not collected at %s: %s", request.spec.name, request.regime, error)


@functools.cache
def _store(path: Path) -> Store:
    return Store(path)
