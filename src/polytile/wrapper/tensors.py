"""Functions on tensors that generated Python wrappers call, in addition to kernels and operators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from polytile.runtime import mersenne
from polytile.runtime.functions import forms, quickest
from polytile.wrapper.lines import Argument, CallLibrary


def as_declared(result: torch.Tensor | None, strides: tuple[int, ...]) -> torch.Tensor | None:
    """`result` with the strides that the program was compiled for.

    Copies the tensor if the operator chose other strides this time, or left its negation pending. Returns None if the
    operator left the result undefined although its fake form declares a tensor (the inverse of `_unique2` on a GPU,
    unless requested).
    """
    if result is None:
        return None
    if result.is_neg():
        result = result.resolve_neg()
    if result.stride() == strides or result.numel() == 0:
        return result
    if all(n == 1 or a == b for n, a, b in zip(result.shape, result.stride(), strides, strict=True)):
        return result
    return torch.empty_strided(result.shape, strides, dtype=result.dtype, device=result.device).copy_(result)


def reinterpret_plainly(tensor: torch.Tensor, shape: Any, strides: Any, offset: int) -> torch.Tensor:
    """`reinterpret` without torch's own function."""
    return tensor.as_strided(shape, strides, tensor.storage_offset() + offset)


def _own_form() -> Callable[..., torch.Tensor]:
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    return getattr(guards, "_reinterpret_tensor", None) or reinterpret_plainly


reinterpret = _own_form()
"""(tensor, sizes, strides, offset) → the same memory with other sizes and strides (elements), offset from the tensor's
first element. torch's own function, where this version has it, takes half the time of as_strided."""


def current_device(kind: str) -> Callable[[], int]:
    """A function that returns the current device of a kind ("cuda"). torch's own function, where it has one, takes a
    third of the time."""
    own = getattr(torch._C, f"_{kind}_getDevice", None)
    return own or getattr(torch, kind).current_device


SAME_BUT_FASTER: dict[Any, Callable[..., Any]] = {torch.ops.aten.bernoulli_.float: mersenne.bernoulli_}
"""Faster replacements of operators, with the same results."""


def caller(line: CallLibrary) -> Callable[..., Any]:
    """The fastest function for a library call. Determined with stand-in tensors, since the overload that a function
    calls depends only on the kinds of its arguments."""
    if type(line.target) is not torch._ops.OpOverload:
        target: Callable[..., Any] = line.target
        return target
    stand_in = functools.partial(_stand_in, torch.empty(1, 1))
    given, named = stand_in(line.args), {name: stand_in(value) for name, value in line.kwargs}
    return SAME_BUT_FASTER.get(line.target) or quickest(line.target, given, named)


def _stand_in(tensor: torch.Tensor, value: Any) -> Any:
    if isinstance(value, Argument):
        return tensor if isinstance(value.value, str) else 1
    return [_stand_in(tensor, v) for v in value] if isinstance(value, list | tuple) else value




def callers(target: Any) -> tuple[Callable[..., Any], ...]:
    """Every function that may call an operator, one of which `caller` returns. Their order is the same in every process."""
    if type(target) is not torch._ops.OpOverload:
        return (target,)
    return (SAME_BUT_FASTER[target],) if target in SAME_BUT_FASTER else forms(target)
