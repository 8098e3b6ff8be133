"""Two products that are added up as one template."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from polytile import options
from polytile.ir import expr, sizes
from polytile.ir.loop import Axis, Loop, Store
from polytile.ir.program import Program
from polytile.ir.template import Template
from polytile.passes.fusion.dual_matmul import fuse_dual_matmul
from polytile.passes.pipeline import PASSES, optimize
from tests.frontend.lowering import lower

Function = Callable[..., torch.Tensor]
F32 = torch.float32


pytestmark = pytest.mark.usefixtures("on_gpu")


def optimized(function: Function, dtype: torch.dtype = F32) -> Program:
    shapes = ((5, 7), (7, 6), (5, 9), (9, 6))
    return optimize(lower(function, *[torch.randn(shape).to(dtype) for shape in shapes])).program


def templates(program: Program) -> list[Template]:
    return [operation for operation in program.operations if isinstance(operation, Template)]


TAKEN: dict[str, tuple[Function, bool]] = {
    "sum": (lambda x, y, v, w: x @ y + v @ w, False),
    "sum with more": (lambda x, y, v, w: torch.relu(v @ w + x @ y) * 2, True),
    "linear layers": (lambda x, y, v, w: torch.addmm(torch.mm(x, y), v, w), False),
    "two results of the sum": (lambda x, y, v, w: ((z := x @ y + v @ w).sin(), z.cos()), True),  # type: ignore[dict-item]
    "a bias in between": (lambda x, y, v, w: torch.addmm(w[0], x, y) + v @ w, True),
}


@pytest.mark.parametrize("dtype", [F32, torch.bfloat16])
@pytest.mark.parametrize("name", TAKEN)
def test_a_sum_of_two_products_is_one_template(name: str, dtype: torch.dtype) -> None:
    function, epilogue = TAKEN[name]
    (template,) = templates(optimized(function, dtype))
    assert template.second is not None and (template.epilogue is not None) == epilogue
    assert len(template.operand_reads()) == 4


LEFT: dict[str, Function] = {
    "a difference": lambda x, y, v, w: x @ y - v @ w,
    "one is activated first": lambda x, y, v, w: torch.relu(x @ y) + v @ w,
    "one is scaled": lambda x, y, v, w: 2 * (x @ y) + v @ w,
    "one is read twice": lambda x, y, v, w: (z := x @ y) * (z + v @ w),
    "one is rounded to another type": lambda x, y, v, w: (x @ y).bfloat16().float() + v @ w,
    "one is a result": lambda x, y, v, w: (z := x @ y, z + v @ w),  # type: ignore[return-value]
    "transposed": lambda x, y, v, w: (y.t() @ x.t())[:5, :5] + (v @ w)[:5, :5],
}


@pytest.mark.parametrize("name", LEFT)
def test_other_uses_leave_two_products(name: str) -> None:
    found = templates(optimized(LEFT[name]))
    assert len(found) == 2 and not any(template.second for template in found)


def test_a_rounded_sum_keeps_its_epilogue() -> None:
    (template,) = templates(optimized(lambda x, y, v, w: (x @ y + v @ w).bfloat16().float()))
    assert template.second is not None and template.epilogue is not None


@pytest.mark.parametrize(("changed", "together"), [("arg0_1", False), ("arg2_1", True)])
def test_a_product_stays_where_its_operands_are_changed_before_the_other(changed: str, together: bool) -> None:
    program = lower(TAKEN["sum"][0], *[torch.randn(shape) for shape in ((5, 7), (7, 6), (5, 9), (9, 6))])
    for step in itertools.takewhile(lambda step: step.name != "dual matmul", PASSES):
        program = step.run(program)
    first, second = program.operations
    buffer = program.buffers[changed]
    axes = tuple(Axis(sizes.axis(f"p{k}"), size) for k, size in enumerate(buffer.sizes))
    index = sum((a.symbol * stride for a, stride in zip(axes, buffer.strides, strict=True)), sizes.ZERO)
    write = Loop("write", axes, (), (Store(changed, index, expr.const(0.0, F32)),))
    found = templates(fuse_dual_matmul(replace(program, operations=(first, write, second))))
    assert len(found) == (1 if together else 2)


def test_on_a_cpu_products_stay_apart() -> None:
    with options.override(interpret=False):
        assert not any(template.second for template in templates(optimized(TAKEN["sum"][0])))


def test_three_products_are_two_kernels() -> None:
    found = templates(optimized(lambda x, y, v, w: x @ y + v @ w + w.t()[:5] @ w))
    assert sorted(template.second is not None for template in found) == [False, True]
