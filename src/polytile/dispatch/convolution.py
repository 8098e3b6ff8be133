"""The MultiKernels of convolutions on a GPU, and of their derivatives."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from polytile.candidates.library import convolution, convolution_backward
from polytile.dispatch.multikernel import MultiKernel
from polytile.dispatch.registry import define
from polytile.dispatch.spec import ArgInfo, KernelSpec
from polytile.problem import digest
from polytile.runtime import regime
from polytile.runtime.chosen_convolution import (
    ChosenConvolution,
    ChosenGradients,
    ConvolutionProblem,
    GradientProblem,
)


def define_convolution(target: ChosenConvolution | ChosenGradients) -> MultiKernel:
    """The MultiKernel that calls of `target` use from now on, under the options in force; equal problems share one."""
    device = target.device
    if isinstance(target, ChosenGradients):
        spec, candidates = gradient_spec(target.problem, device), convolution_backward.candidates(target.problem, device)
    else:
        spec, candidates = convolution_spec(target.problem, device), convolution.candidates(target.problem, device)
    target.kernel = define(spec, candidates)
    return target.kernel


def convolution_spec(problem: ConvolutionProblem, target: torch.device) -> KernelSpec:
    """The spec of a convolution, whose regimes depend on the images' sizes."""
    read = "x", "w", *(("b",) if problem.bias else ())
    return _spec(problem, "convolution", read, ("out",), problem.weight[1:], target)


def gradient_spec(problem: GradientProblem, target: torch.device) -> KernelSpec:
    """The spec of a derivative, whose regimes depend on the same sizes."""
    wanted = [name for name, is_wanted in (("grad_x", problem.images), ("grad_w", problem.weight)) if is_wanted]
    terms = problem.size_names if problem.weight else problem.of.weight
    return _spec(problem, "convolution_backward", ("grad", "x", "w"), wanted, terms, target)


def _spec(
    problem: ConvolutionProblem | GradientProblem, family: str, read: Sequence[str], written: Sequence[str],
    terms: tuple[str | int, ...], target: torch.device,
) -> KernelSpec:  # fmt: skip
    """`terms`: the sizes whose product is the number of terms that an element sums."""
    dtype = problem.of.dtype if isinstance(problem, GradientProblem) else problem.dtype
    return KernelSpec(
        name=f"{family}_{digest(problem.text)[:8]}",
        family=family,
        kernel=digest(problem.text),
        args=(*(ArgInfo(name, dtype) for name in read), *(ArgInfo(name, dtype, "out") for name in written)),
        size_names=problem.size_names,
        size_codes=(regime.BUCKET,) * len(problem.size_names),
        reduction=terms,
        source_ops=(family,),
        target=target,
        reference=problem.reference,
        make_args=lambda size: problem.make_args(size, target),
    ).on_its_gpu()
