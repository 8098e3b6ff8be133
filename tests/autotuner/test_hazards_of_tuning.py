"""What goes wrong with triton.autotune, mostly in silence, and does not here. Each hazard runs with both decorators."""

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


@triton.jit
def powered(src, dst, N, BLOCK: tl.constexpr, SQUARE: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(src + at, at < N)
    if SQUARE:
        x = x * x + (1 if BLOCK == 16 else 0)  # a mistake in one config alone
    tl.store(dst + at, x, at < N)


Decorate = Callable[..., Callable[[Any], Any]]


def times_nothing(call: Callable[[], None], quantiles: tuple[float, ...]) -> list[float]:
    call()
    return [1.0] * 3


def one_output_for_all(decorate: Decorate) -> None:
    """Every config writes the same buffer, so what one of them leaves out is there from another, until the next call."""
    kernel = decorate(CONFIGS, key=["N"], do_bench=fastest(16))(double)
    src = torch.randn(128)
    for _ in range(2):
        dst = torch.full((128,), 7.0)
        kernel[grid_of(128)](src, dst, 128)
        assert torch.equal(dst, src * 2)


def in_place(decorate: Decorate) -> None:
    """Every config changes what the next one reads."""
    src = torch.zeros(128)
    decorate(CONFIGS[1:], key=["N"], do_bench=times_nothing)(increase)[grid_of(128)](src, 128)
    assert torch.equal(src, torch.ones(128))


def added_to(decorate: Decorate) -> None:
    """Every config adds to the same output."""
    src, out = torch.randn(128), torch.zeros(1)
    decorate(CONFIGS[1:], key=["N"], do_bench=times_nothing)(total)[grid_of(128)](src, out, 128)
    torch.testing.assert_close(out[0], src.sum())


def a_hook_hides_reset_to_zero(decorate: Decorate) -> None:
    """Triton zeroes nothing where a `pre_hook` is given as well, and says so nowhere."""
    kernel = decorate(
        CONFIGS[1:], key=["N"], do_bench=times_nothing, reset_to_zero=["out"], pre_hook=lambda given, reset_only=False: None
    )(total)
    src, out = torch.randn(128), torch.full((1,), 3.0)
    kernel[grid_of(128)](src, out, 128)
    torch.testing.assert_close(out[0], src.sum())


def a_config_that_raises(decorate: Decorate) -> None:
    """Errors other than three kinds end the call, though other configs run."""
    src, dst = torch.randn(128), torch.empty(128)
    broken = triton.Config({"BLOCK": 33})  # tl.arange takes powers of two
    decorate([broken, CONFIGS[1]], key=["N"], do_bench=times_nothing)(double)[grid_of(128)](src, dst, 128)
    assert torch.equal(dst, src * 2)


def a_flag_that_the_key_lacks(decorate: Decorate) -> None:
    """What was chosen for one value of a constant serves the others, for which it may be wrong."""
    kernel = decorate(CONFIGS, key=["N"], do_bench=fastest(16))(powered)
    src, dst = torch.randn(32), torch.empty(32)
    for square, right in ((False, src), (True, src * src)):
        kernel[lambda meta: seen.add(meta["BLOCK"]) or (triton.cdiv(32, meta["BLOCK"]),)](src, dst, 32, SQUARE=square)
        torch.testing.assert_close(dst, right)


HAZARDS = [
    one_output_for_all, in_place, added_to, a_hook_hides_reset_to_zero, a_config_that_raises, a_flag_that_the_key_lacks,
]  # fmt: skip


@pytest.mark.parametrize("hazard", HAZARDS)
def test_a_hazard_of_tuning_befalls_tritons_decorator_and_not_this_one(hazard: Callable[[Decorate], None]) -> None:
    with pytest.raises(Exception):  # noqa: B017  # each in its own way
        hazard(triton.autotune)
    hazard(autotune)


def test_the_reference_outvotes_a_majority_that_is_wrong() -> None:
    def right(src: torch.Tensor, dst: torch.Tensor) -> None:
        torch.mul(src, 2, out=dst)

    configs = [triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 16}, num_warps=8), triton.Config({"BLOCK": 32})]
    kernel = autotune(configs, key=["N"], do_bench=fastest(16), reference=right)(double)
    src, dst = torch.randn(128), torch.empty(128)
    kernel[grid_of(128)](src, dst, 128)
    assert torch.equal(dst, src * 2)
    assert kernel.best_config.kwargs["BLOCK"] == 32


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
