"""Under what a plan's decision holds, besides the problem: commands ask too, without importing PyTorch."""

from __future__ import annotations

from polytile import options
from polytile.runtime.pytorch import threads


def team(kind: str) -> tuple[str, ...]:
    """The number of threads that a kernel on a device of this kind ("cpu", "cuda") may use; a GPU's does not depend on it."""
    return () if kind == "cuda" else (f"threads={threads()}",)


def pinned(kind: str) -> tuple[str, ...]:
    """What changes how a pinned candidate runs: its team, and registered options that are not at their defaults."""
    return (*team(kind), *(f"option {name}={value}" for name, value in options.registered().items()))


__all__ = ["pinned", "team"]
