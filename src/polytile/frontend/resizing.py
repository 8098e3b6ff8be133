"""Keeps upsampling on the CPU whole while a graph is traced, as polytile operators with gradients.

torch decomposes `interpolate` above autograd into gathers by index tables, whose gradients are accumulating scatters, four of
them for bilinear interpolation. Kept whole, the forward pass is one loop that computes positions and weights itself
(`lower/upsampling.py`), with the library's kernel among its candidates, and the backward pass is the library's.

    F.interpolate(x, scale_factor=2, mode="bilinear")   →   polytile.upsample(x, "upsample_bilinear2d", [2h, 2w], False, [2., 2.])

Images of bytes are kept whole for their numbers, as library calls. Eager interpolates them in integers, one dimension after the
other, and rounds in between; torch's rule computes in float32, and a fifth of its results is off by 1.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._decomp.decompositions import upsample_compute_output_size
from torch._prims_common import suggest_memory_format

aten = torch.ops.aten

NEAREST = ("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
EXACT = ("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
LINEAR = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
CUBIC = ("upsample_bicubic2d",)
NAMES = (*NEAREST, *EXACT, *LINEAR, *CUBIC)
"""ATen's operators, ordered by number of dimensions within each group."""

INTERPOLATING = (*LINEAR, *CUBIC)
"""Those with weights, which say whether corners are aligned."""

_library = torch.library.Library("polytile", "FRAGMENT")
_library.define("upsample(Tensor x, str name, SymInt[] size, bool align_corners, float[] scales) -> Tensor")
_library.define(
    "upsample_backward(Tensor grad, str name, SymInt[] size, SymInt[] input_size, bool align_corners, float[] scales) -> Tensor"
)
_keeps = threading.local()


def arguments(name: str, align_corners: bool, scales: Sequence[float]) -> tuple[Any, ...]:
    """The arguments of ATen's operator after the sizes; a scale of 0 means none."""
    given = tuple(scale or None for scale in scales)
    return (align_corners, *given) if name in INTERPOLATING else given


def _upsample(x: Tensor, name: str, size: Sequence[int], align_corners: bool, scales: Sequence[float]) -> Tensor:
    result: Tensor = getattr(aten, name).default(x, size, *arguments(name, align_corners, scales))
    return result


def _upsample_backward(
    grad: Tensor, name: str, size: Sequence[int], input_size: Sequence[int], align_corners: bool, scales: Sequence[float]
) -> Tensor:
    operator = getattr(aten, f"{name}_backward").default
    result: Tensor = operator(grad, size, input_size, *arguments(name, align_corners, scales))
    return result


def _like(x: Tensor, shape: Sequence[Any]) -> Tensor:
    layout = suggest_memory_format(x) if x.ndim in (4, 5) else torch.contiguous_format
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=layout)


def _fake(x: Tensor, name: str, size: Sequence[int], align_corners: bool, scales: Sequence[float]) -> Tensor:
    return _like(x, [*x.shape[:2], *size])


def _fake_backward(
    grad: Tensor, name: str, size: Sequence[int], input_size: Sequence[int], align_corners: bool, scales: Sequence[float]
) -> Tensor:
    return _like(grad, input_size)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, *ctx.given = inputs
    ctx.shape = x.shape


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
    name, size, align_corners, scales = ctx.given
    gradient = UPSAMPLE_BACKWARD(grad, name, size, list(ctx.shape), align_corners, scales)
    return gradient, None, None, None, None


_library.impl("upsample", _upsample, "CompositeExplicitAutograd")
_library.impl("upsample_backward", _upsample_backward, "CompositeExplicitAutograd")
torch.library.register_fake("polytile::upsample", _fake, lib=_library)
torch.library.register_fake("polytile::upsample_backward", _fake_backward, lib=_library)
torch.library.register_autograd("polytile::upsample", _backward, setup_context=_save, lib=_library)


UPSAMPLE = torch.ops.polytile.upsample.default
UPSAMPLE_BACKWARD = torch.ops.polytile.upsample_backward.default


@contextlib.contextmanager
def kept_whole() -> Iterator[None]:
    """Within the block, in this thread, upsampling on the CPU is traced as polytile's operator."""
    _install()
    before, _keeps.active = getattr(_keeps, "active", False), True
    try:
        yield
    finally:
        _keeps.active = before


@functools.cache
def _install() -> None:
    """Wrap torch's own rules with a check of `kept_whole`; otherwise they apply as before."""
    for name in NAMES:
        operator = getattr(aten, name).vec
        for key in (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd):
            if key in operator.py_kernels:
                operator.py_kernels[key] = _looking(name, operator.py_kernels[key])
        operator._dispatch_cache.clear()


def _looking(name: str, rule: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """torch's `rule` for operator `name`, whose last argument is the scales, or polytile's operator."""

    @functools.wraps(rule)
    def traced(x: Tensor, output_size: Any, *given: Any, **named: Any) -> Tensor:
        scales = given[-1] if given else None
        if named or not getattr(_keeps, "active", False) or not _is_kept(name, x, scales):
            return rule(x, output_size, *given, **named)
        size = upsample_compute_output_size(x.size(), output_size, scales)
        align_corners = bool(given[0]) if name in INTERPOLATING else False
        resized: Tensor = UPSAMPLE(x, name, list(size), align_corners, list(scales or [0.0] * (x.ndim - 2)))
        return resized

    return traced


def _is_kept(name: str, x: Tensor, scales: Any) -> bool:
    plain = scales is None or all(isinstance(scale, float) for scale in scales)
    floats = x.dtype.is_floating_point and x.dtype.itemsize >= 2 and name not in CUBIC
    return x.device.type == "cpu" and plain and (floats or (x.dtype == torch.uint8 and name in INTERPOLATING))
