"""cuDNN's convolutions as candidates: the kernel that cuDNN chooses by a rule or by timing, on images as they are or converted.

    library     eager's own call
    timed       cuDNN times its kernels at each new size, as torch.backends.cudnn.benchmark has it do
    last        images in planes are converted to channels-last for the call, and its result back
    last timed  both

PyTorch keeps one cuDNN plan in each thread for a size, a layout, and the flags `deterministic` and `allow_tf32`, whether it was
timed or not (Conv_v8.cpp): where eager has called a convolution first, setting `benchmark` changes nothing. The timed calls are
deterministic ones, so that they have plans of their own. Equal calls of them give identical bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch

from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import PythonEntry
from polytile.cost.roofline import PLAIN_FLOPS, tensor_flops
from polytile.problem import Config, digest
from polytile.runtime.chosen_convolution import LAST, ConvolutionProblem, Operands
from polytile.runtime.target import Target

aten = torch.ops.aten

FIND_SECONDS = 0.2
"""Seconds that cuDNN takes to build and time its kernels for new sizes."""

SHARE = 0.4
"""Share of the peak that cuDNN's kernels are taken to reach."""

CONVERSIONS = 3
"""Launches that convert images, weight and result."""

MOST_SIZES = 1024
"""Number of image sizes for which eager's choice of a kernel is kept."""

class Convolution(Candidate):
    """Eager's own call, into memory that the caller gives."""

    name = "library"
    origin = "library"
    config = Config()

    def __init__(self, problem: ConvolutionProblem, target: torch.device) -> None:
        self.problem, self.target = problem, target
        self._backends: dict[torch.Size, str] = {}

    @cached_property
    def source_hash(self) -> str:
        return digest(f"convolution {self.name} {torch.__version__} {torch.backends.cudnn.version()} {self.problem.text}")

    def valid(self, sizes: Mapping[str, int]) -> bool:
        return all(n > 0 for n in self.problem.extents([sizes[name] for name in self.problem.size_names]))

    def cost(self, sizes: Mapping[str, int]) -> float:
        """Predicted seconds of one call: a roofline. Images in planes go through memory three times, as cuDNN converts them and
        the result."""
        (products, moved), facts = self.problem.work(sizes), Target.of(self.target).facts
        tensor_cores = self.problem.groups == 1 and (self.problem.tf32 or self.problem.dtype.itemsize == 2)
        rate = tensor_flops(facts, self.problem.dtype.itemsize) if tensor_cores else PLAIN_FLOPS
        passes = 1 if self.problem.last else 3
        seconds = max(2 * products / (rate * facts.sms * facts.clock * SHARE), passes * moved / facts.bandwidth)
        return float(facts.launch_seconds + seconds)

    def entry(self) -> PythonEntry:
        return PythonEntry(self._call, recordable=True)

    def _call(self, *args: Any) -> None:
        self.run(self.problem.operands(args))

    def run(self, given: Operands) -> None:
        """Writes the result, and copies it only where the library has no form of eager's kernel that takes memory."""
        backend = self._backend(given)
        if backend == "Cudnn":
            self.cudnn(given)
        elif backend == "CudaDepthwise2d":
            over = self.problem.stride, self.problem.padding, self.problem.dilation
            aten._conv_depthwise2d.out(given.x.contiguous(), given.w, self.problem.weight[2:], given.b, *over, out=given.out)
        else:
            given.out.copy_(self.problem.eager(given))

    def cudnn(self, given: Operands, timed: bool = False) -> None:
        """cuDNN's kernel in the layout of the result, then the bias, as eager has both."""
        problem, switches = self.problem, torch.backends.cudnn
        deterministic = timed or switches.deterministic or torch.are_deterministic_algorithms_enabled()
        tf32 = switches.conv.fp32_precision == "tf32"  # type: ignore[attr-defined]
        flags = timed or switches.benchmark, deterministic, tf32
        over = problem.padding, problem.stride, problem.dilation, problem.groups
        aten.cudnn_convolution.out(given.x, given.w, *over, *flags, out=given.out)
        if given.b is not None:
            given.out.add_(given.b.view(-1, *[1] * problem.spatial))

    def _backend(self, given: Operands) -> str:
        """PyTorch's name of the kernel that eager chooses for images of these sizes."""
        known = self._backends.get(given.x.shape)
        if known is None:
            if len(self._backends) >= MOST_SIZES:
                self._backends.clear()
            over = [*map(list, (self.problem.stride, self.problem.padding, self.problem.dilation))]
            none = [0] * self.problem.spatial
            found: Any = torch._C._select_conv_backend(given.x, given.w, given.b, *over, False, none, self.problem.groups)
            known = self._backends[given.x.shape] = found.name
        return known


class TimedConvolution(Convolution):
    """cuDNN's fastest kernel by its own timing. Its cost is that of the first call at a size, in which it times them."""

    name = "timed"
    origin = "cudnn"

    @property
    def per_size(self) -> bool:
        return True

    def cost(self, sizes: Mapping[str, int]) -> float:
        return super().cost(sizes) + FIND_SECONDS

    def run(self, given: Operands) -> None:
        self.cudnn(given, timed=True)


class ChannelsLastConvolution(Convolution):
    """cuDNN's kernel on images that are converted to channels-last, which its vectors of channels and tensor cores read in place.
    The weight is converted in each call: a kept copy of a GPU's weight cannot be compared with the weight without waiting."""

    name = "last"
    origin = "cudnn"
    timed = False

    def valid(self, sizes: Mapping[str, int]) -> bool:
        return not self.problem.last and super().valid(sizes)

    def cost(self, sizes: Mapping[str, int]) -> float:
        """That of eager's call and of its own launches, so that only measurements choose it."""
        return super().cost(sizes) + CONVERSIONS * Target.of(self.target).facts.launch_seconds

    def run(self, given: Operands) -> None:
        images = given.x.contiguous(memory_format=LAST[self.problem.spatial])
        result = torch.empty_like(given.out, memory_format=LAST[self.problem.spatial])
        self.cudnn(Operands(images, given.w, None, result), self.timed)
        if given.b is None:
            given.out.copy_(result)
        else:
            torch.add(result, given.b.view(-1, *[1] * self.problem.spatial), out=given.out)


class TimedChannelsLastConvolution(ChannelsLastConvolution):
    """The fastest of cuDNN's kernels for such images, by its own timing."""

    name = "last timed"
    timed = True

    @property
    def per_size(self) -> bool:
        return True

    def cost(self, sizes: Mapping[str, int]) -> float:
        return super().cost(sizes) + FIND_SECONDS


def candidates(problem: ConvolutionProblem, target: torch.device) -> tuple[Candidate, ...]:
    """The candidates in canonical order."""
    kinds = Convolution, TimedConvolution, ChannelsLastConvolution, TimedChannelsLastConvolution
    return tuple(kind(problem, target) for kind in kinds)
