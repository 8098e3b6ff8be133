"""Convolutions by a weight that rarely changes. The weight is packed once into oneDNN's own layouts
(runtime/weights.py).

`aten.convolution` reorders the weight into such a layout in every call, which for small images takes longer than the
convolution. The layout depends on the image size, the instruction set and the number of threads. A packing for another
size is worse than none: oneDNN then reorders it in each call, from one blocked layout to another, element by element
(256×256×3×3 over 2×14×14 with AVX2, one thread: 4.1 ms with the right packing, 4.5 with the plain weight, 35 with the
packing that oneDNN makes without a size). So each image size is looked up once. A weight has as many packings as its
image sizes need different layouts: one to three in all cases tried.

How a call is run was decided by measurements of 36 convolutions with AVX2 and AVX-512 (`python -m
benchmarks.convolutions`):

- Where eager does not use oneDNN (one small image, products on one thread): eager's own call, unless the size is SLOW
  or more. A call with a packing has 20 µs of overhead, and the products behind eager's call are fast.
- Channels-last images: the packing.
- Contiguous (NCHW) images: the packing if the weight is at least WIDE times as large as the images, else eager's own
  call. A packing needs channels-last images and gives channels-last results.
- Transposed convolutions: the same. A generator of images from 32×1×1 took 0.38 ms with plain weights and 0.26 ms with
  packed ones.
- Without a packing (no memory, weights that others may write to): eager's own call. Since it reorders wide weights
  badly for channels-last images, in every call, such images are made contiguous first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from polytile.runtime import weights

aten, mkldnn = torch.ops.aten, torch.ops.mkldnn

SLOW = 1 << 21
"""Number of multiply-adds, for windows of more than one point, from which oneDNN beats the operator that eager uses for
small images. On one thread, eager and oneDNN took 80 and 73 µs for 16 × 16 × 32 × 32 × 3 × 3 (2.4 M), 15 and 29 µs for
57 k, 1020 and 660 µs for 28 M."""

WIDE = 2
"""Ratio of the weight's bytes to those of images and results together from which a packing repays the layout
conversions. It gained a factor of 1.04 to 1.10 at ratio 3, 1.3 at 12, 1.5 at 16, and nothing at 1.3."""

MOST_SIZES = 1024
"""Number of image sizes whose decision is stored."""

PADDING = slice(108, 112)
"""Bytes of oneDNN's serialised memory descriptor that are padding and differ from call to call."""

ONEDNN = ("Mkldnn", "???")
"""torch's names of oneDNN's convolution and of its transposed convolution, which is unnamed (torch 2.11 to 2.13)."""

Find = Callable[[torch.Tensor], torch.Tensor | None]


class PackedConvolution:
    """Replaces aten.convolution for a weight with the given `sizes` and `strides` (elements).

    The weight is [filters, channels / groups, rows, columns] or, transposed, [channels, filters / groups, rows,
    columns]. `limit` is in bytes, see weights.Site. If the weight cannot be packed (the sites' `reason` says why), or
    packing does not pay, this is aten.convolution. Results are channels-last if the images are, or if a packed copy was
    used.
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
        """One site for each layout needed so far."""
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
        """The lookup of the packing for images of this size; None if eager's own call is faster."""
        if len(self._finds) >= MOST_SIZES:
            self._finds.clear()
        find = self._site(size[0]).find if self._pays(images, weight, bias) else None
        self._finds[size] = find
        return find

    def _pays(self, images: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
        """Whether the call is faster with a packed weight than in eager."""
        stride, padding, dilation, more, groups = self._given
        given = [*map(list, (stride, padding, dilation))]
        backend: Any = torch._C._select_conv_backend(images, weight, bias, *given, self.transposed, list(more), groups)
        if backend.name == "Slow2d":
            points = images.shape[0] * math.prod(self._extents(images))
            return self.sizes[2] * self.sizes[3] > 1 and points * math.prod(self.sizes) >= SLOW
        return backend.name in ONEDNN and (_is_last(images) or self._weighs(images, WIDE))

    def _weighs(self, images: torch.Tensor, times: int) -> bool:
        """Whether the weight is at least `times` as large as images and results together."""
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
        """The site for the layout that images of this size need. The layout is read from a packing of an uninitialised
        weight."""
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
    """Whether weights of this dtype can be packed and this machine's oneDNN supports them."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):
        return False
    if dtype == torch.bfloat16:
        return bool(mkldnn._is_mkldnn_bf16_supported())
    return bool(mkldnn._is_mkldnn_fp16_supported()) if dtype == torch.float16 else dtype == torch.float32
