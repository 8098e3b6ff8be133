"""Convolutions by a weight that rarely changes: it is packed once into oneDNN's own layouts (runtime/weights.py).

`aten.convolution` brings the weight into such a layout in every call, which for small images takes longer than the convolution.
Which layout the call asks for depends on the size of the images, the instruction set and the number of threads. A packing for
another size costs more than none: oneDNN then reorders it in each call, from one blocked layout to another, element by element
(256×256×3×3 over 2×14×14 by AVX2, one thread: 4.1 ms by the right packing, 4.5 by the plain weight, 35 by the packing that
oneDNN makes when it is told no size). So each size of images is looked up once: a weight has as many packings as its sizes ask
for different layouts, one to three in what was tried.

Which way a call takes, by measurements of 36 convolutions by AVX2 and AVX-512 (`python -m benchmarks.convolutions`):

- where eager itself does not take oneDNN (one small image, products on one thread), eager's own call, unless it is SLOW or more:
  a call by a packing takes 20 µs before it computes anything, and the products behind eager's call are good ones;
- of images with their channels last, the packing;
- of images in planes, the packing if the weight is WIDE times as large as the images, else eager's own call: a packing takes
  images with their channels last, and gives such;
- transposed convolutions likewise: a generator of images from 32×1×1 took 0.38 ms with its weights plain and 0.26 packed;
- without a packing (no room, weights that others may write to), eager's own call; wide weights that meet images with their
  channels last are brought into an odd layout by it at each call, so that images become planes first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from polytile.runtime import weights

aten, mkldnn = torch.ops.aten, torch.ops.mkldnn

SLOW = 1 << 21
"""Multiply-adds of a convolution with a window of more than one point from which on oneDNN is faster than the operator that eager
takes for small images: 16 × 16 × 32 × 32 × 3 × 3, 2.4 M, took 80 and 73 µs on one thread, 57 k took 15 and 29 µs, 28 M 1020 and
660 µs."""

WIDE = 2
"""Bytes of the weight, over those of images and results together, from which on a packing pays for laying both out: at 3 by 1.04
to 1.10, at 12 by 1.3, at 16 by 1.5; at 1.3 by nothing."""

MOST_SIZES = 1024
"""Sizes of images of which the way is remembered."""

PADDING = slice(108, 112)
"""Bytes of oneDNN's serialised description of a layout that mean nothing, and differ from call to call."""

ONEDNN = ("Mkldnn", "???")
"""What torch calls oneDNN's convolution and its transposed one, which it has no name for (torch 2.11 to 2.13)."""

Find = Callable[[torch.Tensor], torch.Tensor | None]


