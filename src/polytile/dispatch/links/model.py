"""Learned models, which other packages register. If a model is unsure, the next one is asked, and then the next link."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from polytile.dispatch.request import Answer, Request
from polytile.errors import OptionError
from polytile.problem import Config, Problem


class Model(Protocol):
    """Predicts which candidate is fastest."""

    @property
    def name(self) -> str:
        """Stands in the grounds of a decision: "trees for mm on cpu-avx512, 2 % regret"."""
        ...

    def choose(self, problem: Problem, candidates: Sequence[tuple[str, Config]]) -> str | None:
        """The name of the fastest of `candidates`, pairs (name, config); None if the model is unsure, or was not trained for
        such a problem."""
        ...


_models: list[Model] = []


def register(model: Model) -> None:
    """Has the selector ask `model` from now on, after the models registered earlier. Raises OptionError for a class, and for an
    object without `name` and `choose`."""
    if isinstance(model, type):
        raise OptionError(f"a model is an object, and {model.__name__} is a class: register {model.__name__}(...).")
    if not isinstance(getattr(model, "name", None), str) or not callable(getattr(model, "choose", None)):
        raise OptionError(
            f"a model has a `name`, which is a text, and a method `choose(problem, candidates)`; {model!r} lacks one of them."
        )
    _models.append(model)


def unregister(model: Model) -> None:
    """Has the selector ask `model` no longer. Raises OptionError if it is not registered."""
    if model not in _models:
        raise OptionError(f"{model!r} is not registered; those that are: {', '.join(m.name for m in _models) or 'none'}.")
    _models.remove(model)


def choose(request: Request) -> Answer | None:
    """The answer of the first model that is sure and names a candidate that can run."""
    by_name = {candidate.name: candidate for candidate in request.alive}
    offered = [(candidate.name, candidate.config) for candidate in request.alive]
    for model in _models:
        name = model.choose(request.problem, offered)
        if name in by_name:
            return Answer(by_name[name], f"predicted by {model.name}")
    return None


__all__ = ["Model", "choose", "register", "unregister"]
