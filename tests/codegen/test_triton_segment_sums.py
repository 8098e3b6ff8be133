"""Rows added up by an index into a table: by atomics in between, by the first point of each row, by programs that look for the
points of a row or are told of them, and by definition."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
import sympy
import torch

from polytile.candidates import triton_variants as variants
from polytile.codegen.triton import interpret
from polytile.codegen.triton.generate import generate
from polytile.codegen.triton.segment_sums import size_of, table_of
from polytile.dispatch.example_inputs import make_args
from polytile.ir import evaluate, expr
from polytile.ir.buffer import Buffer
from polytile.ir.loop import Loop
from polytile.problem import Config
from polytile.runtime.cuda import device
from polytile.schedule.canonical import LoopKernel, canonicalize
from polytile.schedule.facts import Facts
from polytile.schedule.gpu.segments import Segments
from polytile.schedule.nest import nest_of
from tests.codegen.helpers import BF16, F32, I64, P0, P1, P2, S0, S1, S2, checked, load, loop, op, store
from tests.codegen.interpreted import facts_of

PADDING = 3
SHAPES = ((1, 40, 5), (70, 33, 7), (48, 64, 16), (0, 20, 4), (100, 16, 9))
"""(indices, columns, rows of the table)"""


def by_index(
    padding: bool = False, rows: sympy.Expr | int = S2, dtype: torch.dtype = BF16, points: sympy.Expr | int = S0
) -> Loop:
    row = checked("i", P0, rows)
    other = op("ne", load("i", P0, I64), expr.const(PADDING, I64), dtype=torch.bool) if padding else None
    place = expr.indirect_symbol(0) * S1 + P1
    added = store("o", place, load("g", P0 * S1 + P1, dtype), mode="sum", indirect=(row,), mask=other)
    return loop([added], {P0: points, P1: S1})


def by_strided_index() -> Loop:
    """Indices along two axes that do not follow each other in memory."""
    row = checked("i", P0 * (S1 + 2) + P1, 6)
    value = load("g", P0 * S1 * S2 + P1 * S2 + P2, BF16)
    return loop([store("o", expr.indirect_symbol(0) * S2 + P2, value, mode="sum", indirect=(row,))], {P0: S0, P1: S1, P2: S2})


def kernel_of(body: Loop, dtype: torch.dtype = BF16) -> LoopKernel:
    types = {"g": dtype, "i": I64, "o": dtype}
    return canonicalize(body, {name: Buffer(name, dtype, (), ()) for name, dtype in types.items()})[0]


def tensors(kernel: LoopKernel, points: int, columns: int, rows: int) -> dict[str, torch.Tensor]:
    found = {}
    for tensor in kernel.tensors:
        if tensor.dtype == I64:
            found[tensor.name] = torch.randint(0, rows, (points,))
        else:
            count = rows * columns if tensor.role == "out" else points * columns
            found[tensor.name] = torch.randn(count).to(tensor.dtype)
    return found


def expected(kernel: LoopKernel, given: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
    wide = {name: t.double() if t.is_floating_point() else t.clone() for name, t in given.items()}
    evaluate.run_loop(kernel.loop, wide, {s: sizes[s.name] for s in kernel.symbols})
    return wide


def sizes_of(kernel: LoopKernel, *numbers: int) -> dict[str, int]:
    return dict(zip((s.name for s in kernel.symbols), numbers, strict=False))


CONFIGS = (
    Config.of(variant="atomic", x=16, y=4, warps=4), Config.of(variant="atomic", x=64, y=1, warps=4),
    Config.of(variant="first_occurrence", x=32, many=16, warps=4), Config.of(variant="first_occurrence", x=64, many=64, warps=4),
    Config.of(variant="owner_computes", x=32, many=16, warps=4), Config.of(variant="owner_computes", x=64, many=64, warps=4),
    Config.of(variant="sorted", x=32, y=4, warps=4, rows=4, many=16, chunks=8),
    Config.of(variant="sorted", x=16, y=2, warps=4, rows=16, many=128, chunks=1),
    Config.of(variant="sorted", x=64, y=8, warps=4, rows=2, many=8, chunks=16),
)  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
@pytest.mark.parametrize("padding", [False, True])
def test_rows_are_added_up_and_the_rest_is_zero(config: Config, dtype: torch.dtype, padding: bool) -> None:
    kernel = kernel_of(by_index(padding, dtype=dtype), dtype)
    for (points, columns, rows), bare in itertools.product(SHAPES, (False, True)):
        sizes = sizes_of(kernel, points, columns, rows)
        given = tensors(kernel, points, columns, rows)
        want = expected(kernel, given, sizes)
        made = generate(kernel, config, Facts(wide=True) if bare else facts_of(kernel, sizes))
        assert not interpret.run(made, given, sizes)
        for name, tensor in given.items():
            torch.testing.assert_close(tensor.double(), want[name].double(), rtol=1e-2, atol=1e-2, msg=f"{name} {sizes}")


def test_indices_along_several_axes_are_added_by_atomics() -> None:
    kernel = kernel_of(by_strided_index())
    assert table_of(kernel.loop) is None
    sizes = sizes_of(kernel, 5, 4, 20)
    given = tensors(kernel, 40, 20, 6)
    want = expected(kernel, given, sizes)
    assert not interpret.run(generate(kernel, CONFIGS[0], Facts()), given, sizes)
    for name, tensor in given.items():
        torch.testing.assert_close(tensor.double(), want[name].double(), rtol=1e-2, atol=1e-2)
    assert {c["variant"] for c in variants.configs(kernel, nest_of(kernel.loop), device.named("H100"))} == {"atomic"}


def test_a_table_to_which_nothing_is_ever_added_is_set_to_zero() -> None:
    kernel = kernel_of(by_index(points=0))
    nest = nest_of(kernel.loop)
    configs = [*variants.configs(kernel, nest, device.named("H100"))]
    assert {config["variant"] for config in configs} == {"atomic"}
    sizes = sizes_of(kernel, 20, 5)
    table = torch.full((100,), torch.nan, dtype=BF16)
    given = {t.name: table if t.role == "out" else torch.zeros(0, dtype=t.dtype) for t in kernel.tensors}
    made = generate(kernel, configs[0], facts_of(kernel, sizes))
    assert not interpret.run(made, given, sizes)
    assert torch.equal(table, torch.zeros(100, dtype=BF16))


def test_one_row_is_stored_without_atomics() -> None:
    one = loop([store("o", expr.indirect_symbol(0) * S1 + P0, load("g", P0, BF16), mode="sum", indirect=(checked("i", 0, S2),))],
               {P0: S1})  # fmt: skip
    kernel = kernel_of(one)
    sizes = sizes_of(kernel, 40, 5)
    given = tensors(kernel, 1, 40, 5)
    want = expected(kernel, given, sizes)
    made = generate(kernel, CONFIGS[0], facts_of(kernel, sizes))
    assert len(made.launches) == 2 and not made.scratch and not any("atomic" in launch.source for launch in made.launches)
    assert not interpret.run(made, given, sizes)
    for name, tensor in given.items():
        torch.testing.assert_close(tensor.double(), want[name].double(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_an_index_out_of_range_is_told_of(config: Config) -> None:
    kernel = kernel_of(by_index())
    sizes = sizes_of(kernel, 40, 20, 7)
    given = tensors(kernel, 40, 20, 7)
    next(t for t in given.values() if t.dtype == I64)[17] = 7
    assert interpret.run(generate(kernel, config, facts_of(kernel, sizes)), given, sizes) == 1


def test_sorted_points_are_added_up_alike_every_time() -> None:
    kernel = kernel_of(by_index(dtype=F32), F32)
    sizes = sizes_of(kernel, 70, 16, 3)
    given, again = tensors(kernel, 70, 16, 3), {}
    made = generate(kernel, CONFIGS[-1], facts_of(kernel, sizes))
    assert not any("atomic" in launch.source for launch in made.launches)
    for name, tensor in given.items():
        again[name] = tensor.clone()
    assert not interpret.run(made, given, sizes) and not interpret.run(made, again, sizes)
    assert all(torch.equal(given[name], again[name]) for name in given)


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_row_may_have_more_points_than_are_listed_at_once(chunks: int) -> None:
    kernel = kernel_of(by_index(dtype=F32), F32)
    sizes = sizes_of(kernel, 500, 16, 5)
    given = tensors(kernel, 500, 16, 5)
    next(t for t in given.values() if t.dtype == I64)[40:460] = 3
    want = expected(kernel, given, sizes)
    config = Config.of(variant="sorted", x=16, y=8, warps=1, rows=4, many=512 // chunks, chunks=chunks)
    made = generate(kernel, config, facts_of(kernel, sizes))
    assert dict(made.launches[0].constants)["LISTED"] < 420 // chunks
    assert not interpret.run(made, given, sizes)
    for name, tensor in given.items():
        torch.testing.assert_close(tensor.double(), want[name].double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64], ids=str)
def test_sums_of_sorted_points_are_rounded_once(dtype: torch.dtype) -> None:
    kernel = kernel_of(by_index(dtype=dtype), dtype)
    sizes = sizes_of(kernel, 60, 8, 2)
    given = tensors(kernel, 60, 8, 2)
    want = expected(kernel, given, sizes)
    assert not interpret.run(generate(kernel, CONFIGS[-1], facts_of(kernel, sizes)), given, sizes)
    for name, tensor in given.items():
        torch.testing.assert_close(tensor, want[name].to(tensor.dtype), rtol=2e-3 if dtype == torch.float16 else 1e-12, atol=2e-3)


def test_no_more_points_are_sorted_than_a_cluster_holds() -> None:
    kernel = kernel_of(by_index())
    config, nest = Config.of(variant="sorted", x=256, y=8, warps=1, rows=64, many=512, chunks=8), nest_of(kernel.loop)
    assert variants.valid(kernel, nest, config, sizes_of(kernel, 4096, 64, 100))
    assert not variants.valid(kernel, nest, config, sizes_of(kernel, 4097, 64, 100))
    assert not variants.valid(kernel, nest, config, sizes_of(kernel, 4096, 8, 200_000_000)), "more than 2³¹ counts"
    old = {c["chunks"] for c in variants.configs(kernel, nest, device.named("A100")) if c["variant"] == "sorted"}
    assert old == {1}


def test_kinds_of_sums_by_an_index_are_tried_beside_each_other() -> None:
    kernel = kernel_of(by_index())
    configs = variants.configs(kernel, nest_of(kernel.loop), device.named("H100"))
    assert {variants.traits(config) for config in configs} == {(("variant", one.value),) for one in Segments}


def test_indices_made_for_a_measurement_are_all_over_the_table() -> None:
    kernel = kernel_of(by_index(padding=True))
    made = make_args(kernel, sizes_of(kernel, 400, 8, 20))
    (index,) = (arg for arg in made if isinstance(arg, torch.Tensor) and arg.dtype == I64)
    assert 0 <= int(index.min()) and int(index.max()) < 20 and len(index.unique()) > 10


def test_the_table_is_written_whole() -> None:
    kernel = kernel_of(by_index())
    assert {t.role for t in kernel.tensors if not t.dtype == I64} == {"in", "out"}
    names = {s.name for s in kernel.symbols}
    assert {s.name for s in size_of(kernel.loop).free_symbols} < names


def test_the_number_of_points_decides_how_they_are_added_up() -> None:
    h100, kernel = device.named("H100"), kernel_of(by_index())
    nest = nest_of(kernel.loop)
    configs = variants.configs(kernel, nest, h100)

    def best(*numbers: int) -> Config:
        return min(configs, key=lambda c: variants.cost(kernel, c, sizes_of(kernel, *numbers), h100))

    assert best(4, 1 << 20, 1024)["variant"] == "first_occurrence"
    assert best(1024, 16384, 1024)["variant"] == "owner_computes"
    assert best(16384, 1024, 1024)["variant"] == "sorted"
    assert best(131072, 64, 1024)["variant"] == "atomic"
