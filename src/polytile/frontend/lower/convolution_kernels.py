"""Convolutions with windows of 1×1 as products, where kernels are generated for a GPU.

    out[n, k, h, w] = Σ_c weight[k, c]·x[n, c, h, w]        a product of N·H·W rows, or one for each image

They then have the candidates of products. They are products only where a pointwise operator follows, such as a batch norm or an
activation, which a product computes on the way, while a call of cuDNN costs another trip through memory. Without one, cuDNN's own
kernels are faster for some layers (docs/convolutions.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.layouts import traced_strides
from polytile.frontend.lower.matmul import OPERAND_DTYPES, generator_of, product
from polytile.frontend.lower.value import Point, Tensor, computed, convert, stored, widen
from polytile.frontend.lower.views import has_static_zero
from polytile.ir import expr, sizes
from polytile.ir.buffer import View
from polytile.ir.expr import Node
from polytile.ir.sizes import ONE, ZERO, Size

POINTWISE = (torch.ops.aten._native_batch_norm_legit_no_training.default, torch.ops.aten._to_copy.default)
"""Operators that are pointwise functions of their first argument without being tagged as such."""


def as_product(builder: Builder, images: Tensor, weight: Tensor, bias: Tensor | None, given: Sequence[Any]) -> Tensor | None:
    """A convolution of 1×1 windows as a product. None where it is not one, or images do not lie in one of the two layouts.

    `given` is what follows the bias in aten.convolution.
    """
    stride, padding, _, transposed, _, groups = given
    alone = all(n == 1 for n in (*weight.sizes[2:], *stride, groups)) and all(n == 0 for n in padding) and not transposed
    if not alone or not _able(builder, images, weight) or images.dtype not in OPERAND_DTYPES["gpu"] or _rounds_more(images):
        return None
    x, w = builder.realize(images).view, builder.realize(weight).view
    assert x is not None and w is not None
    result, traced = builder.result_sizes(), traced_strides(builder.result())
    images_n, channels, rows, columns = x.sizes
    points = rows * columns
    if _equal(x.strides, sizes.channels_last_strides(x.sizes)) and _equal(traced, sizes.channels_last_strides(result)):
        a = View(x.buffer, x.dtype, (images_n * points, channels), (channels, ONE), x.offset)
        b = View(w.buffer, w.dtype, (channels, w.sizes[0]), (w.strides[1], w.strides[0]), w.offset)
    elif _equal(x.strides[2:], (columns * x.strides[3], x.strides[3])) and _equal(traced, sizes.contiguous_strides(result)):
        a = View(w.buffer, w.dtype, (images_n, w.sizes[0], channels), (ZERO, *w.strides[:2]), w.offset)
        b = View(x.buffer, x.dtype, (images_n, channels, points), (*x.strides[:2], x.strides[3]), x.offset)
    else:
        return None
    out = product(builder, stored(a, images.device), stored(b, images.device), first=0).view
    assert out is not None
    return _plus(builder, stored(View(out.buffer, out.dtype, result, traced, out.offset), images.device), bias)


def _rounds_more(images: Tensor) -> bool:
    """Whether PyTorch's switches let cuDNN round float32 to TF32, but not products, which then take several times as long."""
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn.conv  # type: ignore[attr-defined]
    single = images.dtype == torch.float32 and images.device.type == "cuda"
    return bool(single and convolutions.fp32_precision == "tf32" and products.fp32_precision != "tf32")


def _able(builder: Builder, images: Tensor, weight: Tensor) -> bool:
    able = generator_of(images.device) == "gpu" and images.dtype == weight.dtype and images.rank == weight.rank == 4
    users = () if builder.node is None else builder.node.users
    followed = any(user.target in POINTWISE or torch.Tag.pointwise in getattr(user.target, "tags", ()) for user in users)
    return able and followed and not has_static_zero(images.sizes) and not has_static_zero(weight.sizes)


def _equal(left: Sequence[Size], right: Sequence[Size]) -> bool:
    return all(map(sizes.equal, left, right))


def _plus(builder: Builder, out: Tensor, bias: Tensor | None) -> Tensor:
    if bias is None:
        return out

    def at(point: Point) -> Node:
        value = out.at(point)
        return convert(expr.op("add", value.dtype, value, widen(bias.at((point[1],)), out.dtype)), out.dtype)

    made = computed(out.sizes, out.dtype, out.device, at)
    return replace(made, layout=traced_strides(builder.result()))
