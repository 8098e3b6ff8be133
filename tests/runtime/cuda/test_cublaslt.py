"""What cuBLASLt proposes as candidates, on a library built by the tests that works on the host's memory."""

from __future__ import annotations

import ctypes
import functools
import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch

from polytile.candidates.library import cublaslt as candidates
from polytile.candidates.library.cublaslt import LtCandidate
from polytile.candidates.library.native import NativeProduct
from polytile.candidates.products import gpu_candidates
from polytile.errors import DeviceError, LaunchFailed
from polytile.matmul.gemm_kernel import GemmKernel
from polytile.problem import Measurement, Outcome, Problem
from polytile.runtime import compile as compiler
from polytile.runtime import launcher
from polytile.runtime.cuda import cublaslt, products
from polytile.runtime.dispatcher import Interface
from polytile.schedule.canonical import TensorArg
from polytile.tuning.run_conditions import with_run_conditions
from tests.codegen.triton_gemm import integers, operands, product
from tests.runtime.cuda.inner import Inner

CPU = torch.device("cpu")
F32 = torch.float32


@functools.cache
def library() -> str:
    source = Path(__file__).with_name("cublaslt_stub.c").read_text()
    return str(compiler.compile_c("stub_cublaslt", source, ("-w",)).result().path)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[ctypes.CDLL]:
    monkeypatch.setattr(cublaslt, "NAMES", (library(),))
    monkeypatch.setattr(cublaslt, "_beside_torch", lambda: iter(()))
    products.reset()
    gc.collect()  # what an exception of an earlier test holds on to is freed by its library
    found = ctypes.CDLL(library())
    for name, value in {"proposals": 4, "asked": 0, "products": 0, "status": 0, "refuses_start": 0, "refused": 0}.items():
        put(found, name, value)
    yield found
    products.reset()


def read(stub: ctypes.CDLL, name: str) -> int:
    return _kind(name).in_dll(stub, f"stub_{name}").value


def put(stub: ctypes.CDLL, name: str, value: int) -> None:
    _kind(name).in_dll(stub, f"stub_{name}").value = value


def _kind(name: str) -> Any:
    return ctypes.c_uint64 if name in ("algorithm", "refused") else ctypes.c_int


def sizes(kernel: GemmKernel, ints: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(kernel.size_names, ints, strict=True))


def run(candidate: NativeProduct, *args: Any) -> None:
    """A call as the dispatch table makes it."""
    count = len(args) - len(candidate.kernel.tensors)
    launcher.new_dispatcher(Interface("product", (0,) * count, lambda key, given: candidate.entry()))(*args)


def call(kernel: GemmKernel, rank: int, *args: Any) -> None:
    run(LtCandidate(kernel, None, CPU, rank), *args)


@pytest.mark.parametrize(("a", "b"), [("k", "n"), ("k", "k"), ("m", "n"), ("m", "k")])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("dtype", [F32, torch.bfloat16, torch.int8])
def test_every_layout_goes_straight_into_the_result(
    stub: ctypes.CDLL, a: str, b: str, batched: bool, dtype: torch.dtype
) -> None:
    kernel = product(dtype, a, b, batched=batched, out=torch.int32 if dtype == torch.int8 else None)
    for batch, m, n, k, pad in ((3 if batched else 1, 5, 7, 9, 2), (2 if batched else 1, 1, 4, 1, 0), (1, 1, 1, 6, 3)):
        x, y, c = operands(kernel, batch, m, n, k, pad)
        put(stub, "products", 0)
        call(kernel, 1, x, y, c, *integers(x, y, c))
        assert read(stub, "products") == 1 and read(stub, "algorithm") == 101
        exact = x.double() @ y.double()
        torch.testing.assert_close(c.double(), exact, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-4)


