"""Convolutions that are products where kernels are generated for a GPU. Programs run in the reference interpreter."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from polytile import options
from polytile.ir.template import Template
from tests.frontend.lowering import check, library_calls, lower


@pytest.fixture(autouse=True)
def as_on_a_gpu() -> Iterator[None]:
    with options.override(interpret=True):
        yield


def images(*shape: int, last: bool) -> Tensor:
    x = torch.randn(*shape)
    return x.contiguous(memory_format=torch.channels_last) if last else x


@pytest.mark.parametrize("last", [False, True], ids=["planes", "channels last"])
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
def test_windows_of_one_point_are_a_product(last: bool, with_bias: bool) -> None:
    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return F.relu(F.conv2d(x, weight, bias if with_bias else None))

    program = check(function, images(3, 8, 5, 7, last=last), torch.randn(6, 8, 1, 1), torch.randn(6))
    (product,) = [operation for operation in program.operations if isinstance(operation, Template)]
    assert (product.a if last else product.b).buffer == program.inputs[0].buffer, "images are read where they lie"


@pytest.mark.parametrize(
    ("shape", "given"),
    [((6, 4, 3, 3), {}), ((6, 4, 1, 1), {"stride": 2}), ((6, 4, 1, 1), {"padding": 1}), ((4, 2, 1, 1), {"groups": 2}),
     ((4, 1, 3, 3), {"groups": 4})],
    ids=str,
)  # fmt: skip
def test_other_convolutions_are_the_library_s(shape: tuple[int, ...], given: dict[str, int]) -> None:
    program = lower(lambda x, weight: F.relu(F.conv2d(x, weight, **given)), torch.randn(2, 4, 9, 8), torch.randn(shape))
    assert library_calls(program) == ["aten.convolution.default"]


def test_images_that_lie_otherwise_are_the_library_s() -> None:
    x = torch.randn(2, 8, 10, 7)[:, :, ::2]
    program = lower(lambda x, weight: F.relu(F.conv2d(x, weight)), x, torch.randn(6, 8, 1, 1))
    assert library_calls(program) == ["aten.convolution.default"]


def test_a_cpu_calls_the_library() -> None:
    with options.override(interpret=False):
        program = lower(lambda x, weight: F.relu(F.conv2d(x, weight)), torch.randn(2, 8, 5, 7), torch.randn(6, 8, 1, 1))
    assert library_calls(program) == ["aten.convolution.default"]


def test_a_convolution_that_nothing_pointwise_follows_is_the_library_s() -> None:
    program = lower(lambda x, weight: F.conv2d(x, weight), torch.randn(2, 8, 5, 7), torch.randn(6, 8, 1, 1))
    assert library_calls(program) == ["aten.convolution.default"]


def test_a_norm_in_float32_follows_a_convolution_in_bfloat16() -> None:
    def function(x: Tensor, weight: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return F.batch_norm(F.conv2d(x, weight), mean, variance)

    given = torch.randn(2, 8, 5, 7), torch.randn(6, 8, 1, 1), torch.randn(6), torch.rand(6)
    assert library_calls(lower(function, *(each.bfloat16() for each in given))) == []
