"""What goes wrong silently with triton.autotune, and does not here: each of these fails with `triton.autotune` in its place."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import polytile

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles where there is a GPU; these run interpreted.")

autotune = functools.partial(polytile.autotune, options={"persist": False})
"""Each test measures for itself."""


def fastest(block: int) -> Callable[[Callable[[], None], tuple[float, ...]], list[float]]:
    """A benchmark by which the config with that BLOCK is the fastest."""

    def bench(call: Callable[[], None], quantiles: tuple[float, ...]) -> list[float]:
        seen.clear()
        call()
        return [1.0 if block in seen else 2.0] * 3

    return bench


seen: set[int] = set()


def grid_of(size: int) -> Callable[[dict[str, Any]], tuple[int]]:
    def grid(meta: dict[str, Any]) -> tuple[int]:
        seen.add(meta["BLOCK"])
        return (triton.cdiv(size, max(32, meta["BLOCK"])),)  # too few programs for BLOCK=16

    return grid


CONFIGS = [triton.Config({"BLOCK": block}) for block in (16, 32, 64)]


@triton.jit
def double(src, dst, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dst + at, tl.load(src + at, at < N) * 2, at < N)


@triton.jit
def increase(src, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(src + at, tl.load(src + at, at < N) + 1, at < N)


@triton.jit
def total(src, out, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out, tl.sum(tl.load(src + at, at < N, 0.0)))


def test_a_config_that_leaves_results_unwritten_is_not_chosen_however_fast() -> None:
    kernel = autotune(CONFIGS, key=["N"], do_bench=fastest(16))(double)
    src = torch.randn(128)
    dst = torch.full((128,), 7.0)
    kernel[grid_of(128)](src, dst, 128)
    assert torch.equal(dst, src * 2)
    (decision,) = kernel.decisions
    assert "wrong result" in str(decision) or any(one.note for one in decision.standings)


def test_the_reference_outvotes_a_majority_that_is_wrong() -> None:
    def right(src: torch.Tensor, dst: torch.Tensor) -> None:
        torch.mul(src, 2, out=dst)

    configs = [triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 16}, num_warps=8), triton.Config({"BLOCK": 32})]
    kernel = autotune(configs, key=["N"], do_bench=fastest(16), reference=right)(double)
    src, dst = torch.randn(128), torch.empty(128)
    kernel[grid_of(128)](src, dst, 128)
    assert torch.equal(dst, src * 2)
    assert kernel.best_config.kwargs["BLOCK"] == 32


def test_a_kernel_that_changes_what_it_reads_needs_no_restore_value() -> None:
    kernel = autotune(CONFIGS[1:], key=["N"])(increase)
    src = torch.zeros(128)
    kernel[grid_of(128)](src, 128)
    assert torch.equal(src, torch.ones(128))


def test_a_kernel_that_adds_to_its_output_needs_no_reset_to_zero() -> None:
    kernel = autotune(CONFIGS[1:], key=["N"])(total)
    src, out = torch.randn(128), torch.zeros(1)
    kernel[grid_of(128)](src, out, 128)
    torch.testing.assert_close(out[0], src.sum())


def test_what_has_to_be_zero_is_zero_after_tuning_too() -> None:
    kernel = autotune(CONFIGS[1:], key=["N"], reset_to_zero=["out"])(total)
    src, out = torch.randn(128), torch.full((1,), 3.0)
    kernel[grid_of(128)](src, out, 128)
    torch.testing.assert_close(out[0], src.sum())


def test_sizes_of_one_regime_are_tuned_once_and_exact_ones_each() -> None:
    """What was measured at exactly 101 before holds in both."""
    timed = list[int]()

    def bench(call: Callable[[], None], quantiles: tuple[float, ...]) -> list[float]:
        call()
        timed.append(1)
        return [1.0] * 3

    src, dst = torch.randn(128), torch.empty(128)
    for exact, expected in ((False, 2), (True, 4)):
        kernel = autotune(CONFIGS[1:], key=["N"], do_bench=bench, exact=exact)(double)
        timed.clear()
        for size in (101, 103, 117):
            kernel[grid_of(size)](src, dst, size)
            assert torch.equal(dst[:size], src[:size] * 2)
        assert len(timed) == expected


def test_configs_that_raise_are_passed_over_and_all_of_them_are_an_error() -> None:
    broken = [triton.Config({"BLOCK": 33}), triton.Config({"BLOCK": 47})]  # tl.arange takes powers of two
    src, dst = torch.randn(128), torch.empty(128)
    kernel = autotune([*broken, CONFIGS[1]], key=["N"])(double)
    kernel[grid_of(128)](src, dst, 128)
    assert torch.equal(dst, src * 2)
    kernel = autotune(broken, key=["N"])(double)
    with pytest.raises(polytile.errors.NoCandidate, match="double"):
        kernel[grid_of(128)](src, dst, 128)
