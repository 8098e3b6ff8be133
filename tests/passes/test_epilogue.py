"""Which work on a product is done on its accumulator."""

from __future__ import annotations

import pytest
import torch

from polytile.frontend.lower.value import Tensor
from polytile.ir import expr
from polytile.ir.loop import Loop
from polytile.ir.program import Program
from polytile.ir.template import Template
from polytile.passes.fusion.epilogue import fuse_epilogues
from polytile.passes.pipeline import optimize
from tests.passes.helpers import BF16, F32, S0, S1, S2, Net, assert_same, kinds

EXTENTS = {S0: 3, S1: 5, S2: 4}


def fused(net: Net, *outputs: Tensor) -> Program:
    before = net.program(*outputs)
    after = fuse_epilogues(before)
    assert_same(before, after, EXTENTS)
    return after


def epilogue_of(program: Program) -> Loop:
    (template,) = (o for o in program.operations if isinstance(o, Template))
    assert template.epilogue is not None
    return template.epilogue


def product(net: Net, dtype: torch.dtype = F32) -> Tensor:
    return net.mm(net.input("x", S0, S2, dtype=dtype), net.input("w", S2, S1, dtype=dtype))


def test_bias_activation_and_residual_become_one_epilogue() -> None:
    net = Net()
    out = net.op("add", product(net), net.input("bias", S1))
    after = fused(net, net.op("add", net.op("sigmoid", out), net.input("residual", S0, S1)))
    assert kinds(after) == ["Template"]
    assert len(epilogue_of(after).stores) == 1


def test_a_product_that_others_read_is_stored_by_its_epilogue() -> None:
    net = Net()
    out = product(net)
    after = fused(net, net.op("maximum", out, 0.0), net.reduce("sum", out, 0))
    assert kinds(after) == ["Template", "Loop"]
    assert len(epilogue_of(after).stores) == 2


def test_two_pointwise_readers_share_the_accumulator() -> None:
    net = Net()
    out = product(net)
    after = fused(net, net.op("sin", out), net.op("neg", out))
    assert kinds(after) == ["Template"]
    assert sum(isinstance(n, expr.Accumulator) for n in expr.walk(*epilogue_of(after).roots)) == 1


def test_the_later_of_two_products_takes_the_work_on_both() -> None:
    net = Net()
    x = net.input("x", S0, S2)
    gate, up = net.mm(x, net.input("w", S2, S1)), net.mm(x, net.input("v", S2, S1))
    after = fused(net, net.op("mul", net.op("sigmoid", gate), up))
    assert kinds(after) == ["Template", "Template"]
    first, second = after.operations
    assert isinstance(first, Template) and isinstance(second, Template)
    assert first.epilogue is None and second.epilogue is not None


def test_rows_split_into_batch_and_time_leave_no_division() -> None:
    net = Net()
    out = net.mm(net.view(net.input("x", S0, S1, S2), S0 * S1, S2), net.input("w", S2, 8))
    after = fused(net, net.op("add", net.view(out, S0, S1, 8), net.input("residual", S0, S1, 8)))
    assert kinds(after) == ["Template"]
    assert [str(s.index) for s in epilogue_of(after).stores] == ["8*m + n"]


def test_a_batch_of_heads_written_back_in_another_order() -> None:
    """(s0·4, s1, 8) → (s0, s1, 4, 8): the batch axis is split, and divided once a row."""
    net = Net()
    out = net.mm(net.input("x", S0 * 4, S1, S2), net.input("w", S0 * 4, S2, 8))
    heads = net.permute(net.view(out, S0, 4, S1, 8), 0, 2, 1, 3)
    target = net.input("target", S0, S1, 4, 8)
    net.write(target, net.op("mul", heads, 2.0))
    after = fuse_epilogues(optimize(net.program()).program)
    assert_same(net.program(), after, EXTENTS)
    assert kinds(after) == ["Template"]
    assert str(epilogue_of(after).stores[0].index.coeff(epilogue_of(after).axes[2].symbol)) == "1"


def test_columns_split_into_heads_do_not_fuse() -> None:
    net = Net()
    out = net.mm(net.input("x", S0, S2), net.input("w", S2, 32))
    target = net.input("target", 4, S0, 8)
    net.write(target, net.op("neg", net.permute(net.view(out, S0, 4, 8), 1, 0, 2)))
    after = fused(net)
    assert kinds(after) == ["Template", "Loop", "Loop"]


def test_reductions_and_slices_are_no_epilogues() -> None:
    for consume in (lambda net, out: net.reduce("sum", out, 1), lambda net, out: net.op("neg", net.slice(out, 0, 2))):
        net = Net()
        out = net.mm(net.input("x", S0, S2), net.input("w", S2, 4))
        after = fused(net, consume(net, out))
        assert kinds(after) == ["Template", "Loop"]


def test_work_that_overwrites_an_operand_is_no_epilogue() -> None:
    net = Net()
    x = net.input("x", S0, S0)
    out = net.mm(x, net.input("w", S0, S0))
    net.write(x, out)
    after = fused(net)
    assert kinds(after) == ["Template", "Loop"]


@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_the_accumulator_is_rounded_as_the_product_would_be(dtype: torch.dtype) -> None:
    net = Net()
    after = fused(net, net.op("mul", product(net, dtype), 3.0))
    names = [n.name for n in expr.walk(*epilogue_of(after).roots) if isinstance(n, expr.Op)]
    assert names == (["mul"] if dtype == F32 else ["round_bf16", "mul", "round_bf16"])
