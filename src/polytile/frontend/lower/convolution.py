"""Convolutions: products where kernels are generated for them, else library calls: on a GPU, with convolutions=measured, by a
kernel that is chosen for each size; on a CPU with a weight that is packed once for each layout of the calls, if constant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from polytile import options
from polytile.errors import LoweringError
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.convolution_kernels import as_product
from polytile.frontend.lower.layouts import traced_strides
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.value import Tensor
from polytile.ir import sizes
from polytile.ir.buffer import Buffer, View, whole
from polytile.ir.sizes import Size
from polytile.runtime.chosen_convolution import ChosenConvolution, ChosenGradients, ConvolutionProblem, GradientProblem
from polytile.runtime.convolution import PackedConvolution, can_pack

aten = torch.ops.aten

PLAIN = "convolutions are left to the library"
PACKED = "a convolution by a weight that is packed in oneDNN's layout"
CHOSEN = "the library's convolution, with the kernel that is fastest at these sizes"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Of convolutions whose kernel is chosen."""


@lowers(aten.convolution.default)
def convolution(
    builder: Builder, images: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[Size | int],
    padding: Sequence[Size | int], dilation: Sequence[Size | int], transposed: bool,
    output_padding: Sequence[Size | int], groups: int,
) -> Tensor:  # fmt: skip
    """On a GPU, windows of 1×1 are products (convolution_kernels.py), and cuDNN's kernels for the others are candidates where
    that is asked for. On a CPU, oneDNN's convolution of two-dimensional images, with a constant weight that is packed in oneDNN's
    own layouts.

    Raises
    ------
    LoweringError
        For all other convolutions, so that ATen's runs.
    """
    given = (list(stride), list(padding), list(dilation), transposed, list(output_padding), groups)
    if (made := as_product(builder, images, weight, bias, given)) is not None:
        return made
    if (problem := _chosen(builder, images, weight, bias, given)) is not None:
        return builder.library(ChosenConvolution(problem, images.device), (images, weight, bias, *given), {}, CHOSEN)
    limit, view = options.get("packed_weights_mib") << 20, weight.view
    numbers = [*stride, *padding, *dilation, *output_padding, groups, *weight.sizes]
    if weight.rank != 4 or not all(isinstance(n, int) or n.is_Integer for n in numbers):
        raise LoweringError(PLAIN)
    if not limit or images.dtype != weight.dtype or view is None or not _is_constant(builder.buffers[view.buffer], view):
        raise LoweringError(PLAIN)
    if not can_pack(weight.dtype):
        raise LoweringError(PLAIN)
    with unset_fake_temporarily():
        extents, strides = (tuple(map(int, shape)) for shape in (view.sizes, view.strides))
        target = PackedConvolution(extents, strides, weight.dtype, given, limit)
    return builder.library(target, (images, weight, bias, *given), {}, PACKED)


@lowers(aten.convolution_backward.default)
def convolution_backward(
    builder: Builder, grad: Tensor, images: Tensor, weight: Tensor, bias_sizes: Sequence[Size | int] | None,
    stride: Sequence[Size | int], padding: Sequence[Size | int], dilation: Sequence[Size | int], transposed: bool,
    output_padding: Sequence[Size | int], groups: int, output_mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """On a GPU the library's kernel is chosen, as that of the convolution is.

    Raises
    ------
    LoweringError
        For all other derivatives, so that ATen's runs.
    """
    given = (list(stride), list(padding), list(dilation), transposed, list(output_padding), groups)
    wanted = tuple(map(bool, output_mask))
    problem = _chosen(builder, images, weight, None, given, grad) if any(wanted[:2]) else None
    if problem is None:
        raise LoweringError(PLAIN)
    traced = builder.node.meta["val"][1] if wanted[1] and builder.node is not None else None
    last = traced is not None and _is_last((traced_strides(traced), weight.sizes))
    if last is None:
        raise LoweringError(PLAIN)
    target = ChosenGradients(GradientProblem(problem, wanted[0], wanted[1], last), images.device)
    args = (grad, images, weight, bias_sizes, *given, list(wanted))
    made: tuple[Tensor | None, ...] = builder.library(target, args, {}, CHOSEN)
    return made


def _chosen(
    builder: Builder, images: Tensor, weight: Tensor, bias: Tensor | None, given: tuple[Any, ...], result: Tensor | None = None
) -> ConvolutionProblem | None:
    """The problem of a convolution on a GPU whose kernel is chosen; None where the library's call is asked for, for a transposed
    one, for sizes of a weight or a window that are not known, and for images in other layouts than the two, or than their
    `result`, by default that of the node."""
    if options.get("convolutions") == "library":
        return None
    stride, padding, dilation, transposed, _, groups = given
    same = all(each is None or each.dtype == images.dtype for each in (weight, bias)) and images.rank == weight.rank
    if transposed or not same or weight.rank not in (4, 5) or images.dtype not in DTYPES or not has_cudnn(images.device):
        return None
    numbers = [*stride, *padding, *dilation, groups, *weight.sizes]
    if not all(isinstance(n, int) or n.is_Integer for n in numbers):
        return None
    x, out = builder.realize(images).view, None if result is None else builder.realize(result).view
    if x is None:
        return None
    extents, strides = (builder.result_sizes(), traced_strides(builder.result())) if out is None else (out.sizes, out.strides)
    last = _is_last((x.strides, x.sizes), (strides, extents))
    if last is None:
        return None
    filters, *over = (tuple(map(int, each)) for each in (weight.sizes, stride, padding, dilation))
    switches = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    tf32 = images.dtype == torch.float32 and switches.fp32_precision == "tf32"
    return ConvolutionProblem(images.dtype, filters, over[0], over[1], over[2], int(groups), bias is not None, last, tf32)


def _is_last(*images: tuple[Sequence[Size], Sequence[Size]]) -> bool | None:
    """Whether all images of these (strides, sizes) are channels-last (True) or row-major (False); None: neither."""
    for last, strides in ((False, sizes.contiguous_strides), (True, sizes.channels_last_strides)):
        if all(_equal(one, strides(extents)) for one, extents in images):
            return last
    return None


def has_cudnn(device: torch.device) -> bool:
    """Whether eager leaves convolutions on a device to cuDNN."""
    return device.type == "cuda" and torch.version.hip is None and torch.backends.cudnn.enabled


def _equal(left: Sequence[Size], right: Sequence[Size]) -> bool:
    return all(map(sizes.equal, left, right))


def _is_constant(buffer: Buffer, view: View) -> bool:
    """Whether `view` is the whole of a CPU argument that is expected not to change."""
    return buffer.weight == "constant" and buffer.device.type == "cpu" and view == whole(buffer)
