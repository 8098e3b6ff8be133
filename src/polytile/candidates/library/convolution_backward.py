"""The derivatives of convolutions as candidates: eager's own call, cuDNN's kernels by timing, images as they are or converted.

Their names are those of the forward pass (convolution.py). The library's operators allocate gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from polytile.candidates.candidate import Candidate
from polytile.candidates.library.convolution import WAYS, Convolution, LibraryConvolution
from polytile.runtime.chosen_convolution import LAST, GradientOperands, GradientProblem

aten = torch.ops.aten

Gradients = tuple[Tensor | None, Tensor | None]
"""Of images and weight; None for one that is not wanted."""


class ConvolutionGradients(LibraryConvolution):
    """Eager's own call of the derivative, or cuDNN's kernel for the gradient of images by its own timing: that of the weight has
    no operator with flags of its own, and PyTorch's switches would change what other threads run. The library allocates
    gradients, which then take the place of the caller's memory."""

    family = "gradients"
    conversions = 4  # of images, weight, and both gradients

    def __init__(self, problem: GradientProblem, target: torch.device, last: bool, timed: bool) -> None:
        super().__init__(problem, target, last, timed)
        self.problem, self.forward = problem, problem.of

    def valid(self, sizes: Mapping[str, int]) -> bool:
        return (self.problem.images or not self.timed) and super().valid(sizes)

    def eager_cost(self, sizes: Mapping[str, int]) -> float:
        """That of one or two forward passes."""
        return (self.problem.images + self.problem.weight) * Convolution(self.forward, self.target).cost(sizes)

    def _call(self, *args: Any) -> None:
        given = self.problem.operands(args)
        if self.last:
            layout = LAST[self.forward.spatial]
            grad, x, w = (each.contiguous(memory_format=layout) for each in (given.grad, given.x, given.w))
            given = given._replace(grad=grad, x=x, w=w)
        results = self._timed(given) if self.timed else self.problem.eager(given)
        for out, result in zip((given.images, given.weight), results, strict=True):
            if out is not None and result is not None:
                hand_over(out, result)

    def _timed(self, given: GradientOperands) -> Gradients:
        of = self.forward
        extents, windows = given.x.shape[2:], zip(of.weight[2:], of.stride, of.padding, of.dilation, strict=True)
        left = [(n + 2 * p - d * (k - 1) - 1) % step for n, (k, step, p, d) in zip(extents, windows, strict=True)]
        flags = True, True, torch.backends.cudnn.conv.fp32_precision == "tf32"  # type: ignore[attr-defined]
        over = of.padding, left, of.stride, of.dilation, of.groups
        images = aten.cudnn_convolution_transpose(given.grad, given.w, *over, *flags)
        return images, self.problem.eager(given._replace(images=None))[1] if self.problem.weight else None


def hand_over(out: Tensor, result: Tensor) -> None:
    """Has `out` be the result: by taking over its memory where `out` has memory of its own, else by copying."""
    storage = out.untyped_storage()
    if storage.nbytes() == out.numel() * out.element_size() and out.stride() == result.stride():
        out.set_(result)  # type: ignore[call-overload]
    else:
        out.copy_(result)


def candidates(problem: GradientProblem, target: torch.device) -> tuple[Candidate, ...]:
    """The candidates in canonical order."""
    return tuple(ConvolutionGradients(problem, target, *way) for way in WAYS)
