"""When nothing is known and nothing can be found out: a library kernel if there is one, else the best predicted."""

from __future__ import annotations

from polytile.dispatch.links.prior import is_library
from polytile.dispatch.request import Answer, Request


def choose(request: Request) -> Answer | None:
    """Always an answer while a candidate is left."""
    alive = request.alive
    if not alive:
        return None
    library = next((candidate for candidate in alive if is_library(candidate)), None)
    if library is not None:
        return Answer(library, "the library's kernel, for want of knowledge")
    best = min(alive, key=lambda candidate: candidate.cost(request.sizes))
    return Answer(best, "the best predicted, for want of knowledge")
