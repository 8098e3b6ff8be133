"""The source that an autotuned kernel is made of, on which its measurements depend."""

from __future__ import annotations

import inspect
from typing import Any

from polytile.autotuner.call import text_of
from polytile.autotuner.effects import innermost
from polytile.problem import digest


def digest_of(fn: Any, function: Any, interpreted: bool) -> str:
    """Digest of the source of a kernel, of the functions that it calls, and of the layers above it.

    `fn` is what a tuner decorates, and `function` the Python function below it. Triton's interpreter knows no digest of the
    functions that a kernel calls: there it is that of the function alone.
    """
    own = inspect.getsource(function) if interpreted else str(innermost(fn).cache_key)
    above = [text for layer in layers_above_kernel(fn) for text in _sources_in(layer)]
    return digest("\n".join([own, *above])) if above or interpreted else own


def layers_above_kernel(fn: Any) -> tuple[Any, ...]:
    """Heuristics and tuners from `fn` down to the kernel, the outermost first."""
    layers, below = [], fn
    while below is not innermost(fn):
        layers.append(below)
        below = below.fn
    return tuple(layers)


def _sources_in(layer: Any) -> list[str]:
    """What decides what a layer above a kernel launches: the functions of heuristics, a tuner's configs."""
    functions = getattr(layer, "values", None) or {}
    texts = [f"{name} {_source_of(function)}" for name, function in functions.items()]
    return [*texts, *map(str, getattr(layer, "configs", None) or ())]


def _source_of(function: Any) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):  # made of text, or no Python function
        return text_of(function)
