"""How much time measuring may take: for one problem, for a program, for a campaign of many.

A budget ends measuring between two candidates and between two bursts, never within one, and never before the candidate that is
predicted to be fastest has been tried: what was found by then is used. The next program that meets the problem measures what
was left out.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
import time
from collections.abc import Iterator

from polytile import locks

clock = time.monotonic

LEAST_SECONDS, OWN_TIMES = 1.0, 3.0
"""Time that trials of one problem may take while a call waits: LEAST_SECONDS, or OWN_TIMES the time of the fastest candidate,
whichever is longer. After that no further trial is begun."""


def share_of(fastest: float) -> float:
    """Seconds that trials may take if one call of the fastest candidate takes `fastest` seconds."""
    return max(LEAST_SECONDS, OWN_TIMES * fastest)


class Budget:
    """Seconds that measuring may take, on behalf of `whose`; 0 stands for no limit. Any number of threads may charge."""

    def __init__(self, seconds: float, whose: str) -> None:
        self.seconds = seconds if seconds > 0 else math.inf
        self.whose = whose
        self._spent = 0.0
        self._lock = locks.lock()

    def left(self) -> float:
        """Seconds; 0 or less once all are spent."""
        return self.seconds - self._spent

    def charge(self, seconds: float) -> None:
        with self._lock:
            self._spent += seconds


class Campaign(Budget):
    """A budget of time on the clock from now on, whatever it is spent on."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds, "the campaign")
        self._begun = clock()

    def left(self) -> float:
        return self.seconds - (clock() - self._begun)


_campaign: contextvars.ContextVar[Campaign | None] = contextvars.ContextVar("polytile_campaign", default=None)


@contextlib.contextmanager
def campaign(seconds: float) -> Iterator[Campaign]:
    """Within the block, all measuring in this thread together may take this many seconds by the clock (0: no limit)."""
    token = _campaign.set(Campaign(seconds))
    try:
        made = _campaign.get()
        assert made is not None
        yield made
    finally:
        _campaign.reset(token)


_program: contextvars.ContextVar[Budget | None] = contextvars.ContextVar("polytile_program_budget", default=None)


@contextlib.contextmanager
def program(seconds: float) -> Iterator[None]:
    """Within the block, in this thread, the kernels of one program are defined. All of their measuring together may take this
    many seconds (0: no limit)."""
    token = _program.set(Budget(seconds, "the program") if seconds > 0 else None)
    try:
        yield
    finally:
        _program.reset(token)


def of_program() -> Budget | None:
    """The budget of the program whose kernels are being defined; None where it has no limit."""
    return _program.get()


def tightest(*budgets: Budget | None) -> Budget | None:
    """The one of them, or of the campaign in force, that has least left; None where there is no limit."""
    limited = [budget for budget in (*budgets, _campaign.get()) if budget is not None and budget.left() < math.inf]
    return min(limited, key=Budget.left, default=None)
