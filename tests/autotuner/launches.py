"""Launches of autotuned kernels that were compiled for a GPU, by a driver that is none. test_launches.py runs this in a process
where Triton does not interpret; with the argument "time" it says how long the host takes for a launch."""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import polytile
from polytile.runtime.cuda import driver, launch
from tests.autotuner import fake_driver
from tests.runtime.cuda.conftest import Stub, install
from tests.waiting import PATIENCE

fake = fake_driver.install()
launched: list[tuple[Any, ...]] = []


def scaled(grid: tuple[int, int, int], options: Any, src: Any, dst: Any, N: int, factor: float, *rest: Any) -> None:
    launched.append((grid, options["num_warps"], N, factor, *rest))
    if src is not None:
        dst[:N] = src[:N] * factor


fake.effects["scale"] = scaled

CONFIGS = [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 256}, num_warps=8)]


@triton.jit
def scale(src, dst, N, factor, BLOCK: tl.constexpr, MODE: tl.constexpr = "plain"):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dst + at, tl.load(src + at, at < N) * factor, at < N)


def tuned(configs: Any = None, **others: Any) -> Any:
    given = {"options": {"persist": False}, "do_bench": by_blocks, **others}
    return polytile.autotune(CONFIGS if configs is None else configs, ["N"], **given)(scale)


def by_blocks(call: Callable[[], None], quantiles: Any) -> list[float]:
    """Long rows are faster in large blocks."""
    call()
    _, warps, N, *_ = launched[-1]
    return [1.0 if (warps == 8) == (N > 1000) else 2.0] * 3


def call(kernel: Any, n: int, offset: int = 0, factor: float = 2.0, dtype: torch.dtype = torch.float32, **others: Any) -> Any:
    src = torch.randn(n + offset).to(dtype)[offset:]
    dst = torch.full_like(src, torch.nan)
    compiled = kernel[lambda meta: (triton.cdiv(meta["N"], meta["BLOCK"]),)](src, dst, N=n, factor=factor, **others)
    torch.testing.assert_close(dst, src * factor)
    return compiled


def later_launches_are_quick_and_the_same() -> None:
    kernel = tuned()
    for n in (500, 500, 512, 5000, 4999, 500, 5000):
        first = call(kernel, n)
        routes = len(kernel.quick.routes)
        launched.clear()
        assert call(kernel, n) is first and len(kernel.quick.routes) == routes
        block, warps = (256, 8) if n > 1000 else (64, 4)
        assert launched == [((triton.cdiv(n, block), 1, 1), warps, n, 2.0, block, "plain")], launched
        assert kernel.best_config.num_warps == warps


def what_triton_compiles_for_has_a_route_of_its_own() -> None:
    kernel = tuned()
    kinds = [{}, {"offset": 1}, {"dtype": torch.float16}, {"MODE": "other"}, {"factor": 1}]
    compiled = [(call(kernel, 500, **kind), call(kernel, 500, **kind)) for kind in kinds]
    assert all(first is again for first, again in compiled)
    assert len({id(first) for first, _ in compiled}) == len(kernel.quick.routes) == len(kinds)
    assert call(kernel, 512) is not compiled[0][0]  # 16 divides it
    assert call(kernel, 500, factor=3.0) is compiled[0][0]


def constants_are_told_apart_and_long_texts_go_by_tritons_launch() -> None:
    kernel = tuned()
    for mode in (tl.float32, tl.float32, tl.float16):
        call(kernel, 500, MODE=mode)
    assert len(kernel.quick.routes) == 2
    for _ in range(2):
        call(kernel, 500, MODE="a text that is longer than what is looked at")
    assert len(kernel.quick.routes) == 2


def a_new_regime_is_chosen_for_though_its_kind_is_known() -> None:
    kernel = tuned(prune_configs_by={"early_config_prune": lambda configs, named, **_: asked.append(named["N"]) or configs})
    asked: list[int] = []
    for n in (300, 300, 3000, 3000):
        src, dst = torch.randn(n), torch.empty(n)
        kernel[(1,)](src, dst, n, 2.0)
    assert {300, 3000} <= set(asked) and len(kernel.decisions) == 2
    assert len(kernel.quick.routes) == 1  # 16 divides neither size


