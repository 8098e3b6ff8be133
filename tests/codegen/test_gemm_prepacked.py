"""Products on panels of B that were made before the call: every dtype, tail and width of tile against float64; the panels."""

from __future__ import annotations

import ctypes
import itertools
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from test_gemm import COUNTING_EPILOGUE, DTYPES, TOLERANCE, assert_close, call, compiled, matrix

from polytile.cost.cpp_matmul import cost
from polytile.matmul.cpp import GemmConfig, GemmSpec, configs, generate, panels, valid
from polytile.matmul.cpp.machine import Machine
from tests.codegen.helpers import assert_golden

SIZES = (1, 3, 17, 63, 65, 130)
SHAPES = [s for i, s in enumerate(itertools.product(SIZES, SIZES, SIZES)) if i % 11 == 0] + [(200, 300, 257), (5, 64, 0)]
LANES = {"float32": 16, "bfloat16": 16, "float64": 8, "int8": 16}
RESULTS = {"float32": "float32", "bfloat16": "bfloat16", "float64": "float64", "int8": "int32"}
KEPT_AT = 3
"""Where the panels are among the pointers: after A, B and C."""


def small_blocks(dtype: str, mr: int = 6, nv: int = 4) -> GemmConfig:
    """Blocks so small that every loop turns more than once."""
    return GemmConfig("tile_prepacked", mr, nv, kc=64, mc=2 * mr, nc=128, pairs=dtype == "bfloat16")


def product(
    spec: GemmSpec, config: GemmConfig, a: torch.Tensor, b: torch.Tensor, threads: int, lanes: int, together: int | None = None
) -> torch.Tensor:
    """The kernel's result on the panels of b[0]; in place of B it gets no memory at all."""
    function = compiled(generate(spec, config, "kept_under_test", None, lanes, KEPT_AT), "kept_under_test")
    c = torch.full((1, a.shape[1], b.shape[2]), -12345, dtype=getattr(torch, spec.out_dtype))
    kept = panels.make(b[0], lanes, together)
    assert kept.dtype == torch.uint8 and kept.numel() == panels.size_of(*b.shape[1:], b.dtype, lanes, together)
    tensors = (a, None, c, kept)
    sizes = (1, a.shape[1], b.shape[2], a.shape[2], *a.stride(), *b.stride(), *c.stride())
    pointers = (ctypes.c_void_p * len(tensors))(*(None if t is None else t.data_ptr() for t in tensors))
    assert function(pointers, (ctypes.c_long * len(sizes))(*sizes), ctypes.c_long(threads)) == 0
    return c


