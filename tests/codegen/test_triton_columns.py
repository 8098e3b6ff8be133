"""Columns held whole by one program: which lengths have such configs, where they are tried, and what the compiler says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polytile.candidates import triton_variants as variants
from polytile.candidates.triton import WORKER, job_of
from polytile.candidates.triton_loops import label
from polytile.codegen.triton import interpret
from polytile.codegen.triton.generate import generate
from polytile.ir import expr
from polytile.problem import Config
from polytile.runtime.cuda import cubins, device, workers
from polytile.schedule.facts import Facts
from polytile.schedule.nest import nest_of
from tests.codegen.helpers import F32, P0, P1, R0, S0, S1, S2, Case, assert_golden, kernel_of, load, loop, op, store
from tests.codegen.interpreted import facts_of
from tests.codegen.test_loops_golden import column_sum
from tests.codegen.test_triton_cluster import column_weights
from tests.codegen.test_triton_golden import KNOWN, column_norm
from tests.codegen.test_triton_prior import SHORTLIST, ranking

H100 = device.named("H100")
PACKED = Config.of(variant="persistent", x=32, r=1024, warps=8, resident=2)


def held(**size: int) -> list[Config]:
    kernel = kernel_of(column_norm())
    nest = nest_of(kernel.loop)
    able = [c for c in variants.configs(kernel, nest, H100) if variants.valid(kernel, nest, c, size)]
    return [c for c in able if c["variant"] == "persistent"]


@pytest.mark.parametrize("rows", [300, 512, 700, 1024, 1500, 2048])
def test_long_columns_are_held_where_they_are_read_twice(rows: int) -> None:
    found = held(n0=16384, n1=rows)
    assert found and all(rows <= c["r"] < 2 * rows for c in found)
    first = list(ranking(kernel_of(column_norm()), n0=16384, n1=rows))[:SHORTLIST]
    assert any(label(c) in first for c in found)


def test_columns_that_are_read_once_need_not_be_held() -> None:
    kernel = kernel_of(column_sum())
    assert all(c["r"] <= 512 for c in variants.configs(kernel, nest_of(kernel.loop), H100) if c["variant"] == "persistent")


def test_a_block_has_64_bytes_of_a_row_or_more() -> None:
    kernel = kernel_of(column_norm())
    half = replace(kernel, tensors=tuple(replace(t, dtype=torch.bfloat16) for t in kernel.tensors))
    found = [c for c in variants.configs(half, nest_of(half.loop), H100) if c["variant"] == "persistent" and c["r"] >= 512]
    assert found and all(c["x"] >= 32 for c in found)


def matrices() -> Case:
    """Columns of several matrices of bfloat16 less their means."""
    x = load("x", P0 * S1 * S2 + R0 * S1 + P1)
    mean = op("div", expr.reduce("sum", F32, x), op("cast", expr.index_value(S2), dtype=F32))
    out = store("o", P0 * S1 * S2 + R0 * S1 + P1, op("sub", x, mean))
    return Case(loop([out], {P0: S0, P1: S1}, {R0: S2}), {"x": torch.bfloat16, "o": torch.bfloat16})


def test_columns_of_16_bits_are_made_floats_anew_for_each_pass() -> None:
    case, sizes = column_weights(), {"n0": 40, "n1": 50}
    x, w, m, out = (torch.randn(50, 40) * 2 + 3).bfloat16(), torch.rand(40), torch.ones(40), torch.zeros(50, 40).bfloat16()
    named = {"x": x, "w": w, "m": m, "o": out}
    config = Config.of(variant="persistent", x=16, r=64, warps=4, resident=2)
    made = generate(case.kernel, config, facts_of(case.kernel, sizes))
    assert not interpret.run(made, {t.name: named[o] for t, o in zip(case.kernel.tensors, case.site.buffers, strict=True)}, sizes)
    wide = x.double()
    want = (wide - wide.mean(0)) / wide.std(0, correction=0) * w
    torch.testing.assert_close(out.double(), want, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(m.double(), wide.mean(0) + 1)


def test_the_third_axis_of_the_grid_stays_0_where_matrices_lie_along_the_others() -> None:
    case, sizes = matrices(), {"n0": 3, "n1": 40, "n2": 50}
    config = Config.of(variant="persistent", x=16, r=64, warps=4, resident=2)
    for facts in (facts_of(case.kernel, sizes), Facts(wide=True)):
        x, out = torch.randn(3, 50, 40).bfloat16() + 2, torch.full((3, 50, 40), 7.0).bfloat16()
        made = generate(case.kernel, config, facts)
        assert made.launches[0].grid[1:] == (1, 1)
        named = {"x": x, "o": out}
        tensors = {t.name: named[o] for t, o in zip(case.kernel.tensors, case.site.buffers, strict=True)}
        assert not interpret.run(made, tensors, sizes)
        torch.testing.assert_close(out.double(), x.double() - x.double().mean(1, keepdim=True), rtol=1e-2, atol=1e-2)


def test_their_text() -> None:
    (launch,) = generate(column_weights().kernel, PACKED, KNOWN, overlaps=True).launches
    assert launch.own == (("maxnreg", 128),)
    assert_golden("column_weights_packed.triton", launch.source[launch.source.index("@triton.jit") :])


def test_they_compile_for_an_h100_without_spills() -> None:
    pytest.importorskip("triton", reason="Triton is not installed; make setup installs it where it can")
    wide, narrow = kernel_of(column_norm()), column_weights().kernel
    orders = []
    for kernel, config in (
        (wide, Config.of(variant="persistent", x=32, r=1024, warps=16)),
        (wide, Config.of(variant="persistent", x=16, r=2048, warps=16)),
        (narrow, PACKED),
        (narrow, Config.of(variant="persistent", x=32, r=512, warps=4, resident=4)),
    ):
        (launch,) = generate(kernel, config, KNOWN).launches
        orders.append(cubins.Order("columns", WORKER, job_of(launch, 90), "test"))
    try:
        found = [promise.result(250) for promise in [cubins.request(order) for order in orders]]
    finally:
        workers.reset()
    assert all(one.binary and one.facts.spills == 0 for one in found)
