"""Which candidates of a MultiKernel are excluded, where, and why."""

from __future__ import annotations

from collections.abc import Mapping

from polytile.dispatch import trace
from polytile.dispatch.request import Request
from polytile.problem import Outcome

DEFECTS = (Outcome.WRONG, Outcome.COMPILE_ERROR, Outcome.CRASHED, Outcome.TIMEOUT)
"""Outcomes that are told whatever the options say."""


class Failures:
    """Names of candidates with the reason, a sentence. The MultiKernel's lock covers it; a `key` is that of a regime."""

    def __init__(self) -> None:
        self._everywhere: dict[str, str] = {}
        """Candidates that do not compile, or that once gave a wrong result or crashed."""
        self._at: dict[int, dict[str, str]] = {}
        """Candidates that cannot run in a regime, by its key."""
        self._from: dict[str, list[tuple[Mapping[str, int], str]]] = {}
        """Candidates that timed out, with the sizes; they are not tried again where no size is smaller."""
        self._wrong_somewhere: dict[str, str] = {}
        """Candidates that gave a wrong result in one regime and run in others."""
        self._told: set[tuple[str, Outcome]] = set()

    @property
    def faulty(self) -> dict[str, str]:
        """Those that do not compile, have crashed or have given a wrong result, in whatever regime that was."""
        return {**self._wrong_somewhere, **self._everywhere}

    def excluded(self, key: int, sizes: Mapping[str, int]) -> dict[str, str]:
        """Those that are not to run in this regime at these sizes of it, with the reason."""
        endless = {
            name: reason
            for name, timeouts in self._from.items()
            for least, reason in timeouts
            if all(size <= sizes[dimension] for dimension, size in least.items())
        }
        return {**self._at.get(key, {}), **endless, **self._everywhere}

    def add(self, name: str, reason: str, key: int | None = None) -> None:
        """In the regime `key`; without one, everywhere."""
        (self._everywhere if key is None else self._at.setdefault(key, {}))[name] = reason

    def learn(self, key: int, request: Request) -> None:
        """What the selector's links have found out about candidates while they decided for the regime `key`."""
        for name, reason in request.rejected.items():
            outcome = request.outcomes.get(name)
            if outcome in DEFECTS or (outcome is Outcome.RAISED and request.spec.family == "user"):
                self._tell(request, name, reason, outcome)
            if outcome is Outcome.TIMEOUT:
                self._from.setdefault(name, []).append((dict(request.sizes), reason))
            elif outcome not in DEFECTS:
                self.add(name, reason, key)
            elif request.named(name).origin == "library":  # what is wrong there is so for these numbers alone
                self.add(name, reason, key)
                if outcome is Outcome.WRONG:
                    self._wrong_somewhere[name] = reason
            else:
                self.add(name, reason)

    def _tell(self, request: Request, name: str, reason: str, outcome: Outcome) -> None:
        if name not in self._everywhere and (name, outcome) not in self._told:
            self._told.add((name, outcome))
            trace.rejected(request.spec, name, reason, outcome)

    def move_to_sub_bucket(self, before: int, after: int) -> None:
        """The regime `before` was subdivided; what is known of it holds in the sub-buckets `after`."""
        if before in self._at:
            self._at[after] = self._at.pop(before)

    def forgive(self, key: int) -> None:
        """What made candidates fail in this regime alone may pass, as a lack of memory does."""
        self._at.pop(key, None)


__all__ = ["Failures"]