def what_is_unusual_goes_by_tritons_launch() -> None:
    kernel = tuned()
    call(kernel, 500)
    seen: list[Any] = []
    scale.add_pre_run_hook(lambda *args, **kwargs: seen.append("run"))
    call(kernel, 500)
    scale.pre_run_hooks.clear()
    triton.knobs.runtime.launch_enter_hook.add(seen.append)
    call(kernel, 500)
    triton.knobs.runtime.launch_enter_hook.remove(seen.append)
    src, dst = torch.randn(500), torch.empty(500)
    kernel.run(src, dst, 500, 2.0, grid=(1,), warmup=True)
    launched.clear()
    kernel[(1,)](src, dst, 500, 2.0, enable_fp_fusion=False)
    assert len(launched) == 1 and "run" in seen


def a_config_with_a_hook_calls_it_every_time() -> None:
    seen: list[int] = []
    hooked = [triton.Config({"BLOCK": block}, pre_hook=lambda given: seen.append(given["N"])) for block in (64, 128)]
    kernel = tuned(hooked)
    call(kernel, 500)
    seen.clear()
    for _ in range(3):
        call(kernel, 500)
    assert seen == [500] * 3


def configs_are_compiled_side_by_side() -> None:
    both = threading.Barrier(len(CONFIGS))
    fake.compiling = lambda: both.wait(PATIENCE)
    kernel = tuned(options={"persist": False, "compile_workers": len(CONFIGS)})
    call(kernel, 500, MODE="together")
    fake.compiling = lambda: None
    assert kernel.best_config is CONFIGS[0] and len(kernel.decisions[0].standings) == len(CONFIGS)
    assert all(one.seconds for one in kernel.decisions[0].standings)


@contextlib.contextmanager
def stubbed() -> Iterator[Stub]:
    """Within the block polytile's own launcher has a stub of the driver."""
    with pytest.MonkeyPatch.context() as patch:
        yield install(patch)
    driver.reset()
    launch.reset()


def known_launches_run_no_code_in_python() -> None:
    kernel, src, dst = tuned(), torch.randn(500), torch.empty(500)
    seen: list[dict[str, Any]] = []

    def grid(meta: dict[str, Any]) -> tuple[int]:
        seen.append(meta)
        return (triton.cdiv(meta["N"], meta["BLOCK"]),)

    with stubbed() as stub:
        for _ in range(2):
            known = kernel[grid](src, dst, 500, 2.0)
        assert stub.count == 0
        named = {"".join(("fac", "tor")): 3.0, "N": 484}  # a name that is another object than the parameter's
        launched.clear()
        kernel.best_config = None
        assert kernel[grid](src, dst, **named) is known and kernel.best_config is CONFIGS[0]
        [call] = stub.calls()
        assert (tuple(call.grid), call.block) == ((8, 1, 1), 128)
        numbers = [value & 0xFFFFFFFF for value in call.values[2:4]]
        assert [*call.values[:2], *numbers] == [src.data_ptr(), dst.data_ptr(), 484, *struct.unpack("<I", struct.pack("<f", 3.0))]
        assert seen[-1] == {"src": src, "dst": dst, "N": 484, "factor": 3.0, "BLOCK": 64, "MODE": "plain"} and not launched
        assert kernel.run(src, dst, 500, 2.0, grid=(1,), warmup=False) is known and stub.count == 2


def what_polytile_cannot_launch_goes_by_tritons_launch() -> None:
    kernel, src, dst = tuned(), torch.randn(500), torch.empty(500)

    def launches() -> tuple[int, int]:
        """By polytile's launcher, and by Triton's."""
        before = stub.count, len(launched)
        kernel[(8,)](src, dst, 500, 2.0)
        return stub.count - before[0], len(launched) - before[1]

    with stubbed() as stub:
        launches()
        launches()
        assert launches() == (1, 0)
        triton.knobs.runtime.launch_enter_hook.add(print_nothing)
        assert launches() == (0, 1)
        triton.knobs.runtime.launch_enter_hook.remove(print_nothing)
        with polytile.options.override(debug=1):
            assert launches() == (0, 1)
        stub.launch_error = 701
        assert launches()[1] == 1
        stub.launch_error = 0
        names = {"FACTOR": 1}
        kernel.quick.jit.used_global_vals["FACTOR", 0] = 1, names
        kernel.quick.routes.clear()
        assert [launches() for _ in range(3)] == [(0, 1), (0, 1), (1, 0)]
        names["FACTOR"] = 2
        with pytest.raises(RuntimeError, match="has changed"):
            launches()
        kernel.quick.jit.used_global_vals.clear()


