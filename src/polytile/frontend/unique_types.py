"""The types of `unique`'s results, where PyTorch traces them wrong.

Up to 2.12 its fake implementations give inverse and counts the dtype of the values, although the operators return int64. A
conversion of counts to float would be traced as nothing, and a kernel would read integers as floats.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses import fake_impls
from torch.torch_version import TorchVersion

aten = torch.ops.aten

OPERATORS = (aten._unique2.default, aten.unique_dim.default, aten.unique_consecutive.default)
REPAIRED_IN = "2.13"
"""The first version whose fake implementations are known to say int64."""


def install() -> None:
    """From now on the results of `unique` are traced with the dtypes that they have."""
    if TorchVersion(torch.__version__) < REPAIRED_IN:
        implementations = fake_impls.op_implementations_dict
        implementations.update({op: _typed(implementations[op]) for op in OPERATORS if op in implementations})


def _typed(implementation: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(implementation)
    def run(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        values, *others = implementation(*args, **kwargs)
        return values, *(each.new_empty(each.shape, dtype=torch.int64) for each in others)

    return run
