"""Convolutions that are other operations too, where kernels are generated for a GPU.

    1×1 windows    out[n, k, h, w] = Σ_c weight[k, c]·x[n, c, h, w]              a product: of N·H·W rows, or one for each image
    depthwise      out[n, c, h, w] = Σ_ij weight[c, i, j]·x[n, c, h + i, w + j]  a loop, which may be the library's call instead

Both take part only where a pointwise operator follows, such as a batch norm or an activation, which they compute on the way: it
costs a call of cuDNN another trip through memory. Without one, cuDNN's own kernels are faster for some layers
(docs/convolutions.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.layouts import traced_strides
from polytile.frontend.lower.matmul import OPERAND_DTYPES, generator_of, product
from polytile.frontend.lower.pooling_average import summed
from polytile.frontend.lower.value import Call, Point, Tensor, computed, convert, stored, widen
from polytile.frontend.lower.views import has_static_zero
from polytile.frontend.lower.windows import UNROLL_LIMIT, Step, chosen, windows
from polytile.ir import expr, sizes
from polytile.ir.buffer import View
from polytile.ir.expr import Node
from polytile.ir.library_call import Ref
from polytile.ir.sizes import ONE, ZERO, Size

NORMS = (torch.ops.aten._native_batch_norm_legit_no_training.default,)
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


def as_loop(builder: Builder, images: Tensor, weight: Tensor, bias: Tensor | None, given: Sequence[Any]) -> Tensor | None:
    """A depthwise convolution of a small window as a loop that the library's call may replace. None where it is not one."""
    stride, padding, dilation, transposed, _, groups = given
    alone = not transposed and groups == images.sizes[1] == weight.sizes[0] and weight.sizes[1] == 1
    points = sizes.product(weight.sizes[2:])
    small = points.is_Integer and points <= UNROLL_LIMIT
    if not alone or not small or not _able(builder, images, weight) or images.dtype == torch.float64:
        return None
    result = builder.result_sizes()
    over = windows(builder, images, 2, weight.sizes[2:], stride, padding, dilation, False, result)
    filters = builder.realize(weight)

    def term(point: Point, step: Step) -> Node:
        factor = filters.at((point[1], ZERO, *step))
        value = expr.op("mul", factor.dtype, over.source.at((*point[:2], *over.position(point, step))), factor)
        return chosen(over.inside(point, step), value, 0)

    total = summed(builder, over, result, term)

    def at(point: Point) -> Node:
        value = total.at(point)
        if bias is not None:
            value = expr.op("add", value.dtype, value, widen(bias.at((point[1],)), images.dtype))
        return convert(value, images.dtype)

    made = computed(result, images.dtype, images.device, at)
    added = None if bias is None else builder.argument(builder.realize(bias))
    arguments = (*(Ref(builder.stored(each)) for each in (over.source, filters)), added, *map(builder.argument, given))
    call = Call(torch.ops.aten.convolution.default, arguments, (), result)
    return builder.realize(replace(made, call=call, layout=traced_strides(builder.result())))


def _rounds_more(images: Tensor) -> bool:
    """Whether PyTorch's switches let cuDNN round float32 to TF32, but not products, which then take several times as long."""
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn.conv  # type: ignore[attr-defined]
    single = images.dtype == torch.float32 and images.device.type == "cuda"
    return bool(single and convolutions.fp32_precision == "tf32" and products.fp32_precision != "tf32")


def _able(builder: Builder, images: Tensor, weight: Tensor) -> bool:
    able = generator_of(images.device) == "gpu" and images.dtype == weight.dtype and images.rank == weight.rank == 4
    users = () if builder.node is None else builder.node.users
    followed = any(user.target in NORMS or torch.Tag.pointwise in getattr(user.target, "tags", ()) for user in users)
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
