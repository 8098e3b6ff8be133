"""How far a result is from what is expected, piece by piece, so that comparing takes little memory and little time."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from polytile.ir.dtypes import FLOAT8
from polytile.runtime import openmp
from polytile.tuning.headroom import COMPARED_AT_ONCE
from polytile.tuning.near_ties import comparable

CHUNK = 1 << 15
"""Elements compared at once on a CPU: few enough for the cache."""


def compare(got: torch.Tensor, expected: torch.Tensor, scale: float | torch.Tensor | None = None) -> tuple[float, str]:
    """(largest |got - expected| / (|expected| + scale), what cannot be expressed so: NaN or infinity in the wrong
    place, unequal integers). `scale` is one number or one for each element (for each part of a complex one); the root mean square
    of `expected` if not given. `expected` is compared as rounded to got's dtype where that makes it infinite."""
    if got.dtype.is_complex:
        got, expected = torch.view_as_real(got), torch.view_as_real(expected)
    if got.dtype in FLOAT8:
        got, expected = _widened(got, expected)
    with openmp.at_most(1):
        if not got.dtype.is_floating_point:
            same = torch.equal(comparable(got.to(expected.device)), comparable(expected.to(got.dtype)))
            return (0.0, "") if same else (0.0, "differs from the reference")
        scale = root_mean_square(expected) if scale is None else scale
        worst = 0.0
        for right, mine, size in pieces(expected, got, scaling(scale, expected)):
            mine = mine.to(right.device)  # the reference of a full device ran on the host
            distance = _distance(mine, right, size)
            if not math.isfinite(distance):  # a NaN, an infinity, or 0 / 0: sort them out
                same, distance = _careful_distance(mine, right, size)
                if not same:
                    return math.inf, "has NaN or infinite values where the reference has others"
            worst = max(worst, distance)
    return worst, ""


def scaling(scale: float | torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """`scale` for each element of `expected`, or of its parts; one number takes no memory."""
    if isinstance(scale, torch.Tensor):
        return scale.to(expected.device)
    shape = (*expected.shape, 2) if expected.dtype.is_complex else expected.shape
    return torch.full((), scale, dtype=torch.float64, device=expected.device).expand(shape)


def computable(tensor: torch.Tensor) -> torch.Tensor:
    """8-bit floats, with which torch computes nothing, as float32; others as they are."""
    return tensor.float() if tensor.dtype in FLOAT8 else tensor


def _widened(got: torch.Tensor, expected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """8-bit floats and what is expected of them as float64. What their type has no finite number for is in `expected` what torch
    makes of it."""
    rounded = expected.to(got.dtype).double()
    return got.double(), torch.where(rounded.isfinite(), expected.double(), rounded)


def root_mean_square(expected: torch.Tensor) -> float:
    """The root mean square of the finite values; 0 if there are none, and for integers."""
    if expected.dtype.is_complex:
        expected = torch.view_as_real(expected)
    if not expected.dtype.is_floating_point or not expected.numel():
        return 0.0
    expected = computable(expected)
    squares = 0.0
    with openmp.at_most(1):
        for (piece,) in pieces(expected):
            square = float(torch.linalg.vector_norm(piece, dtype=torch.float64)) ** 2
            if not math.isfinite(square):
                square = float(piece.double().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).square_().sum())
            squares += square
    return math.sqrt(squares / expected.numel())


def _distance(got: torch.Tensor, expected: torch.Tensor, scale: torch.Tensor) -> float:
    """Largest |got - expected| / (|expected| + scale); not finite if any value is not, or if 0 is divided by 0."""
    distance = got.to(torch.float64, copy=True).sub_(expected).abs_()
    return float(distance.div_(expected.abs().double().add_(scale)).max()) if got.numel() else 0.0


def _careful_distance(got: torch.Tensor, expected: torch.Tensor, scale: torch.Tensor) -> tuple[bool, float]:
    """(whether the two are finite in the same places and otherwise the same, distance of the finite values)."""
    finite = expected.to(got.dtype).isfinite()
    rounded = expected.to(got.dtype)[~finite]
    if not torch.equal(finite, got.isfinite()) or not torch.equal(_labels(got[~finite]), _labels(rounded)):
        return False, math.inf
    differs = finite & (got.double() != expected)
    return True, _distance(got[differs], expected[differs], scale[differs])


def bits_equal(now: torch.Tensor, before: torch.Tensor) -> bool:
    """Whether two tensors of one dtype and shape hold the same bits, as far as a quick look tells: NaN differs."""
    with openmp.at_most(1):
        return torch.equal(comparable(now.to(before.device)), comparable(before))


def _labels(special: torch.Tensor) -> torch.Tensor:
    """NaN and the two infinities as numbers that compare equal to themselves."""
    return special.double().nan_to_num(nan=0.0, posinf=1.0, neginf=-1.0)


def pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Tensors of one shape in pieces of at most CHUNK (COMPARED_AT_ONCE) elements, cut along their longest dimensions."""
    shape = tensors[0].shape
    chunk = CHUNK if tensors[0].device.type == "cpu" else COMPARED_AT_ONCE
    if tensors[0].numel() <= chunk:
        yield tensors
        return
    longest = max(range(len(shape)), key=lambda dimension: shape[dimension])
    for parts in zip(*(tensor.chunk(-(-tensor.numel() // chunk), longest) for tensor in tensors), strict=True):
        yield from pieces(*parts)
