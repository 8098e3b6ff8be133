"""Leases: of all processes that share a store, one at a time measures for a regime. The others wait for its result.

A lease ends when its process gives it back or ends. A process that has waited for PATIENCE_SECONDS measures too, since the
holder may be trying candidates on live calls that no longer come. So results do not depend on leases.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator

from polytile.dispatch.request import Request
from polytile.facts import texts
from polytile.problem import digest
from polytile.store import Store

PATIENCE_SECONDS = 30.0
"""How long a process waits for another one's measurements."""

PERIOD_SECONDS = 0.05
"""How often a waiting call looks."""

_waiting_since: dict[str, float] = {}


class Lease:
    """The right to measure for a regime. `store` is None if the process measures without having obtained the lease."""

    def __init__(self, store: Store | None, name: str) -> None:
        self._store, self._name = store, name

    def give_back(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.give_lease_back(self._name)

    def __del__(self) -> None:
        self.give_back()


def name_of(request: Request) -> str:
    """A digest of what is measured for the request: equal in all processes that would find the same."""
    problem = request.problem
    about = [problem.kernel, problem.dtypes, texts(problem.layouts), problem.device, request.environment, str(request.regime)]
    return digest(json.dumps(about), 32)


def take(request: Request) -> Lease | None:
    """The lease of the request's regime; None as long as another process has it and this one should go on waiting."""
    name = name_of(request)
    free = request.store.take_lease(name)
    if free or time.monotonic() - _waiting_since.setdefault(name, time.monotonic()) >= PATIENCE_SECONDS:
        _waiting_since.pop(name, None)
        return Lease(request.store if free else None, name)
    return None


@contextlib.contextmanager
def turn(request: Request) -> Iterator[bool]:
    """Within the block, no other process measures for the request, or this one has waited long enough. Yields whether it
    waited."""
    waited = False
    while (lease := take(request)) is None:
        waited = True
        time.sleep(PERIOD_SECONDS)
    try:
        yield waited
    finally:
        lease.give_back()
