"""Products by AMX's tiles: every form, layout, tail and number of threads against float64; where there are none; the prior."""

from __future__ import annotations

import ctypes
import itertools
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from test_gemm import COUNTING_EPILOGUE, assert_close, call, compiled, matmul
from test_gemm_prepacked import operands, product

from polytile.cost.cpp_matmul import cost
from polytile.matmul.cpp import GemmConfig, GemmSpec, Machine, amx, configs, generate
from polytile.runtime import cpu

HERE = set(amx.FLAGS.values()) <= set(cpu.cpu().flags)
needs_amx = pytest.mark.skipif(not HERE, reason="this process may not use AMX")

SIZES = (1, 2, 3, 15, 16, 17, 31, 33, 47, 64, 65, 130)
RESULTS = {"bfloat16": "bfloat16", "int8": "int32"}
LAYOUTS = (("k", "n"), ("k", "k"), ("m", "n"), ("any", "any"))
TILES = ((32, 2), (16, 4))
NAME = "amx_under_test"


def shapes(count: int) -> list[tuple[int, int, int]]:
    """Rows, columns and depths of which some are 0 and most end within a tile; the last ones take several blocks of each."""
    mixed = list(itertools.product(SIZES, SIZES, (0, *SIZES)))
    return [*random.Random(0).sample(mixed, count), (200, 300, 257), (96, 128, 256), (33, 40, 1030)]


def small_blocks(form: str, dtype: str, mr: int = 32, nv: int = 2, pack_a: bool = False) -> GemmConfig:
    """Blocks so small that every loop turns more than once."""
    return GemmConfig(form, mr, nv, kc=128, mc=64, nc=128, pack_a=pack_a, pairs=dtype == "bfloat16", amx=True)


def check(spec: GemmSpec, config: GemmConfig, m: int, n: int, k: int, threads: int) -> None:
    a, b = operands(spec.dtype, spec.a_layout, spec.b_layout, m, n, k)
    if config.form == "tile_prepacked":
        c = product(spec, config, a, b, threads, amx.LANES)
    else:
        function = compiled(generate(spec, config, NAME, None, amx.LANES), NAME)
        c = matmul(function, a, b, threads, getattr(torch, spec.out_dtype))
    if spec.dtype == "int8":
        assert torch.equal(c, (a.double() @ b.double()).int())
    else:
        assert_close(c, a, b, 2.0**-8 if spec.out_dtype == "bfloat16" else 1e-5)


