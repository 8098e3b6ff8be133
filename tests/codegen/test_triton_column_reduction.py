"""Loops that add up columns beside their rows: by one kernel under the interpreter, taken apart, and by definition."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import pytest
import torch

from polytile.candidates import cpp_loops as loops
from polytile.candidates import triton_variants as variants
from polytile.candidates.unfused_columns import Unfused, parts
from polytile.codegen.triton import interpret
from polytile.codegen.triton.generate import generate
from polytile.errors import LoweringError
from polytile.ir import evaluate, expr
from polytile.ir.loop import Loop
from polytile.problem import Config
from polytile.runtime.cuda import device
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.facts import Facts
from polytile.schedule.gpu.legality import apply_rewrites, can_exchange, is_column_parallel
from polytile.schedule.nest import nest_of
from tests.codegen.helpers import F32, P0, P1, R0, S0, S1, S2, kernel_of, load, loop, op, store
from tests.codegen.interpreted import facts_of

SHAPES = ((1, 40), (7, 33), (48, 64), (130, 17), (5, 1000), (0, 20))


def gradients() -> Loop:
    """Of a norm over rows: that of its input, of its weight and of its bias."""
    g, x, w, rstd = load("g", P0 * S1 + R0), load("x", P0 * S1 + R0), load("w", R0), load("s", P0)
    scaled, normal = op("mul", g, w), op("mul", x, rstd)
    mean = op("div", expr.reduce("sum", F32, op("mul", scaled, normal)), expr.index_value(S1, F32))
    value = op("mul", rstd, op("sub", scaled, op("mul", normal, mean)))
    weight, bias = (store(name, R0, v, mode="sum") for name, v in (("dw", op("mul", g, normal)), ("db", g)))
    return loop([weight, bias, store("dx", P0 * S1 + R0, value)], {P0: S0}, {R0: S1})


def two_axes() -> Loop:
    """Rows along two axes that do not follow each other in memory; a number for each row beside the sums."""
    x = load("x", P0 * S1 * (S2 + 3) + P1 * (S2 + 3) + R0)
    total = store("t", P0 * S1 + P1, expr.reduce("sum", F32, x))
    return loop([total, store("c", R0, op("mul", x, x), mode="sum")], {P0: S0, P1: S1}, {R0: S2})


def tensors(kernel: LoopKernel, sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
    points = 1
    for n in sizes.values():
        points *= n + 3
    return {t.name: torch.randn(points) if t.role == "in" else torch.full((points,), 7.0) for t in kernel.tensors}


def expected(kernel: LoopKernel, given: Mapping[str, torch.Tensor], sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
    wide = {name: tensor.double() for name, tensor in given.items()}
    evaluate.run_loop(kernel.loop, wide, {s: sizes[s.name] for s in kernel.symbols})
    return wide


def agree(got: Mapping[str, torch.Tensor], want: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in got.items():
        torch.testing.assert_close(tensor.double(), want[name], rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("programs,stages,x", [(1, 1, 4), (3, 1, 2), (2, 3, 1), (64, 1, 8)])
def test_rows_and_columns_of_one_kernel(programs: int, stages: int, x: int) -> None:
    kernel = kernel_of(gradients())
    for shape, bare in itertools.product(SHAPES, (False, True)):
        sizes = dict(zip(("n0", "n1"), shape, strict=True))
        config = Config.of(
            variant="column_reduction", x=x, r=max(16, 1 << (shape[1] - 1).bit_length()), warps=4, programs=programs,
            stages=stages,
        )
        given = tensors(kernel, sizes)
        want = expected(kernel, given, sizes)
        made = generate(kernel, config, Facts(wide=True) if bare else facts_of(kernel, sizes))
        assert len(made.launches) == (1 if programs == 1 else 2)
        assert not interpret.run(made, given, sizes)
        agree(given, want)


@pytest.mark.parametrize("programs,parts", [(1, 4), (3, 2), (64, 4)])
def test_rows_in_parts(programs: int, parts: int) -> None:
    kernel = kernel_of(gradients())
    for shape, bare in itertools.product(SHAPES, (False, True)):
        sizes = dict(zip(("n0", "n1"), shape, strict=True))
        r = max(16, 1 << (shape[1] - 1).bit_length()) // parts
        config = Config.of(variant="column_reduction", x=1, r=r, parts=parts, warps=4, programs=programs)
        given = tensors(kernel, sizes)
        want = expected(kernel, given, sizes)
        made = generate(kernel, config, Facts(wide=True) if bare else facts_of(kernel, sizes))
        assert not interpret.run(made, given, sizes)
        agree(given, want)


@pytest.mark.parametrize("splits,programs,stages", [(2, 2, 1), (4, 12, 3), (16, 128, 1)])
def test_rows_of_clusters(splits: int, programs: int, stages: int) -> None:
    """Of 2, 3 and 8 clusters: as many rows as those and fewer, shares that end early and shares of nothing."""
    kernel, turn = kernel_of(gradients()), itertools.cycle((False, True))
    for shape in ((1, 40), (7, 33), (13, 64), (3, 250), (0, 20)):
        sizes = dict(zip(("n0", "n1"), shape, strict=True))
        r = max(16, (1 << (shape[1] - 1).bit_length()) // splits)
        config = Config.of(variant="column_reduction", x=1, r=r, splits=splits, warps=4, programs=programs, stages=stages)
        given = tensors(kernel, sizes)
        want = expected(kernel, given, sizes)
        made = generate(kernel, config, Facts(wide=True) if next(turn) else facts_of(kernel, sizes))
        assert [launch.cluster for launch in made.launches] == ([splits] if programs == splits else [splits, 1])
        assert not interpret.run(made, given, sizes)
        agree(given, want)


def test_a_cluster_exchanges_as_often_as_there_are_passes() -> None:
    """Rows less their greatest value, over the sum of their squares then; that sum beside them."""
    x = load("x", P0 * S1 + R0)
    far = op("sub", x, expr.reduce("max", F32, x))
    total = expr.reduce("sum", F32, op("mul", far, far))
    rest = [store("t", P0, total), store("o", P0 * S1 + R0, op("div", far, total))]
    kernel = kernel_of(loop([store("c", R0, far, mode="sum"), *rest], {P0: S0}, {R0: S1}))
    sizes = {"n0": 5, "n1": 50}
    given = tensors(kernel, sizes)
    want = expected(kernel, given, sizes)
    made = generate(kernel, Config.of(variant="column_reduction", x=1, r=16, splits=4, warps=4, programs=8), Facts())
    assert made.launches[0].source.count("pt_dsmem_wait(1") == 2
    assert not interpret.run(made, given, sizes)
    agree(given, want)


@pytest.mark.parametrize("blocks", [{"r": 32, "splits": 4}, {"r": 32, "parts": 4}, {"r": 128}, {"r": 8192}])
def test_sums_are_made_of_what_was_there_before_a_row_stored_over_it(blocks: dict[str, int]) -> None:
    """A value of the row, and an element where a thread has too many for loads ahead."""
    x, total = load("x", P0 * S1 + R0), load("t", P0)
    off = op("sub", x, expr.reduce("sum", F32, x))
    later = op("add", total, expr.reduce("sum", F32, op("mul", off, off)))
    old = load("y", P0 * S1 + R0)
    stores = [store("t", P0, later), store("y", P0 * S1 + R0, off)]
    sums = [store("c", R0, op("mul", off, total), mode="sum"), store("d", R0, op("mul", old, off), mode="sum")]
    kernel = kernel_of(loop([*stores, *sums], {P0: S0}, {R0: S1}))
    sizes = {"n0": 3, "n1": 100}
    given = tensors(kernel, sizes)
    want = expected(kernel, given, sizes)
    made = generate(kernel, Config.of(variant="column_reduction", x=1, warps=4, programs=4, **blocks), Facts())
    assert not interpret.run(made, given, sizes)
    for name, tensor in given.items():
        torch.testing.assert_close(tensor.double(), want[name], rtol=1e-4, atol=0.1)


def test_two_sums_of_a_row_are_put_together_at_once() -> None:
    x = load("x", P0 * S1 + R0)
    both = op("mul", expr.reduce("sum", F32, x), expr.reduce("sum", F32, op("mul", x, x)))
    stores = [store("c", R0, x, mode="sum"), store("o", P0 * S1 + R0, op("add", x, both))]
    kernel = kernel_of(loop(stores, {P0: S0}, {R0: S1}))
    sizes = {"n0": 5, "n1": 50}
    given = tensors(kernel, sizes)
    want = expected(kernel, given, sizes)
    config = Config.of(variant="column_reduction", x=1, r=32, splits=2, warps=4, programs=4)
    made = generate(kernel, config, facts_of(kernel, sizes))
    assert made.launches[0].source.count(", pt_add_two)") == 1
    assert not interpret.run(made, given, sizes)
    agree(given, want)


def test_what_programs_exchange_has_32_bits() -> None:
    def able(kind: str, dtype: torch.dtype) -> bool:
        x = load("x", P0 * S1 + R0, dtype)
        out = store("o", P0 * S1 + R0, op("sub", x, expr.reduce(kind, dtype, x)))
        return can_exchange(apply_rewrites(kernel_of(loop([out], {P0: S0}, {R0: S1})), one_sweep=False)[1])

    assert able("sum", F32) and able("max", F32)
    assert not able("sum", torch.float64) and not able("any", torch.bool)


@pytest.mark.parametrize("x,r,stages", [(4, 16, 1), (1, 512, 1), (2, 32, 3)])
def test_column_parallel_programs(x: int, r: int, stages: int) -> None:
    kernel = kernel_of(gradients())
    for shape, bare in itertools.product(SHAPES, (False, True)):
        sizes = dict(zip(("n0", "n1"), shape, strict=True))
        given = tensors(kernel, sizes)
        want = expected(kernel, given, sizes)
        config = Config.of(variant="column_parallel", x=x, r=r, warps=4, stages=stages)
        made = generate(kernel, config, Facts(wide=True) if bare else facts_of(kernel, sizes))
        assert not interpret.run(made, given, sizes)
        agree(given, want)


def test_column_parallel_programs_are_for_loops_that_store_points_alone() -> None:
    assert is_column_parallel(apply_rewrites(kernel_of(gradients()), one_sweep=False)[1])
    assert not is_column_parallel(apply_rewrites(kernel_of(two_axes()), one_sweep=False)[1])


@pytest.mark.parametrize("blocks", [{"x": 4, "r": 64}, {"x": 1, "r": 16, "parts": 4}])
def test_rows_along_two_axes(blocks: Mapping[str, int]) -> None:
    kernel = kernel_of(two_axes())
    sizes = dict(zip((s.name for s in kernel.symbols), (5, 7, 40), strict=False))
    given = tensors(kernel, sizes)
    want = expected(kernel, given, sizes)
    made = generate(kernel, Config.of(variant="column_reduction", warps=4, programs=3, **blocks), Facts())
    assert not interpret.run(made, given, sizes)
    agree(given, want)


@pytest.mark.parametrize("make", [gradients, two_axes])
def test_the_parts_do_what_the_whole_does(make: Callable[[], Loop]) -> None:
    kernel = kernel_of(make())
    sizes = dict(zip((s.name for s in kernel.symbols), (6, 5, 9), strict=False))
    given = tensors(kernel, sizes)
    want = expected(kernel, given, sizes)
    columns, rest = parts(kernel)
    assert not any(s.is_segment_sum for part, _ in (columns, rest) for s in part.loop.stores)
    assert all(t.role in ("in", "out") for part, _ in (columns, rest) for t in part.tensors)

    class Part:
        def __init__(self, part: LoopKernel) -> None:
            self.kernel, self.candidates = part, ()

        def __call__(self, *args: torch.Tensor | int) -> None:
            own = dict(zip([t.name for t in self.kernel.tensors], args, strict=False))
            values = dict(zip(self.kernel.symbols, args[len(own) :], strict=True))
            evaluate.run_loop(self.kernel.loop, own, values, None)  # type: ignore[arg-type]

    unfused = Unfused(kernel, [Part(part) for part, _ in (columns, rest)])
    unfused.entry().call(*[given[t.name] for t in kernel.tensors], *[sizes[s.name] for s in kernel.symbols])
    agree(given, want)


def test_a_sum_goes_on_from_one_piece_of_the_rows_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, sizes = kernel_of(gradients()), {"n0": 50, "n1": 20}
    given = tensors(kernel, sizes)
    want = expected(kernel, given, sizes)
    monkeypatch.setattr(evaluate, "CHUNK_POINTS", 100)
    agree(expected(kernel, given, sizes), want)


def test_a_loop_without_sums_has_no_parts() -> None:
    assert parts(kernel_of(loop([store("o", P0, load("x", P0))], {P0: S0}))) == ()


def held(config: Config) -> int:
    """Points of a row that the programs of a config hold."""
    return int(config["r"]) * int(config.get("parts", 1) or 1) * int(config.get("splits", 1) or 1)


def test_each_length_of_rows_has_its_configs() -> None:
    h100 = device.named("H100")
    kernel = kernel_of(gradients())
    nest = nest_of(kernel.loop)
    configs = variants.configs(kernel, nest, h100)
    assert {c["variant"] for c in configs} == {"column_reduction", "column_parallel"}
    assert len(set(map(str, configs))) == len(configs)
    assert not any(c.get("splits") for c in variants.configs(kernel, nest, device.named("A100")))
    for columns in (3, 16, 17, 64, 600, 1024, 4096, 8192, 16384):
        able = [c for c in configs if variants.valid(kernel, nest, c, {"n0": 4096, "n1": columns})]
        assert len({held(c) for c in able if c["variant"] == "column_reduction"}) == 1
        assert all(variants.cost(kernel, c, {"n0": 4096, "n1": columns}, h100) > 0 for c in able)


def test_no_kernels_for_a_cpu() -> None:
    with pytest.raises(LoweringError, match="down columns"):
        loops.loop_candidates(kernel_of(gradients()), (), 1)

