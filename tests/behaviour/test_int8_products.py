"""Products of int8 on a CPU through the whole compiler: every kind of candidate, plain and with a dequantising epilogue."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.out_dtype import out_dtype

import polytile
from polytile.matmul import cpp as gemm
from polytile.runtime import toolchain
from tests.behaviour.helpers import compiled, decisions, multikernels

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
SIZES = ((1, 64, 9), (5, 7, 33), (17, 300, 70), (70, 129, 64))


def product(x: Tensor, w: Tensor) -> Tensor:
    return torch._int_mm(x, w)


def dequantised(x: Tensor, w: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(torch._int_mm(x, w).float() * scale + bias)


def bytes_of(*shape: int) -> Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8)


def generated(b_layout: str, threads: int = 1) -> list[str]:
    """Names of the candidates for this machine's vectors."""
    spec = gemm.GemmSpec("int8", "k", b_layout, out_dtype="int32")
    return [f"{config} t{threads}" for config in gemm.configs(spec, toolchain.find().lanes)]


CASES = [(name, b_layout) for b_layout in ("n", "k") for name in ("aten", *generated(b_layout))]


@pytest.mark.parametrize(("wanted", "b_layout"), CASES)
def test_every_candidate_is_as_eager(wanted: str, b_layout: str) -> None:
    torch.manual_seed(0)
    plain, fused = compiled(product, force=wanted), compiled(dequantised, force=wanted)
    for m, k, n in SIZES:
        x, w = bytes_of(m, k), bytes_of(n, k).t() if b_layout == "k" else bytes_of(k, n)
        scale, bias = torch.rand(n) / 100, torch.randn(n)
        assert torch.equal(plain(x, w), product(x, w))
        torch.testing.assert_close(fused(x, w, scale, bias), dequantised(x, w, scale, bias))
    forced = [d.candidate for d in decisions() if d.link == "forced"]
    assert wanted in forced and set(forced) == {wanted}


def test_generated_candidates_stand_beside_the_library_s() -> None:
    compiled(dequantised)(bytes_of(20, 200), bytes_of(200, 30), torch.rand(30), torch.rand(30))
    (kernel,) = [kernel for kernel in multikernels() if "int_mm" in kernel.spec.name]
    assert {candidate.origin for candidate in kernel.candidates} == {"library", "cpp"}


def test_sums_of_65536_products_of_the_least_numbers_are_exact() -> None:
    call = compiled(product, tune="off")
    for rows, columns in ((1, 20), (3, 20), (20, 3)):
        x, w = torch.full((rows, 1 << 16), -128, dtype=torch.int8), torch.full((1 << 16, columns), -128, dtype=torch.int8)
        assert (call(x, w) == 1 << 30).all()
        assert (call(x, w + 255) == -128 * 127 << 16).all()


def shifted(x: Tensor, w: Tensor) -> Tensor:
    sums = torch._int_mm((x.to(torch.int32) + 128).to(torch.uint8), w)
    return sums.sub_(w.sum(dim=0, keepdim=True, dtype=torch.int32) * 128)


def left_shifted(x: Tensor, w: Tensor) -> Tensor:
    return torch._int_mm((x.to(torch.int32) + 128).to(torch.uint8), w) - 128


def test_products_of_what_was_shifted_to_uint8_are_products_of_int8() -> None:
    call = compiled(shifted, tune="off")
    for m, k, n in ((5, 64, 9), (17, 300, 70)):
        x, w = bytes_of(m, k), bytes_of(k, n)
        assert torch.equal(call(x, w), (x.long() @ w.long()).int())
    rows = {row.operator: row.how for row in polytile.explain(call, x, w).operators}
    assert rows["aten._int_mm.default"] == "template" and not any("sum" in operator for operator in rows)


def test_other_products_of_uint8_are_the_library_s() -> None:
    call, x, w = compiled(left_shifted), bytes_of(17, 64), bytes_of(64, 32)
    assert torch.equal(call(x, w), ((x.long() + 128) @ w.long() - 128).int())


def test_mm_of_int8_in_int32_is_a_product_of_int8() -> None:
    call = compiled(lambda x, w: out_dtype(torch.ops.aten.mm.default, torch.int32, x, w), tune="off")
    for m, k, n in ((3, 65, 9), (17, 30, 70)):
        x, w = bytes_of(m, k), bytes_of(k, n)
        assert torch.equal(call(x, w), (x.long() @ w.long()).int())
    assert {row.how for row in polytile.explain(call, x, w).operators} == {"template"}


def strided(x: Tensor, how: str) -> Tensor:
    """`x` with the same elements in other memory."""
    rows, columns = x.shape
    match how:
        case "one byte off":
            return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(rows, columns)
        case "every other column":
            return x.repeat_interleave(2, dim=1)[:, ::2]
        case "rows apart by an odd number":
            return torch.cat([x, x.new_zeros(rows, 1 + columns % 2)], 1)[:, :columns]
        case "columns in memory":
            return x.t().contiguous().t()
        case _:
            return x


HOW = ("one byte off", "every other column", "rows apart by an odd number", "columns in memory", "as it is")
TARGETS = [
    pytest.param({}, id="cpu"),
    pytest.param({"interpret": True, "sources": "triton"}, id="interpreted", marks=needs_triton),
]


@pytest.mark.parametrize("options", TARGETS)
def test_operands_of_any_alignment_strides_and_sizes(options: dict[str, Any]) -> None:
    """One program: K that nothing divides, memory where no block is aligned, results without elements."""
    torch.manual_seed(0)
    call = compiled(product, tune="off", **options)
    for m, k, n in ((5, 64, 9), (17, 33, 70), (0, 33, 70), (17, 33, 0), (5, 0, 9)):
        for left, right in zip(HOW, HOW[1:] + HOW[:1], strict=True):
            x, w = strided(bytes_of(m, k), left), strided(bytes_of(k, n), right)
            got = call(x, w)
            assert (got.dtype, got.shape) == (torch.int32, (m, n))
            assert torch.equal(got, (x.long() @ w.long()).int()), (m, k, n, left, right)
    assert all(row.how == "template" for row in polytile.explain(call, bytes_of(17, 33), bytes_of(33, 70)).operators)
