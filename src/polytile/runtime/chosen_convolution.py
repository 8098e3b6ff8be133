"""Convolutions on a GPU, whose library kernel is chosen for each size as other kernels are (candidates/library/convolution.py).

A ConvolutionProblem says what is computed: a convolution, and the layout of its images. A ChosenConvolution stands for
aten.convolution in a program, and calls the kernel of the problem.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polytile.runtime import noise

aten = torch.ops.aten

LAST = {2: torch.channels_last, 3: torch.channels_last_3d}
"""The channels-last formats of images over so many dimensions."""


class Operands(NamedTuple):
    """The tensors of a call."""

    x: Tensor
    w: Tensor
    b: Tensor | None
    out: Tensor


@dataclass(frozen=True)
class ConvolutionProblem:
    """A convolution that is not transposed: images (N, C, *spatial) by a weight of these sizes (filters, C / groups, *window).

    `bias`: a bias of one number a filter is added. `last`: the images and the result are channels-last, otherwise row-major.
    `tf32`: float32 may be rounded to TF32, by PyTorch's switches.
    """

    dtype: torch.dtype
    weight: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    bias: bool
    last: bool
    tf32: bool = False

    @property
    def spatial(self) -> int:
        """The number of dimensions that the window has."""
        return len(self.stride)

    @property
    def text(self) -> str:
        return repr(self)

    @property
    def size_names(self) -> tuple[str, ...]:
        """The images' sizes without their channels."""
        return ("N", *"DHW"[-self.spatial :])

    @property
    def layout(self) -> torch.memory_format:
        return LAST[self.spatial] if self.last else torch.contiguous_format

    def extents(self, images: Sequence[int]) -> tuple[int, ...]:
        """The sizes of the result for images (N, *spatial)."""
        windows = zip(images[1:], self.weight[2:], self.stride, self.padding, self.dilation, strict=True)
        over = ((n + 2 * around - apart * (window - 1) - 1) // step + 1 for n, window, step, around, apart in windows)
        return (images[0], self.weight[0], *over)

    def empty(self, images: Sequence[int], device: torch.device) -> Tensor:
        """Memory for the result of images (N, *spatial)."""
        return torch.empty(self.extents(images), dtype=self.dtype, device=device, memory_format=self.layout)

    def operands(self, args: Sequence[Any]) -> Operands:
        """The tensors among flat arguments."""
        x, w, *rest = args[: 3 + self.bias]
        return Operands(x, w, rest[0] if self.bias else None, rest[-1])

    def reference(self, *args: Any) -> None:
        """The convolution in the arguments' own precision, on flat arguments."""
        given = self.operands(args)
        given.out.copy_(self.eager(given))

    def eager(self, given: Operands) -> Tensor:
        """The result of eager's own call."""
        over, none = (self.stride, self.padding, self.dilation), [0] * self.spatial
        return torch.convolution(given.x, given.w, given.b, *over, False, none, self.groups)

    def make_args(self, size: Mapping[str, int], target: torch.device) -> list[Any]:
        """Random flat arguments for these sizes."""
        images = [size[name] for name in self.size_names]
        sizes = (images[0], self.weight[1] * self.groups, *images[1:]), self.weight, *([self.weight[:1]] if self.bias else [])
        tensors = [noise.normal(math.prod(each), target).to(self.dtype).view(each) for each in sizes]
        x = tensors[0].contiguous(memory_format=self.layout)
        return [x, *tensors[1:], self.empty(images, target), *images]

    def work(self, size: Mapping[str, int]) -> tuple[float, float]:
        """Multiply-adds, and bytes of images and result."""
        images = [size[name] for name in self.size_names]
        results, read = math.prod(self.extents(images)), math.prod(images) * self.weight[1] * self.groups
        return float(results * math.prod(self.weight[1:])), float((results + read) * self.dtype.itemsize)


class GradientOperands(NamedTuple):
    """The tensors of a call for gradients: None for those that are not wanted."""

    grad: Tensor
    x: Tensor
    w: Tensor
    images: Tensor | None
    weight: Tensor | None


@dataclass(frozen=True)
class GradientProblem:
    """The derivative of a convolution without a bias: which of the gradients of images and weight are wanted, and whether the
    latter is channels-last. The gradient of the result is stored as the images are."""

    of: ConvolutionProblem
    images: bool
    weight: bool
    weight_last: bool

    @property
    def text(self) -> str:
        return repr(self)

    @property
    def size_names(self) -> tuple[str, ...]:
        return self.of.size_names

    def operands(self, args: Sequence[Any]) -> GradientOperands:
        """The tensors among flat arguments."""
        grad, x, w, *made = args[: 3 + self.images + self.weight]
        return GradientOperands(grad, x, w, made[0] if self.images else None, made[-1] if self.weight else None)

    def eager(self, given: GradientOperands) -> tuple[Tensor | None, Tensor | None]:
        """The gradients of eager's own call."""
        of, wanted = self.of, (given.images is not None, given.weight is not None, False)
        over, none = (of.stride, of.padding, of.dilation), [0] * of.spatial
        made = aten.convolution_backward(given.grad, given.x, given.w, None, *over, False, none, of.groups, wanted)
        return made[0], made[1]

    def reference(self, *args: Any) -> None:
        """The gradients in the arguments' own precision, on flat arguments."""
        given = self.operands(args)
        for out, result in zip((given.images, given.weight), self.eager(given), strict=True):
            if out is not None and result is not None:
                out.copy_(result)

    def empty(self, x: Tensor) -> list[Tensor]:
        """Memory for the gradients that are wanted, of images like `x`."""
        layout = LAST[self.of.spatial] if self.weight_last else torch.contiguous_format
        made = [torch.empty_like(x, memory_format=self.of.layout)] if self.images else []
        return made + ([torch.empty(self.of.weight, dtype=x.dtype, device=x.device, memory_format=layout)] if self.weight else [])

    def make_args(self, size: Mapping[str, int], target: torch.device) -> list[Any]:
        """Random flat arguments for these sizes."""
        x, w, grad, *images = self.of.make_args(size, target)
        grad.copy_(noise.normal(grad.numel(), target).view(grad.shape))
        return [grad, x, w, *self.empty(x), *images]


class ChosenConvolution:
    """Replaces aten.convolution for one problem. `kernel` is its MultiKernel, which the compiler sets before the first call
    (dispatch/convolution.py)."""

    _schema, tags = aten.convolution.default._schema, aten.convolution.default.tags
    __name__ = "convolution"

    kernel: Any

    def __init__(self, problem: ConvolutionProblem, device: torch.device) -> None:
        self.problem, self.device = problem, device
        self.made_from = problem, device

    def __str__(self) -> str:
        return "aten.convolution.default"

    def __call__(self, images: Tensor, weight: Tensor, bias: Tensor | None, *_: Any) -> Tensor:
        """The convolution of images (N, C, *spatial); what follows the bias is the problem's."""
        sizes = images.shape[0], *images.shape[2:]
        out = self.problem.empty(sizes, images.device)
        self.kernel.dispatch(images, weight, *(() if bias is None else (bias,)), out, *sizes)
        return out


class ChosenGradients:
    """The same for aten.convolution_backward. The gradient of a bias is a sum, as in eager."""

    _schema, tags = aten.convolution_backward.default._schema, aten.convolution_backward.default.tags
    __name__ = "convolution_backward"

    kernel: Any

    def __init__(self, problem: GradientProblem, device: torch.device) -> None:
        self.problem, self.device = problem, device
        self.made_from = problem, device

    def __str__(self) -> str:
        return "aten.convolution_backward.default"

    def __call__(self, grad: Tensor, images: Tensor, weight: Tensor, *given: Any) -> tuple[Tensor | None, ...]:
        """The gradients of images, weight and bias, None in place of those that the mask at the end of `given` leaves out."""
        made = self.problem.empty(images)
        self.kernel.dispatch(grad, images, weight, *made, images.shape[0], *images.shape[2:])
        bias = grad.sum((0, *range(2, grad.ndim))) if given[-1][2] else None
        return made[0] if self.problem.images else None, made[-1] if self.problem.weight else None, bias
