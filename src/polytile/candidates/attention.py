"""Candidates for an attention: generated kernels and the library's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch

from polytile.attention.problem import AttentionProblem
from polytile.candidates.candidate import Candidate
from polytile.candidates.cpp_attention import attention_candidates
from polytile.candidates.library.attention import library_candidates
from polytile.candidates.library.attention_backward import backward_candidates
from polytile.candidates.stored_attention import StoredAttention
from polytile.errors import CompilerMissing, LoweringError
from polytile.runtime.target import Target

log = logging.getLogger("polytile.candidates")


def candidates(
    problem: AttentionProblem,
    target: torch.device,
    sources: Sequence[str],
    stored: StoredAttention | None,
    threads: Sequence[int] = (1,),
) -> tuple[Candidate, ...]:
    """In the order of `sources`; the library's where none of these has any. `stored` keeps scores in memory, by kernels of all
    sources. `threads`: the numbers of threads that generated kernels of a CPU are tried with."""
    library = backward_candidates if problem.backward else library_candidates
    factories: dict[str, Callable[[], Sequence[Candidate]]] = {"library": lambda: library(problem, target)}
    if Target.of(target).native:
        factories["cpp"] = lambda: () if problem.backward else _of_cpp(problem, threads)
    else:
        factories["triton"] = lambda: _of_triton(problem, target)
    wanted = [candidate for source in sources if source in factories for candidate in factories[source]()]
    return (*(wanted or library(problem, target)), *([stored] if stored is not None else []))


def _of_cpp(problem: AttentionProblem, threads: Sequence[int]) -> Sequence[Candidate]:
    name = f"attention_{problem.digest[:8]}"
    try:
        return attention_candidates(problem, name, threads)
    except CompilerMissing as error:
        log.info("%s runs as a library call: %s", name, error)
        return ()


def _of_triton(problem: AttentionProblem, target: torch.device) -> Sequence[Candidate]:
    from polytile.candidates import triton_attention

    name = f"{problem.family}_{problem.digest[:8]}"
    try:
        return triton_attention.attention_candidates(problem, name, target)
    except LoweringError as error:
        log.info("%s runs as a library call: %s", name, error)
        return ()
