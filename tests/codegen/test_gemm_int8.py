"""Generated products of int8: exact in int32 at every size, layout, thread count and instruction set; dequantising epilogues."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from test_gemm import Guarded, compiled, matmul

from polytile.matmul.cpp import GemmConfig, GemmSpec, configs, generate, valid
from polytile.matmul.cpp.forms import FORM_LAYOUTS

SIZES = (1, 2, 3, 17, 63, 65, 200)
SMALL_BLOCKS = {
    "tile_packed": GemmConfig("tile_packed", 6, 4, kc=64, mc=24, nc=128),
    "tile_direct": GemmConfig("tile_direct", 6, 4, kc=64, mc=24, nc=128),
    "splitk": GemmConfig("splitk", 6, 2, kc=64, mc=24, nc=128),
    "dot": GemmConfig("dot", 6, 4, kc=64, mc=24, unroll=2),
}
FORMS = tuple(SMALL_BLOCKS)
WITHOUT_VNNI = "#undef __AVX512VNNI__\n#undef __AVXVNNI__\n"


def matrix(batch: int, rows: int, columns: int, layout: str) -> torch.Tensor:
    """Random bytes of the whole range, both ends among them, with unit stride along "rows", "columns" or neither."""
    shape = {"columns": (batch, rows, columns), "rows": (batch, columns, rows), "any": (batch, rows, columns, 2)}[layout]
    found = torch.randint(-128, 128, shape, dtype=torch.int8)
    found.view(-1)[: min(2, found.numel())] = -128
    return found.transpose(1, 2) if layout == "rows" else found[..., 1] if layout == "any" else found


def operands(spec: GemmSpec, batch: int, m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    a = matrix(batch, m, k, {"k": "columns", "m": "rows", "any": "any"}[spec.a_layout])
    return a, matrix(batch, k, n, {"n": "columns", "k": "rows", "any": "any"}[spec.b_layout])


def check(spec: GemmSpec, config: GemmConfig, shapes: list[tuple[int, int, int, int]], lanes: int = 16, head: str = "") -> None:
    function = compiled(head + generate(spec, config, "gemm_under_test", None, lanes), "gemm_under_test")
    for number, (batch, m, n, k) in enumerate(shapes):
        a, b = operands(spec, batch, m, n, k)
        got = matmul(function, a, b, threads=4 if number % 10 == 9 else 1 + number % 2, dtype=torch.int32)
        torch.testing.assert_close(got, (a.double() @ b.double()).int(), rtol=0, atol=0)


CASES = [(form, a, b) for form in FORMS for a in ("k", "m", "any") for b in FORM_LAYOUTS[form]]


@pytest.mark.parametrize(("form", "a_layout", "b_layout"), CASES)
def test_every_form_and_layout_is_exact_at_odd_sizes(form: str, a_layout: str, b_layout: str) -> None:
    torch.manual_seed(0)
    spec = GemmSpec("int8", a_layout, b_layout, batched=True, out_dtype="int32")
    sizes = [s for i, s in enumerate(itertools.product(SIZES, SIZES, (0, *SIZES))) if i % 13 == 0]
    check(spec, SMALL_BLOCKS[form], [*((1, *s) for s in sizes), (3, 17, 65, 130), (1, 200, 200, 200)])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("lanes", "head"), [(8, ""), (4, ""), (16, WITHOUT_VNNI)])
def test_other_vectors_and_no_vnni_are_exact(form: str, lanes: int, head: str) -> None:
    torch.manual_seed(1)
    spec = GemmSpec("int8", "k", FORM_LAYOUTS[form][-1], out_dtype="int32")
    check(spec, SMALL_BLOCKS[form], [(1, 5, 35, 67), (1, 63, 17, 129), (1, 1, 1, 3)], lanes, head)


def test_nothing_is_read_past_the_end_of_a_b_that_is_not_packed() -> None:
    guarded, spec = Guarded(), GemmSpec("int8", out_dtype="int32")
    function = compiled(generate(spec, SMALL_BLOCKS["tile_direct"], "gemm_under_test", None, 16), "gemm_under_test")
    for m, n, k in ((1, 1, 1), (3, 17, 65), (17, 65, 63), (2, 64, 66), (7, 144, 200)):
        a, b = (guarded.copy(t) for t in operands(spec, 1, m, n, k))
        got = matmul(function, a, b, threads=2, dtype=torch.int32)
        torch.testing.assert_close(got, (a.double() @ b.double()).int(), rtol=0, atol=0)


@pytest.mark.parametrize("b_layout", ["n", "k"])
def test_every_config_of_the_tables_is_exact(b_layout: str) -> None:
    torch.manual_seed(2)
    spec = GemmSpec("int8", "k", b_layout, out_dtype="int32")
    tried = configs(spec, 16)
    assert tried
    for config in tried:
        assert valid(spec, config, {"batch": 1, "M": 65, "N": 200, "K": 4100})
        check(spec, config, [(1, 1, 64, 256), (1, 17, 65, 200), (1, 65, 200, 4100)])


def test_the_largest_sums_are_exact() -> None:
    a, b = torch.full((1, 3, 4096), -128, dtype=torch.int8), torch.full((1, 4096, 20), -128, dtype=torch.int8)
    for form in FORMS:
        spec = GemmSpec("int8", "k", FORM_LAYOUTS[form][-1], out_dtype="int32")
        function = compiled(generate(spec, SMALL_BLOCKS[form], "gemm_under_test", None, 16), "gemm_under_test")
        right = b.transpose(1, 2).contiguous().transpose(1, 2) if form == "dot" else b
        got = matmul(function, a, right, dtype=torch.int32)
        assert (got == 4096 * 128 * 128).all(), form


def test_what_int8_cannot_be_is_said() -> None:
    with pytest.raises(ValueError, match="products of int8 are not stored as float32"):
        GemmSpec("int8", out_dtype="float32")
    forms = "tile_packed, tile_direct, tile_prepacked, splitk, dot"
    with pytest.raises(ValueError, match=f"products of int8 take the forms {forms}; this is 'stream'"):
        generate(GemmSpec("int8", out_dtype="int32"), GemmConfig("stream", 4, 1), "f", None, 16)