def operands(dtype: str, a_layout: str, b_layout: str, m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    layouts = {"k": "cols", "m": "rows", "any": "any"}[a_layout], {"n": "cols", "k": "rows", "any": "any"}[b_layout]
    if dtype == "int8":
        a, b = (
            torch.randint(-128, 128, (1, rows, cols), dtype=torch.int8) for rows, cols in ((m, k), (k, n))
        )
        return a if a_layout == "k" else a.mT.contiguous().mT, b if b_layout == "n" else b.mT.contiguous().mT
    return matrix(1, m, k, layouts[0], DTYPES[dtype]), matrix(1, k, n, layouts[1], DTYPES[dtype])


@pytest.mark.parametrize("dtype", LANES)
@pytest.mark.parametrize(("a_layout", "b_layout"), [("k", "n"), ("m", "k"), ("any", "any")])
def test_every_type_and_layout_is_right_at_odd_sizes(dtype: str, a_layout: str, b_layout: str) -> None:
    torch.manual_seed(0)
    spec = GemmSpec(dtype, a_layout, "any", out_dtype=RESULTS[dtype])
    for number, (m, n, k) in enumerate(SHAPES):
        a, b = operands(dtype, a_layout, b_layout, m, n, k)
        c = product(spec, small_blocks(dtype), a, b, 1 + number % 3, LANES[dtype])
        if dtype == "int8":
            assert torch.equal(c, (a.double() @ b.double()).int())
        else:
            assert_close(c, a, b, TOLERANCE[dtype])


@pytest.mark.parametrize(("mr", "nv", "lanes"), [(8, 3, 16), (6, 2, 8), (8, 3, 4), (4, 1, 16)])
def test_tiles_of_any_width_read_the_same_panels(mr: int, nv: int, lanes: int) -> None:
    torch.manual_seed(1)
    for m, n, k in SHAPES[::4]:
        a, b = operands("float32", "k", "n", m, n, k)
        assert_close(product(GemmSpec(), small_blocks("float32", mr, nv), a, b, 2, lanes), a, b, TOLERANCE["float32"])


@pytest.mark.parametrize("dtype", LANES)
def test_every_config_of_the_tables_is_right(dtype: str) -> None:
    torch.manual_seed(2)
    spec, lanes = GemmSpec(dtype, out_dtype=RESULTS[dtype]), LANES[dtype]
    offered = [config for config in configs(spec, lanes, prepacked=True) if config.form == "tile_prepacked"]
    assert offered and not any(config.form == "tile_prepacked" for config in configs(spec, lanes))
    for config in offered:
        a, b = operands(dtype, "k", "k", 37, 200, 2100)
        c = product(spec, config, a, b, 2, lanes)
        if dtype == "int8":
            assert torch.equal(c, (a.double() @ b.double()).int())
        else:
            assert_close(c, a, b, TOLERANCE[dtype])


def test_an_epilogue_gets_every_sum_once() -> None:
    torch.manual_seed(3)
    text = generate(GemmSpec(has_epilogue=True), small_blocks("float32"), "kept_under_test", COUNTING_EPILOGUE, 16, panels_at=5)
    a, b = operands("float32", "k", "n", 37, 101, 130)
    out, times, bias = torch.zeros(1, 37, 104), torch.zeros(1, 37, 104, dtype=torch.int32), torch.randn(101)
    assert call(compiled(text, "kept_under_test"), a, b, (out, times, bias, panels.make(b[0], 16)), (104,), 2) == 0
    assert bool((times[..., :101] == 1).all()) and not bool(times[..., 101:].any())
    torch.testing.assert_close(out[..., :101].double(), 2 * (a.double() @ b.double()) + bias, rtol=1e-4, atol=1e-4)


def test_panels_of_a_matrix_are_its_columns_one_vector_after_another() -> None:
    matrix_of_three = torch.arange(6.0).reshape(3, 2)
    assert panels.make(matrix_of_three, 2).view(torch.float32).tolist() == [0, 1, 2, 3, 4, 5]
    one_column_more = torch.arange(9.0).reshape(3, 3)
    assert panels.make(one_column_more, 2).view(torch.float32).tolist() == [0, 1, 3, 4, 6, 7, 2, 0, 5, 0, 8, 0]
    pairs = panels.make(torch.arange(6.0).reshape(3, 2).bfloat16(), 2).view(torch.bfloat16)
    assert pairs.tolist() == [0, 2, 1, 3, 4, 0, 5, 0]
    turned = panels.make(torch.tensor([[1, -1]], dtype=torch.int8), 2)
    assert turned.tolist() == [129, 128, 128, 128, 127, 128, 128, 128]


def test_panels_take_part_only_where_there_are_some() -> None:
    spec, config, size = GemmSpec(), small_blocks("float32"), {"batch": 1, "M": 5, "N": 64, "K": 64}
    assert valid(spec, config, {**size, "packed": 1})
    assert not valid(spec, config, {**size, "packed": 0}) and not valid(spec, config, size)


def test_the_prior_counts_no_copying_of_kept_panels() -> None:
    machine, size = Machine(), {"batch": 1, "M": 32, "N": 4096, "K": 4096, "packed": 1}
    kept, packed = GemmConfig("tile_prepacked", 6, 4), GemmConfig("tile_packed", 6, 4)
    assert cost(GemmSpec(), kept, size, 2, machine) < cost(GemmSpec(), packed, size, 2, machine)


def test_what_has_no_panels_is_refused() -> None:
    with pytest.raises(ValueError, match="without a batch"):
        generate(GemmSpec(batched=True), small_blocks("float32"), "f", None, 16, KEPT_AT)
    with pytest.raises(ValueError, match="pairs of k"):
        generate(GemmSpec("bfloat16", out_dtype="bfloat16"), GemmConfig("tile_prepacked", 6, 4), "f", None, 16, KEPT_AT)


def test_golden_tile_on_prepacked_panels() -> None:
    text = generate(GemmSpec(), GemmConfig("tile_prepacked", 2, 3), "kept", None, 16, KEPT_AT)
    tile = text[text.index("static void tile2x3(") : text.index("static void tile1x1(")]
    multiply = text[text.index("static inline long kept_vector") : text.index("static void compute(")]
    assert_golden("matmul_kept.cpp", tile + multiply)
