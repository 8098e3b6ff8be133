"""Convolutions by a weight that stays as it is: oneDNN's own layout of it is made once and kept (runtime/weights.py).

`aten.convolution` brings the weight into that layout in every call, which for small images takes longer than the convolution.
"""

from __future__ import annotations

from typing import Any

import torch

from polytile.runtime import weights

aten, mkldnn = torch.ops.aten, torch.ops.mkldnn

BLOCK = 16
"""Channels, and filters, that oneDNN keeps together."""


class KeptConvolution:
    """Stands for aten.convolution with images and a weight [filters, channels / groups, rows, columns] of the given `sizes` and
    `strides` (elements), not transposed. `eager`, `limit` (bytes): see weights.Site.

    Where no copy of the weight can be kept, for the reason in `site.reason`, it is aten.convolution. Results have their channels
    last if the images have.
    """

    _schema, tags = aten.convolution.default._schema, aten.convolution.default.tags
    __name__ = "kept_convolution"

    def __init__(
        self, sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, given: tuple[Any, ...], limit: int
    ) -> None:
        stride, padding, dilation, _, _, groups = given
        filters, channels = (-(-n // BLOCK) * BLOCK if groups == 1 else n for n in sizes[:2])
        self.site = weights.Site(
            weights.Recipe(
                ("convolution", dtype, *map(tuple, (stride, padding, dilation)), groups), sizes, strides, 0,
                filters * channels * sizes[2] * sizes[3] * dtype.itemsize,
                lambda weight: mkldnn._reorder_convolution_weight(weight, padding, stride, dilation, groups),
            ),
            limit, eager=True,
        )  # fmt: skip
        self.dtype, self._find = dtype, self.site.find
        self._plain, self._by_kept = aten.convolution.default._op, mkldnn._convolution_pointwise.default._op

    def __str__(self) -> str:
        return "aten.convolution.default"

    def __call__(
        self, images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: list[int], padding: list[int],
        dilation: list[int], transposed: bool, output_padding: list[int], groups: int,
    ) -> torch.Tensor:  # fmt: skip
        kept = self._find(weight)
        if kept is None:
            return self._plain(images, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
        return self._by_kept(images, kept, bias, padding, stride, dilation, groups, "none", [], "")


def can_keep(dtype: torch.dtype) -> bool:
    """Whether copies of weights of this type can be kept, and this machine's oneDNN takes them."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled and weights.available()):
        return False
    if dtype == torch.bfloat16:
        return bool(mkldnn._is_mkldnn_bf16_supported())
    return bool(mkldnn._is_mkldnn_fp16_supported()) if dtype == torch.float16 else dtype == torch.float32


__all__ = ["KeptConvolution", "can_keep"]
