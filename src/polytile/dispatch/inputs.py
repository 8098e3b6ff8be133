"""The option `check_inputs`: no NaN and no infinity may enter a MultiKernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from polytile.dispatch.spec import KernelSpec
from polytile.errors import InvalidInput


def check_inputs(spec: KernelSpec, args: Sequence[Any]) -> None:
    """Raises InvalidInput, naming argument and kernel, for the first floating-point input that holds NaN or infinity.

    Each distinct tensor is looked at once, however often it is passed; what a kernel only writes is not looked at.
    """
    seen: dict[tuple[Any, ...], None] = {}
    for info, tensor in zip(spec.args, args, strict=False):
        if info.role not in ("in", "inout") or tensor is None:
            continue
        if not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        what = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if what in seen:
            continue
        seen[what] = None
        finite = torch.isfinite(tensor)
        if not bool(finite.all()):
            raise InvalidInput(_message(spec, info.name, tensor, finite))


def _message(spec: KernelSpec, name: str, tensor: torch.Tensor, finite: torch.Tensor) -> str:
    nans = int(torch.isnan(tensor).sum())
    infinities = tensor.numel() - int(finite.sum()) - nans
    first = torch.nonzero(~finite)[0].tolist()
    return (
        f"argument {name!r} of kernel {spec.name!r} holds {nans} NaN and {infinities} infinite values of "
        f"{tensor.numel()}, the first at {first}; what made it is wrong, or the option check_inputs should be off."
    )
