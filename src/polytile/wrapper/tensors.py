"""What generated Python wrappers call on tensors besides kernels and operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from polytile.runtime import mersenne
from polytile.runtime.launcher import empty_strided_cpu, empty_strided_cuda


def as_declared(result: torch.Tensor | None, strides: tuple[int, ...]) -> torch.Tensor | None:
    """`result` in the strides that the program was compiled for; a copy where the operator chose others this time, or
    left the sign of its elements to be changed by whoever reads them. None where the operator left the result undefined
    (the inverse of `_unique2` on a GPU, when nobody asked for it): its fake form declares a tensor nevertheless."""
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
    """`reinterpret`, without torch's own form."""
    return tensor.as_strided(shape, strides, tensor.storage_offset() + offset)


def _own_form() -> Callable[..., torch.Tensor]:
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    return getattr(guards, "_reinterpret_tensor", None) or reinterpret_plainly


reinterpret = _own_form()
"""(tensor, sizes, strides, offset) → the same memory under other sizes and strides (elements), offset from the
tensor's first element. torch's own form, where this version has it, takes half the time of as_strided."""


def current_device(kind: str) -> Callable[[], int]:
    """What says which device of a kind ("cuda") is current: torch's own form, where it has one, takes a third of the time."""
    own = getattr(torch._C, f"_{kind}_getDevice", None)
    return own or getattr(torch, kind).current_device


SAME_BUT_FASTER: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.bernoulli_.float: mersenne.bernoulli_,
    torch.ops.aten.convolution.default: torch.convolution,
}
"""What is called in place of an operator, for the same results. (torch.convolution is the same operator; its arguments are read
in 1.5 µs less.)"""



def called(target: Any) -> Callable[..., Any]:
    """What a wrapper calls for an operator: what an OpOverload calls is called directly."""
    plain = target._op if type(target) is torch._ops.OpOverload else target
    return SAME_BUT_FASTER.get(target) or plain


__all__ = [
    "SAME_BUT_FASTER", "as_declared", "called", "current_device", "empty_strided_cpu", "empty_strided_cuda", "reinterpret",
    "reinterpret_plainly",
]  # fmt: skip