class PackedConvolution:
    """Stands for aten.convolution with images and a weight of the given `sizes` and `strides` (elements): [filters, channels /
    groups, rows, columns], or, transposed, [channels, filters / groups, rows, columns]. `limit` (bytes): see weights.Site.

    Where the weight cannot be packed, for the reason in the sites' `reason`, or packing does not pay, it is aten.convolution.
    Results have their channels last if the images have, or if a packed copy was used.
    """

    _schema, tags = aten.convolution.default._schema, aten.convolution.default.tags
    __name__ = "packed_convolution"

    def __init__(
        self, sizes: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, given: tuple[Any, ...], limit: int
    ) -> None:
        self.sizes, self.strides, self.dtype, self.limit = sizes, strides, dtype, limit
        self.made_from = sizes, strides, dtype, tuple(tuple(v) if isinstance(v, list) else v for v in given), limit
        self.waits = True
        """Whether calls wait for packing."""
        stride, padding, dilation, self.transposed, more, groups = given
        self._given = tuple(stride), tuple(padding), tuple(dilation), tuple(more), groups
        self._sites: dict[bytes, weights.Site] = {}
        self._finds: dict[tuple[torch.Size, int], Find | None] = {}
        plain, transposed = mkldnn._convolution_pointwise.default._op, mkldnn._convolution_transpose_pointwise.default._op
        self._by_packed = transposed if self.transposed else plain

    @property
    def sites(self) -> tuple[weights.Site, ...]:
        """One for each layout that has been asked for."""
        return tuple(self._sites.values())

    def __str__(self) -> str:
        return "aten.convolution.default"

    def __call__(
        self, images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: list[int], padding: list[int],
        dilation: list[int], transposed: bool, output_padding: list[int], groups: int,
    ) -> torch.Tensor:  # fmt: skip
        size = images.shape, torch.get_num_threads()
        try:
            find = self._finds[size]
        except KeyError:
            find = self._look_up(size, images, weight, bias)
        if find is not None:
            packed = find(weight)
            if packed is not None:
                around = (padding, output_padding) if transposed else (padding,)
                return self._by_packed(images, packed, bias, *around, stride, dilation, groups, "none", [], "")
            if _is_last(images) and self._weighs(images, 1):
                images = images.contiguous()
        return torch.convolution(images, weight, bias, stride, padding, dilation, transposed, output_padding, groups)

    def _look_up(
        self, size: tuple[torch.Size, int], images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> Find | None:
        """What finds the packing for images of this size; None where eager's own call is the better one."""
        if len(self._finds) >= MOST_SIZES:
            self._finds.clear()
        find = self._site(size[0]).find if self._pays(images, weight, bias) else None
        self._finds[size] = find
        return find

    def _pays(self, images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
        """Whether the call is faster by a packing of the weight than as eager does it."""
        stride, padding, dilation, more, groups = self._given
        given = [*map(list, (stride, padding, dilation))]
        backend: Any = torch._C._select_conv_backend(images, weight, bias, *given, self.transposed, list(more), groups)
        if backend.name == "Slow2d":
            points = images.shape[0] * math.prod(self._extents(images))
            return self.sizes[2] * self.sizes[3] > 1 and points * math.prod(self.sizes) >= SLOW
        return backend.name in ONEDNN and (_is_last(images) or self._weighs(images, WIDE))

    def _weighs(self, images: torch.Tensor, times: int) -> bool:
        """Whether the weight is so many times as large as images and results together."""
        filters = self.sizes[1] * self._given[-1] if self.transposed else self.sizes[0]
        results = images.shape[0] * filters * math.prod(self._extents(images))
        return math.prod(self.sizes) >= times * (images.numel() + results)

    def _extents(self, images: torch.Tensor) -> list[int]:
        """Rows and columns of the results."""
        windows = zip(images.shape[2:], self.sizes[2:], *self._given[:4], strict=True)
        return [
            (n - 1) * step + reach - 2 * around + more if self.transposed else (n + 2 * around - reach) // step + 1
            for n, window, step, around, apart, more in windows
            for reach in [apart * (window - 1) + 1]
        ]

    def _site(self, images: torch.Size) -> weights.Site:
        """The site for the layout that images of this size ask for, which is seen on a packing of nothing in particular."""
        packed = self._packed(torch.empty_strided(self.sizes, self.strides, dtype=self.dtype), images)
        described = bytearray(mkldnn._get_mkldnn_serialized_md(packed).tolist())
        described[PADDING] = bytes(4)
        layout = bytes(described)
        if layout not in self._sites:
            recipe = weights.Recipe(
                ("convolution", self.dtype, layout), self.sizes, self.strides, 0, mkldnn._nbytes(packed),
                lambda weight: self._packed(weight, images),
            )  # fmt: skip
            self._sites[layout] = weights.Site(recipe, self.limit, eager=True, waits=self.waits)
        return self._sites[layout]

    def _packed(self, weight: torch.Tensor, images: torch.Size) -> torch.Tensor:
        stride, padding, dilation, more, groups = self._given
        reorder = mkldnn._reorder_convolution_transpose_weight if self.transposed else mkldnn._reorder_convolution_weight
        around = (padding, more) if self.transposed else (padding,)
        packed: torch.Tensor = reorder(weight, *around, stride, dilation, groups, list(images))
        return packed


def _is_last(images: torch.Tensor) -> bool:
    return images.is_contiguous(memory_format=torch.channels_last)


def can_pack(dtype: torch.dtype) -> bool:
    """Whether weights of this type can be packed, and this machine's oneDNN takes them."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):
        return False
    if dtype == torch.bfloat16:
        return bool(mkldnn._is_mkldnn_bf16_supported())
    return bool(mkldnn._is_mkldnn_fp16_supported()) if dtype == torch.float16 else dtype == torch.float32
