"""Mistakes of a kernel's author, and what is said of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import polytile
from polytile.errors import InvalidInput, NoCandidate, SignatureError

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles where there is a GPU; these run interpreted.")
autotune = functools.partial(polytile.autotune, options={"persist": True})
CONFIGS = [triton.Config({"BLOCK": block}) for block in (32, 64, 128)]


@triton.jit
def scaled(src, dst, N, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dst + at, tl.load(src + at, at < N) * factor, at < N)


@triton.jit
def refused(src, dst, N, factor, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK == 3, "blocks of three alone")


@triton.jit
def wrong_once(src, dst, N, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dst + at, tl.load(src + at, at < N) * factor + (1 if BLOCK == 128 else 0), at < N)


def call(kernel: Any, *others: Any, n: int = 300, grid: Any = lambda meta: (triton.cdiv(300, meta["BLOCK"]),)) -> None:
    src, dst = torch.randn(n), torch.empty(n)
    kernel[grid](src, dst, n, *others)
    torch.testing.assert_close(dst, src * 2)


def test_a_key_that_is_no_parameter_is_said_and_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    call(autotune(CONFIGS, key=["M"])(scaled), 2.0)
    assert "names 'M', which is no parameter and is passed over; the kernel has src, dst, N, factor, BLOCK" in caplog.text


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: autotune(CONFIGS, ["N"])(scaled.fn), "put @triton.jit between the two"),
        (lambda: autotune([{"BLOCK": 3}], ["N"])(scaled), "takes a list of triton.Config"),
        (lambda: autotune(CONFIGS, ["N"], reference=lambda x, dst: None)(scaled), "names 'x'; the kernel has src"),
        (lambda: autotune(CONFIGS, ["N"], reference=3)(scaled), "reference= .* takes a function, and was given 3"),
        (lambda: autotune(CONFIGS, ["N"], do_bench=3)(scaled), "do_bench= .* takes a function"),
        (lambda: autotune(CONFIGS, "N")(scaled), "key= .* takes a list of names of its parameters, and was given 'N'"),
        (lambda: autotune(CONFIGS[0], ["N"])(scaled), "configs= .* takes a list of triton.Config"),
        (lambda: autotune(CONFIGS, ["N"], search={"BLOK": [1]})(scaled), "names 'BLOK'; the kernel has src.* num_warps"),
        (lambda: autotune(CONFIGS, ["N"], prune_configs_by={"early": len})(scaled), "takes 'early_config_prune'.* 'early'"),
    ],
)
def test_what_is_no_kernel_config_or_argument_is_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(SignatureError, match=said):
        make()


def test_a_parameter_that_nothing_gives_is_named_and_no_config_is_blamed(empty_cache: Any) -> None:
    mistyped = [triton.Config({"BLOK": 32}), triton.Config({"BLOK": 64})]
    with pytest.raises(InvalidInput, match="launched without 'BLOCK'.* set 'BLOK', which is no parameter"):
        call(autotune(mistyped, key=["N"])(scaled), 2.0)
    kernel = autotune(CONFIGS, key=["N"])(scaled)
    with pytest.raises(InvalidInput, match="launched without 'factor'"):
        call(kernel)
    with pytest.raises(InvalidInput, match="was given 6 arguments"):
        call(kernel, 2.0, 3, 4)
    with pytest.raises(NoCandidate, match="Correct the call"):
        call(kernel, 2.0, grid=(1, "2"))
    call(autotune(CONFIGS, key=["N"])(scaled), 2.0)
    call(kernel, 2.0)
    assert all(not one.note for one in kernel.decisions[0].standings), "none of these calls is on record"


def test_a_kernel_that_always_raises_says_what(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(NoCandidate, match="blocks of three alone"):
        call(autotune(CONFIGS, key=["N"])(refused), 2.0)
    assert "without a check" not in caplog.text


def test_a_config_that_is_wrong_is_named_with_its_error(caplog: pytest.LogCaptureFixture) -> None:
    kernel = autotune(CONFIGS, key=["N"])(wrong_once)
    call(kernel, 2.0)
    assert "Candidate 'BLOCK=128 w4 s3' of kernel 'wrong_once' gives a wrong result" in caplog.text
    assert kernel.best_config.kwargs["BLOCK"] != 128
