"""polytile.autotune in the place of triton.autotune: what Triton's own tests of its autotuner ask for, under its interpreter."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources

import polytile
from polytile.autotuner.candidate import numbers_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles where there is a GPU; these run interpreted.")
autotune = functools.partial(polytile.autotune, options={"persist": False})
"""Each test measures for itself."""


def bench(call: Callable[[], None], quantiles: tuple[float, ...]) -> list[float]:
    """Times nothing: all configs are alike."""
    call()
    return [1.0, 1.0, 1.0]


def grid_of(size: int, block: str = "BLOCK") -> Callable[[dict[str, Any]], tuple[int]]:
    return lambda meta: (triton.cdiv(size, meta[block]),)


@triton.jit
def copy_rows(dst, src, stride: tl.constexpr, M, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    inside = rows[:, None] < M
    x = tl.load(src + rows[:, None] * stride + columns[None, :], inside)
    tl.store(dst + rows[:, None] * stride + columns[None, :], x, inside)


@triton.jit
def increase(src, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(src + at, tl.load(src + at, at < N) + 1, at < N)


@triton.jit
def copy(dst, src, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dst + at, tl.load(src + at, at < N), at < N)


@triton.jit
def set_ones(src, dst, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ones = tl.full([BLOCK], 1.0, tl.float32)
    if src is not None:
        tl.store(src + at, ones, at < N)
    else:
        tl.store(dst + at, ones, at < N)


BLOCKS = [triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 128})]


def test_arguments_come_by_name_in_any_order_and_each_regime_has_an_entry_in_the_cache() -> None:
    kernel = autotune([triton.Config({"ROWS": 32}), triton.Config({"ROWS": 128})], key=["M"], do_bench=bench)(copy_rows)
    src = torch.randn(128, 16)
    dst = torch.empty_like(src)
    kernel[grid_of(128, "ROWS")](dst, src, 16, 128, 16)
    assert torch.equal(dst, src)
    dst.zero_()
    kernel[grid_of(64, "ROWS")](dst=dst, src=src, M=64, stride=16, WIDTH=16)
    assert torch.equal(dst[:64], src[:64])
    assert not dst[64:].any()
    assert len(kernel.cache) == 2
    assert kernel.best_config in kernel.configs


@pytest.mark.parametrize("by_name", [False, True])
def test_a_restored_argument_is_changed_once(by_name: bool) -> None:
    kernel = autotune(BLOCKS, key=["N"], restore_value=["src"], do_bench=bench)(increase)
    src = torch.zeros(1000)
    launch = kernel[grid_of(1000)]
    launch(src=src, N=1000) if by_name else launch(src, 1000)
    assert torch.equal(src, torch.ones(1000))


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("src_is_none", [False, True])
def test_arguments_to_reset_or_restore_may_be_none(src_is_none: bool, by_name: bool) -> None:
    kernel = autotune(BLOCKS, key=["N"], reset_to_zero=["src"], restore_value=["src"], do_bench=bench)(set_ones)
    dst = torch.full((1000,), 2.0)
    src, launch = None if src_is_none else dst, kernel[grid_of(1000)]
    launch(dst=dst, N=1000, src=src) if by_name else launch(src, dst, 1000)
    assert torch.equal(dst, torch.ones(1000))


def test_hooks_come_in_pairs_and_see_the_exception() -> None:
    open_ones, failures = [0], list[Exception]()

    def before(arguments: dict[str, Any], reset_only: bool = False) -> None:
        assert {"src", "N", "BLOCK", "grid"} <= arguments.keys()
        open_ones[0] += not reset_only

    def after(arguments: dict[str, Any], exception: Exception | None) -> None:
        open_ones[0] -= 1
        failures.extend([exception] if exception else [])

    configs = [*BLOCKS, triton.Config({"BLOCK": 33})]  # tl.arange takes powers of two
    kernel = polytile.autotune(configs, key=["N"], pre_hook=before, post_hook=after, do_bench=bench)(increase)
    kernel[grid_of(1000)](torch.zeros(1000), 1000)
    assert open_ones == [0]
    assert failures


def test_a_config_beyond_the_devices_resources_is_passed_over_and_the_hook_is_told() -> None:
    failures = list[Exception]()

    def after(arguments: dict[str, Any], exception: Exception | None) -> None:
        failures.extend([exception] if exception else [])

    def grid(meta: dict[str, Any]) -> tuple[int]:
        if meta["BLOCK"] == 32:
            raise OutOfResources(4096, 1024, "threads")
        return grid_of(1000)(meta)

    kernel = autotune(BLOCKS, key=["N"], post_hook=after, do_bench=bench)(double)
    src = torch.ones(1000)
    kernel[grid](src, 1000)
    assert torch.equal(src, torch.full([1000], 2.0)) and kernel.best_config == BLOCKS[1]
    assert {str(failure) for failure in failures} == {str(OutOfResources(4096, 1024, "threads"))}


@triton.jit
def double(src, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(src + at, tl.load(src + at, at < N) * 2, at < N)


def test_a_configs_own_hook_runs_before_each_launch() -> None:
    def clear(arguments: dict[str, Any]) -> None:
        arguments["src"].zero_()

    configs = [triton.Config({"BLOCK": 32}, pre_hook=clear), triton.Config({"BLOCK": 128}, pre_hook=clear)]
    kernel = polytile.autotune(configs, key=["N"], do_bench=bench)(increase)
    src = torch.full((1000,), 5.0)
    for _ in range(2):
        kernel[grid_of(1000)](src, 1000)
        assert torch.equal(src, torch.ones(1000))


@pytest.mark.parametrize("with_model", [False, True])
def test_configs_are_pruned_as_triton_does(with_model: bool) -> None:
    asked = list[tuple[set[str], Any]]()

    def prune(configs: list[Any], named: dict[str, Any], **keywords: Any) -> list[Any]:
        asked.append((set(named), keywords.get("N")))
        return [configs[0]]

    by = {"perf_model": lambda **given: given["BLOCK"], "top_k": 1} if with_model else {"early_config_prune": prune}
    kernel = autotune(BLOCKS[::-1] if with_model else BLOCKS, key=["N"], prune_configs_by=by)(copy)
    src = torch.randn(1024)
    dst = torch.empty_like(src)
    kernel[grid_of(1024)](dst, src, N=1024)
    assert torch.equal(dst, src)
    assert kernel.best_config.kwargs["BLOCK"] == 32
    assert with_model or ({"dst", "src"}, 1024) in asked


def test_pruning_everything_is_an_error() -> None:
    kernel = autotune(BLOCKS, key=["N"], prune_configs_by={"early_config_prune": lambda configs, named, **_: []})(copy)
    with pytest.raises(triton.runtime.errors.AutotunerError, match="at least one config"):
        kernel[grid_of(64)](torch.empty(64), torch.ones(64), 64)


def test_a_parameter_that_configs_set_is_refused_in_the_call() -> None:
    kernel = autotune(BLOCKS, key=["N"])(copy)
    with pytest.raises(ValueError, match="Conflicting meta-parameters: BLOCK"):
        kernel[(1,)](torch.empty(64), torch.ones(64), 64, BLOCK=64)


@pytest.mark.parametrize("outside", [False, True])
def test_heuristics_go_above_or_below(outside: bool) -> None:
    heuristics = triton.heuristics({"WIDTH": lambda given: given["stride"]})
    tuned = autotune([triton.Config({"ROWS": 4}), triton.Config({"ROWS": 8})], key=["M"], do_bench=bench)
    kernel = heuristics(tuned(copy_rows)) if outside else tuned(heuristics(copy_rows))
    src = torch.randn(8, 16)
    dst = torch.empty_like(src)
    kernel[grid_of(8, "ROWS")](dst, src, stride=16, M=8)
    assert torch.equal(dst, src)


def test_one_config_is_launched_and_nothing_is_tried() -> None:
    def never(call: Callable[[], None], quantiles: tuple[float, ...]) -> list[float]:
        raise AssertionError

    kernel = autotune(BLOCKS[:1], key=["N"], do_bench=never)(increase)
    src = torch.zeros(64)
    kernel[grid_of(64)](src, 64)
    assert torch.equal(src, torch.ones(64))
    assert kernel.best_config is kernel.configs[0]


def test_a_users_benchmark_decides() -> None:
    sizes = dict[int, int]()

    def slow_if_small(call: Callable[[], None], quantiles: tuple[float, ...]) -> list[float]:
        call()
        sizes[len(sizes)] = 1
        return [1.0 + (len(sizes) % 2)] * 3

    kernel = autotune(BLOCKS, key=["N"], do_bench=slow_if_small)(copy)
    kernel[grid_of(64)](torch.empty(64), torch.ones(64), 64)
    assert len(sizes) == 2
    assert sorted(times[0] for times in kernel.configs_timings.values()) == [1.0, 2.0]
    assert kernel.configs_timings[kernel.best_config][0] == 1.0


def test_values_of_key_that_are_no_sizes_have_choices_of_their_own() -> None:
    kernel = autotune(BLOCKS, key=["N", "flag"], do_bench=bench)(flagged)
    src = torch.ones(64)
    for flag in (True, False):
        dst = torch.empty(64)
        kernel[grid_of(64)](dst, src, 64, flag=flag)
        assert torch.equal(dst, src * (1 if flag else -1))
    assert len(kernel.decisions) == 2


@triton.jit
def flagged(dst, src, N, flag: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(src + at, at < N)
    tl.store(dst + at, x if flag else -x, at < N)


@pytest.mark.parametrize("by", ["early", "model"])
def test_the_only_config_that_pruning_leaves_is_launched_and_nothing_is_timed(by: str) -> None:
    def never(call: Callable[[], None], quantiles: tuple[float, ...]) -> list[float]:
        raise AssertionError("one config is not timed")

    early = {"early_config_prune": lambda configs, named, **_: [configs[1]]}
    model = {"perf_model": lambda **given: -given["BLOCK"], "top_k": 1}
    kernel = autotune(BLOCKS, key=["N"], prune_configs_by=early if by == "early" else model, do_bench=never)(copy)
    src, dst = torch.randn(200), torch.zeros(200)
    kernel[grid_of(200)](dst, src, N=200)
    assert torch.equal(src, dst) and kernel.best_config == BLOCKS[1]


def test_a_share_of_configs_that_rounds_to_none_leaves_one() -> None:
    kernel = autotune(BLOCKS, key=["N"], prune_configs_by={"perf_model": lambda **given: -given["BLOCK"], "top_k": 0.3})(copy)
    src, dst = torch.randn(200), torch.zeros(200)
    kernel[grid_of(200)](dst, src, N=200)
    assert torch.equal(src, dst) and kernel.best_config == BLOCKS[1]


def test_a_share_is_as_large_as_triton_takes_it_and_the_model_is_asked_once_for_each_config_and_size() -> None:
    """Of which number it is a share, of all configs or of those that early pruning leaves, depends on Triton's version."""
    asked = list[tuple[int, int]]()

    def model(**given: Any) -> int:
        asked.append((given["N"], given["BLOCK"]))
        return int(given["BLOCK"])

    by = {"early_config_prune": lambda configs, named, **_: configs[:6], "perf_model": model, "top_k": 0.5}
    configs = [triton.Config({"BLOCK": 32 << power}) for power in range(8)]
    src, dst = torch.randn(200), torch.zeros(200)
    theirs = triton.autotune(configs, key=["N"], prune_configs_by=by)(copy)
    theirs.nargs = {"dst": dst, "src": src, "N": 200}
    expected = theirs.prune_configs({})
    asked.clear()
    kernel = autotune(configs, key=["N"], prune_configs_by=by, do_bench=bench)(copy)
    kernel[grid_of(200)](dst, src, 200)
    assert torch.equal(src, dst) and [*kernel.configs_timings] == expected
    assert sorted(asked) == [(200, 32 << power) for power in range(6)]


