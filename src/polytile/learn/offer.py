"""An Offer: a candidate as models see it, whether it can run here or is known by what was measured of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from polytile.problem import Config


@dataclass(frozen=True)
class Offer:
    """A candidate of a problem: its name, config and origin, the seconds that its own model predicts, and what `ask` gives when
    they are first asked for: the terms of that prediction (candidates/candidate.py)."""

    name: str
    config: Config
    origin: str
    predicted: float
    ask: Callable[[], Mapping[str, float]] = field(default=dict, repr=False, compare=False)

    @cached_property
    def terms(self) -> Mapping[str, float]:
        """What the prediction is made of: seconds ("memory_s"), facts of the problem ("work.M") and other numbers."""
        return self.ask()
