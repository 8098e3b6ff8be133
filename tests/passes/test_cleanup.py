"""What nobody needs goes, what is stored twice is stored once, and dying memory is offered to new buffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from polytile.ir import sizes
from polytile.ir.library_call import Ref
from polytile.ir.loop import Loop
from polytile.ir.program import Extern, Program
from polytile.passes.dce import eliminate_dead_code
from polytile.passes.duplicates import merge_calls, merge_duplicates
from polytile.passes.inplace import reuse
from polytile.passes.pipeline import optimize
from tests.passes.helpers import F32, S0, S1, Net, assert_same, loop_of, optimized, softmax

aten = torch.ops.aten
EXTENTS = {S0: 3, S1: 5}


# dead code ---------------------------------------------------------------------------------------------------------------


def test_chains_that_end_nowhere_go_with_their_buffers() -> None:
    net = Net()
    x = net.input("x", S0, S1)
    net.op("sin", net.op("exp", x))
    net.mm(x, net.permute(x, 1, 0))
    before = net.program(net.op("neg", x))
    after = eliminate_dead_code(before)
    assert len(after.operations) == 1
    assert set(after.buffers) == {"x", *after.output_buffers()}
    assert_same(before, after, EXTENTS)


def test_one_of_several_stores_goes() -> None:
    net = Net()
    x = net.input("x", S0, S1)
    net.op("sin", x)
    kept = net.op("exp", x)
    before = net.program(kept)
    first, second = (o for o in before.operations if isinstance(o, Loop))
    both = replace(before, operations=(replace(first, stores=first.stores + second.stores),))
    after = eliminate_dead_code(both)
    assert loop_of(after).writes() == before.output_buffers()


def test_writes_to_inputs_are_kept() -> None:
    net = Net()
    x = net.input("x", S0, S1)
    net.write(x, net.op("add", x, 1.0))
    assert len(eliminate_dead_code(net.program()).operations) == 2


CALLS = {
    "pure": (aten.neg.default, (), False),
    "random": (aten.rand_like.default, (), True),
    "changes its argument": (aten.add_.Tensor, (1.0,), True),
    "not an ATen operator": (torch.neg, (), True),
}


@pytest.mark.parametrize("name", CALLS)
def test_library_calls_are_kept_for_their_effects(name: str) -> None:
    target, more, kept = CALLS[name]
    net = Net()
    x = net.input("x", S0, S1)
    assert x.view is not None
    out = net.builder.new_buffer(x.sizes, F32, torch.device("cpu"))
    net.builder.emit(Extern("lib0", target, (Ref(x.view), *more), (), (out.name,)))
    assert len(eliminate_dead_code(net.program()).operations) == kept


# duplicates --------------------------------------------------------------------------------------------------------------


def twice(outputs: int) -> Program:
    """exp(x) stored in two buffers, both read by products."""
    net = Net()
    x, y = net.input("x", S0, S0), net.input("y", S0, S0)
    copies = [net.op("exp", x), net.op("exp", x)]
    products = [net.mm(c, y) for c in copies]
    return net.program(*products, *copies[:outputs])


@pytest.mark.parametrize("outputs", [0, 1, 2])
def test_a_value_stored_twice_is_stored_once_unless_both_are_returned(outputs: int) -> None:
    before = twice(outputs)
    after = optimize(before).program
    assert_same(before, after, EXTENTS)
    stores = [s for o in after.operations if isinstance(o, Loop) for s in o.stores]
    assert len(stores) == (2 if outputs == 2 else 1)


def test_of_three_stores_of_a_value_the_one_that_is_returned_stays() -> None:
    net = Net()
    x, y = net.input("x", S0, S0), net.input("y", S0, S0)
    copies = [net.op("exp", x) for _ in range(3)]
    before = net.program(*[net.mm(c, y) for c in copies], copies[2])
    after = optimize(before).program
    assert_same(before, after, EXTENTS)
    assert [s.buffer for o in after.operations if isinstance(o, Loop) for s in o.stores] == [after.outputs[3].buffer]


def test_a_copy_that_is_changed_later_stays_apart() -> None:
    net = Net()
    x = net.input("x", S0, S1)
    one, other = net.op("exp", x), net.op("exp", x)
    net.write(one, net.input("y", S0, S1))
    before = net.program(one, net.reduce("sum", other, 1))
    first, second, *rest = before.operations
    assert isinstance(first, Loop) and isinstance(second, Loop)
    joined = replace(before, operations=(replace(second, stores=first.stores + second.stores), *rest))
    after = merge_duplicates(joined)
    assert after == joined
    assert_same(before, after, EXTENTS)


# equal library calls -----------------------------------------------------------------------------------------------------


def calls(function: Callable[..., Any], *args: torch.Tensor) -> list[str]:
    return [str(o.target) for o in optimized(function, *args).operations if isinstance(o, Extern)]


def test_equal_library_calls_are_made_once() -> None:
    def rotated(x: torch.Tensor, y: torch.Tensor) -> Any:
        as_complex = torch.view_as_complex
        return as_complex(x).abs(), as_complex(x).angle(), torch.view_as_real(as_complex(x) * as_complex(y))

    names = calls(rotated, torch.randn(5, 7, 2), torch.randn(5, 7, 2))
    assert names.count("aten.view_as_complex.default") == 2


def test_calls_stay_apart_whose_results_are_the_callers_or_whose_arguments_differ_in_type() -> None:
    x = torch.randn(5, 7)
    assert len(calls(lambda x: (torch.mode(x, 1)[0], torch.mode(x, 1)[0]), x)) == 2
    assert len(calls(lambda x: torch.mode(x, 1)[0] + torch.mode(x, 1)[0], x)) == 1
    assert len(calls(lambda x: torch.mode(x, 1, True)[0] + torch.mode(x, 1, False)[0], x)) == 2


def test_calls_stay_apart_where_their_argument_is_written_between() -> None:
    net = Net()
    x = net.input("x", S0, S1)
    assert x.view is not None
    outs = [net.builder.new_buffer((S0,), F32, torch.device("cpu")) for _ in range(2)]
    mode = [Extern(f"lib{k}", torch.ops.aten.mode.default, (Ref(x.view), 1), (), (out.name, None)) for k, out in enumerate(outs)]
    net.builder.emit(mode[0])
    net.write(x, net.input("y", S0, S1))
    net.builder.emit(mode[1])
    program = net.program()
    assert merge_calls(program) == program
    together = replace(program, operations=tuple(mode))
    assert merge_calls(together).operations == (mode[0],)


@pytest.mark.parametrize("changed", [0, 1])
def test_calls_stay_apart_where_one_result_is_written_again(changed: int) -> None:
    def function(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        both = torch.linalg.inv(x), torch.linalg.inv(x)
        both[changed].index_add_(0, rows, torch.ones(2, x.shape[1]))
        return both[0] @ both[1]

    x, rows = torch.randn(6, 6) + 6 * torch.eye(6), torch.tensor([0, 3])
    program = optimized(function, x, rows)
    assert sum("inv" in str(o.target) for o in program.operations if isinstance(o, Extern)) == 2


# memory that dies --------------------------------------------------------------------------------------------------------


def mm_then(net: Net) -> Program:
    x = net.input("x", S0, S0)
    return optimize(net.program(net.reduce("sum", net.mm(softmax(net, net.mm(x, x)), x), 1))).program


def test_a_result_may_be_written_over_the_temporary_it_is_computed_from() -> None:
    program = mm_then(Net())
    scores, softened = (loop_of(program).reads(), loop_of(program).writes())
    assert reuse(program) == {softened.pop(): scores.pop()}


def test_inputs_outputs_and_other_shapes_keep_their_memory() -> None:
    net = Net()
    x = net.input("x", S0, S0)
    product = net.mm(x, x)
    program = optimize(net.program(net.op("exp", x), product, net.reduce("sum", softmax(net, product), 1))).program
    assert reuse(program) == {}


def test_a_wider_or_differently_laid_out_buffer_gets_no_memory() -> None:
    net = Net()
    x = net.input("x", S0, S1)
    columns = net.builder.realize(net.op("exp", x), (sizes.ONE, S0))
    program = net.program(columns)
    assert columns.view is not None and columns.view.buffer not in reuse(program)