def test_configs_that_differ_in_nothing_but_replaced_code_are_told_apart() -> None:
    configs = [triton.Config({"BLOCK": 32}, ir_override=name) for name in (None, "first.ttir", "second.ttir")]
    kernel = autotune(configs, key=["N"], do_bench=bench)(copy)
    kernel[grid_of(200)](torch.zeros(200), torch.randn(200), 200)
    assert len({numbers_of(config).text for config in configs}) == len(kernel.configs_timings) == 3


def test_without_a_benchmark_launches_are_timed() -> None:
    kernel = autotune([triton.Config({"ROWS": 32}), triton.Config({"ROWS": 128})], key=["M"])(copy_rows)
    src = torch.randn(128, 16)
    dst = torch.empty_like(src)
    kernel[grid_of(128, "ROWS")](dst, src, 16, 128, 16)
    assert torch.equal(dst, src) and len(kernel.cache) == 1
    assert all(0 < milliseconds < 1e4 for times in kernel.configs_timings.values() for milliseconds in times)


@triton.jit
def copy_as(dst, src, N, DTYPE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dst + at, tl.load(src + at, at < N).to(DTYPE), at < N)


def test_a_type_may_be_in_key() -> None:
    kernel = autotune(BLOCKS, key=["DTYPE"], do_bench=bench, cache_results=True)(copy_as)
    src, dst = torch.randn(200), torch.zeros(200)
    for dtype in (tl.float32, tl.float16, tl.float32):
        kernel[grid_of(200)](dst, src, 200, dtype)
    assert torch.equal(src, dst) and len(kernel.cache) == 2


