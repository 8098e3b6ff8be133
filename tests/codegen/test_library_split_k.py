"""A long K taken apart: a batch of the library's products, and their sum."""

from __future__ import annotations

import pytest
import torch

from polytile.candidates.library.split_k import PARTS, SplitKLibrary, candidates
from polytile.candidates.products import gpu_candidates
from polytile.matmul.gemm_kernel import GemmKernel
from tests.codegen.triton_gemm import integers, operands, product

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
F32 = torch.float32


def able(kernel: GemmKernel, target: torch.device, m: int, n: int, k: int, batch: int = 1) -> list[int]:
    sizes = {"batch": batch, "M": m, "N": n, "K": k}
    return [candidate.parts for candidate in candidates(kernel, None, target) if candidate.valid(sizes)]


@pytest.mark.parametrize(("a", "b"), [("k", "n"), ("k", "k"), ("m", "n"), ("m", "k"), ("any", "any")])
@pytest.mark.parametrize("parts", PARTS)
def test_parts_add_up_to_the_product(a: str, b: str, parts: int) -> None:
    kernel = product(F32, a, b)
    x, y, c = operands(kernel, 1, 5, 7, 3 * parts, 2)
    candidate = SplitKLibrary(kernel, None, CPU, parts)
    candidate.entry().call(x, y, c, *integers(x, y, c))
    torch.testing.assert_close(c.double(), x.double() @ y.double(), rtol=1e-5, atol=1e-4)
    made = candidate._product(x, y, True)
    assert made.dtype == F32 and torch.equal(made, c[0])


def test_k_is_taken_apart_where_it_is_long_and_divides() -> None:
    kernel = product(F32)
    assert able(kernel, CPU, 64, 64, 65536) == [4, 16, 64] and able(kernel, CPU, 64, 64, 4096) == [4, 16]
    assert able(kernel, CPU, 64, 64, 65540) == [4] and able(kernel, CPU, 64, 64, 65537) == []
    for without in ((4096, 64, 4096), (0, 64, 65536), (64, 64, 65536, 2)):
        assert able(kernel, CPU, *without) == []
    assert able(kernel, CPU, 2048, 2048, 65536) == [4], "the others' parts would take too much memory"
    assert able(product(torch.bfloat16), GPU, 64, 64, 65536) and not able(product(torch.bfloat16), CPU, 64, 64, 65536)
    assert not able(product(torch.int8, out=torch.int32), GPU, 64, 64, 65536)


def test_more_parts_are_expected_to_pay_where_blocks_are_few_and_k_is_long() -> None:
    found = {c.name: c for c in gpu_candidates(product(F32), "mm", CPU, None, ("library",))}

    def costs(n: int, k: int) -> list[float]:
        sizes = {"batch": 1, "M": n, "N": n, "K": k}
        return [found[f"aten split_k {parts}"].cost({**product(F32).dense_strides(sizes), **sizes}) for parts in PARTS]

    few, many = costs(64, 65536), costs(1024, 16384)
    assert few[2] < few[0] and many[0] < many[2]
