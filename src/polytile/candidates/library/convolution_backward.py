"""The derivatives of convolutions as candidates: eager's own call, cuDNN's kernels by timing, images as they are or converted.

Their names are those of the forward pass (convolution.py). The library's operators allocate gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import PythonEntry
from polytile.candidates.library.convolution import CONVERSIONS, FIND_SECONDS, Convolution
from polytile.problem import Config, digest
from polytile.runtime.chosen_convolution import LAST, GradientOperands, GradientProblem
from polytile.runtime.target import Target

aten = torch.ops.aten

Gradients = tuple[Tensor | None, Tensor | None]
"""Of images and weight; None for one that is not wanted."""


class ConvolutionGradients(Candidate):
    """Eager's own call of the derivative. The library allocates gradients, which then take the place of the caller's memory."""

    name = "library"
    origin = "library"
    config = Config()

    def __init__(self, problem: GradientProblem, target: torch.device) -> None:
        self.problem, self.target = problem, target

    @cached_property
    def source_hash(self) -> str:
        return digest(f"gradients {self.name} {torch.__version__} {torch.backends.cudnn.version()} {self.problem.text}")

    def valid(self, sizes: Mapping[str, int]) -> bool:
        return all(n > 0 for n in self.problem.of.extents([sizes[name] for name in self.problem.size_names]))

    def cost(self, sizes: Mapping[str, int]) -> float:
        """That of one or two forward passes."""
        return (self.problem.images + self.problem.weight) * Convolution(self.problem.of, self.target).cost(sizes)

    def entry(self) -> PythonEntry:
        return PythonEntry(self._call, recordable=True)

    def _call(self, *args: Any) -> None:
        given = self.problem.operands(args)
        for out, result in zip((given.images, given.weight), self.run(given), strict=True):
            if out is not None and result is not None:
                hand_over(out, result)

    def run(self, given: GradientOperands) -> Gradients:
        """The gradients that are wanted."""
        return self.problem.eager(given)


class TimedGradients(ConvolutionGradients):
    """The gradient of images by cuDNN's fastest kernel, by its own timing. That of the weight has no operator with flags of its
    own, and PyTorch's switches would change what other threads run."""

    name = "timed"
    origin = "cudnn"

    @property
    def per_size(self) -> bool:
        return True

    def valid(self, sizes: Mapping[str, int]) -> bool:
        return self.problem.images and super().valid(sizes)

    def cost(self, sizes: Mapping[str, int]) -> float:
        return super().cost(sizes) + FIND_SECONDS

    def run(self, given: GradientOperands) -> Gradients:
        of = self.problem.of
        extents, windows = given.x.shape[2:], zip(of.weight[2:], of.stride, of.padding, of.dilation, strict=True)
        left = [(n + 2 * p - d * (k - 1) - 1) % step for n, (k, step, p, d) in zip(extents, windows, strict=True)]
        flags = True, True, torch.backends.cudnn.conv.fp32_precision == "tf32"  # type: ignore[attr-defined]
        over = of.padding, left, of.stride, of.dilation, of.groups
        images = aten.cudnn_convolution_transpose(given.grad, given.w, *over, *flags)
        return images, self.problem.eager(given._replace(images=None))[1] if self.problem.weight else None


class ChannelsLastGradients(ConvolutionGradients):
    """The library's kernels on images and gradients that are converted to channels-last."""

    name = "last"
    origin = "cudnn"

    def valid(self, sizes: Mapping[str, int]) -> bool:
        return not self.problem.of.last and super().valid(sizes)

    def cost(self, sizes: Mapping[str, int]) -> float:
        """That of eager's call and of its own launches, so that only measurements choose it."""
        return super().cost(sizes) + (CONVERSIONS + 1) * Target.of(self.target).facts.launch_seconds

    def run(self, given: GradientOperands) -> Gradients:
        layout = LAST[self.problem.of.spatial]
        grad, x, w = (each.contiguous(memory_format=layout) for each in (given.grad, given.x, given.w))
        return super().run(given._replace(grad=grad, x=x, w=w))


class TimedChannelsLastGradients(ChannelsLastGradients, TimedGradients):
    """Both: the gradient of images by the fastest of cuDNN's kernels for such images."""

    name = "last timed"


def hand_over(out: Tensor, result: Tensor) -> None:
    """Has `out` be the result: by taking over its memory where `out` has memory of its own, else by copying."""
    storage = out.untyped_storage()
    if storage.nbytes() == out.numel() * out.element_size() and out.stride() == result.stride():
        out.set_(result)  # type: ignore[call-overload]
    else:
        out.copy_(result)


def candidates(problem: GradientProblem, target: torch.device) -> tuple[Candidate, ...]:
    """The candidates in canonical order."""
    kinds = ConvolutionGradients, TimedGradients, ChannelsLastGradients, TimedChannelsLastGradients
    return tuple(kind(problem, target) for kind in kinds)
