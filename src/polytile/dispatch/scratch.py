"""Scratch buffers of sub-kernels, merged into those that their MultiKernel takes.

For users who build a MultiKernel from their own candidates: all candidates are called with one argument list, which ends in an
argument of role "scratch" for each merged buffer, and the caller allocates it. polytile's own kernels do not use it: C++
kernels allocate what they need, and a GPU kernel's scratch memory is allocated by its launch (runtime/cuda/launch.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import sympy
import torch

Size: TypeAlias = "int | sympy.Expr"


@dataclass(frozen=True)
class Scratch:
    """A buffer that a kernel uses as it likes: name, element type, number of elements (an int or a symbolic size)."""

    name: str
    dtype: torch.dtype
    elements: Size


def merge_scratch(requests: Iterable[Sequence[Scratch]]) -> tuple[Scratch, ...]:
    """One buffer for each name, as large as the largest request; `requests` has one sequence for each sub-kernel.

    Buffers come in the order in which their names first appear. Sub-kernels that ask for none have the same argument list and
    leave the buffers untouched. Raises ValueError where one name is asked for with two element types.
    """
    merged: dict[str, Scratch] = {}
    for request in requests:
        for scratch in request:
            known = merged.setdefault(scratch.name, scratch)
            if known.dtype != scratch.dtype:
                raise ValueError(
                    f"the scratch buffer {scratch.name!r} is asked for as {known.dtype} and as {scratch.dtype}; "
                    "give the two kinds different names."
                )
            merged[scratch.name] = Scratch(known.name, known.dtype, _larger(known.elements, scratch.elements))
    return tuple(merged.values())


def _larger(first: Size, second: Size) -> Size:
    if isinstance(first, int) and isinstance(second, int):
        return max(first, second)
    return first if first == second else sympy.Max(first, second)
