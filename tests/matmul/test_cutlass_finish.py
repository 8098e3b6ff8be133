"""Epilogues of CUTLASS's products: their text, what has none, and its values, compiled for the CPU, against eager's."""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from polytile import options
from polytile.errors import LoweringError
from polytile.matmul import gemm_kernel
from polytile.matmul.cutlass import text
from polytile.matmul.cutlass.finish import Epilogue, epilogue
from polytile.matmul.cutlass.numbers import NUMBERS
from polytile.matmul.gemm_kernel import GemmKernel
from polytile.schedule.facts import Facts
from tests.codegen.test_triton_gemm_prologue import lowered

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")

M, N, K = 24, 40, 16
BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn


@pytest.fixture(autouse=True)
def on_gpu() -> Iterator[None]:
    """CPU tensors stand for a GPU's."""
    with options.override(interpret=True, persist=False):
        yield


def dequantised(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch._int_mm(x, w.t()).float() * s)


def requantised(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return (torch._int_mm(x, w.t()).float() * s).round().clamp(-128, 127).to(torch.int8)


def scaled(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch._scaled_mm(x, w.t(), a, b, out_dtype=torch.bfloat16)


def kernel_of(function: Callable[..., Any], *args: torch.Tensor) -> GemmKernel:
    program, template = lowered(function, args)
    return gemm_kernel.canonicalize(template, program.buffers)[0]


def bytes_of(*shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def half(*shape: int) -> torch.Tensor:
    return torch.randn(shape).bfloat16()


def test_scales_of_rows_and_columns_are_read_where_sums_are_stored() -> None:
    kernel = kernel_of(scaled, half(M, K).to(E4M3), half(N, K).to(E4M3), torch.rand(M, 1), torch.rand(1, N))
    assert text.able(kernel)
    assert epilogue(kernel).text("float") == """\
#define EPILOGUE_PARAMETERS Output *e2, const float *__restrict__ e0, const float *__restrict__ e1, long long n1
#define EPILOGUE_ARGUMENTS e2, e0, e1, n1
struct Epilogue {
    static constexpr bool READS = true;
    Output *e2;
    const float *__restrict__ e0;
    const float *__restrict__ e1;
    long long n1;
    CUTLASS_DEVICE Output *row(long long p0, long long p1) const { return e2 + p1*n1; }
    CUTLASS_DEVICE float at(float sum, long long p0, long long p1, long long p2) const
    {
        const float t0 = sum;
        const float t1 = float(e0[p1]);
        const float t2 = t0 * t1;
        const float t3 = float(e1[p2]);
        const float t4 = t2 * t3;
        return t4;
    }
};"""


def test_rows_are_stored_in_vectors_where_each_begins_at_16_bytes() -> None:
    last = epilogue(kernel_of(dequantised, bytes_of(M, K), bytes_of(N, K), torch.rand(N)))
    known = Facts(frozenset(last.symbols), frozenset({last.stored}))
    assert last.vectors(known)
    assert not last.vectors(Facts(known.divisible)) and not last.vectors(Facts(aligned=known.aligned))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, b: F.linear(x, w, b).float().logsumexp(-1),  # a reduction of rows
        lambda x, w, b: F.linear(x, w, b).lgamma(),  # no such function here
        lambda x, w, b: F.linear(x, w, b).t().contiguous(),  # column by column
        lambda x, w, b: F.linear(x, w, b).to(E4M3),
    ],
)
def test_what_has_no_text_is_left_to_other_sources(function: Callable[..., Any]) -> None:
    kernel = kernel_of(function, half(M, K), half(N, K), half(N))
    with pytest.raises(LoweringError):
        epilogue(kernel)
    assert not text.able(kernel)


POINTWISE = {
    "gelu": F.gelu, "gelu by tanh": lambda y: F.gelu(y, approximate="tanh"), "silu": F.silu, "relu": F.relu,
    "clamped": lambda y: y.clamp(-0.5, 0.25), "selected": lambda y: torch.where((y > 0) & (y < 1), y.exp(), -y.abs()),
    "softplus": lambda y: torch.log1p(y.exp()) / (1 + y * y).sqrt(), "infinite": lambda y: torch.where(y > 1, float("-inf"), y),
}  # fmt: skip


@pytest.mark.parametrize("name", POINTWISE)
def test_activations_are_as_eager_s_and_keep_nan(name: str, tmp_path: Path) -> None:
    function = POINTWISE[name]
    kernel = kernel_of(lambda x, w, b: function(F.linear(x, w) + b), torch.randn(M, K), torch.randn(N, K), torch.randn(N))
    sums, bias = torch.randn(M, N) * 2, torch.randn(N)
    sums[0, 0] = float("nan")
    got = computed(kernel, sums, bias, tmp_path)
    torch.testing.assert_close(got, function(sums + bias), rtol=1e-5, atol=1e-6, equal_nan=True)


def test_sums_of_integers_are_scaled_and_rounded_to_bytes(tmp_path: Path) -> None:
    sums, scale = torch.randint(-40000, 40000, (M, N), dtype=torch.int32), torch.rand(N) / 100
    args = bytes_of(M, K), bytes_of(N, K), scale
    torch.testing.assert_close(computed(kernel_of(dequantised, *args), sums, scale, tmp_path), torch.relu(sums.float() * scale))
    expected = (sums.float() * scale).round().clamp(-128, 127).to(torch.int8)
    torch.testing.assert_close(computed(kernel_of(requantised, *args), sums, scale, tmp_path), expected, rtol=0, atol=0)


ON_CPU = """
#include <cmath>
#include <cstdint>
#include <cstring>
#define CUTLASS_DEVICE
static float __int_as_float(unsigned bits) { float value; std::memcpy(&value, &bits, 4); return value; }
"""


def computed(kernel: GemmKernel, sums: torch.Tensor, read: torch.Tensor, folder: Path) -> torch.Tensor:
    """C as the epilogue's text makes it of `sums` and of the one tensor that it reads."""
    last, number = epilogue(kernel), NUMBERS[kernel.in_dtype]
    result = torch.empty(sums.shape, dtype=kernel.outer[-1].dtype)
    library = ctypes.CDLL(str(built(last, number.sums, folder)))
    library.run(*(ctypes.c_void_p(tensor.data_ptr()) for tensor in (sums, result, read)), *sums.shape)
    return result


def built(last: Epilogue, sums: str, folder: Path) -> Path:
    """A library whose function `run` computes every element; rows of C lie next to each other."""
    (read,), stride = last.read, "".join(f", {columns}" for columns in ["n"] * len(last.symbols))
    source = [
        ON_CPU, text.TEXTS["arithmetic"].read_text(), f"using Output = {last.output};", last.text(sums),
        f'extern "C" void run(const {sums} *sums, Output *c, const float *{read}, int m, int n) {{',
        f"    Epilogue epilogue{{c, {read}{stride}}};",
        "    for (int y = 0; y < m; y++)",
        "        for (int x = 0; x < n; x++)",
        "            epilogue.row(0, y)[x] = Output(epilogue.at(sums[y * n + x], 0, y, x));",
        "}",
    ]  # fmt: skip
    text_file, library = folder / "epilogue.cpp", folder / f"{last.kernel.digest}.so"
    text_file.write_text("\n".join(source))
    subprocess.run(["g++", "-std=c++17", "-O1", "-shared", "-fPIC", str(text_file), "-o", str(library)], check=True)
    return library