def test_what_the_library_cannot_describe_is_left_to_aten_and_that_is_told_once(
    stub: ctypes.CDLL, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = product(F32)
    x, y, c = operands(kernel, 1, 5, 7, 9)
    overlapping = torch.randn(9).expand(1, 5, 9)
    empty = torch.randn(1, 5, 0), torch.randn(1, 0, 7)
    for left, right in ((overlapping, y), empty, (x.flip(2).transpose(1, 2).contiguous().transpose(1, 2)[..., ::2], y[:, ::2])):
        call(kernel, 0, left, right, c, *integers(left, right, c))
        torch.testing.assert_close(c, left @ right)
        c.fill_(float("nan"))
    assert read(stub, "asked") <= 1
    caplog.clear()
    candidate = LtCandidate(kernel, None, CPU, 0)
    for _ in range(2):
        run(candidate, overlapping, y, c, *integers(overlapping, y, c))
    assert caplog.text.count("ATen multiplies such operands") == 1
    assert not candidate.valid(sizes(kernel, integers(overlapping, y, c)))
    assert not candidate.valid(sizes(kernel, integers(*empty, c)))


def test_there_are_as_many_candidates_as_proposals(stub: ctypes.CDLL) -> None:
    kernel = product(F32)
    x, y, c = operands(kernel, 1, 5, 7, 9)
    found, at = candidates.candidates(kernel, None, CPU), sizes(kernel, integers(x, y, c))
    assert [candidate.valid(at) for candidate in found] == [True] * 4 + [False] * 2
    assert [candidate.name for candidate in found[:2]] == ["cublaslt 0", "cublaslt 1"]
    costs = [candidate.cost(at) for candidate in found]
    assert costs == sorted(set(costs)) and len({candidate.source_hash for candidate in found}) == len(found)
    assert read(stub, "asked") == 1, "the sizes are asked about once"
    run(found[5], x, y, c, *integers(x, y, c))
    assert read(stub, "algorithm") == 103, "where there are fewer, the last"


def test_only_sums_in_one_order_and_their_own_type_are_asked_for(stub: ctypes.CDLL) -> None:
    kernel = product(F32)
    x, _, c = operands(kernel, 1, 5, 7, 9)
    memory = torch.zeros(64 + 63)
    shifted = memory[1:64].view(1, 9, 7)
    call(kernel, 0, x, shifted, c, *integers(x, shifted, c))
    assert read(stub, "reductions") == 2 and read(stub, "alignment") == 4


def test_the_algorithm_is_recorded(stub: ctypes.CDLL) -> None:
    kernel = product(F32)
    _x, _y, _c = operands(kernel, 1, 5, 7, 9)
    candidate = LtCandidate(kernel, None, CPU, 1)
    problem = Problem("mm", kernel.digest, (("batch", 1), ("M", 5), ("N", 7), ("K", 9)))
    measured = Measurement(problem, candidate.name, candidate.config, candidate.source_hash, Outcome.OK)
    state = dict(with_run_conditions(measured, candidate, 1e-6, ()).state)
    assert state["algorithm"] == "1000 65 0 0 0 0 0 0 0" and "id 101 tile 0" in str(state["algorithm_attributes"])


def test_a_product_for_an_epilogue_goes_to_scratch_memory(stub: ctypes.CDLL) -> None:
    seen = []
    kernel = product(torch.int8, "k", "k", out=torch.int32)
    x, y, _ = operands(kernel, 1, 5, 7, 9)
    bias = torch.ones(7)
    ints = (1, 5, 7, 9, *x.stride(), *y.stride())
    tensors = (*kernel.tensors[:2], TensorArg("e0", F32, "in"))
    size = (sympy.Symbol("n0", integer=True),)
    fused = replace(kernel, spec=replace(kernel.spec, has_epilogue=True), tensors=tensors, symbols=size)
    run(LtCandidate(fused, Inner(lambda *args: seen.append(args)), CPU, 0), x, y, bias, *ints, 4)
    ((made, *rest),) = seen
    assert made.dtype == torch.int32 and torch.equal(made, (x.long() @ y.long()).int())
    assert rest == [bias, 4], "the epilogue's own arguments follow"


def test_the_heuristic_is_asked_once_for_sizes_and_alignments(stub: ctypes.CDLL) -> None:
    kernel = product(F32)
    candidate = LtCandidate(kernel, None, CPU, 1)
    memory = torch.randn(64 + 63)
    aligned, shifted = memory[:63].view(1, 9, 7), memory[1:64].view(1, 9, 7)
    x, _, c = operands(kernel, 1, 5, 7, 9)
    for y, asked in ((aligned, 1), (aligned, 1), (shifted, 2), (shifted, 2), (aligned, 2)):
        run(candidate, x, y, c, *integers(x, y, c))
        torch.testing.assert_close(c, x @ y)
        products.proposals.cache_clear()
        assert read(stub, "asked") == asked


@pytest.mark.parametrize(("rank", "ran"), [(0, [100, 100, 100, 100]), (2, [102, 100, 102, 100])])
def test_a_proposal_that_was_the_fastest_at_some_sizes_runs_at_these_alone(stub: ctypes.CDLL, rank: int, ran: list[int]) -> None:
    kernel = product(F32)
    timed = LtCandidate(kernel, None, CPU, rank)
    settled = timed.pinned_to({"batch": 1, "M": 5, "N": 7, "K": 9})
    assert (settled.name, settled.source_hash) == (timed.name, timed.source_hash)
    found = []
    for m, n, k in ((5, 7, 9), (6, 7, 9), (5, 7, 9), (5, 7, 8)):
        x, y, c = operands(kernel, 1, m, n, k)
        run(settled, x, y, c, *integers(x, y, c))
        torch.testing.assert_close(c, x @ y)
        found.append(read(stub, "algorithm"))
    assert found == ran


def test_an_algorithm_refused_later_gives_way_to_the_next_and_that_is_told_once(
    stub: ctypes.CDLL, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = product(F32)
    candidate = LtCandidate(kernel, None, CPU, 1)
    ran = []
    for refused, m in ((0, 5), (101, 5), (101, 6), (102, 6)):
        x, y, c = operands(kernel, 1, m, 7, 9)
        put(stub, "refused", refused)
        run(candidate, x, y, c, *integers(x, y, c))
        torch.testing.assert_close(c, x @ y)
        ran.append(read(stub, "algorithm"))
    assert ran == [101, 101, 102, 103], "ATen takes the call in which the first is refused"
    assert caplog.text.count("goes on with the next proposal: cuBLASLt refused to multiply with one") == 1
    put(stub, "status", 13)
    run(candidate, x, y, c, *integers(x, y, c))
    torch.testing.assert_close(c, x @ y)
    assert "ATen multiplies such operands" in caplog.text


def test_a_refusal_in_the_first_call_is_an_error(stub: ctypes.CDLL) -> None:
    kernel = product(F32)
    x, y, c = operands(kernel, 1, 5, 7, 9)
    put(stub, "status", 13)
    with pytest.raises(LaunchFailed, match="cuBLASLt refused to multiply: status 13"):
        call(kernel, 0, x, y, c, *integers(x, y, c))


def test_descriptors_are_freed_with_their_candidate(stub: ctypes.CDLL) -> None:
    kernel = product(F32)
    x, y, c = operands(kernel, 1, 5, 7, 9)
    before, candidate = read(stub, "alive"), LtCandidate(kernel, None, CPU, 0)
    run(candidate, x, y, c, *integers(x, y, c))
    assert read(stub, "alive") == before + 4
    del candidate
    gc.collect()
    assert read(stub, "alive") == before


def test_a_machine_without_the_library_says_so(
    stub: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kernel = product(F32)
    put(stub, "refuses_start", 1)
    x, y, c = operands(kernel, 1, 5, 7, 9)
    assert not LtCandidate(kernel, None, CPU, 0).valid(sizes(kernel, integers(x, y, c)))
    assert "cuBLASLt refused to start" in caplog.text
    monkeypatch.setattr(cublaslt, "NAMES", ("libnothing.so",))
    products.reset()
    with pytest.raises(DeviceError, match="cuBLASLt cannot be used .*libnothing.so"):
        candidates.candidates(kernel, None, CPU)
    monkeypatch.setattr("polytile.candidates.triton_matmul.gemm_candidates", lambda *_: ())
    found = gpu_candidates(kernel, "mm_0", torch.device("cuda", 0), None, ("library", "cublaslt"))
    assert {candidate.origin for candidate in found} == {"library", "padding", "split_k"}
    assert "mm_0 has no candidates of cuBLASLt" in caplog.text
