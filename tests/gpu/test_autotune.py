"""polytile.autotune and polytile.kernel on a GPU: launches that are known at once, graphs, compiled functions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import polytile

pytestmark = pytest.mark.gpu


@triton.jit
def scale(src, dst, N, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dst + at, tl.load(src + at, at < N) * factor, at < N)


CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block, warps in ((64, 2), (256, 4), (1024, 8))]


def tuned() -> Any:
    return polytile.autotune(CONFIGS, ["N"], options={"persist": False})(scale)


def grid(meta: dict[str, Any]) -> tuple[int]:
    return (-(-meta["N"] // meta["BLOCK"]),)


def test_launches_known_at_once_compute_the_same() -> None:
    kernel = tuned()
    kinds = (1000, 0, torch.float32), (1024, 0, torch.float32), (1000, 1, torch.float32), (70_000, 0, torch.float16)
    for n, offset, dtype in kinds:
        src = torch.randn(n + offset, device="cuda").to(dtype)[offset:]
        for factor in (2.0, 3.0, 4.0):
            dst = torch.full_like(src, torch.nan)
            kernel[grid](src, dst, n, factor)
            torch.testing.assert_close(dst, src * factor)
    assert len(kernel.quick.routes) == 4
    assert all(route.forms for route in kernel.quick.routes.values())


def test_a_graph_records_a_launch_that_is_known() -> None:
    kernel = tuned()
    src, dst = torch.randn(5000, device="cuda"), torch.empty(5000, device="cuda")
    for _ in range(3):
        kernel[grid](src, dst, 5000, 2.0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel[grid](src, dst, 5000, 2.0)
    src.normal_()
    graph.replay()
    torch.testing.assert_close(dst, src * 2)


def test_launches_follow_the_current_stream() -> None:
    kernel = tuned()
    src, dst = torch.randn(5000, device="cuda"), torch.empty(5000, device="cuda")
    for _ in range(3):
        kernel[grid](src, dst, 5000, 2.0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        src.fill_(3.0)
        kernel[grid](src, dst, 5000, 2.0)
    side.synchronize()
    assert bool((dst == 6.0).all())


def test_a_users_kernel_is_one_operator_of_a_compiled_function_with_its_gradient() -> None:
    @polytile.kernel("x[..., N] -> y[..., N]", options={"persist": False})
    def doubled(x: Any, y: Any, batch: int, n: int, *, factor: float = 2.0) -> None:
        y.copy_(x * factor)

    doubled.implementation(lambda x, y, batch, n, factor: torch.mul(x, factor, out=y), name="at once")
    doubled.gradient(lambda grad_y, factor: grad_y * factor)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        doubled(x + 1, y, factor=3.0)
        return y.square()

    compiled = torch.compile(function, backend="polytile", dynamic=True, fullgraph=True)
    for rows in (5, 9):
        x = torch.randn(rows, 64, device="cuda", requires_grad=True)
        result = compiled(x)
        torch.testing.assert_close(result, (3 * (x + 1)).square())
        result.sum().backward()
        torch.testing.assert_close(x.grad, 18 * (x.detach() + 1))


@pytest.mark.parametrize("name", ["crashing", "hanging"])
def test_a_config_with_a_fault_ends_a_worker_and_the_others_run(name: str, empty_cache: Any) -> None:
    from tests.autotuner import planted

    kernel = getattr(planted, name)
    planted.call(kernel, device="cuda")
    planted.call(kernel, 3000, device="cuda")
    assert float(torch.ones(1000, device="cuda").sum()) == 1000.0, "the user's context is whole"
    tuner = getattr(kernel, "fn", kernel) if name == "crashing" else kernel
    (first, *_) = tuner.decisions
    notes = {one.candidate: one.note for one in first.standings}
    assert [bool(note) for note in notes.values()].count(True) == 1, notes


@pytest.mark.parametrize("name", ["matmul", "attention", "layer_norm", "rotary", "paged_cache", "fused_experts"])
def test_a_public_kernel_runs_with_the_import_changed(name: str, tmp_path: Any) -> None:
    from benchmarks.gpu.public import loaded

    torch.manual_seed(0)
    run, right = loaded(name, tmp_path).make(1, "cuda", torch.float32)
    expected = [each.float() for each in right()]
    for _ in range(2):
        torch.testing.assert_close(list(run()), expected, rtol=2e-2, atol=2e-2 * max(1.0, float(expected[0].abs().max())))
