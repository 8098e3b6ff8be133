"""The last link: without knowledge or a way to get it, it chooses a library kernel, or else the best predicted candidate."""

from __future__ import annotations

from polytile.dispatch.links.prior import is_library
from polytile.dispatch.request import Answer, Request


def choose(request: Request) -> Answer | None:
    """An answer whenever a candidate is left."""
    alive = request.alive
    if not alive:
        return None
    library = next((candidate for candidate in alive if is_library(candidate)), None)
    if library is not None:
        return Answer(library, "the library's kernel, for want of knowledge")
    best = min(alive, key=lambda candidate: candidate.cost(request.sizes))
    return Answer(best, "the best predicted, for want of knowledge")
