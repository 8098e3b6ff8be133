"""Convolutions: products and loops where kernels are generated for them, else library calls, with a weight that is packed once
for each layout of the calls, if it does not change."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from polytile import options
from polytile.errors import LoweringError
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.convolution_kernels import as_product
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.value import Tensor
from polytile.ir.buffer import Buffer, View, whole
from polytile.ir.sizes import Size
from polytile.runtime.convolution import PackedConvolution, can_pack

aten = torch.ops.aten

PLAIN = "convolutions are left to the library"
PACKED = "a convolution by a weight that is packed in oneDNN's layout"


@lowers(aten.convolution.default)
def convolution(
    builder: Builder, images: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[Size | int],
    padding: Sequence[Size | int], dilation: Sequence[Size | int], transposed: bool,
    output_padding: Sequence[Size | int], groups: int,
) -> Tensor:  # fmt: skip
    """On a GPU, windows of 1×1 are products (convolution_kernels.py). On a CPU, oneDNN's convolution of two-dimensional images,
    with a constant weight that is packed in oneDNN's own layouts.

    Raises
    ------
    LoweringError
        For all other convolutions, so that ATen's runs.
    """
    given = (list(stride), list(padding), list(dilation), transposed, list(output_padding), groups)
    if (made := as_product(builder, images, weight, bias, given)) is not None:
        return made
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


def _is_constant(buffer: Buffer, view: View) -> bool:
    """Whether `view` is the whole of a CPU argument that is expected not to change."""
    return buffer.weight == "constant" and buffer.device.type == "cpu" and view == whole(buffer)
