"""Matrix products become templates over views of their operands, with eager's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from polytile.ir.loop import Loop
from polytile.ir.program import Program
from polytile.ir.template import Template
from tests.frontend.lowering import check, library_calls, lower, run

Function = Callable[..., Any]


def templates(program: Program) -> list[Template]:
    return [op for op in program.operations if isinstance(op, Template)]


def loops(program: Program) -> list[Loop]:
    return [op for op in program.operations if isinstance(op, Loop)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_product_of_one_column_and_one_row_is_a_loop(dtype: torch.dtype) -> None:
    def angles(x: torch.Tensor, y: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.bmm(x, y).cos(), torch.mm(x[1], y[1]) + b

    args = torch.randn(3, 5, 1, dtype=dtype), torch.randn(3, 1, 7, dtype=dtype), torch.randn(7, dtype=dtype)
    program = check(angles, *args)
    assert templates(program) == [] and library_calls(program) == []


def test_a_product_in_16_bits_is_not_stored_again_in_32() -> None:
    def swish(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.silu(x @ y) * (x @ y.sin())

    program = lower(swish, torch.randn(5, 8).bfloat16(), torch.randn(8, 6).bfloat16())
    assert not [b.name for b in program.buffers.values() if b.dtype == torch.float32]


PRODUCTS: dict[str, Function] = {
    "mm": lambda x, y, b: x @ y,
    "mm, left transposed": lambda x, y, b: x.t().contiguous().t() @ y,
    "mm, right transposed": lambda x, y, b: x @ y.t().contiguous().t(),
    "mm of parts": lambda x, y, b: x[:, 1:] @ y[1:, ::2],
    "mm of a broadcast": lambda x, y, b: x[:1].expand(x.shape) @ y,
    "linear": lambda x, y, b: F.linear(x, y.t(), b),
    "linear of three dimensions": lambda x, y, b: F.linear(x.unsqueeze(0).expand(2, -1, -1), y.t(), b),
    "addmm": lambda x, y, b: torch.addmm(b, x, y),
    "addmm, scaled": lambda x, y, b: torch.addmm(b, x, y, beta=0.5, alpha=2),
    "addmm without bias": lambda x, y, b: torch.addmm(b, x, y, beta=0),
    "addmm of a matrix": lambda x, y, b: torch.addmm(b.expand(x.shape[0], -1), x, y, beta=-1),
    "addmv": lambda x, y, b: torch.addmv(x[:, 0], x, y[:, 0], beta=2),
    "mv": lambda x, y, b: x @ y[:, 0],
    "dot": lambda x, y, b: x[0] @ y[:, 0],
    "outer": lambda x, y, b: torch.outer(x[0], b),
    "einsum": lambda x, y, b: torch.einsum("ij,jk->ki", x, y),
}
BATCHED: dict[str, Function] = {
    "bmm": lambda x, y, b: x @ y,
    "bmm, transposed": lambda x, y, b: x.mT.contiguous().mT @ y.mT.contiguous().mT,
    "bmm of a broadcast": lambda x, y, b: x[:1].expand(x.shape) @ y,
    "addbmm, scaled": lambda x, y, b: torch.addbmm(b, x, y, beta=0.5, alpha=-2),
    "baddbmm": lambda x, y, b: torch.baddbmm(b, x, y),
    "baddbmm, scaled": lambda x, y, b: torch.baddbmm(b.expand(x.shape[0], x.shape[1], -1), x, y, beta=0.5, alpha=-2),
    "heads": lambda x, y, b: x.unsqueeze(1).expand(-1, 2, -1, -1) @ y.unsqueeze(1).expand(-1, 2, -1, -1),
    "scores": lambda x, y, b: (x @ y).softmax(-1) @ b.unsqueeze(-1).expand(x.shape[0], -1, 3),
}


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_of_matrices(name: str, dtype: torch.dtype) -> None:
    def sample(m: int, k: int, n: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(m, k, dtype=dtype), torch.randn(k, n, dtype=dtype), torch.randn(n, dtype=dtype)

    program = check(PRODUCTS[name], *sample(4, 6, 5))
    for shape in ((3, 7, 9), (8, 5, 4)):
        args = sample(*shape)
        torch.testing.assert_close(run(program, list(args))[0], PRODUCTS[name](*args))


@pytest.mark.parametrize("name", BATCHED)
def test_products_of_batches(name: str) -> None:
    def sample(b: int, m: int, k: int, n: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(b, m, k), torch.randn(b, k, n), torch.randn(n)

    program = check(BATCHED[name], *sample(3, 4, 6, 5))
    args = sample(2, 5, 4, 7)
    torch.testing.assert_close(run(program, list(args))[0], BATCHED[name](*args))


@pytest.mark.parametrize("fn", [lambda x, y: x @ y, lambda x, y: torch.addmm(y[0], x, y, alpha=0.5)])
def test_products_in_bfloat16(fn: Function) -> None:
    x, y = torch.randn(8, 64).bfloat16(), torch.randn(64, 16).bfloat16()
    check(fn, x, y, rtol=1.6e-2, atol=1e-1)


def test_operands_that_are_views_are_not_copied() -> None:
    x, y, w = torch.randn(12, 6), torch.randn(4, 12), torch.randn(2, 6, 12)
    program = check(lambda x, y, w: (x.t()[::2] @ y[:, :].t(), w.transpose(0, 1)[1] @ x), x, y, w)
    assert len(templates(program)) == 2 and loops(program) == []
    first, second = templates(program)
    assert [first.a.buffer, first.b.buffer, second.a.buffer] == [item.buffer for item in program.inputs]


def test_a_computed_operand_is_stored_once() -> None:
    program = check(lambda x, y: x.exp() @ y, torch.randn(4, 6), torch.randn(6, 5))
    assert [type(op) for op in program.operations] == [Loop, Template]


def test_a_computed_operand_is_written_in_its_own_order_and_read_as_a_transpose() -> None:
    program = check(lambda x, y: x.exp().t() @ y.sin().mT.contiguous().mT, torch.randn(6, 4), torch.randn(6, 5))
    (template,) = templates(program)
    assert template.a.strides[1] == 1 and template.b.strides[1] == 1


def test_what_is_added_to_a_product_is_one_loop_that_reads_it() -> None:
    x, y, b = torch.randn(4, 6), torch.randn(6, 5), torch.randn(5)
    program = check(lambda x, y, b: F.linear(x, y.t(), b).relu(), x, y, b)
    assert [type(op) for op in program.operations] == [Template, Loop]
    assert loops(program)[0].reads() == {templates(program)[0].out.buffer, program.inputs[2].buffer}


def test_a_bias_times_zero_is_not_read() -> None:
    bias = torch.full((5,), torch.nan)
    check(lambda x, y, b: torch.addmm(b, x, y, beta=0), torch.randn(4, 6), torch.randn(6, 5), bias)
    check(lambda x, y, b: torch.baddbmm(b, x, y, beta=0), torch.randn(2, 4, 6), torch.randn(2, 6, 5), bias)


def test_nothing_to_add_up_is_zero_and_nothing_to_fill_is_empty() -> None:
    check(lambda x, y, b: (x @ y, torch.addmm(b, x, y)), torch.randn(4, 0), torch.randn(0, 5), torch.randn(5))
    check(lambda x, y, b: (x @ y, torch.addmm(b, x, y)), torch.randn(0, 3), torch.randn(3, 5), torch.randn(5))
    check(lambda x, y: x @ y, torch.randn(3, 4, 2), torch.randn(3, 2, 0))
    check(lambda x, y: x @ y, torch.randn(0, 4, 2), torch.randn(0, 2, 3))


@pytest.mark.parametrize(
    ("dtype", "operator"),
    [(torch.int64, "aten.mm.default"), (torch.float16, "aten.mm.default"), (torch.complex64, "aten.mm.default")],
)
def test_other_types_are_the_library_s(dtype: torch.dtype, operator: str) -> None:
    x, y = torch.randn(4, 6).to(dtype), torch.randn(6, 5).to(dtype)
    program = check(lambda x, y: x @ y, x, y, library=True)
    assert library_calls(program) == [operator] and templates(program) == []


def test_a_product_of_int8_is_a_template_with_a_wider_result() -> None:
    x, y = torch.randint(-9, 9, (32, 16), dtype=torch.int8), torch.randint(-9, 9, (16, 8), dtype=torch.int8)
    program = check(lambda x, y: torch._int_mm(x, y), x, y)
    assert [t.out.dtype for t in templates(program)] == [torch.int32]


@given(st.tuples(*[st.integers(0, 5)] * 3), st.booleans(), st.booleans(), st.integers(1, 2))
def test_any_sizes_and_layouts(sizes: tuple[int, int, int], left: bool, right: bool, step: int) -> None:
    m, k, n = sizes
    x = torch.randn(k, m * step)[:, ::step].t() if left else torch.randn(m, k * step)[:, ::step]
    y = torch.randn(n, k * step)[:, ::step].t() if right else torch.randn(k, n * step)[:, ::step]
    program = lower(lambda x, y: x @ y, x, y)
    assert loops(program) == [] or 0 in sizes or k == 1
    torch.testing.assert_close(run(program, [x, y])[0], x @ y)
