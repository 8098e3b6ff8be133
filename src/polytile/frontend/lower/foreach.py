"""`torch._foreach_*` on a CPU: the operator of each tensor, as eager computes it there.

Eager's own loop takes 0.5 µs and more for each tensor and operator, and no loop fuses with the next one. On a GPU the operators
stay library calls: one launch then serves a hundred tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

SAME_NAME = """
    abs acos add asin atan ceil clamp_max clamp_min cos cosh div erf erfc exp expm1 floor frac lerp log log10 log1p log2 mul neg
    pow reciprocal round rsqrt sigmoid sign sin sinh sqrt sub tan tanh trunc
""".split()
"""Operators `_foreach_NAME` that compute `torch.NAME` of each tensor."""


def _addcmul(x: Tensor, a: Tensor, b: Tensor, value: float = 1) -> Tensor:
    return torch.addcmul(x, a, b, value=value)


def _addcdiv(x: Tensor, a: Tensor, b: Tensor, value: float = 1) -> Tensor:
    return torch.addcdiv(x, a, b, value=value)


def _norm(x: Tensor, order: float = 2, dtype: torch.dtype | None = None) -> Tensor:
    return torch.linalg.vector_norm(x, order, dtype=dtype)


def _each(operator: Callable[..., Tensor]) -> Callable[..., Any]:
    """The decomposition: `operator` of each tensor, with its own one of each list among the arguments."""

    def rule(tensors: Sequence[Tensor], *args: Any, **named: Any) -> Any:
        if not isinstance(tensors, list | tuple) or any(tensor.device.type != "cpu" for tensor in tensors):
            return NotImplemented

        def at(value: Any, k: int) -> Any:
            return value[k] if isinstance(value, list | tuple) else value

        return [
            operator(tensor, *(at(a, k) for a in args), **{name: at(a, k) for name, a in named.items()})
            for k, tensor in enumerate(tensors)
        ]

    return rule


_OPERATORS: dict[str, Callable[..., Tensor]] = {name: getattr(torch, name) for name in SAME_NAME} | {
    "addcmul": _addcmul, "addcdiv": _addcdiv, "norm": _norm,
}  # fmt: skip
FORMS = ("default", "Scalar", "List", "ScalarList")
"""Overloads whose arguments are numbers, or lists with one entry for each tensor."""

DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    f"_foreach_{name}.{form}": _each(operator)
    for name, operator in _OPERATORS.items()
    for form in FORMS
    if hasattr(getattr(torch.ops.aten, f"_foreach_{name}"), form)
}
