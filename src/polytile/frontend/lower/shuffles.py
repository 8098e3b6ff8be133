"""Pixel shuffles: channels that become the pixels of finer images, and back."""

from __future__ import annotations

import torch

from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.value import Point, Tensor
from polytile.frontend.lower.views import reindexed
from polytile.ir import divisions
from polytile.ir.sizes import Size, as_size

aten = torch.ops.aten


@lowers(aten.pixel_shuffle.default)
def pixel_shuffle(builder: Builder, source: Tensor, upscale_factor: Size | int) -> Tensor:
    """(..., c·f·f, h, w) → (..., c, h·f, w·f)."""
    result, f = builder.result_sizes(), as_size(upscale_factor)

    def where(point: Point) -> Point:
        ranges = dict(zip(point, result, strict=True))
        *lead, c, h, w = point
        (row, i), (column, j) = ((divisions.floor_div(x, f, ranges), divisions.modulo(x, f, ranges)) for x in (h, w))
        return (*lead, c * f * f + i * f + j, row, column)

    return reindexed(source, result, where)


@lowers(aten.pixel_unshuffle.default)
def pixel_unshuffle(builder: Builder, source: Tensor, downscale_factor: Size | int) -> Tensor:
    """(..., c, h·f, w·f) → (..., c·f·f, h, w)."""
    result, f = builder.result_sizes(), as_size(downscale_factor)

    def where(point: Point) -> Point:
        ranges = dict(zip(point, result, strict=True))
        *lead, c, h, w = point
        inner = divisions.modulo(c, f * f, ranges)
        i, j = divisions.floor_div(inner, f, ranges), divisions.modulo(c, f, ranges)
        return (*lead, divisions.floor_div(c, f * f, ranges), h * f + i, w * f + j)

    return reindexed(source, result, where)
