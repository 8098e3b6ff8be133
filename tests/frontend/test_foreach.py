"""`torch._foreach_*`: on a CPU the operator of each tensor, whose results are as eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from polytile.frontend.lower import foreach
from polytile.passes.pipeline import optimize
from tests.frontend.lowering import check

FOREACH = sorted(foreach.DECOMPOSITIONS)


def arguments(operator: Any, tensors: list[torch.Tensor]) -> list[Any]:
    """For the overload's parameters without a default, beyond the first: lists like `tensors`, numbers, or lists of numbers."""
    found: list[Any] = []
    for place, argument in enumerate(operator._schema.arguments[1:]):
        if argument.has_default_value() and place:
            break
        kind = str(argument.type)
        if kind == "List[Tensor]":
            found.append([(tensor * 0.5 + 0.2).clone() for tensor in tensors])
        elif kind.startswith("List"):
            found.append([0.25 + 0.5 * k for k in range(len(tensors))])
        else:
            found.append(1.5)
    return found


@pytest.mark.parametrize("name", FOREACH)
def test_each_operator_of_lists_is_that_of_each_tensor(name: str) -> None:
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload)
    tensors = [torch.rand(5, 7) * 0.8 + 0.1, torch.rand(11) * 0.8 + 0.1]
    given = arguments(operator, tensors)
    lists = [place for place, value in enumerate(given) if isinstance(value, list) and isinstance(value[0], torch.Tensor)]
    flat = [*tensors, *(tensor for place in lists for tensor in given[place])]

    def function(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        filled = list(given)
        for k, place in enumerate(lists):
            filled[place] = list(leaves[2 * k + 2 : 2 * k + 4])
        return tuple(operator(list(leaves[:2]), *filled))

    check(function, *flat)


def test_an_average_of_parameters_is_one_loop_for_each() -> None:
    def average(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> list[torch.Tensor]:
        return torch._foreach_add(torch._foreach_mul([a, b], 0.9), torch._foreach_sqrt(torch._foreach_abs([c, d])), alpha=0.1)

    program = check(average, torch.randn(5, 7), torch.randn(11), torch.randn(5, 7), torch.randn(11))
    assert len(optimize(program).program.operations) == 2
