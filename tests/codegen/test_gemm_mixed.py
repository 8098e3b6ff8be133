"""Products of floats by int8 on a CPU: every form, layout and tail against float64, and what is read of memory."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from test_gemm import DTYPES, TOLERANCE, Guarded, assert_close, call, compiled, matmul, matrix
from test_gemm_prepacked import product as prepacked

from polytile.matmul.cpp import GemmConfig, GemmSpec, configs, generate, panels, valid
from polytile.matmul.cpp.forms import FORM_LAYOUTS

CASES = (
    ("tile_packed", "n", "bfloat16"), ("tile_packed", "k", "float32"), ("tile_direct", "n", "float32"), ("dot", "k", "float32"),
    ("splitk", "any", "bfloat16"), ("stream", "n", "bfloat16"), ("small", "n", "float32"), ("small", "k", "bfloat16"),
)  # fmt: skip
SHAPES = ((1, 1, 1), (1, 17, 65), (5, 63, 130), (17, 65, 63), (3, 130, 300))


def config(form: str) -> GemmConfig:
    """Blocks so small that every loop turns more than once."""
    return GemmConfig(form, 3, 2 if form != "stream" else 1, kc=64, mc=6, nc=64, unroll=2, pack_a=form == "splitk")


def operands(dtype: str, b_layout: str, m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    b = torch.randint(-128, 128, (1, k, n), dtype=torch.int8)
    wide = torch.zeros(1, 2 * k, 2 * n, dtype=torch.int8)
    wide[:, ::2, ::2] = b
    return matrix(1, m, k, "cols", DTYPES[dtype]), {"n": b, "k": b.mT.contiguous().mT, "any": wide[:, ::2, ::2]}[b_layout]


@pytest.mark.parametrize(("form", "b_layout", "dtype"), CASES)
def test_every_form_is_right_at_odd_sizes(form: str, b_layout: str, dtype: str) -> None:
    torch.manual_seed(0)
    spec = GemmSpec(dtype, "k", b_layout, out_dtype=dtype, b_dtype="int8")
    function = compiled(generate(spec, config(form), "mixed_under_test", None, 16), "mixed_under_test")
    for m, n, k in SHAPES:
        a, b = operands(dtype, b_layout, m, n, k)
        assert_close(matmul(function, a, b, threads=2, dtype=DTYPES[dtype]), a, b, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_panels_of_int8_are_read_as_floats(dtype: str) -> None:
    torch.manual_seed(1)
    spec = GemmSpec(dtype, "k", "any", out_dtype=dtype, b_dtype="int8")
    for m, n, k in SHAPES:
        a, b = operands(dtype, "k", m, n, k)
        assert_close(prepacked(spec, config("tile_prepacked"), a, b, 2, 16, together=1), a, b, TOLERANCE[dtype])


GROUP = 32


@pytest.mark.parametrize(("form", "b_layout", "dtype"), [
    ("tile_packed", "k", "bfloat16"), ("tile_direct", "n", "float32"), ("small", "any", "float32"),
    ("tile_prepacked", "k", "bfloat16"),
])  # fmt: skip
def test_sums_of_groups_are_scaled(form: str, b_layout: str, dtype: str) -> None:
    torch.manual_seed(2)
    spec = GemmSpec(dtype, "k", "any" if form == "tile_prepacked" else b_layout, out_dtype=dtype, b_dtype="int8", group=GROUP)
    spec = replace(spec, zeros=form != "small")
    panels_at = 4 + spec.zeros
    function = compiled(generate(spec, config(form), "mixed_under_test", None, 16, panels_at), "mixed_under_test")
    for m, n, k in SHAPES:
        a, b = operands(dtype, b_layout, m, n, k)
        scales, zeros = torch.rand(-(-k // GROUP), n), torch.randint(-9, 9, (-(-k // GROUP), n)).float() * spec.zeros
        wide = ((b - zeros.double()[torch.arange(k) // GROUP]) * scales.double()[torch.arange(k) // GROUP])
        c = torch.full((1, m, n), float("nan"), dtype=DTYPES[dtype])
        tensors = (c, panels.make(b[0], 16, 1)) if form == "tile_prepacked" else (c,)
        assert call(function, a, b, (scales, *([zeros] if spec.zeros else []), *tensors), c.stride(), 2) == 0
        assert_close(c, a, wide, TOLERANCE[dtype])


@pytest.mark.parametrize(("group", "zeros"), [(0, False), (32, False), (48, True)])
@pytest.mark.parametrize("lanes", [8, 16])
def test_panels_of_int8_become_pairs_of_bfloat16_in_each_block(group: int, zeros: bool, lanes: int) -> None:
    """Also where a block of K ends within a group, and rows are so many that threads share the work of one panel."""
    torch.manual_seed(3)
    spec = GemmSpec("bfloat16", "k", "any", out_dtype="bfloat16", b_dtype="int8", group=group, zeros=zeros)
    pairs = replace(config("tile_prepacked"), pairs=True)
    function = compiled(generate(spec, pairs, "widened_under_test", None, lanes, 3 + spec.beside_b), "widened_under_test")
    for m, n, k in (*SHAPES, (70, 40, 257)):
        a, b = operands("bfloat16", "k", m, n, k)
        scales, low = torch.rand(-(-k // (group or k)), n), torch.randint(-9, 9, (-(-k // (group or k)), n)).float()
        of_k = torch.arange(k) // (group or k)
        wide = (b - low[of_k] * zeros) * (scales[of_k] if group else 1)
        c = torch.full((1, m, n), float("nan"), dtype=torch.bfloat16)
        beside = [scales] * (group > 0) + [low] * zeros
        assert call(function, a, b, (*beside, c, panels.make(b[0], lanes, 1)), c.stride(), 3) == 0
        assert_close(c, a, wide.bfloat16(), TOLERANCE["bfloat16"])


def test_a_pair_is_of_one_group() -> None:
    spec = GemmSpec("bfloat16", "k", "any", out_dtype="bfloat16", b_dtype="int8", group=33)
    pairs = replace(config("tile_prepacked"), pairs=True)
    assert not valid(spec, pairs, {"batch": 1, "M": 4, "N": 200, "K": 512, "packed": 1})
    with pytest.raises(ValueError, match="pairs of k are for bfloat16"):
        generate(spec, pairs, "widened_under_test", None, 16, 4)


@pytest.mark.parametrize("form", ["tile_direct", "dot"])
def test_nothing_is_read_past_the_end_of_an_int8_matrix(form: str) -> None:
    guarded, layout = Guarded(), FORM_LAYOUTS[form][0]
    spec = GemmSpec("float32", "k", layout, b_dtype="int8")
    function = compiled(generate(spec, config(form), "mixed_under_test", None, 16), "mixed_under_test")
    for m, n, k in ((1, 1, 1), (3, 17, 65), (7, 65, 63), (2, 63, 66)):
        a, b = (guarded.copy(t) for t in operands("float32", layout, m, n, k))
        assert_close(matmul(function, a, b, threads=1), a, b, TOLERANCE["float32"])


@pytest.mark.parametrize("lanes", [4, 8])
def test_shorter_vectors_are_right(lanes: int) -> None:
    spec = GemmSpec("float32", "k", "k", b_dtype="int8")
    function = compiled(generate(spec, config("tile_packed"), "mixed_under_test", None, lanes), "mixed_under_test")
    a, b = operands("float32", "k", 5, 63, 130)
    assert_close(matmul(function, a, b, threads=1), a, b, TOLERANCE["float32"])


def test_the_tables_have_configs_for_every_layout() -> None:
    for layout in ("n", "k", "any"):
        spec = GemmSpec("bfloat16", "k", layout, out_dtype="bfloat16", b_dtype="int8")
        sizes = {"batch": 1, "M": 4, "N": 200, "K": 512, "packed": 1}
        able = [each for each in configs(spec, 16, prepacked=True) if valid(spec, each, sizes)]
        assert {"tile_packed", "tile_prepacked", "small"} <= {each.form for each in able}
        assert {each.form for each in able if each.pairs} == {"tile_prepacked"}
        assert not any(each.pairs for each in configs(replace(spec, dtype="float32"), 16, prepacked=True))


def test_int8_is_not_converted_to_wider_floats() -> None:
    with pytest.raises(ValueError, match="a B of int8 is converted to floats of at most 32 bits, not to float64"):
        GemmSpec("float64", out_dtype="float64", b_dtype="int8")