@needs_amx
@pytest.mark.parametrize("dtype", RESULTS)
@pytest.mark.parametrize("form", amx.FORMS)
@pytest.mark.parametrize("layouts", LAYOUTS)
@pytest.mark.parametrize("tile", TILES)
def test_every_form_and_layout_is_right_at_odd_sizes(
    dtype: str, form: str, layouts: tuple[str, str], tile: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    spec = GemmSpec(dtype, *layouts, out_dtype=RESULTS[dtype])
    for number, size in enumerate(shapes(40)):
        check(spec, small_blocks(form, dtype, *tile), *size, threads=1 + number % 3)


@needs_amx
@pytest.mark.parametrize("dtype", RESULTS)
def test_an_a_that_is_copied_though_its_k_is_contiguous_is_right(dtype: str) -> None:
    spec = GemmSpec(dtype, out_dtype=RESULTS[dtype])
    for size in shapes(20):
        check(spec, small_blocks("tile_prepacked", dtype, pack_a=True), *size, threads=2)


@needs_amx
def test_sums_of_bfloat16_are_as_exact_as_those_of_float32() -> None:
    spec = GemmSpec("bfloat16", out_dtype="float32")
    for size in ((1, 64, 4096), (65, 33, 4096), (128, 64, 1031)):
        check(spec, small_blocks("tile_packed", "bfloat16"), *size, threads=2)


@needs_amx
def test_int8_wraps_as_eager_does() -> None:
    """The sums of 65536 products of the least numbers, and of what becomes of these as the instruction sees them."""
    spec = GemmSpec("int8", out_dtype="int32")
    a, b = torch.full((1, 20, 65536), -128, dtype=torch.int8), torch.full((1, 65536, 40), -128, dtype=torch.int8)
    function = compiled(generate(spec, small_blocks("tile_packed", "int8"), NAME, None, amx.LANES), NAME)
    assert (matmul(function, a, b, 2, torch.int32) == 65536 * 128 * 128).all()
    assert (matmul(function, a, ~b, 2, torch.int32) == -65536 * 128 * 127).all()


@needs_amx
@pytest.mark.parametrize("dtype", RESULTS)
def test_batches_may_be_strided_or_expanded(dtype: str) -> None:
    spec = GemmSpec(dtype, batched=True, out_dtype=RESULTS[dtype])
    function = compiled(generate(spec, small_blocks("tile_packed", dtype), NAME, None, amx.LANES), NAME)
    a, b = operands(dtype, "k", "n", 5 * 33, 70, 64)
    a, b = a.view(5, 33, 64), torch.cat([operands(dtype, "k", "n", 1, 70, 64)[1] for _ in range(5)])
    for left, right in ((a, b), (a, b[2:3].expand(5, -1, -1)), (a[:1].expand(5, -1, -1), b), (a[::2], b[1:4])):
        for threads in (1, 2, 4):
            c = matmul(function, left, right, threads, getattr(torch, spec.out_dtype))
            if dtype == "int8":
                assert torch.equal(c, (left.double() @ right.double()).int())
            else:
                assert_close(c, left, right, 2.0**-8)


@needs_amx
def test_an_epilogue_gets_each_sum_once() -> None:
    """Rows that pad the last tile never reach it."""
    spec = GemmSpec("bfloat16", out_dtype="float32", has_epilogue=True)
    function = compiled(generate(spec, small_blocks("tile_packed", "bfloat16"), NAME, COUNTING_EPILOGUE, amx.LANES), NAME)
    for m, n, k in ((1, 5, 64), (17, 70, 33), (130, 65, 300)):
        a, b = operands("bfloat16", "k", "n", m, n, k)
        out, times, bias = torch.zeros(1, m, n), torch.zeros(1, m, n, dtype=torch.int32), torch.randn(n)
        assert call(function, a, b, (out, times, bias), (n,), 2) == 0
        assert (times == 1).all()
        torch.testing.assert_close(out.double(), 2 * (a.double() @ b.double()) + bias, rtol=1e-4, atol=1e-4)


@needs_amx
def test_infinities_and_nan_stay_in_their_rows_and_columns() -> None:
    spec = GemmSpec("bfloat16", out_dtype="float32")
    function = compiled(generate(spec, small_blocks("tile_packed", "bfloat16"), NAME, None, amx.LANES), NAME)
    a, b = operands("bfloat16", "k", "n", 37, 45, 41)
    a[0, 36, 40], b[0, 40, 44] = float("inf"), float("nan")
    c = matmul(function, a, b, 2, torch.float32)
    assert c[0, :, 44].isnan().all() and not c[0, :36, :44].isnan().any() and not c[0, 36, :44].isfinite().any()


@needs_amx
@pytest.mark.parametrize("dtype", RESULTS)
def test_every_config_of_the_tables_is_right(dtype: str) -> None:
    spec = GemmSpec(dtype, out_dtype=RESULTS[dtype])
    able = [config for config in configs(spec, amx.LANES, prepacked=True) if config.amx]
    assert {config.form for config in able} == set(amx.FORMS)
    for config in able:
        for threads, size in enumerate(((1, 65, 200), (17, 63, 65), (300, 70, 1000)), 1):
            check(spec, config, *size, threads)


def test_no_config_has_tiles_where_the_process_may_not_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, without = GemmSpec("bfloat16", out_dtype="bfloat16"), replace(cpu.cpu(), flags=("avx512_bf16",))
    monkeypatch.setattr(cpu, "cpu", lambda: without)
    assert not any(config.amx for config in configs(spec, amx.LANES, prepacked=True))


@pytest.mark.parametrize("granted", [False, True])
def test_the_processor_has_no_tiles_where_linux_denies_them(monkeypatch: pytest.MonkeyPatch, granted: bool) -> None:
    """Store and object cache then keep what such a process measures and compiles apart."""
    described = cpu.parse("model name: Xeon\nflags: amx_bf16 amx_int8 amx_tile avx512f\n", "x86_64")
    monkeypatch.setattr(cpu, "parse", lambda text, machine: described)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: type("Libc", (), {"syscall": lambda self, *numbers: 0 if granted else -1})())
    found = cpu.cpu.__wrapped__()
    assert found.flags == (described.flags if granted else ("avx512f",))
    assert (found.identity == described.identity) is granted


@needs_amx
@pytest.mark.parametrize("options", ["tune=off", "tune=auto", "force=*amx*"])
def test_a_process_that_is_denied_tiles_later_is_told_so_and_multiplies_without(options: str) -> None:
    command = [sys.executable, "-m", "tests.codegen.denied_tiles", options]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    assert "amx" not in run.stdout and run.stdout.count("\n") == 3
    assert "amx" in run.stderr and "Linux denies this process now" in run.stderr and "sandbox" in run.stderr


@pytest.mark.parametrize(
    ("spec", "config"),
    [
        (GemmSpec(), GemmConfig("tile_packed", 32, 2, amx=True)),
        (GemmSpec("bfloat16", out_dtype="bfloat16"), GemmConfig("tile_packed", 32, 2, amx=True)),
        (GemmSpec("bfloat16", out_dtype="bfloat16"), GemmConfig("tile_packed", 32, 4, pairs=True, amx=True)),
        (GemmSpec("int8", out_dtype="int32"), GemmConfig("tile_direct", 32, 2, amx=True)),
    ],
)
def test_what_has_no_tiles_is_refused(spec: GemmSpec, config: GemmConfig) -> None:
    with pytest.raises(ValueError, match="tiles of AMX are for"):
        generate(spec, config, NAME, None, amx.LANES)


def test_the_prior_expects_tiles_to_win_from_some_rows_on_and_to_scale_with_work() -> None:
    spec, machine = GemmSpec("bfloat16", out_dtype="bfloat16"), Machine()
    tiles = GemmConfig("tile_prepacked", 32, 2, kc=4096, mc=128, pairs=True, amx=True)
    vectors = GemmConfig("tile_prepacked", 6, 4, kc=8192, pairs=True)

    def seconds(config: GemmConfig, m: int, n: int = 1024) -> float:
        return cost(spec, config, {"batch": 1, "M": m, "N": n, "K": 1024}, 1, machine)

    assert 4 * seconds(tiles, 512) < seconds(vectors, 512)
    assert seconds(tiles, 256) < seconds(tiles, 512) < seconds(tiles, 512, 2048)
