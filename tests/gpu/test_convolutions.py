"""Convolutions on a GPU, their images laid out with their channels last where tensor cores take them: results and gradients are
eager's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import polytile
from polytile.candidates.library import convolution_backward
from polytile.candidates.library.convolution import candidates
from polytile.compiler.programs import compiled_programs
from polytile.frontend import layout_cost
from polytile.ir.buffer import View
from polytile.ir.library_call import Ref
from polytile.ir.program import Extern
from polytile.runtime.chosen_convolution import ConvolutionProblem, GradientProblem
from tests.gpu.comparing import agree, compare, compiled, data, with_gradients

pytestmark = pytest.mark.gpu

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def channels_last_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_cost, "DENSE", 100.0)  # as if images in planes were never worth it, however small


def block(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return F.relu(F.conv2d(F.silu(F.conv2d(x, first, padding=1)), second, padding=1) + x)


def arguments(*shape: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    channels = shape[1]
    filters = [data(channels, channels, 3, 3, dtype=dtype) / (3 * channels**0.5) for _ in range(2)]
    return data(*shape, dtype=dtype), *filters


def laid_out_last() -> list[bool]:
    """Of the images that convolutions take: whether their channels are innermost."""
    operations = [op for program in compiled_programs() if program.program is not None for op in program.program.operations]
    calls = [op for op in operations if isinstance(op, Extern) and "convolution" in str(op.target)]
    images = [call.args[0].value for call in calls if isinstance(call.args[0], Ref)]
    return [image.strides[1] == 1 for image in images if isinstance(image, View)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_block_at_many_shapes(dtype: torch.dtype) -> None:
    shapes = ((2, 16, 14, 9), (3, 16, 32, 32), (5, 16, 7, 3))
    compare(block, *[arguments(*shape, dtype=dtype) for shape in shapes], generated=False)
    assert laid_out_last() == [dtype != torch.float32] * 2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients(dtype: torch.dtype) -> None:
    with_gradients(block, *arguments(2, 16, 14, 9, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["planes", "channels last"])
def test_convolutions_that_are_products_and_loops(dtype: torch.dtype, last: bool) -> None:
    """1×1 windows and depthwise ones, of one compile for all sizes."""

    def function(x: Tensor, wide: Tensor, each: Tensor, narrow: Tensor, bias: Tensor) -> Tensor:
        y = F.silu(F.conv2d(x, wide, bias))
        return F.conv2d(F.silu(F.conv2d(y, each, padding=1, stride=2, groups=y.shape[1])), narrow)

    weights = data(48, 16, 1, 1, dtype=dtype) / 4, data(48, 1, 3, 3, dtype=dtype) / 3, data(16, 48, 1, 1, dtype=dtype) / 7
    order = torch.channels_last if last else torch.contiguous_format
    shapes = ((2, 16, 14, 9), (3, 16, 32, 32), (5, 16, 7, 3))
    calls = [(data(*shape, dtype=dtype).contiguous(memory_format=order), *weights, data(48, dtype=dtype)) for shape in shapes]
    compare(function, *calls, generated=False)


CUDA = torch.device("cuda", 0)
PLANES = ConvolutionProblem(torch.bfloat16, (32, 16, 3, 3), (1, 2), (1, 1), (1, 1), 1, True, False)
EACH = ConvolutionProblem(torch.bfloat16, (32, 1, 5, 5), (1, 1), (2, 2), (1, 1), 32, True, False)
VIDEO = ConvolutionProblem(torch.bfloat16, (24, 16, 3, 3, 3), (1, 1, 2), (1, 1, 1), (1, 1, 1), 1, False, False)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("last", [False, True], ids=["planes", "channels last"])
@pytest.mark.parametrize("problem", [PLANES, EACH, VIDEO], ids=["windows", "each", "3-D"])
def test_candidates_are_about_as_exact_as_eager(
    problem: ConvolutionProblem, last: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Float32 that may be rounded to TF32 is not compared: cuDNN's kernels for one layout round it, those for another do not."""
    monkeypatch.setattr(torch.backends.cudnn.conv, "fp32_precision", "ieee")
    problem = replace(problem, dtype=dtype, last=last)
    args = problem.make_args(dict(zip(problem.size_names, (3, 6, 15, 18)[: 1 + problem.spatial], strict=True)), CUDA)
    x, w, b, out = problem.operands(args)
    given = problem.stride, problem.padding, problem.dilation, False, [0] * problem.spatial, problem.groups
    eager = torch.convolution(x, w, b, *given)
    exact = torch.convolution(*(tensor if tensor is None else tensor.double() for tensor in (x, w, b)), *given)
    for candidate in candidates(problem, CUDA):
        if candidate.valid(dict(zip(problem.size_names, args[-1 - problem.spatial :], strict=True))):
            candidate.entry().call(*args)  # type: ignore[union-attr]
            agree(out, eager, exact, candidate.name)
            again = out.clone()
            candidate.entry().call(*args)  # type: ignore[union-attr]
            assert "timed" not in candidate.name or torch.equal(again, out), candidate.name


@pytest.mark.parametrize("last", [False, True], ids=["planes", "channels last"])
@pytest.mark.parametrize("problem", [PLANES, EACH, VIDEO], ids=["windows", "each", "3-D"])
def test_gradients_are_about_as_exact_as_eager_s(problem: ConvolutionProblem, last: bool) -> None:
    made = GradientProblem(replace(problem, last=last, bias=False), True, True, weight_last=last)
    args = made.make_args(dict(zip(made.size_names, (3, 6, 15, 18)[: 1 + problem.spatial], strict=True)), CUDA)
    given = made.operands(args)
    eager = made.eager(given)
    exact = made.eager(given._replace(grad=given.grad.double(), x=given.x.double(), w=given.w.double()))
    for candidate in convolution_backward.candidates(made, CUDA):
        if candidate.valid(dict(zip(made.size_names, args[-1 - problem.spatial :], strict=True))):
            candidate.entry().call(*args)  # type: ignore[union-attr]
            agree(made.operands(args)[3:], eager, exact, candidate.name)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_step_of_training_chooses_both_kernels(dtype: torch.dtype) -> None:
    module = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.SiLU(), nn.Conv2d(32, 32, 5, 2, groups=32), nn.SiLU())
    module = module.to("cuda", dtype)
    call = compiled(module, convolutions="measured")
    for shape in ((2, 16, 14, 9), (3, 16, 32, 32)):
        x = data(*shape, dtype=dtype).requires_grad_()
        leaves = x, *module.parameters()
        got, want = (torch.autograd.grad(run(x).square().sum(), leaves) for run in (call, module))
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other, rtol=3e-2, atol=float(other.abs().max()) * 3e-2)
    families = {kernel.spec.family for program in compiled_programs() for kernel in program.multikernels}
    assert families >= {"convolution", "convolution_backward"}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_layer_chooses_its_kernel_at_each_size(dtype: torch.dtype) -> None:
    module = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.SiLU()).to("cuda", dtype).requires_grad_(False)
    call = compiled(module, convolutions="measured")
    for shape in ((2, 16, 14, 9), (3, 16, 32, 32), (5, 16, 7, 3)):
        x = data(*shape, dtype=dtype)
        agree(call(x), module(x), None, str(shape))
    decided = {row.candidate for row in polytile.explain(call, x).decisions}
    assert decided & {"library", "timed", "last", "last timed"}, decided
