"""The conditions under which a plan's decision for a problem holds. Commands use this module without importing PyTorch."""

from __future__ import annotations

from polytile import options
from polytile.facts import Fact, OptionValue, Threads
from polytile.runtime.pytorch import threads


def team(kind: str) -> tuple[Fact, ...]:
    """The threads that a kernel on a device of this kind ("cpu", "cuda") may use; a GPU's kernel does not depend on them."""
    return () if kind == "cuda" else (Threads(threads()),)


def plan_conditions(kind: str) -> tuple[Fact, ...]:
    """What changes how a pinned candidate runs: its team, and registered options that are not at their defaults."""
    return (*team(kind), *(OptionValue(name, value) for name, value in options.registered().items()))
