"""Which candidates of a MultiKernel take no further part, where, and why."""

from __future__ import annotations

from polytile.multikernel import trace
from polytile.multikernel.request import Request
from polytile.problem import Outcome


class Failures:
    """Names of candidates with the reason, a sentence. The MultiKernel's lock covers it; a `key` is that of a regime."""

    def __init__(self) -> None:
        self._everywhere: dict[str, str] = {}
        """They do not compile, or gave a wrong result once."""
        self._at: dict[int, dict[str, str]] = {}
        """They cannot run in one regime."""
        self._wrong_somewhere: dict[str, str] = {}
        """They gave a wrong result in one regime alone, and go on elsewhere."""

    @property
    def faulty(self) -> dict[str, str]:
        """Those that do not compile or have given a wrong result, in whatever regime that was."""
        return {**self._wrong_somewhere, **self._everywhere}

    def at(self, key: int) -> dict[str, str]:
        """Those that take no part in this regime."""
        return {**self._at.get(key, {}), **self._everywhere}

    def add(self, name: str, reason: str, key: int | None = None) -> None:
        """In the regime `key`; without one, everywhere."""
        (self._everywhere if key is None else self._at.setdefault(key, {}))[name] = reason

    def learn(self, key: int, request: Request) -> None:
        """What the selector's links have found out about candidates while they decided for the regime `key`."""
        for name, reason in request.rejected.items():
            outcome = request.outcomes.get(name)
            if outcome not in (Outcome.WRONG, Outcome.COMPILE_ERROR):
                self.add(name, reason, key)
                continue
            if name not in self._everywhere:
                trace.rejected(request.spec, name, reason, outcome)
            if request.named(name).origin == "library":  # what is wrong there is so for these numbers alone
                self.add(name, reason, key)
                self._wrong_somewhere[name] = reason
            else:
                self.add(name, reason)

    def move(self, before: int, after: int) -> None:
        """The regime `before` was split; what is known of it holds in the part `after`."""
        if before in self._at:
            self._at[after] = self._at.pop(before)

    def forgive(self, key: int) -> None:
        """What made candidates fail in this regime alone may pass, as a lack of memory does."""
        self._at.pop(key, None)


__all__ = ["Failures"]
