"""The MultiKernels of convolutions on a GPU."""

from __future__ import annotations

from dataclasses import replace

import torch

from polytile.candidates.library.convolution import candidates
from polytile.dispatch.multikernel import MultiKernel
from polytile.dispatch.registry import define
from polytile.dispatch.spec import ArgInfo, KernelSpec
from polytile.problem import digest
from polytile.runtime import regime
from polytile.runtime.chosen_convolution import ChosenConvolution, ConvolutionProblem


def define_convolution(target: ChosenConvolution) -> MultiKernel:
    """The MultiKernel that calls of `target` use from now on, under the options in force; equal problems share one."""
    multikernel = define(convolution_spec(target.problem, target.device), candidates(target.problem, target.device))
    target.kernel = multikernel
    return multikernel


def convolution_spec(problem: ConvolutionProblem, target: torch.device) -> KernelSpec:
    """The spec of a convolution, whose regimes depend on the images' sizes."""
    names = "x", "w", *(("b",) if problem.bias else ())
    spec = KernelSpec(
        name=f"convolution_{digest(problem.text)[:8]}",
        family="convolution",
        kernel=digest(problem.text),
        args=(*(ArgInfo(name, problem.dtype) for name in names), ArgInfo("out", problem.dtype, "out")),
        size_names=problem.size_names,
        size_codes=(regime.BUCKET,) * len(problem.size_names),
        reduction=problem.weight[1:],
        source_ops=("convolution",),
        target=target,
        reference=problem.reference,
        make_args=lambda size: problem.make_args(size, target),
    )
    if target.type != "cuda":
        return spec
    from polytile.runtime.cuda.device import fingerprint

    return replace(spec, device=fingerprint(target.index or 0))
