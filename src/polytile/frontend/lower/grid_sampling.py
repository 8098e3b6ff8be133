"""Sampling an image at positions that are data (`F.grid_sample`): the nearest element, or a weighted sum of those around it.

A grid [batch, ..., rank] holds a position for each point of the result, that along the last dimension first. With aligned corners
-1 and 1 are the centres of the first and the last element, otherwise their outer edges. As in ATen's GridSampler.h, what lies
outside the image counts as 0, or the position moves to the border, or it is reflected there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import torch

from polytile.errors import LoweringError
from polytile.frontend.lower.builder import Builder
from polytile.frontend.lower.joins import all_of
from polytile.frontend.lower.positions import Place
from polytile.frontend.lower.registry import lowers
from polytile.frontend.lower.value import Call, Point, Tensor, computed, convert
from polytile.frontend.lower.views import require_loop_dtype
from polytile.ir import expr, sizes
from polytile.ir.expr import Node
from polytile.ir.library_call import Ref
from polytile.ir.sizes import Size

aten = torch.ops.aten

CUBIC = -0.75
"""ATen's parameter of cubic convolution, a in Keys, "Cubic convolution interpolation for digital image processing" (1981)."""
NOWHERE = -100.0
"""Where ATen's kernels on GPUs put positions that no 32-bit integer holds."""
MOST = float(2**31 - 2)


class Interpolation(IntEnum):
    LINEAR, NEAREST, CUBIC = range(3)


class Padding(IntEnum):
    ZEROS, BORDER, REFLECTION = range(3)


@dataclass(frozen=True)
class Term:
    """An element along one dimension: its position, 0 where it is not in the image; whether it is (None: always); its weight
    (None: 1)."""

    position: Node
    inside: Node | None
    weight: Node | None


@dataclass(frozen=True)
class Axis:
    """How positions along a dimension of `size` elements are computed, in dtype `wide`."""

    size: Size
    wide: torch.dtype
    padding: Padding
    align_corners: bool
    on_gpu: bool

    def terms(self, given: Node, interpolation: Interpolation) -> list[Term]:
        """The elements around the grid's coordinate `given`."""
        there = self._unnormalised(given)
        if interpolation is Interpolation.CUBIC:
            return self._cubic(there)
        there = self._padded(there)
        if interpolation is Interpolation.NEAREST:
            return [self._term(self._op("round", there), None)]
        before = self._op("floor", there)
        weight = self._op("sub", there, before)
        behind = self._op("add", before, self._const(1.0))
        return [self._term(before, self._op("sub", self._const(1.0), weight)), self._term(behind, weight)]

    def _cubic(self, there: Node) -> list[Term]:
        """Four elements, each padded on its own."""
        first = self._op("floor", there)
        t = self._op("sub", there, first)
        found = []
        for k, weight in enumerate(self._cubic_weights(t)):
            position = self._padded(self._op("add", first, self._const(float(k - 1))))
            found.append(self._term(position, weight))
        return found

    def _cubic_weights(self, t: Node) -> list[Node]:
        one = self._const(1.0)
        rest = self._op("sub", one, t)

        def near(x: Node) -> Node:
            """((a + 2)·x - (a + 3))·x² + 1"""
            inner = self._op("sub", self._op("mul", self._const(CUBIC + 2), x), self._const(CUBIC + 3))
            return self._op("add", self._op("mul", self._op("mul", inner, x), x), one)

        def far(x: Node) -> Node:
            """((a·x - 5a)·x + 8a)·x - 4a"""
            inner = self._op("sub", self._op("mul", self._const(CUBIC), x), self._const(5 * CUBIC))
            inner = self._op("add", self._op("mul", inner, x), self._const(8 * CUBIC))
            return self._op("sub", self._op("mul", inner, x), self._const(4 * CUBIC))

        return [far(self._op("add", t, one)), near(t), near(rest), far(self._op("add", rest, one))]

    def _unnormalised(self, given: Node) -> Node:
        """A coordinate in [-1, 1] as a number of elements, with the roundings of ATen's kernels on this device."""
        n, one, half = self._number(self.size), self._const(1.0), self._const(0.5)
        from_edge = self._op("add", given, one)
        if self.align_corners:
            steps = self._number(self.size - 1)
            if self.on_gpu:
                return self._op("mul", self._op("mul", from_edge, half), steps)
            return self._op("mul", from_edge, self._op("mul", steps, half))
        if self.on_gpu:
            return self._op("mul", self._op("sub", self._op("mul", from_edge, n), one), half)
        return self._op("sub", self._op("mul", from_edge, self._op("mul", n, half)), half)

    def _padded(self, there: Node) -> Node:
        """`there`, moved into the image unless padding is zeros. NaN becomes 0 where positions are moved."""
        if self.padding is Padding.REFLECTION:
            there = self._reflected(there)
        if self.padding in (Padding.BORDER, Padding.REFLECTION):
            zero = self._const(0.0)
            positive = expr.op("where", self.wide, expr.op("gt", torch.bool, there, zero), there, zero)
            return self._op("minimum", positive, self._number(self.size - 1))
        if not self.on_gpu:
            return there
        known = expr.op("le", torch.bool, self._op("abs", there), self._const(MOST))
        return expr.op("where", self.wide, known, there, self._const(NOWHERE))

    def _reflected(self, there: Node) -> Node:
        """`there`, reflected at the centres of the outermost elements with aligned corners, at their edges otherwise. Of an image
        of one element with aligned corners it is NaN."""
        low = self._const(0.0 if self.align_corners else -0.5)
        span = self._number(self.size - 1 if self.align_corners else self.size)
        distance = self._op("abs", self._op("sub", there, low))
        extra = self._op("fmod", distance, span)
        flips = self._op("floor", self._op("div", distance, span))
        odd = expr.op("ne", torch.bool, self._op("fmod", flips, self._const(2.0)), self._const(0.0))
        return self._op("add", expr.op("where", self.wide, odd, self._op("sub", span, extra), extra), low)

    def _term(self, position: Node, weight: Node | None) -> Term:
        if self.padding is not Padding.ZEROS:  # only the element behind the last may be outside; its weight is 0
            position = self._op("minimum", position, self._number(self.size - 1))
            return Term(expr.op("cast", torch.int64, position), None, weight)
        zero = self._const(0.0)
        behind = expr.op("le", torch.bool, position, self._number(self.size - 1))
        inside = expr.op("logical_and", torch.bool, expr.op("ge", torch.bool, position, zero), behind)
        safe = expr.op("where", self.wide, inside, position, zero)
        return Term(expr.op("cast", torch.int64, safe), inside, weight)

    def _number(self, n: Size) -> Node:
        return self._op("cast", expr.index_value(sizes.expand(n)))

    def _const(self, value: float) -> Node:
        return expr.const(value, self.wide)

    def _op(self, name: str, *args: Node) -> Node:
        return expr.op(name, self.wide, *args)


