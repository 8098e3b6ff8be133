"""What memory rounds by itself is not rounded before."""

from __future__ import annotations

import pytest
import torch

from polytile.ir import expr
from polytile.ir.program import Program
from polytile.passes.pipeline import optimize
from polytile.passes.roundings import drop_roundings
from tests.passes.helpers import F32, S0, S1, Net, assert_same


def roundings(program: Program) -> int:
    """Roundings of all loops."""
    nodes = {id(n): n for operation in program.operations for n in expr.walk(*getattr(operation, "roots", ()))}
    return sum(isinstance(n, expr.Op) and n.name.startswith("round_") for n in nodes.values())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_value_on_its_way_to_memory_is_rounded_by_the_store_alone(dtype: torch.dtype) -> None:
    net = Net()
    x = net.input("x", S0, S1, dtype=dtype)
    before = net.program(net.op("mul", net.op("add", x, 1.5), x))
    after = drop_roundings(before)
    assert (roundings(before), roundings(after)) == (2, 0)
    assert_same(before, after, {S0: 3, S1: 40})
    assert roundings(optimize(before).program) == 1, (
        "what was stored between the two is rounded where they are one loop"
    )


def test_what_goes_to_memory_of_another_type_stays_rounded() -> None:
    net = Net()
    x = net.input("x", S0, dtype=torch.bfloat16)
    rounded = lambda v: expr.op("round_bf16", F32, expr.op("mul", F32, v, v))  # noqa: E731, one node for both loops
    before = net.program(net.map(rounded, x, dtype=F32), net.map(rounded, x, dtype=torch.float16))
    assert roundings(before) == roundings(drop_roundings(before)) == 1


def test_a_value_that_is_added_to_memory_stays_rounded() -> None:
    net = Net()
    x, total = net.input("x", S0, dtype=torch.bfloat16), net.input("total", S0, dtype=torch.bfloat16)
    net.write(total, net.op("mul", x, x), mode="add")
    before = net.program(total)
    assert before.operations[-1] == drop_roundings(before).operations[-1]
