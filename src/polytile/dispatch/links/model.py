"""Learned models: first those registered here, in their order, then the installed ones (learn/installed.py).

A model gets a problem and the candidates to choose between. It declines by answering None, and then the next model or link is
asked. A model that is not sure may still give its expected times, which then rank the candidates for the shortlist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from polytile.candidates.candidate import Candidate
from polytile.dispatch.request import Answer, Request, eagers_call, may_measure, must_measure
from polytile.errors import OptionError
from polytile.learn import installed
from polytile.learn.offer import Offer
from polytile.problem import Problem


class Model(Protocol):
    """Something that has learned from measurements which candidate is fastest.

    A model may also have `expect(problem, offers)`: the seconds that it expects of each offer by name, up to a common factor,
    or None.
    """

    @property
    def name(self) -> str:
        """Shown as a decision's provenance: "trees for mm on cuda sm90 3f0c2a"."""
        ...

    def choose(self, problem: Problem, offers: Sequence[Offer]) -> str | None:
        """Name of the fastest of `offers`, or None: unsure, or not trained for such a problem."""
        ...


_models: list[Model] = []


def register(model: Model) -> None:
    """Makes the selector ask `model` from now on, after the models registered earlier. Raises OptionError for a class, and for
    an object without `name` and `choose`."""
    if isinstance(model, type):
        raise OptionError(f"a model is an object, and {model.__name__} is a class: register {model.__name__}(...).")
    if not isinstance(getattr(model, "name", None), str) or not callable(getattr(model, "choose", None)):
        raise OptionError(
            f"a model has a `name`, which is a text, and a method `choose(problem, offers)`; {model!r} lacks one of them."
        )
    _models.append(model)


def unregister(model: Model) -> None:
    """Makes the selector no longer ask `model`. Raises OptionError if it is not registered."""
    if model not in _models:
        raise OptionError(f"{model!r} is not registered; those that are: {', '.join(m.name for m in _models) or 'none'}.")
    _models.remove(model)


def choose(request: Request) -> Answer | None:
    """The answer of the first model that is sure and names a candidate that can run. None where only measurements will do: those
    that the options ask for, and that of what eager calls."""
    if must_measure(request):
        return None
    eagers = eagers_call(request) if may_measure(request) else None
    by_name = {candidate.name: candidate for candidate in request.alive}
    models = _models_in_order()
    offered = offers(request, request.alive) if models else ()
    for model in models:
        name = model.choose(request.problem, offered)
        if name in by_name:
            if eagers is not None and by_name[name] is not eagers:
                return None
            return Answer(by_name[name], f"predicted by {model.name}")
    return None


def expected(request: Request) -> dict[str, float]:
    """The seconds of each of the request's candidates, by name, as expected by the first model that knows such problems. Empty
    if no model does, and under torch.use_deterministic_algorithms. The smallest expectation equals the best prediction."""
    models = () if torch.are_deterministic_algorithms_enabled() else _models_in_order()
    offered = offers(request, request.candidates) if models else ()
    for model in models:
        expect = getattr(model, "expect", None)
        seconds_by_name = expect(request.problem, offered) if expect is not None else None
        if seconds_by_name:
            factor = min(offer.predicted for offer in offered) / min(seconds_by_name.values())
            return {name: seconds * factor for name, seconds in seconds_by_name.items()}
    return {}


def offers(request: Request, candidates: Sequence[Candidate]) -> tuple[Offer, ...]:
    """These candidates as models see them, without candidates of last resort."""
    usable = (candidate for candidate in candidates if candidate.origin != "reference")
    return tuple(_offer(candidate, request.sizes) for candidate in usable)


def _offer(candidate: Candidate, sizes: Mapping[str, int]) -> Offer:
    predicted = candidate.cost(sizes)
    return Offer(candidate.name, candidate.config, candidate.origin, predicted, lambda: candidate.terms(sizes))


def _models_in_order() -> tuple[Model, ...]:
    return (*_models, *installed.models())
