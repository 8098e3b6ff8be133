"""What polytile.autotune takes beyond triton.autotune: hints, a search, other ways to wait, plans; and calls in programs."""

from __future__ import annotations

import functools
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import polytile
from polytile.errors import SignatureError

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles where there is a GPU; these run interpreted.")
autotune = functools.partial(polytile.autotune, options={"persist": False})
PAGE = Path(__file__).parents[2] / "docs" / "autotune.md"
CONFIGS = [triton.Config({"BLOCK": block}) for block in (32, 64)]


@triton.jit
def scaled(src, dst, N, scale, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dst + at, tl.load(src + at, at < N) * scale, at < N)


def grid_of(size: int) -> Callable[[dict[str, Any]], tuple[int]]:
    return lambda meta: (triton.cdiv(size, meta["BLOCK"]),)


def largest(meta: dict[str, Any]) -> tuple[int]:
    """Programs enough for all sizes here; those past the end do nothing."""
    return (triton.cdiv(512, meta["BLOCK"]),)


def bench(call: Callable[[], None], quantiles: tuple[float, ...]) -> list[float]:
    call()
    return [1.0] * 3


def make_args(N: int) -> dict[str, Any]:
    return {"src": torch.randn(N), "dst": torch.empty(N), "N": N}


def checked(kernel: Any, size: int, scale: float = 1.0) -> None:
    src, dst = torch.randn(size), torch.empty(size)
    kernel[largest](src, dst, size, scale)
    torch.testing.assert_close(dst, src * scale)


def test_hinted_sizes_are_tuned_at_the_first_call() -> None:
    hints = [{"N": 30}, {"N": 400}]
    kernel = autotune(CONFIGS, key=["N"], hints=hints, make_args=make_args, do_bench=bench)(scaled)
    checked(kernel, 100)
    assert {dict(decision.sizes)["N"] for decision in kernel.decisions} == {30, 400, 100}


def test_hints_without_a_way_to_make_arguments_are_refused() -> None:
    with pytest.raises(SignatureError, match="make_args="):
        polytile.autotune(CONFIGS, key=["N"], hints=[{"N": 30}])(scaled)
    with pytest.raises(SignatureError, match="restore_value= of kernel 'scaled'.*nothing"):
        polytile.autotune(CONFIGS, key=["N"], restore_value=["nothing"])(scaled)


def test_a_call_that_waits_for_nothing_runs_the_first_config_and_is_tuned_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = autotune(CONFIGS, key=["N"], stall="never")(scaled)
    checked(kernel, 333, 2.0)
    checked(kernel, 333, 3.0)
    assert polytile.wait(kernel)
    checked(kernel, 333)
    (decision,) = kernel.decisions
    assert decision.link == "measured" and [one.seconds is not None for one in decision.standings] == [True, True]


def test_a_search_measures_a_sample_and_then_what_is_beside_the_best() -> None:
    tried = set[int]()

    def faster_if_larger(call: Callable[[], None], quantiles: tuple[float, ...]) -> list[float]:
        sizes.clear()
        call()
        tried.update(sizes)
        return [100.0 / max(sizes)] * 3

    sizes = set[int]()

    def watching(meta: dict[str, Any]) -> tuple[int]:
        sizes.add(meta["BLOCK"])
        return largest(meta)

    space = {"BLOCK": [2**power for power in range(1, 9)], "num_warps": [1, 2, 4, 8]}
    kernel = autotune([], key=["N"], search=space, do_bench=faster_if_larger)(scaled)
    src, dst = torch.randn(64), torch.empty(64)
    kernel[watching](src, dst, 64, 1.0)
    assert torch.equal(dst, src)
    assert kernel.best_config.kwargs["BLOCK"] == max(tried) == 256
    assert len(kernel.configs) < 32


def test_a_plan_pins_the_config(tmp_path: Path) -> None:
    plan, calls = tmp_path / "kernels.plan", list[str]()

    def counted(call: Callable[[], None], quantiles: tuple[float, ...]) -> list[float]:
        calls.append("timed")
        return bench(call, quantiles)

    kernel = autotune(CONFIGS, key=["N"], do_bench=counted)(scaled)
    checked(kernel, 100)
    polytile.save_plan(plan)
    calls.clear()
    planned = autotune(CONFIGS, key=["N"], plan=str(plan), do_bench=counted)(scaled)
    checked(planned, 101)
    assert planned.best_config == kernel.best_config and not calls
    assert [decision.link for decision in planned.decisions] == ["plan"]


def test_a_plan_keeps_the_choice_of_the_tuner_that_was_made_last(tmp_path: Path) -> None:
    small, large = CONFIGS
    tuners = [autotune([config], key=["N"], search={"BLOCK": [config.kwargs["BLOCK"]]}, do_bench=bench)(scaled)
              for config in (small, small, small, small, small, large)]  # fmt: skip
    for tuner in tuners:
        checked(tuner, 100)
    polytile.save_plan(tmp_path / "kernels.plan")
    planned = autotune(CONFIGS, key=["N"], plan=str(tmp_path / "kernels.plan"), do_bench=bench)(scaled)
    checked(planned, 100)
    assert planned.best_config == large


def test_a_later_process_times_nothing_and_one_config_more_is_timed_alone(empty_cache: Path) -> None:
    timed = list[str]()

    def counting(call: Callable[[], None], quantiles: tuple[float, ...]) -> list[float]:
        call()
        timed.append("once")
        return [1.0] * 3

    for configs, expected in ((CONFIGS, 2), (CONFIGS, 0), ([*CONFIGS, triton.Config({"BLOCK": 16})], 1)):
        timed.clear()
        checked(polytile.autotune(configs, key=["N"], do_bench=counting)(scaled), 100)
        assert len(timed) == expected


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "polytile"])
def test_a_compiled_function_calls_it(backend: str) -> None:
    kernel = autotune(CONFIGS, key=["N"], do_bench=bench)(scaled)

    def function(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        kernel[grid_of(x.numel())](x * 2, y, x.numel(), 1.0)
        return y + 1

    compiled = torch.compile(function, backend=backend, dynamic=True)
    for size in (100, 70):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), 1 + 2 * x)


def test_the_example_of_the_page_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "page_of_autotune.py").write_text("\n".join(blocks))
    runpy.run_path(str(tmp_path / "page_of_autotune.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(" -> ")[0] for line in lines] == ["scale [N=1000]", "scale [N=5000]", "2 choices"]
