"""Temporaries that would be written across their loop are laid out along it, where their readers can follow."""

from __future__ import annotations

from polytile.frontend.lower.value import Tensor
from polytile.ir.buffer import View
from polytile.ir.loop import Loop
from polytile.ir.program import Program
from polytile.ir.template import Template
from polytile.passes.layout import choose_layouts
from polytile.passes.pipeline import optimize
from tests.passes.helpers import S0, S1, S2, Net, assert_same, kinds

EXTENTS = {S0: 3, S1: 5, S2: 4}


def transposed(net: Net, x: Tensor) -> Tensor:
    """exp(x) stored transposed, as a lowering does for an operand that it wants row-major."""
    return net.op("exp", net.permute(x, 1, 0))


def strides(view: View) -> list[str]:
    return [str(s) for s in view.strides]


def checked(net: Net, *outputs: Tensor) -> Program:
    before = net.program(*outputs)
    after = choose_layouts(before)
    assert_same(before, after, EXTENTS)
    return after


def test_an_operand_stored_transposed_is_stored_straight_and_read_transposed() -> None:
    net = Net()
    out = net.mm(transposed(net, net.input("x", S0, S1)), net.input("y", S0, S2))
    after = checked(net, out)
    loop, product = after.operations
    assert isinstance(loop, Loop) and isinstance(product, Template)
    assert str(loop.stores[0].index) == "p0 + p1*s1"
    assert strides(product.a) == ["0", "1", "s1"]


def test_an_epilogue_stores_along_n() -> None:
    net = Net()
    first = net.mm(net.input("x", S0, S1), net.input("w", S1, S2))
    operand = net.op("maximum", net.permute(first, 1, 0), 0.0)
    before = net.program(net.mm(operand, net.input("y", S0, 8)))
    after = optimize(before).program
    assert_same(before, after, EXTENTS)
    producer, consumer = after.operations
    assert isinstance(producer, Template) and producer.epilogue is not None and isinstance(consumer, Template)
    assert str(producer.epilogue.stores[0].index) == "m*s2 + n"
    assert strides(consumer.a) == ["0", "1", "s2"]


def test_one_store_is_left_where_both_layouts_were_asked_for() -> None:
    """dy as it is for dx, transposed for dw: the backward of a linear layer."""
    net = Net()
    dy = net.input("dy", S0, S1)
    straight, across = net.op("exp", dy), transposed(net, dy)
    before = net.program(net.mm(straight, net.input("w", S1, S2)), net.mm(across, net.input("x", S0, S2)))
    after = optimize(before).program
    assert_same(before, after, EXTENTS)
    assert kinds(after) == ["Loop", "Template", "Template"]
    loop = after.operations[0]
    assert isinstance(loop, Loop) and len(loop.stores) == 1


def test_a_loop_that_reads_it_follows() -> None:
    net = Net()
    across = transposed(net, net.input("x", S0, S1))
    after = checked(net, net.mm(across, net.input("y", S0, S2)), net.reduce("sum", across, 0))
    assert str(next(s.index for o in after.operations[:1] if isinstance(o, Loop) for s in o.stores)) == "p0 + p1*s1"


def test_outputs_and_what_is_read_in_part_keep_their_layout() -> None:
    net = Net()
    across = transposed(net, net.input("x", S0, S1))
    product = net.mm(across, net.input("y", S0, S2))
    assert checked(net, across, product) == net.program(across, product)
    net = Net()
    part = net.op("neg", net.slice(transposed(net, net.input("x", 4, S1)), 1, 2))
    assert checked(net, part) == net.program(part)
