"""Reductions of rows in a product's epilogue: every schedule against eager, one block a row and several."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import polytile
from polytile import options
from polytile.candidates.triton import WORKER, job_of, triton_version
from polytile.candidates.triton_matmul import gemm_candidates
from polytile.ir import sizes
from polytile.ir.buffer import View
from polytile.ir.program import Program
from polytile.ir.template import Template
from polytile.matmul import gemm_kernel
from polytile.matmul.gemm_kernel import GemmKernel
from polytile.matmul.triton.operands import EVEN_K
from polytile.matmul.triton.schedules import generate
from polytile.matmul.triton.unit import Chip
from polytile.problem import Config
from polytile.runtime.cuda import cubins, workers
from polytile.schedule.facts import Facts
from tests import interpret
from tests.codegen.test_triton_gemm_prologue import lowered
from tests.codegen.triton_gemm import PLAIN, interpreted, small

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")

Tensors = tuple[torch.Tensor, ...]


@pytest.fixture(autouse=True)
def on_gpu() -> Iterator[None]:
    """CPU tensors stand for a GPU's, whose kernels are interpreted."""
    with options.override(interpret=True, persist=False, verify_ir=True):
        yield


def squares(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Tensors:
    """What an RMSNorm needs of a residual stream that is needed itself."""
    y = F.linear(x, w, b)
    return y, y.pow(2).mean(-1)


def logsumexp(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Tensors:
    return (F.linear(x, w, b).logsumexp(-1),)


def statistics(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Tensors:
    return torch.var_mean(F.linear(x, w, b), -1)


def extremes(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Tensors:
    y = torch.relu(F.linear(x, w, b))
    return y.amin(-1), y.amax(-1), (y > 1).any(-1).to(y.dtype), y.prod(-1)


def batched(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Tensors:
    return (torch.bmm(x[None].expand(2, -1, -1), w.t()[None].expand(2, -1, -1)).abs().amax(-1) * b[0],)


def normed(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Tensors:
    y = F.linear(x, w, b)
    return (F.layer_norm(y, y.shape[1:]),)


def probabilities(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Tensors:
    return (torch.softmax(F.linear(x, w, b), -1),)


LONG = (squares, logsumexp, statistics, extremes, batched)
SHORT = (normed, probabilities, statistics)


def arguments(m: int, n: int, k: int) -> Tensors:
    return torch.randn(m, k), torch.randn(n, k), torch.randn(n)


def flat(program: Program, template: Template, args: Tensors) -> tuple[GemmKernel, list[Any], list[torch.Tensor]]:
    """The kernel, its flat arguments, and the results, which are nothing right before."""
    kernel, site = gemm_kernel.canonicalize(template, program.buffers)
    values = interpret.bind(program, args)
    tensors = {item.buffer: arg for item, arg in zip(program.inputs, args, strict=True)}
    results = []
    for out in program.outputs:
        assert isinstance(out, View)
        nothing = float("nan") if out.dtype.is_floating_point else False if out.dtype == torch.bool else -7
        tensors[out.buffer] = torch.full([sizes.evaluate(n, values) for n in out.sizes], nothing, dtype=out.dtype)
        results.append(tensors[out.buffer])
    passed = [tensors[b] if isinstance(b, str) else interpret.view_tensor(b, tensors, values) for b in site.buffers]
    return kernel, [*passed, *[sizes.evaluate(e, values) for e in site.sizes]], results


def check(function: Callable[..., Tensors], config: Config, args: Tensors, symbolic: bool, facts: Facts | None = None) -> None:
    program, template = lowered(function, args, symbolic=symbolic)
    assert template.epilogue is not None and template.epilogue.reduced
    kernel, given, results = flat(program, template, args)
    interpreted(kernel, config, given, facts)
    for mine, eager in zip(results, function(*args), strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("variant", PLAIN)
@pytest.mark.parametrize("function", LONG)
def test_every_schedule_reduces_rows_of_several_blocks(function: Callable[..., Tensors], variant: str) -> None:
    for m, n in ((4, 70), (1, 33)) if variant == "rows" else ((37, 70), (16, 64)):
        check(function, small(variant), arguments(m, n, 40), symbolic=m > 1)


@pytest.mark.parametrize("variant", PLAIN)
@pytest.mark.parametrize("function", SHORT)
def test_points_of_a_row_that_one_block_holds_may_use_what_it_comes_to(function: Callable[..., Tensors], variant: str) -> None:
    check(function, small(variant, n=32), arguments(4 if variant == "rows" else 21, 31, 40), symbolic=False)


def test_rows_of_more_blocks_than_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polytile.matmul.triton.row_epilogue.PARTS", 2)
    for function in LONG:
        check(function, small("tile"), arguments(5, 150, 16), symbolic=True)


def test_positions_of_64_bits() -> None:
    check(batched, small("tile"), arguments(5, 70, 16), symbolic=True, facts=Facts(wide=True))


@pytest.mark.parametrize("row", ["lowest", "highest", "nan"])
def test_rows_that_are_not_finite(row: str) -> None:
    x, w, b = arguments(3, 70, 16)
    b[:] = 0
    x[1] = {"lowest": float("-inf"), "highest": float("inf"), "nan": float("nan")}[row]
    w = w.abs() + 0.1
    check(logsumexp, small("tile"), (x, w, b), symbolic=True)


def test_where_points_wait_for_the_row_only_blocks_that_hold_it_take_part() -> None:
    args = arguments(21, 100, 40)
    program, template = lowered(normed, args, symbolic=False)
    kernel = flat(program, template, args)[0]
    found = gemm_candidates(kernel, "normed", torch.device("cpu"))
    assert {c.config["variant"] for c in found} == set(PLAIN)
    assert all(int(c.config["n"]) >= 100 or c.config["variant"] == "split" for c in found)


def test_a_compiled_function_keeps_the_reduction_in_its_product() -> None:
    args = arguments(5, 70, 40)
    call = torch.compile(squares, backend="polytile", dynamic=True, options={"tune": "off"})
    for mine, eager in zip(call(*args), squares(*args), strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-4)
    program = polytile.compiler.programs.compiled_programs()[-1]
    assert [kernel.spec.family for kernel in program.multikernels] == ["mm"]
    assert "mean" in program.multikernels[0].spec.name


def test_reductions_of_rows_fit_in_registers(empty_cache: Path) -> None:
    args = tuple(t.bfloat16() for t in arguments(64, 96, 64))
    asked = []
    for function in (squares, logsumexp, normed):
        program, template = lowered(function, args, symbolic=function is not normed)
        kernel = gemm_kernel.canonicalize(template, program.buffers)[0]
        facts = Facts(frozenset(kernel.size_names), frozenset(t.name for t in kernel.tensors), holding=frozenset({EVEN_K}))
        for variant, m, n, warps in (("tile", 128, 128, 8), ("persistent", 128, 128, 8), ("tile", 64, 128, 4)):
            config = Config.of(variant=variant, m=m, n=n, k=64, stages=3, warps=warps, group=8)
            launches = generate(kernel, config, facts, Chip(132, overlaps=True)).launches
            assert len(launches) == (1 if function is normed else 2)
            asked += [cubins.request(cubins.Order("rows", WORKER, job_of(one, 90), triton_version())) for one in launches]
    assert all(promise.result().facts.spills == 0 for promise in asked)
    workers.reset()
