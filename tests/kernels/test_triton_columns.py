"""Columns held whole by one program: which lengths have such configs, where they are tried, and what the compiler says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from polytile.kernels.nest import nest_of
from polytile.kernels.triton import variants
from polytile.kernels.triton.candidate import WORKER, job_of
from polytile.kernels.triton.generate import generate
from polytile.kernels.triton.loops import label
from polytile.problem import Config
from polytile.runtime.cuda import cubins, device, workers
from tests.kernels.helpers import kernel_of
from tests.kernels.test_loops_golden import column_sum
from tests.kernels.test_triton_golden import KNOWN, column_norm
from tests.kernels.test_triton_prior import SHORTLIST, ranking

H100 = device.named("H100")


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


def test_they_compile_for_an_h100_without_spills() -> None:
    pytest.importorskip("triton", reason="Triton is not installed; make setup installs it where it can")
    kernel = kernel_of(column_norm())
    orders = []
    for x, r, warps in ((32, 1024, 16), (16, 2048, 16)):
        (launch,) = generate(kernel, Config.of(variant="persistent", x=x, r=r, warps=warps), KNOWN).launches
        orders.append(cubins.Order("columns", WORKER, job_of(launch, 90), "test"))
    try:
        found = [promise.result(250) for promise in [cubins.request(order) for order in orders]]
    finally:
        workers.reset()
    assert all(one.binary and one.facts.spills == 0 for one in found)
