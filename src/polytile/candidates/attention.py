"""Candidates for an attention: generated kernels and the library's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch

from polytile.attention.problem import AttentionProblem
from polytile.candidates.candidate import Candidate
from polytile.candidates.library.attention import library_candidates
from polytile.candidates.stored_attention import StoredAttention
from polytile.errors import LoweringError
from polytile.runtime.target import Target

log = logging.getLogger("polytile.candidates")


def candidates(
    problem: AttentionProblem, target: torch.device, sources: Sequence[str], stored: StoredAttention | None
) -> tuple[Candidate, ...]:
    """In the order of `sources`; the library's where none of these has any. `stored` keeps scores in memory, by kernels of all
    sources."""
    factories: dict[str, Callable[[], Sequence[Candidate]]] = {"library": lambda: library_candidates(problem, target)}
    if not Target.of(target).native:
        factories["triton"] = lambda: _of_triton(problem, target)
    wanted = [candidate for source in sources if source in factories for candidate in factories[source]()]
    return (*(wanted or library_candidates(problem, target)), *([stored] if stored is not None else []))


def _of_triton(problem: AttentionProblem, target: torch.device) -> Sequence[Candidate]:
    from polytile.candidates.triton_attention import attention_candidates

    name = f"attention_{problem.digest[:8]}"
    try:
        return attention_candidates(problem, name, target)
    except LoweringError as error:
        log.info("%s runs as a library call: %s", name, error)
        return ()
