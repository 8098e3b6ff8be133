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

from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch

from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import PythonEntry
from polytile.cost.roofline import PLAIN_FLOPS, tensor_flops
from polytile.problem import Config, digest
from polytile.runtime.chosen_convolution import LAST, ConvolutionProblem, GradientProblem, Operands
from polytile.runtime.target import Target

aten = torch.ops.aten

FIND_SECONDS = 0.2
"""Seconds that cuDNN takes to build and time its kernels for new sizes."""

SHARE = 0.4
"""Share of the peak that cuDNN's kernels are taken to reach."""

MOST_SIZES = 1024
"""Number of image sizes for which eager's choice of a kernel is kept."""


class LibraryConvolution(Candidate):
    """One of the library's ways to compute a convolution or its derivative. A subclass sets `forward` and calls the library."""

    config = Config()
    family: str
    conversions: int
    """Launches that convert what a call reads and writes to channels-last, and back."""
    forward: ConvolutionProblem

    def __init__(self, problem: ConvolutionProblem | GradientProblem, target: torch.device, last: bool, timed: bool) -> None:
        self.target, self.last, self.timed, self._text = target, last, timed, problem.text
        self.name = " ".join(["last"] * last + ["timed"] * timed) or "library"
        self.origin = "cudnn" if last or timed else "library"

    @cached_property
    def source_hash(self) -> str:
        return digest(f"{self.family} {self.name} {torch.__version__} {torch.backends.cudnn.version()} {self._text}")

    @property
    def per_size(self) -> bool:
        """The cost of timed kernels is that of the first call at a size, in which cuDNN times them."""
        return self.timed

    def valid(self, sizes: Mapping[str, int]) -> bool:
        given = [sizes[name] for name in self.forward.size_names]
        return not (self.last and self.forward.last) and all(n > 0 for n in self.forward.extents(given))

    @abstractmethod
    def eager_cost(self, sizes: Mapping[str, int]) -> float:
        """Predicted seconds of eager's call."""

    def cost(self, sizes: Mapping[str, int]) -> float:
        """That of eager's call and of the candidate's own launches, so that only measurements choose a conversion."""
        converting = self.last * self.conversions * Target.of(self.target).facts.launch_seconds
        return self.eager_cost(sizes) + self.timed * FIND_SECONDS + converting

    def entry(self) -> PythonEntry:
        return PythonEntry(self._call, recordable=True)

    @abstractmethod
    def _call(self, *args: Any) -> None: ...


class Convolution(LibraryConvolution):
    """Eager's own call, into memory that the caller gives, or cuDNN's kernel on images as they are or converted."""

    family = "convolution"
    conversions = 3  # of images, weight and result

    def __init__(self, problem: ConvolutionProblem, target: torch.device, last: bool = False, timed: bool = False) -> None:
        super().__init__(problem, target, last, timed)
        self.problem = self.forward = problem
        self._backends: dict[torch.Size, str] = {}

    def eager_cost(self, sizes: Mapping[str, int]) -> float:
        """A roofline. Images in planes go through memory three times, as cuDNN converts them and the result."""
        (products, moved), facts = self.problem.work(sizes), Target.of(self.target).facts
        tensor_cores = self.problem.groups == 1 and (self.problem.tf32 or self.problem.dtype.itemsize == 2)
        rate = tensor_flops(facts, self.problem.dtype.itemsize) if tensor_cores else PLAIN_FLOPS
        passes = 1 if self.problem.last else 3
        seconds = max(2 * products / (rate * facts.sms * facts.clock * SHARE), passes * moved / facts.bandwidth)
        return float(facts.launch_seconds + seconds)

    def _call(self, *args: Any) -> None:
        given = self.problem.operands(args)
        if self.last:
            self._converted(given)
        elif self.timed:
            self._cudnn(given)
        else:
            self._as_eager(given)

    def _as_eager(self, given: Operands) -> None:
        """Writes the result, and copies it only where the library has no form of eager's kernel that takes memory."""
        backend = self._backend(given)
        if backend == "Cudnn":
            self._cudnn(given)
        elif backend == "CudaDepthwise2d":
            over = self.problem.stride, self.problem.padding, self.problem.dilation
            aten._conv_depthwise2d.out(given.x.contiguous(), given.w, self.problem.weight[2:], given.b, *over, out=given.out)
        else:
            given.out.copy_(self.problem.eager(given))

    def _converted(self, given: Operands) -> None:
        """On channels-last images, which cuDNN's vectors of channels and tensor cores read in place. The weight is converted in
        each call: a kept copy of a GPU's weight cannot be compared with the weight without waiting."""
        images = given.x.contiguous(memory_format=LAST[self.problem.spatial])
        result = torch.empty_like(given.out, memory_format=LAST[self.problem.spatial])
        self._cudnn(Operands(images, given.w, None, result))
        if given.b is None:
            given.out.copy_(result)
        else:
            torch.add(result, given.b.view(-1, *[1] * self.problem.spatial), out=given.out)

    def _cudnn(self, given: Operands) -> None:
        """cuDNN's kernel in the layout of the result, then the bias, as eager has both."""
        problem, switches = self.problem, torch.backends.cudnn
        deterministic = self.timed or switches.deterministic or torch.are_deterministic_algorithms_enabled()
        tf32 = switches.conv.fp32_precision == "tf32"  # type: ignore[attr-defined]
        flags = self.timed or switches.benchmark, deterministic, tf32
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
            selected: Any = torch._C._select_conv_backend(given.x, given.w, given.b, *over, False, none, self.problem.groups)
            known = self._backends[given.x.shape] = selected.name
        return known


WAYS = (False, False), (False, True), (True, False), (True, True)
"""Whether images are converted, and whether kernels are timed, in canonical order."""


def candidates(problem: ConvolutionProblem, target: torch.device) -> tuple[Candidate, ...]:
    """The candidates in canonical order."""
    return tuple(Convolution(problem, target, *way) for way in WAYS)
