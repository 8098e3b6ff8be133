"""The near-tie check: elements that rounding may decide either way.

A result is compared with the reference and with evaluations of the reference whose comparisons lean to one side or the other
(ir/leaning.py). An element is right where it agrees with one of these; an integer is right where it lies between them. That
alone would pass a kernel that decides at random. But the evaluations lean by the whole tolerance, and a right kernel rounds by
a fraction of it, so few of its near ties differ from the reference. The check limits how many may.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

SHARE, FEW = 0.5, 4
"""Near ties that may differ from the reference: the first is their share, the second their number where there are few."""


@dataclass(frozen=True)
class ErrorCount:
    """How many elements are wrong, how many differ from the reference, and how many are near ties."""

    wrong: int = 0
    differing: int = 0
    near_ties: int = 0

    def __add__(self, other: ErrorCount) -> ErrorCount:
        return ErrorCount(self.wrong + other.wrong, self.differing + other.differing, self.near_ties + other.near_ties)

    @property
    def right(self) -> bool:
        return not self.wrong and self.differing <= max(FEW, SHARE * self.near_ties)


def count_errors(got: torch.Tensor, rights: Sequence[torch.Tensor], allowed: float, scale: torch.Tensor) -> ErrorCount:
    """`got` beside `rights`, the first of them the reference itself. `allowed` and `scale` are those of `distance.compare`."""
    if got.dtype.is_complex:
        got, rights = torch.view_as_real(got), [torch.view_as_real(right) for right in rights]
    if got.dtype.is_floating_point:
        exact, *leaned = rights
        differs = ~_close(got, exact, allowed, scale)
        may_differ = torch.stack([~_close(each, exact, allowed, scale) for each in leaned]).any(0)
        right = torch.stack([_close(got, each, allowed, scale) for each in leaned]).any(0)
    else:
        got, every = comparable(got), torch.stack([comparable(right.to(got.dtype)) for right in rights])
        low, high, differs = every.amin(0), every.amax(0), got != every[0]
        may_differ, right = low != high, (low <= got) & (got <= high)
    return ErrorCount(int((differs & ~right).sum()), int(differs.sum()), int(may_differ.sum()))


def firm_error(mine: torch.Tensor, rights: Sequence[torch.Tensor], allowed: float, scale: torch.Tensor) -> float:
    """The largest error of `mine` where rounding decides nothing, relative as in `distance.compare`; 0 for what is no number."""
    if not mine.dtype.is_floating_point or not mine.numel():
        return 0.0
    exact, *leaned = rights
    firm = torch.stack([_close(each, exact, allowed, scale) for each in leaned]).all(0)
    error = (mine.double() - exact).abs() / (exact.double().abs() + scale)
    return float(torch.where(firm, error, 0).nan_to_num(nan=0.0, posinf=0.0).max())


def comparable(tensor: torch.Tensor) -> torch.Tensor:
    """Booleans as the bytes in memory: any but 0 and 1 is wrong."""
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor


def _close(got: torch.Tensor, right: torch.Tensor, allowed: float, scale: torch.Tensor) -> torch.Tensor:
    near = (got.double() - right).abs() <= allowed * (right.double().abs() + scale)
    return near | (got == right) | (got.isnan() & right.isnan())
