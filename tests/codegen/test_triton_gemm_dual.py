"""Two products in one kernel: its sums go on where the first product's end."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import polytile
from polytile import options
from polytile.candidates import products as templates
from polytile.candidates.library.matmul import DualMatmulLibrary
from polytile.candidates.products import gpu_candidates
from polytile.candidates.triton import WORKER, job_of, triton_version
from polytile.matmul import gemm_args
from polytile.matmul.gemm_kernel import GemmKernel
from polytile.matmul.triton.operands import EVEN_K, EVEN_L
from polytile.matmul.triton.schedules import generate
from polytile.matmul.triton.unit import Chip
from polytile.runtime.cuda import cubins, device, workers
from polytile.schedule.canonical import TensorArg
from polytile.schedule.facts import Facts
from tests.codegen.triton_gemm import facts_of, interpreted, matrix, product, small

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")

CPU, F32, BF16 = torch.device("cpu"), torch.float32, torch.bfloat16
H100 = device.named("H100")


def pair(dtype: torch.dtype, a: str = "k", b: str = "n", p: str = "k", q: str = "n", batched: bool = False) -> GemmKernel:
    one = product(dtype, a, b, batched)
    extra = TensorArg("P", dtype, "in"), TensorArg("Q", dtype, "in")
    return replace(one, tensors=(*one.tensors[:2], *extra, *one.tensors[2:]), second=(p, q))


def arguments(kernel: GemmKernel, batch: int, m: int, n: int, k: int, length: int) -> tuple[object, ...]:
    rows, columns = {"k": "columns", "m": "rows", "any": "any"}, {"n": "columns", "k": "rows", "any": "any"}
    assert kernel.second is not None
    dtype = kernel.in_dtype
    left, right = ((k, kernel.spec.a_layout), (length, kernel.second[0])), ((k, kernel.spec.b_layout), (length, kernel.second[1]))
    x, v = (matrix(batch, m, depth, rows[layout], dtype) for depth, layout in left)
    y, w = (matrix(batch, depth, n, columns[layout], dtype) for depth, layout in right)
    c = torch.full((batch, m, n), float("nan"), dtype=dtype)
    ints = (batch, m, n, k, *x.stride(), *y.stride(), *c.stride(), length, *v.stride(), *w.stride())
    return x, y, v, w, c, *ints


@pytest.mark.parametrize("layouts", [("k", "n", "k", "n"), ("k", "k", "m", "n"), ("m", "n", "k", "k"), ("any", "k", "k", "any")])
@pytest.mark.parametrize("batched", [False, True])
def test_both_products_are_added_up(layouts: tuple[str, str, str, str], batched: bool) -> None:
    kernel = pair(F32, *layouts, batched=batched)
    for m, n, k, length in ((33, 40, 48, 16), (5, 7, 3, 50), (16, 32, 64, 64)):
        args = arguments(kernel, 2 if batched else 1, m, n, k, length)
        interpreted(kernel, small("tile"), args)
        x, y, v, w, c = (tensor for tensor in args[:5] if isinstance(tensor, torch.Tensor))
        torch.testing.assert_close(c.double(), x.double() @ y.double() + v.double() @ w.double(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_reference_library_and_made_arguments_agree(dtype: torch.dtype) -> None:
    kernel = pair(dtype, "k", "k", "m", "n")
    sizes = {"M": 5, "N": 7, "K": 9, "L": 3}
    args = gemm_args.make_args(kernel, sizes)
    assert len(args) == len(kernel.tensors) + len(kernel.size_names)
    results = []
    for run in (templates.reference(kernel), DualMatmulLibrary(kernel, None, CPU).entry().call):
        own = [*args]
        own[4] = torch.zeros_like(args[4])
        run(*own)
        results.append(own[4])
    torch.testing.assert_close(*results, rtol=2e-2 if dtype == BF16 else 1e-5, atol=1e-2 if dtype == BF16 else 1e-5)


def test_candidates_are_whole_blocks_and_the_library() -> None:
    kernel = pair(BF16)
    found = gpu_candidates(kernel, "mm", CPU, None, ("triton", "library", "cublaslt"))
    assert {candidate.name.split()[0] for candidate in found} == {"tile", "aten"}
    assert "tile 64x64x64 s1 w8" in {candidate.name for candidate in found}, "of the table mm_plus_mm alone"
    full = {**kernel.dense_strides({"M": 64, "N": 64, "K": 64, "L": 64}), "M": 64, "N": 64, "K": 64, "L": 64}
    longer = {**full, "L": 4096}
    assert all(candidate.cost(full) < candidate.cost(longer) for candidate in found if candidate.valid(full))


def test_masks_along_both_lengths_follow_the_facts() -> None:
    kernel = pair(BF16)

    def masks(length: int) -> int:
        args = arguments(kernel, 1, 64, 64, 64, length)
        (launch,) = generate(kernel, small("tile"), facts_of(kernel, args), Chip(5)).launches
        return launch.source.count("mask=ks")

    assert (masks(64), masks(65)) == (0, 2)


@pytest.fixture(scope="module")
def compiled() -> Iterator[None]:
    yield
    workers.reset()


def test_two_loops_fit_in_registers_and_shared_memory(compiled: None, empty_cache: Path) -> None:
    kernel = pair(BF16, "k", "k", "k", "k")
    facts = Facts(frozenset(kernel.size_names), frozenset(t.name for t in kernel.tensors), holding=frozenset({EVEN_K, EVEN_L}))
    for m, n, k, stages, warps in ((128, 128, 64, 3, 8), (64, 64, 64, 4, 4), (16, 64, 128, 4, 4)):
        config = small("tile", m=m, n=n, k=k, stages=stages, warps=warps, group=8)
        (launch,) = generate(kernel, config, facts, Chip(H100.sms, overlaps=True)).launches
        found = cubins.request(cubins.Order("pair", WORKER, job_of(launch, 90), triton_version())).result().facts
        assert not found.spills and found.shared <= H100.shared_per_block


def test_a_compiled_sum_of_linear_layers_is_one_kernel_at_every_size() -> None:
    def function(x: torch.Tensor, y: torch.Tensor, v: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.nn.functional.linear(x, y, b) + v @ w)

    with options.override(interpret=True):
        call = polytile.compile(function, options={"persist": False, "sources": "triton", "tune": "off"})
        for m, n, k, length in ((33, 48, 64, 32), (2, 16, 40, 130)):
            args = torch.randn(m, k), torch.randn(n, k), torch.randn(m, length), torch.randn(length, n), torch.randn(n)
            torch.testing.assert_close(call(*args), function(*args), rtol=1e-4, atol=1e-4)
        assert len(polytile.compiler.programs.compiled_programs()[-1].multikernels) == 1
