"""An Offer: a candidate as models see it, whether it can run here or is known only from its measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from polytile.problem import Config


@dataclass(frozen=True)
class Offer:
    """A candidate of a problem. `predicted` is the time in seconds by its cost model; `ask` returns the terms of that prediction
    when they are first needed (candidates/candidate.py)."""

    name: str
    config: Config
    origin: str
    predicted: float
    ask: Callable[[], Mapping[str, float]] = field(default=dict, repr=False, compare=False)

    @cached_property
    def terms(self) -> Mapping[str, float]:
        """The terms of the prediction: seconds ("memory_s"), facts of the problem ("work.M") and other numbers."""
        return self.ask()
