"""How far a right result may lie from the reference, by element type and reduction length, as a table."""

from __future__ import annotations

import math

import torch

ROUNDING: dict[torch.dtype, float] = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
"""Error of a short expression, relative to the value plus the root mean square of the output. It covers functions that
lose digits of their own (exp at 80 loses two of float32's seven) and a few roundings to the storage type on the way."""

ACCUMULATION: dict[torch.dtype, float] = {
    torch.float64: 4 * 2.0**-53,
    torch.float32: 4 * 2.0**-24,
    torch.bfloat16: 4 * 2.0**-24,
    torch.float16: 4 * 2.0**-24,
}
"""Error of a sum of n terms over √n; the 16-bit types accumulate in float32. A sum kept in 16 bits grows with n
itself and does not pass at long reductions, which is why a gate must see the longest one and not the shortest."""

SMALLEST = 1e-3
"""For storage types without a row (8-bit floats): one rounding is 2^-3 at worst, so the bound is 128 times this."""


def tolerance(dtype: torch.dtype, reduction: int = 1) -> float:
    """Largest |got - expected| / (|expected| + rms(expected)) of a right result; 0 for integers and booleans.

    `reduction` is the number of terms that one output element sums. Wrong for a sum whose terms cancel to much less
    than the other outputs; gate.py then allows what the reference itself loses at the arguments' precision.
    """
    if dtype.is_complex:
        dtype = dtype.to_real()
    if not dtype.is_floating_point:
        return 0.0
    if dtype not in ROUNDING:
        return 128 * SMALLEST
    return ROUNDING[dtype] + ACCUMULATION[dtype] * math.sqrt(max(1, reduction))


def coarseness(dtype: torch.dtype, terms: int = 1) -> float:
    """The same of a result that holds values rounded to `dtype`, or sums of so many of these, of which few are rounded to another
    neighbour than the reference's."""
    return ROUNDING.get(dtype, 128 * SMALLEST) / math.sqrt(max(1, terms))
