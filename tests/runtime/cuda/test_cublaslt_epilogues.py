"""Epilogues that cuBLASLt has itself, on a library built by the tests that works on the host's memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from polytile import options
from polytile.candidates.library.cublaslt import LtCandidate
from polytile.candidates.library.epilogue import library_epilogue
from polytile.matmul.gemm_kernel import GemmKernel
from tests.codegen.test_triton_gemm_prologue import lowered
from tests.codegen.test_triton_gemm_rows import flat
from tests.runtime.cuda.inner import Inner
from tests.runtime.cuda.test_cublaslt import CPU, put, read, run, sizes, stub

__all__ = ["stub"]
T = torch.Tensor


@pytest.fixture(autouse=True)
def on_gpu() -> Iterator[None]:
    """CPU tensors stand for a GPU's."""
    with options.override(interpret=True, persist=False):
        yield


def bias(x: T, w: T, b: T, r: T) -> T:
    return F.linear(x, w, b)


def residual(x: T, w: T, b: T, r: T) -> T:
    return F.linear(x, w) + r


def bias_residual(x: T, w: T, b: T, r: T) -> T:
    return r + F.linear(x, w, b)


def batches(x: T, w: T, b: T, r: T) -> T:
    return torch.bmm(x.expand(2, -1, -1), w.t().expand(2, -1, -1)) + r


def bias_relu(x: T, w: T, b: T, r: T) -> T:
    return F.relu(F.linear(x, w, b))


def twice(x: T, w: T, b: T, r: T) -> T:
    return F.linear(x, w) + r + r.flip(1)


def scaled(x: T, w: T, b: T, r: T) -> T:
    return torch.addmm(r, x, w.t(), alpha=2.0)


def widened(x: T, w: T, b: T, r: T) -> T:
    return (F.linear(x, w) + r).double()


def by_rows(x: T, w: T, b: T, r: T) -> T:
    return F.linear(x, w) + x[:, :1]


WHOLE = {bias: 4, residual: 1, bias_residual: 4, batches: 1}
"""Function → the library's number for what follows the product."""


def arguments(dtype: torch.dtype, m: int = 5, n: int = 8, k: int = 9) -> tuple[T, ...]:
    return tuple(torch.randn(*shape).to(dtype) for shape in ((m, k), (n, k), (n,), (m, n)))


def given(function: Callable[..., T], args: tuple[T, ...]) -> tuple[GemmKernel, list[Any], T]:
    program, template = lowered(function, args)
    kernel, passed, (result,) = flat(program, template, args)
    return kernel, passed, result


@pytest.mark.parametrize("function", WHOLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_library_finishes_what_it_can(stub: ctypes.CDLL, function: Callable[..., T], dtype: torch.dtype) -> None:
    """No second kernel, no product in memory in between: `unfused` would fail."""
    args = arguments(dtype)
    kernel, passed, result = given(function, args)
    candidate = LtCandidate(kernel, Inner(lambda *_: pytest.fail("the epilogue ran apart")), CPU, 1)
    assert candidate.valid(sizes(kernel, tuple(passed[len(kernel.tensors) :]))) and not candidate.second_kernel
    run(candidate, *passed)
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(result, function(*args), **tolerance)
    assert (read(stub, "epilogue"), read(stub, "products"), read(stub, "algorithm")) == (WHOLE[function], 1, 101)


@pytest.mark.parametrize("function", [bias_relu, twice, scaled, widened, by_rows])
def test_other_epilogues_stay_kernels_of_their_own(stub: ctypes.CDLL, function: Callable[..., T]) -> None:
    kernel, passed, _ = given(function, arguments(torch.float32))
    finished = []
    candidate = LtCandidate(kernel, Inner(lambda product, *_: finished.append(product)), CPU, 0)
    run(candidate, *passed)
    assert library_epilogue(kernel) is None and candidate.second_kernel and len(finished) == 1 and read(stub, "epilogue") == 1


def test_an_addend_is_overwritten_in_place(stub: ctypes.CDLL) -> None:
    args = arguments(torch.float32)
    kernel, passed, _ = given(residual, args)
    names = [tensor.name for tensor in kernel.tensors]
    found = library_epilogue(kernel)
    assert found is not None
    passed[names.index(found.out)] = r = passed[names.index(found.addend)].clone()
    passed[names.index(found.addend)] = r
    run(LtCandidate(kernel, None, CPU, 0), *passed)
    torch.testing.assert_close(r, residual(*args))


def test_a_bias_that_16_does_not_divide_is_not_the_librarys(stub: ctypes.CDLL, caplog: pytest.LogCaptureFixture) -> None:
    args = arguments(torch.float32)
    kernel, passed, _ = given(bias, args)
    ends = []
    candidate = LtCandidate(kernel, Inner(lambda product, *rest: ends.append(product)), CPU, 0)
    found = candidate.epilogue
    assert found is not None
    at = [tensor.name for tensor in kernel.tensors].index(found.bias)
    passed[at] = torch.cat([torch.zeros(1), args[2]])[1:]
    run(candidate, *passed)
    (product,) = ends
    torch.testing.assert_close(product.view(5, 8), args[0] @ args[1].t())
    assert read(stub, "products") == 0 and "ATen multiplies such operands" in caplog.text


def test_each_call_has_its_own_bias(stub: ctypes.CDLL) -> None:
    """The library is told of a bias beside the product, in a descriptor that calls share."""
    args = arguments(torch.float32)
    kernel, passed, result = given(bias, args)
    candidate = LtCandidate(kernel, None, CPU, 0)
    found = candidate.epilogue
    assert found is not None
    at = [tensor.name for tensor in kernel.tensors].index(found.bias)
    for shift in (0.0, 3.0, -1.0):
        passed[at] = args[2] + shift
        run(candidate, *passed)
        torch.testing.assert_close(result, bias(*args) + shift)


def test_an_algorithm_refused_later_gives_way_to_the_next(stub: ctypes.CDLL) -> None:
    """ATen and the epilogue's own kernel take the call that it refuses."""
    candidate: LtCandidate | None = None
    apart: list[T] = []
    for refused, m, calls in ((0, 5, 0), (100, 6, 1), (100, 6, 1)):
        args = arguments(torch.float32, m)
        kernel, passed, result = given(bias_residual, args)
        candidate = candidate or LtCandidate(kernel, Inner(lambda product, *_: apart.append(product)), CPU, 0)
        put(stub, "refused", refused)
        before = len(apart)
        run(candidate, *passed)
        assert len(apart) == calls
        if len(apart) > before:
            result.copy_(apart[-1].view(m, 8) + args[2] + args[3])
        torch.testing.assert_close(result, bias_residual(*args))
    assert read(stub, "algorithm") == 101
