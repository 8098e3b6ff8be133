"""A frame for callables that have none of their own: builtins, partial functions, instances with a `__call__`, functions of torch
that Dynamo does not trace from within.

torch.compile puts each of them into the same Python function, whose compiled code Dynamo keeps in one list, with one limit of
recompilations. Here each gets a function with code of its own, so that calls of it can have a front door.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch


def compile_in_own_frame(compile: Callable[[Any], Any], function: Any) -> Any:
    """`compile(function)`; of a frame around it, where `compile`, which is torch.compile, would take the one for all."""
    compiled = compile(function)
    inner = torch._dynamo.eval_frame.innermost_fn(function)
    traced = getattr(compiled, "_torchdynamo_orig_callable", inner)
    is_shared = isinstance(traced, types.FunctionType) and traced is not inner and not isinstance(inner, torch.nn.Module)
    return compile(_frame_of(inner)) if is_shared else compiled


def inside(function: Any) -> Any:
    """The callable that a frame made here is for; any other function itself."""
    return getattr(function, "polytile_frame_of", function)


def _frame_of(function: Callable[..., Any]) -> Callable[..., Any]:
    def frame(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    frame.__code__ = frame.__code__.replace(co_name=getattr(function, "__name__", type(function).__name__))
    framed: Any = functools.update_wrapper(frame, function)
    framed.polytile_frame_of = function
    return framed
