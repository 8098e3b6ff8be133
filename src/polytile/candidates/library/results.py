"""How what an operator of the library allocates becomes what the program asked for."""

from __future__ import annotations

import torch
from torch import Tensor

UNSHARED = 2
"""Uses of a storage that one tensor has: that tensor's, and that of the Python object by which it is looked at."""


def hand_over(out: Tensor, result: Tensor) -> None:
    """Has `out` be `result`, a new tensor of the same shape: by taking over its memory where no other tensor shares that of
    `out` and their layouts agree, else by copying."""
    storage = out.untyped_storage()
    alike = out.dtype == result.dtype and out.shape == result.shape and out.stride() == result.stride()
    if alike and storage.nbytes() == out.nbytes and torch._C._storage_Use_Count(storage._cdata) == UNSHARED:
        out.set_(result)  # type: ignore[call-overload]
    else:
        out.copy_(result)
