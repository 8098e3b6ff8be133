"""The candidates' own predictions: what is chosen where nothing may be measured, and what is measured where it may."""

from __future__ import annotations

from polytile import options
from polytile.kernels.candidate import Candidate
from polytile.multikernel.selector import Answer, Request, may_measure


def choose(request: Request) -> Answer | None:
    """The candidate predicted to be fastest, where none may be timed; equal predictions go to the canonical order."""
    if may_measure(request) or not request.alive:
        return None
    best = min(request.alive, key=lambda candidate: candidate.cost(request.sizes))
    return Answer(best, f"predicted {best.cost(request.sizes) * 1e6:.4g} µs")


def shortlist(request: Request) -> tuple[Candidate, ...]:
    """The candidates worth measuring, in canonical order: the option `shortlist` (on a GPU `gpu_shortlist`) says how many, a
    library kernel among them (the one with the best prediction), as a tuned program must never be slower than the
    library's kernels. The reference interpreter is none of them, unless it is all there is.

    Depends on the sizes and the candidates alone, so that a later process asks for the same ones.
    """
    count = shortlist_length(request)
    generated = [candidate for candidate in request.candidates if candidate.origin != "reference"]
    ranked = sorted(generated or request.candidates, key=lambda candidate: candidate.cost(request.sizes))  # ties in order
    chosen = ranked[:count]
    if not any(is_library(candidate) for candidate in chosen):
        library = next((candidate for candidate in ranked if is_library(candidate)), None)
        if library is not None:
            chosen = [*(chosen[:-1] if count > 1 else chosen), library]
    names = {candidate.name for candidate in chosen}
    return tuple(candidate for candidate in request.candidates if candidate.name in names)


def shortlist_length(request: Request) -> int:
    on_gpu = request.spec.target.type == "cuda"
    return max(1, options.get("gpu_shortlist" if on_gpu else "shortlist"))


def is_library(candidate: Candidate) -> bool:
    return candidate.origin == "library"


__all__ = ["choose", "is_library", "shortlist"]
