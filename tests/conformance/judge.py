"""Is a result eager's? Structure, shapes, dtypes, strides and values; float64 decides where rounding differs.

Integers and bools must be equal. Floating-point values must lie within torch's usual tolerances of eager's, or else be
about as near to the float64 result as eager's are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

SLACK = 4.0
"""A result may be this many times as far from float64 as eager's is."""

ROUNDINGS = 16
"""And by this many roundings of its dtype farther, as eager may happen to be exact."""


class Wrong(AssertionError):
    """A result is not eager's; the text says where and by how much."""


def leaves(nest: Any) -> list[Any]:
    return [leaf for leaf in tree_leaves(nest) if leaf is not None]


def judge(got: Any, eager: Any, exact: Callable[[], Any], what: str, strides: bool = True, values: bool = True) -> None:
    """Raises Wrong unless `got` is as good as `eager`. `exact()` computes the same in float64; it is called only where
    the two differ by more than rounding, and may raise. `strides`, `values`: whether these are compared."""
    mine, theirs = leaves(got), leaves(eager)
    if len(mine) != len(theirs):
        raise Wrong(f"{what}: {len(mine)} values and not {len(theirs)}")
    apart = []
    for k, (g, e) in enumerate(zip(mine, theirs, strict=True)):
        place = f"{what} {k}"
        if not isinstance(e, Tensor):
            if type(g) is not type(e) or not (g == e or (g != g and e != e)):
                raise Wrong(f"{place}: {g!r} and not {e!r}")
            continue
        _same_kind(g, e, place, strides)
        if values and not _close(g, e):
            if not (e.is_floating_point() or e.is_complex()):
                raise Wrong(f"{place}: {_difference(g, e)}")
            apart.append(k)
    if apart:
        _by_float64(mine, theirs, apart, exact, what)


def _same_kind(got: Any, eager: Tensor, place: str, strides: bool) -> None:
    if not isinstance(got, Tensor):
        raise Wrong(f"{place}: a {type(got).__name__} and not a tensor")
    for kind in ("shape", "dtype", "device", "layout"):
        if getattr(got, kind) != getattr(eager, kind):
            raise Wrong(f"{place}: {kind} {getattr(got, kind)} and not {getattr(eager, kind)}")
    if strides and eager.layout is torch.strided and not eager.is_nested and steps(got) != steps(eager):
        raise Wrong(f"{place}: strides {got.stride()} and not {eager.stride()} for shape {tuple(eager.shape)}")


def steps(tensor: Tensor) -> list[int]:
    """The strides that lead to another element."""
    return [s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1] if tensor.numel() else []


def _close(got: Tensor, eager: Tensor) -> bool:
    try:
        torch.testing.assert_close(got.detach(), eager.detach(), equal_nan=True, check_stride=False)
    except AssertionError:
        return False
    return True


def _difference(got: Tensor, eager: Tensor) -> str:
    try:
        torch.testing.assert_close(got.detach(), eager.detach(), equal_nan=True, check_stride=False)
    except AssertionError as error:
        return " ".join(str(error).split())
    return "the same"


def _by_float64(
    mine: Sequence[Any], theirs: Sequence[Any], apart: Sequence[int], exact: Callable[[], Any], what: str
) -> None:
    first = f"{what} {apart[0]}: {_difference(mine[apart[0]], theirs[apart[0]])}"
    try:
        right = leaves(exact())
    except Exception as error:
        raise Wrong(f"{first} (no float64 result: {type(error).__name__})") from error
    if len(right) != len(mine):
        raise Wrong(f"{first} (another number of float64 results)")
    for k in apart:
        off, eager = distance(mine[k], right[k]), distance(theirs[k], right[k])
        allowed = SLACK * eager + ROUNDINGS * torch.finfo(theirs[k].dtype).eps
        if not off <= allowed:
            raise Wrong(f"{what} {k}: {off:.2g} from float64, eager is {eager:.2g}; {_difference(mine[k], theirs[k])}")


def distance(got: Tensor, exact: Any) -> float:
    """Largest |got - exact| / (|exact| + rms(exact)) over what is finite in both; ∞ where the two are not finite at
    different places."""
    if not isinstance(exact, Tensor) or got.shape != exact.shape:
        return float("inf")
    wide = torch.complex128 if exact.is_complex() else torch.float64
    got, exact = got.detach().to(wide), exact.detach().to(wide)
    finite = exact.isfinite()
    if not torch.equal(got.isfinite(), finite):
        return float("inf")
    got, exact = got[finite], exact[finite]
    if not exact.numel():
        return 0.0
    size = exact.abs()
    return float(((got - exact).abs() / (size + size.square().mean().sqrt() + 1e-300)).max())
