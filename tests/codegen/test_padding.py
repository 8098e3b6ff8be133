"""The library on padded operands: the same products, where their rows are not 16 bytes apart."""

from __future__ import annotations

import pytest
import torch

from polytile.candidates.library.padding import PaddedLibrary
from polytile.candidates.products import gpu_candidates
from polytile.matmul.gemm_args import make_args
from polytile.matmul.gemm_kernel import GemmKernel
from tests.codegen.triton_gemm import integers, operands, product

CPU = torch.device("cpu")
BF16 = torch.bfloat16


def at(kernel: GemmKernel, ints: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(kernel.size_names, ints, strict=True))


@pytest.mark.parametrize(("a", "b"), [("k", "n"), ("k", "k"), ("m", "n"), ("m", "k"), ("any", "any")])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("dtype", [BF16, torch.float16])
def test_padded_products_are_those_of_the_operands(a: str, b: str, batched: bool, dtype: torch.dtype) -> None:
    kernel = product(dtype, a, b, batched=batched)
    candidate = PaddedLibrary(kernel, None, CPU)
    for batch, m, n, k, pad in ((3 if batched else 1, 5, 7, 9, 0), (2 if batched else 1, 16, 33, 30, 3), (1, 1, 1, 1, 0)):
        x, y, c = operands(kernel, batch, m, n, k, pad)
        candidate.entry().call(x, y, c, *integers(x, y, c))
        torch.testing.assert_close(c.double(), x.double() @ y.double(), rtol=2e-2, atol=5e-2)
        made = candidate._product(x, y, not batched)
        assert made.is_contiguous() and torch.equal(made.reshape(c.shape), c)


def test_what_lies_behind_the_operands_does_not_matter() -> None:
    kernel = product(BF16)
    x, y, c = operands(kernel, 1, 5, 7, 9)
    held = torch.full((1, 5, 16), float("nan"), dtype=BF16)
    held[:, :, :9] = x
    x = held[:, :, :9]
    PaddedLibrary(kernel, None, CPU).entry().call(x, y, c, *integers(x, y, c))
    torch.testing.assert_close(c.double(), x.double() @ y.double(), rtol=2e-2, atol=5e-2)


def test_padding_takes_part_where_rows_are_not_aligned() -> None:
    kernel = product(BF16)
    candidate = PaddedLibrary(kernel, None, CPU)

    def able(m: int, n: int, k: int, pad: int = 0) -> bool:
        x, y, c = operands(kernel, 1, m, n, k, pad)
        return candidate.valid(at(kernel, integers(x, y, c)))

    assert able(64, 64, 61) and able(64, 61, 64) and able(64, 64, 64, pad=1)
    assert not able(61, 64, 64) and not able(64, 64, 56) and not able(0, 61, 61) and not able(5, 61, 0)
    assert not PaddedLibrary(product(torch.float32), None, CPU).valid({"batch": 1, "M": 64, "N": 61, "K": 61})


def test_a_large_odd_product_is_expected_to_gain_by_padding_and_a_small_one_to_lose() -> None:
    kernel = product(BF16)
    found = {c.name: c for c in gpu_candidates(kernel, "mm", CPU, None, ("library",))}

    def faster(m: int, n: int, k: int) -> bool:
        size = at(kernel, tuple(make_args(kernel, {"batch": 1, "M": m, "N": n, "K": k})[3:]))
        return found["aten padded"].cost(size) < found["aten"].cost(size)

    assert faster(2146, 2323, 963) and not faster(13, 57, 33)
