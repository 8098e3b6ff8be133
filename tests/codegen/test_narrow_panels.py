"""Products of floats by prepacked panels of 8 and 4 bits on a CPU: every tail, group and vector length against float64."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from test_gemm import DTYPES, TOLERANCE, assert_close, call, compiled, matrix

from polytile.cost.cpp_matmul import cost
from polytile.matmul.cpp import GemmConfig, GemmSpec, Machine, generate, panels

SHAPES = ((1, 1, 8), (1, 17, 104), (2, 64, 96), (5, 63, 128), (13, 130, 1024), (9, 65, 800))
TILE = GemmConfig("tile_prepacked", 3, 2, kc=48, mc=6, nc=64)
"""Blocks so small that every loop turns more than once."""


def check(spec: GemmSpec, config: GemmConfig, lanes: int) -> None:
    """The kernel's results at SHAPES, with three threads, are those of float64."""
    torch.manual_seed(0)
    function = compiled(generate(spec, config, "narrow_under_test", None, lanes, 3 + spec.beside_b), "narrow_under_test")
    low, high = (-128, 128) if spec.nibbles_from is None else (spec.nibbles_from, spec.nibbles_from + 16)
    for m, n, k in SHAPES:
        a = matrix(1, m, k, "cols" if spec.a_layout == "k" else "rows", DTYPES[spec.dtype])
        b = torch.randint(low, high, (1, k, n), dtype=torch.int8)
        of_k = torch.arange(k) // (spec.group or k)
        scales = torch.rand(int(of_k[-1]) + 1, n)
        zeros = torch.randint(-9, 9, scales.shape).float() * spec.zeros
        wide = (b - zeros.double()[of_k]) * (scales.double()[of_k] if spec.group else 1)
        kept = panels.make(b[0], lanes, 1, spec.nibbles_from)
        c = torch.full((1, m, n), float("nan"), dtype=DTYPES[spec.dtype])
        beside = [scales] * (spec.group > 0) + [zeros] * spec.zeros
        assert call(function, a, b, (*beside, c, kept), c.stride(), 3) == 0
        assert_close(c, a, wide.bfloat16() if config.pairs else wide, TOLERANCE[spec.dtype])


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize(("dtype", "a_layout", "group", "zeros", "least"), [
    ("bfloat16", "k", 32, False, -8), ("bfloat16", "k", 32, True, 0), ("bfloat16", "k", 0, False, -8),
    ("bfloat16", "m", 64, False, -8), ("float32", "k", 32, True, -3), ("bfloat16", "k", 48, True, None),
])  # fmt: skip
def test_tiles_convert_what_they_read(
    dtype: str, a_layout: str, group: int, zeros: bool, least: int | None, lanes: int
) -> None:
    spec = GemmSpec(dtype, a_layout, "any", out_dtype=dtype, b_dtype="int8", group=group, zeros=zeros, nibbles_from=least)
    check(spec, TILE, lanes)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize(("group", "zeros"), [(0, False), (32, True)])
def test_blocks_of_4_bits_become_pairs_of_bfloat16(group: int, zeros: bool, lanes: int) -> None:
    spec = GemmSpec("bfloat16", "k", "any", out_dtype="bfloat16", b_dtype="int8", group=group, zeros=zeros, nibbles_from=-8)
    check(spec, replace(TILE, pairs=True), lanes)


def test_panels_of_4_bits_hold_8_k_in_a_lane() -> None:
    column = torch.arange(-8, 8, dtype=torch.int8)[:, None]
    kept = panels.make(column, 1, 8, nibbles_from=-8)
    assert kept.numel() == panels.size_of(16, 1, torch.int8, 1, 8, nibbles_from=-8)
    words = kept.view(torch.int32).tolist()
    assert [word & 0xFFFFFFFF for word in words] == [0x75316420, 0xFDB9ECA8]  # k = 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits on


def test_4_bits_are_of_int8_and_of_whole_words() -> None:
    for wrong in ({"b_dtype": "int8", "group": 20}, {"dtype": "float32"}):
        with pytest.raises(ValueError, match="panels of 4 bits are for int8 in groups of a multiple of 8"):
            GemmSpec(**{"dtype": "bfloat16", "nibbles_from": 0, **wrong})


def test_half_the_bytes_take_half_the_time_to_read() -> None:
    spec, size = GemmSpec("bfloat16", b_dtype="int8", group=32), {"batch": 1, "M": 1, "N": 8192, "K": 8192, "packed": 1}
    of_bytes, of_nibbles = (cost(each, TILE, size, 64, Machine()) for each in (spec, replace(spec, nibbles_from=-8)))
    assert of_nibbles < 0.7 * of_bytes


def test_pairs_of_4_bits_take_less_time_than_one_number_after_the_other() -> None:
    spec, size = GemmSpec("bfloat16", b_dtype="int8", group=32), {"batch": 1, "M": 16, "N": 1024, "K": 4096, "packed": 1}
    tile = GemmConfig("tile_prepacked", 8, 3)
    of_bytes, of_nibbles = (cost(each, tile, size, 2, Machine()) for each in (spec, replace(spec, nibbles_from=-8)))
    widened = cost(replace(spec, nibbles_from=-8), replace(tile, pairs=True), size, 2, Machine())
    assert of_nibbles < 0.7 * of_bytes and of_nibbles < widened
