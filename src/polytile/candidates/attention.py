"""Candidates for an attention: generated kernels and the library's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from polytile.attention.problem import AttentionProblem
from polytile.candidates.candidate import Candidate
from polytile.candidates.library.attention import library_candidates


def candidates(problem: AttentionProblem, target: torch.device, sources: Sequence[str]) -> tuple[Candidate, ...]:
    """In the order of `sources`; the library's where none of these has any."""
    factories: dict[str, Callable[[], Sequence[Candidate]]] = {"library": lambda: library_candidates(problem, target)}
    wanted = [candidate for source in sources if source in factories for candidate in factories[source]()]
    return tuple(wanted) or library_candidates(problem, target)


__all__ = ["candidates"]