def test_a_call_that_was_decided_lets_its_tensors_go() -> None:
    everything = {"early_config_prune": lambda configs, named, **_: configs}
    tuned = autotune(BLOCKS, key=["N"], prune_configs_by=everything, do_bench=bench)(copy)
    src = torch.randn(200)
    tuned[grid_of(200)](torch.empty(200), src, 200)
    alive = weakref.ref(src)
    del src
    gc.collect()
    assert tuned.nargs is None and alive() is None


def test_what_failed_below_other_heuristics_is_not_held_against_a_config() -> None:
    """A config that could not be launched because of a heuristic, or of a tuner in between, is tried again without it."""

    def broken(given: dict[str, Any]) -> int:
        return int(given["nothing"])

    def mended(given: dict[str, Any]) -> int:
        return int(given["stride"])

    configs, grid = [triton.Config({"ROWS": 4}), triton.Config({"ROWS": 8})], grid_of(8, "ROWS")
    src, dst = torch.randn(8, 16), torch.zeros(8, 16)
    with pytest.raises(polytile.errors.NoCandidate, match="nothing"):
        autotune(configs, key=["M"])(triton.heuristics({"WIDTH": broken})(copy_rows))[grid](dst, src, stride=16, M=8)
    autotune(configs, key=["M"])(triton.heuristics({"WIDTH": mended})(copy_rows))[grid](dst, src, stride=16, M=8)
    assert torch.equal(dst, src)
