"""Choices of other tuners that polytile.autotune follows, and files of its own that they read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import polytile
from polytile import store
from polytile.errors import StoreError

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="Triton compiles where there is a GPU; these run interpreted.")

CONFIGS = [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128}, num_warps=8)]
TRITON = {
    "key": [1000, "torch.float32", "torch.float32"],
    "configs_timings": [
        [{"kwargs": {"BLOCK": 64}, "num_warps": 4, "num_ctas": 1, "num_stages": 3, "maxnreg": None, "pre_hook": None,
          "ir_override": None}, [0.3, 0.3, 0.3]],
        [{"kwargs": {"BLOCK": 256}, "num_warps": 8, "num_ctas": 1, "num_stages": 3, "maxnreg": None, "pre_hook": None,
          "ir_override": None}, [0.1, 0.1, 0.1]],
        [{"kwargs": {"BLOCK": 512}, "num_warps": 8, "num_ctas": 1, "num_stages": 3, "maxnreg": None, "pre_hook": None,
          "ir_override": None}, [float("inf")] * 3],
    ],
}  # fmt: skip
DEJAVU = {
    "signature": "JITFunction(tests:scale)", "total_bench_time_s": 1.5, "evaluated_configs": 2,
    "cache": {"(1000, 'torch.float32', 'torch.float32')": "BLOCK: 256, num_warps: 8, num_ctas: 1, num_stages: 3, maxnreg: None"
              ", ir_override: None"},
    "timings": {"(1000, 'torch.float32', 'torch.float32')": {"values": [0.1, 0.1, 0.1], "lables": ["ms", "min_ms", "max_ms"]}},
}  # fmt: skip
VLLM = {
    "triton_version": "3.6.0", "16": {"BLOCK": 32, "num_warps": 4, "num_stages": 3},
    "1024": {"BLOCK": 256, "num_warps": 8, "num_stages": 4},
}  # fmt: skip


@triton.jit
def scale(src, dst, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dst + at, tl.load(src + at, at < N) * 2, at < N)


def tuned(**others: Any) -> Any:
    return polytile.autotune(CONFIGS, ["N"], options={"persist": False}, **others)(scale)


def call(kernel: Any, n: int, dtype: torch.dtype = torch.float32) -> tuple[int, int]:
    """The block of the config that runs, and how many were timed."""
    src, before = torch.randn(n).to(dtype), polytile.counters["candidates_benchmarked"]
    dst = torch.full_like(src, torch.nan)
    kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](src, dst, n)
    torch.testing.assert_close(dst, src * 2)
    return kernel.best_config.kwargs["BLOCK"], polytile.counters["candidates_benchmarked"] - before


@pytest.mark.parametrize(("said", "place"), [(TRITON, "AB12/scale.autotune.json"), (DEJAVU, "scale-12-34/cache.json")])
def test_what_another_tuner_chose_runs_in_the_whole_regime_and_nothing_is_timed(said: Any, place: str, tmp_path: Path) -> None:
    path = tmp_path / place
    path.parent.mkdir()
    path.write_text(json.dumps(said))
    (tmp_path / "other.autotune.json").write_text("{}")
    for where in (path, tmp_path):
        store.forget()
        kernel = tuned()
        assert kernel.load_tunings(where) == 1
        assert call(kernel, 1000) == call(kernel, 999) == (256, 0)
        assert call(kernel, 5000)[1] > 0 < call(kernel, 1000, torch.float64)[1]  # of which it says nothing
        assert kernel.best_config.kwargs["BLOCK"] in (64, 128, 256)


def test_with_exact_sizes_only_those_that_it_says_follow_it(tmp_path: Path) -> None:
    (tmp_path / "scale.autotune.json").write_text(json.dumps(TRITON))
    kernel = tuned(exact=True)
    kernel.load_tunings(tmp_path)
    assert call(kernel, 1000) == (256, 0)
    assert call(kernel, 999)[1] > 0


def test_configs_by_batch_size_serve_the_sizes_nearest_to_them(tmp_path: Path) -> None:
    path = tmp_path / "E=8,N=14336,device_name=NVIDIA_H200.json"
    path.write_text(json.dumps(VLLM))
    kernel = tuned()
    with pytest.raises(StoreError, match="has configs by batch size; say by size= which argument"):
        kernel.load_tunings(path)
    assert kernel.load_tunings(path, size="N") == 2
    assert [call(kernel, n) for n in (3, 100, 200, 9000)] == [(32, 0), (32, 0), (256, 0), (256, 0)]
    assert kernel.best_config.num_stages == 4


@pytest.mark.parametrize("form", ["triton", "dejavu", "vllm"])
def test_what_was_chosen_is_written_and_read_again(form: str, tmp_path: Path) -> None:
    kernel = tuned()
    chosen = {n: call(kernel, n)[0] for n in (100, 1000)}
    place = tmp_path if form == "triton" else tmp_path / "scale-1-2" / "cache.json"
    files = kernel.save_tunings(place, form, "N" if form == "vllm" else "")
    assert all(path.exists() for path in files)
    again = tuned()
    assert again.load_tunings(files[0] if form == "vllm" else tmp_path, "N") == (1 if form == "triton" else 2)
    for n in chosen if form != "triton" else (1000,):
        assert call(again, n) == (chosen[n], 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "are damaged"),
        ('{"a": 1}', "of none of the forms triton, dejavu, vllm"),
        ('{"cache": {"(1,": "BLOCK: 64"}}', "are damaged"),
        ('{"16": {"BLOCKS": 32}}', "says 'BLOCKS', and kernel 'scale' has src, dst, N, BLOCK"),
    ],
)
def test_files_that_are_none_of_a_kernels_tunings_are_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "tunings.json"
    path.write_text(text)
    with pytest.raises(StoreError, match=said):
        tuned().load_tunings(path, size="N")


def test_a_place_without_tunings_and_choices_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="has no tunings of kernel 'scale'"):
        tuned().load_tunings(tmp_path)
    with pytest.raises(StoreError, match="cannot be read: No such file"):
        tuned().load_tunings(tmp_path / "none.json")
    with pytest.raises(StoreError, match="has chosen nothing yet"):
        tuned().save_tunings(tmp_path)
    with pytest.raises(StoreError, match=r"takes a form of triton, .*, and for vllm a size= of N; it was given 'vllm' and ''"):
        tuned().save_tunings(tmp_path, "vllm")