def _lower_sampler(rank: int) -> Callable[..., Tensor]:
    def lowering(
        builder: Builder, source: Tensor, grid: Tensor, interpolation: int, padding: int, align_corners: bool
    ) -> Tensor:
        """Images [batch, channels, ...] at the positions of a grid [batch, ..., rank], in the grid's spatial sizes."""
        require_loop_dtype(source.dtype)
        if not source.dtype.is_floating_point or grid.dtype != source.dtype:
            raise LoweringError(f"positions of type {grid.dtype} in images of type {source.dtype} are left to the library.")
        image, positions, result = builder.realize(source), builder.realize(grid), builder.result_sizes()
        wide, how = source.compute_dtype, Interpolation(interpolation)
        on_gpu = source.device.type != "cpu"
        axes = [Axis(n, wide, Padding(padding), align_corners, on_gpu) for n in image.sizes[2:]]

        def element_at(point: Point) -> Node:
            place = point[0], *point[2:]
            along = [axis.terms(positions.at((*place, sizes.as_size(rank - 1 - d))), how) for d, axis in enumerate(axes)]
            return convert(_weighted_sum(image, point[:2], along), source.dtype)

        made = computed(result, source.dtype, source.device, element_at)
        if image.view is None or positions.view is None:
            return made
        operator = aten.grid_sampler_2d if rank == 2 else aten.grid_sampler_3d
        given = (Ref(image.view), Ref(positions.view), interpolation, padding, align_corners)
        return replace(made, call=Call(operator.default, given, (), result))

    return lowering


def _weighted_sum(image: Tensor, first: Point, along: Sequence[Sequence[Term]]) -> Node:
    """The sum over all combinations of one term per dimension, the last dimension changing fastest."""
    wide, total = image.compute_dtype, None
    for terms in itertools.product(*along):
        place = Place([*first, *[sizes.ZERO] * len(along)])
        weight: Node | None = None
        for d, term in enumerate(terms):
            place.put(2 + d, term.position)
            if term.weight is not None:
                weight = term.weight if weight is None else expr.op("mul", wide, weight, term.weight)
        value, inside = place.load(image), all_of([term.inside for term in terms if term.inside is not None])
        value = value if inside is None else expr.op("where", wide, inside, value, expr.const(0.0, wide))
        value = value if weight is None else expr.op("mul", wide, value, weight)
        total = value if total is None else expr.op("add", wide, total, value)
    assert total is not None
    return total


lowers(aten.grid_sampler_2d.default)(_lower_sampler(2))
lowers(aten.grid_sampler_3d.default)(_lower_sampler(3))