def print_nothing(metadata: Any) -> None:
    pass


def one_config_is_launched_quickly_too() -> None:
    kernel = tuned(CONFIGS[:1])
    assert call(kernel, 500) is call(kernel, 500) is call(kernel, 5000 - 12)
    launched.clear()
    call(kernel, 500)
    assert launched == [((8, 1, 1), 4, 500, 2.0, 64, "plain")] and kernel.best_config is CONFIGS[0]


def heuristics_above_give_arguments() -> None:
    kernel = triton.heuristics({"MODE": lambda given: "even" if given["N"] % 64 == 0 else "odd"})(tuned())
    for n in (640, 640, 500, 640):
        call(kernel, n)
        assert launched[-1][-1] == ("even" if n == 640 else "odd")


def a_launch_from_a_compiled_function_is_not_traced() -> None:
    kernel = tuned()
    call(kernel, 500)

    @torch.compile(backend="eager")
    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        kernel.run(x * 2, y, 500, 2.0, grid=(8,), warmup=False)
        return y + 1

    x = torch.randn(500)
    torch.testing.assert_close(function(x), x * 4 + 1)


def triton_reads_what_was_saved() -> None:
    kernel = tuned()
    call(kernel, 500)
    kernel.save_tunings(os.environ["TRITON_CACHE_DIR"])
    timed: list[int] = []

    def bench(run: Any, quantiles: Any) -> list[float]:
        timed.append(1)
        return [1.0] * 3

    tritons = triton.autotune(CONFIGS, ["N"], do_bench=bench, cache_results=True)(scale)
    call(tritons, 500)
    assert not timed and tritons.best_config == kernel.best_config
    call(tritons, 501)
    assert timed


def microseconds(calls: int) -> None:
    """Host time of a launch on a hit, in microseconds: polytile's, triton.autotune's, and the bare kernel's."""
    fake.effects["scale"] = lambda *args: None
    src, dst = torch.randn(500), torch.empty(500)
    fixed = {"do_bench": lambda call, quantiles: [1.0] * 3}
    own, tritons = tuned(**fixed), triton.autotune(CONFIGS, ["N"], **fixed)(scale)

    def grid(meta: dict[str, Any]) -> tuple[int]:
        return (-(-500 // meta["BLOCK"]),)  # triton.cdiv takes 5 µs

    launches = {
        "polytile": lambda: own[grid](src, dst, 500, 2.0),
        "triton": lambda: tritons[grid](src, dst, 500, 2.0),
        "bare": lambda: scale[grid](src, dst, 500, 2.0, BLOCK=64),
    }
    best = dict.fromkeys(launches, float("inf"))
    with stubbed():
        for _ in range(100):
            for name, launched in launches.items():
                launched()
                begin = time.perf_counter()
                for _ in range(calls):
                    launched()
                best[name] = min(best[name], 1e6 * (time.perf_counter() - begin) / calls)
    print(", ".join(f"{name} {time:.2f} µs" for name, time in best.items()))


TESTS = [
    later_launches_are_quick_and_the_same, what_triton_compiles_for_has_a_route_of_its_own,
    known_launches_run_no_code_in_python, what_polytile_cannot_launch_goes_by_tritons_launch,
    constants_are_told_apart_and_long_texts_go_by_tritons_launch, a_new_regime_is_chosen_for_though_its_kind_is_known,
    what_is_unusual_goes_by_tritons_launch,
    a_config_with_a_hook_calls_it_every_time, configs_are_compiled_side_by_side,
    one_config_is_launched_quickly_too, heuristics_above_give_arguments,
    a_launch_from_a_compiled_function_is_not_traced, triton_reads_what_was_saved,
]  # fmt: skip

if __name__ == "__main__":
    if sys.argv[1:] == ["time"]:
        microseconds(200)
    for test in TESTS if not sys.argv[1:] else ():
        test()
        print(test.__name__.replace("_", " "))
